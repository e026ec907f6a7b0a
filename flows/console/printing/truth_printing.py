"""How a truth table is printed: what verdicts said of pairs whose shift is known, beside what was published of it."""

from typing import Any

from flows.console.printing.literal_text import PlainConsole, text_table


def truth_table(answer: dict[str, Any], console: PlainConsole) -> None:
    """Cell by cell and judge by judge, then distances where they are published, then cells together."""
    console.print(answer["title"])
    console.print(answer["source"])
    _cells(answer["rows"], console)
    console.print("right / pairs, and the 95 % interval of the share in percent; in brackets what is published")
    if any(row["distances"] for row in answer["rows"]):
        _distances(answer["rows"], console)
    for title, confusion in answer["confusions"].items():
        _confusion(title, confusion, console)
    console.print()
    console.print(f"known         {answer['known_errors']}")
    console.print(f"drawn         seeds {answer['seeds']}; scale {answer['scale']}")
    console.print(f"results       {answer['results']}")


def _cells(rows: list[dict[str, Any]], console: PlainConsole) -> None:
    table = text_table("cell", "judge", "right", "what was said")
    for row in rows:
        for judge, ours in row["ours"].items():
            published = row["published"].get(judge)
            right = f" ({published['right']}/{published['of']})" if published else ""
            said = f" ({_verdicts(published['said'])})" if published else ""
            first = judge == next(iter(row["ours"]))
            table.add_row(
                row["cell"] if first else "", judge, f"{_counted(ours)}{right}", f"{_verdicts(ours['said'])}{said}"
            )
    console.print(table)


def _distances(rows: list[dict[str, Any]], console: PlainConsole) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row["distances"]))
    table = text_table("printed rule", *names)
    for row in rows:
        sides = (row["distances"].get(name) for name in names)
        table.add_row(
            row["cell"], *(f"{_spread(side['ours'])} ({_spread(side['published'])})" if side else "" for side in sides)
        )
    console.print()
    console.print(table)
    console.print("mean ± standard deviation over pairs, of the largest over features; published in brackets")


def _confusion(title: str, found: dict[str, Any], console: PlainConsole) -> None:
    """What was said of each truth; then what follows from it, judge by judge; then of which pairs it was right."""
    console.print()
    console.print(title)
    table = text_table("truth", "judge", "right", "what was said")
    for truth, said in found["said"].items():
        for judge, counts in said.items():
            first = judge == next(iter(said))
            table.add_row(truth if first else "", judge, _counted(found["right"][judge][truth]), _verdicts(counts))
    console.print(table)
    for judge, accuracy in found["balanced_accuracy"].items():
        published = f" (published {found['published'][judge]:.3f})" if judge in found["published"] else ""
        alarms = found["false_alarms"].get(judge)
        of_none = f"; false alarms {_counted(alarms)}" if alarms else ""
        console.print(f"{judge}: balanced accuracy {_interval(accuracy)}{published}{of_none}")
    if found["ranked"]:
        every, first_one = found["ranked"]["all"], found["ranked"]["first"]
        console.print(
            f"guarded ranks every shifted feature before all others in {_counted(every)}, one of them first in "
            f"{_counted(first_one)}"
        )
    if found["by"]:
        judges = list(found["right"])
        table = text_table("right of pairs with", *judges)
        for about, shares in found["by"].items():
            table.add_row(about, *(_counted(shares[judge]) for judge in judges))
        console.print(table)


def _counted(share: dict[str, Any]) -> str:
    """`196/200 95.0–99.5`."""
    return f"{share['right']}/{share['of']} {100 * share['low']:.1f}–{100 * share['high']:.1f}" if share["of"] else "-"


def _interval(share: dict[str, Any]) -> str:
    """`0.976, 0.951–0.990`."""
    return f"{share['share']:.3f}, {share['low']:.3f}–{share['high']:.3f}"


def _verdicts(said: dict[str, int]) -> str:
    return ", ".join(f"{verdict} {count}" for verdict, count in said.items())


def _spread(pair: list[float | None]) -> str:
    mean, sd = pair
    return f"{mean:.3f}" + (f" ± {sd:.3f}" if sd is not None else "")
