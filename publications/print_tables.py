"""Print published tables with our results, truth tables of verdicts, and the list of all published tables."""

from textwrap import wrap
from typing import Any

from flows.core.console.safe_text import PlainConsole, duration
from publications.render.table_list import lines
from silos.errors import some


def truth_table(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print verdicts by cell and judge, then distances if they are published, then confusions."""
    console.print(answer["title"])
    console.print(answer["source"])
    if "by_size" in answer:
        for found in answer["by_size"]:
            _clinical(found, console)
        _drawn(answer, console)
        return
    _cells(answer["rows"], console)
    console.print("right / pairs, and the 95 % interval of the share in percent; in brackets what is published")
    if any(row["distances"] for row in answer["rows"]):
        _distances(answer["rows"], console)
    for title, confusion in answer["confusions"].items():
        _confusion(title, confusion, console)
    _drawn(answer, console)


def _drawn(answer: dict[str, Any], console: PlainConsole) -> None:
    console.print()
    console.print(f"known         {answer['known_errors']}")
    console.print(f"drawn         seeds {answer['seeds']}; scale {answer['scale']}")
    console.print(f"results       {answer['results']}")


def _clinical(found: dict[str, Any], console: PlainConsole) -> None:
    """Print what was named of each kind of pair of hospitals, and the rates of each judge."""
    shown = [judge for judge in found["judges"] if judge in ("guarded", "second look")]
    table = console.table("kind", "truth", "and, if need be", *(f"{judge}: right" for judge in shown), "what was named")
    for row in found["kinds"]:
        judged = [row["judges"][judge] for judge in shown]
        counts = (f"{of['exact']}+{of['right'] - of['exact']}/{of['of']}" for of in judged)
        hidden = row["unseen_allowed"] or row["seen_from"] > found["rows"]
        kind = f"{row['kind']} *" if hidden else row["kind"]
        table.add_row(kind, row["truth"], row["also"], *counts, _verdicts(judged[-1]["said"]))
    console.print()
    console.print(f"{found['rows']:,} rows")
    console.print(table)
    console.print("right: the true types alone + these with types that follow from them; * not visible at this size")
    for judge in shown:
        rates = found["judges"][judge]
        console.print(
            f"{judge}: balanced accuracy over {', '.join(rates['visible_truths'])} "
            f"{_interval(rates['balanced_accuracy_of_visible'])}, with types that follow "
            f"{_interval(rates['balanced_accuracy_with_also'])}, with kinds that are not visible "
            f"{_interval(rates['balanced_accuracy'])}"
        )
        console.print(
            f"{judge}: false alarms {_counted(rates['false_alarms'])}; wrong, and the true type missed, "
            f"{_counted(rates['confidently_wrong_of_visible'])}, with kinds that are not visible "
            f"{_counted(rates['confidently_wrong'])}"
        )
    console.print(f"federations of alike hospitals with an alarm {_counted(found['federations'])}")


def _cells(rows: list[dict[str, Any]], console: PlainConsole) -> None:
    table = console.table("cell", "judge", "right", "verdicts")
    for row in rows:
        for judge, ours in row["ours"].items():
            published = row["published"].get(judge)
            right = f" ({published['right']}/{published['of']})" if published else ""
            verdicts = f" ({_verdicts(published['said'])})" if published else ""
            first = judge == next(iter(row["ours"]))
            table.add_row(
                row["cell"] if first else "", judge, f"{_counted(ours)}{right}", f"{_verdicts(ours['said'])}{verdicts}"
            )
    console.print(table)


def _distances(rows: list[dict[str, Any]], console: PlainConsole) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row["distances"]))
    table = console.table("printed rule", *names)
    for row in rows:
        sides = (row["distances"].get(name) for name in names)
        table.add_row(
            row["cell"], *(f"{_spread(side['ours'])} ({_spread(side['published'])})" if side else "" for side in sides)
        )
    console.print()
    console.print(table)
    console.print("mean ± standard deviation over pairs, of the largest over features; published in brackets")


def _confusion(title: str, found: dict[str, Any], console: PlainConsole) -> None:
    """Print the verdicts on each truth, the rates of each judge, and the kinds of pairs that judges judge correctly."""
    console.print()
    console.print(title)
    table = console.table("truth", "judge", "right", "verdicts")
    for truth, verdicts in found["said"].items():
        for judge, counts in verdicts.items():
            first = judge == next(iter(verdicts))
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
        table = console.table("right of pairs with", *judges)
        for about, shares in found["by"].items():
            table.add_row(about, *(_counted(shares[judge]) for judge in judges))
        console.print(table)


def _counted(share: dict[str, Any]) -> str:
    """Format a share as `196/200 95.0–99.5`."""
    return f"{share['right']}/{share['of']} {100 * share['low']:.1f}–{100 * share['high']:.1f}" if share["of"] else "-"


def _interval(share: dict[str, Any]) -> str:
    """Format a share as `0.976, 0.951–0.990`."""
    return f"{share['share']:.3f}, {share['low']:.3f}–{share['high']:.3f}"


def _verdicts(verdicts: dict[str, int]) -> str:
    return ", ".join(f"{verdict} {count}" for verdict, count in verdicts.items())


def _spread(pair: list[float | None]) -> str:
    mean, sd = pair
    return f"{mean:.3f}" + (f" ± {sd:.3f}" if sd is not None else "")


_ABREAST = 5  # columns of other metrics that fit in one table


def reproduce(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print a published table with our results."""
    if "confusions" in answer:
        truth_table(answer, console)
        return
    console.print(answer["title"])
    console.print(answer["source"])
    rows = answer["rows"]
    also = [name for name in ("floor", "fresh", "unseen") if any(row[name] is not None for row in rows)]
    table = console.table("cell", "published", "ours", *also, "each seed", "s a run", "what it is")
    for row in rows:
        ours = _four(row["ours"]) + (f" ± {row['sd']:.2g}" if row["sd"] else "")
        each = " ".join(map(_four, row["values"])) + (f"; {row['missed']} missed" if row["missed"] else "")
        others = (_four(row[name]) for name in also)
        table.add_row(row["cell"], _four(row["published"]), ours, *others, each, f"{row['seconds']:.0f}", row["about"])
    console.print(table)
    most, fewest = (choose((row["seeds"] for row in rows), key=len) for choose in (max, min))
    seeds = f"{'draws of the data' if answer['seeds_are'] == 'data' else 'seeds'} {most}"
    seeds += f", or {fewest} alone" if len(fewest) < len(most) else ""
    console.print(f"in {answer['unit']}; mean ± standard deviation over {seeds}; scale {answer['scale']}")
    if any(row["choice"] for row in rows):
        _chosen(rows, answer["tune_seed"], console)
    if answer["by_class"]:
        _by_class(answer["by_class"], console)
    if answer["also"]:
        _also(answer["also"], console)
    if answer["ensembles"]:
        _ensembles(answer["ensembles"], console)
    if answer["paired"]:
        console.print()
        console.print("95 % intervals of paired differences:")
    for pair in answer["paired"]:
        alone = "; one seed: over rows alone" if len(pair.get("seeds", most)) == 1 else ""
        console.print(f"  {pair['sentence']}{alone}")
    console.print()
    console.print(f"known         {answer['known_errors']}")
    console.print(f"results       {answer['results']}")
    for figure in answer["figures"]:
        console.print(f"figure        {figure}")
    console.print(f"experiment    {answer['experiment']}")


def _chosen(rows: list[dict[str, Any]], seed: int, console: PlainConsole) -> None:
    """Print what each cell was tuned to, and whether the choice is at the edge of the settings tried."""
    private = any(row.get("with_tuning") for row in rows)
    spent = ["epsilon with tuning"] if private else []
    table = console.table("cell", "chosen", "settings tried", *spent, "at the edge of these")
    for row in rows:
        if row["choice"]:
            chosen = ", ".join(setting.rpartition(".optimiser.")[2] for setting in row["choice"].split("; "))
            edge = ", ".join(key.rpartition(".")[2] for key in row["at_edge"])
            total = [f"{row['with_tuning']:.3g}" if row.get("with_tuning") else "-"] if private else []
            table.add_row(row["cell"], chosen, f"{row['tried']}", *total, edge)
    console.print()
    console.print(f"each cell's settings, chosen on seed {seed}")
    console.print(table)


def _by_class(classes: dict[str, dict[str, dict[str, float | None]]], console: PlainConsole) -> None:
    """Print a row a class, with published / ours in each cell's column."""
    table = console.table("class", *next(iter(classes.values())))
    for name, cells in classes.items():
        table.add_row(name, *(f"{_three(c['published'])} / {_three(c['ours'])}" for c in cells.values()))
    console.print()
    console.print("published / ours, share of the class's test rows that are right")
    console.print(table)


def _also(metrics: dict[str, dict[str, dict[str, float | None]]], console: PlainConsole) -> None:
    """Print a row a cell and a column a metric: ours ± standard deviation over seeds (published)."""
    console.print()
    console.print("of the same runs: ours ± standard deviation (published)")
    titles = list(metrics)
    for at in range(0, len(titles), _ABREAST):
        table = console.table("cell", *titles[at : at + _ABREAST])
        for cell in metrics[titles[at]]:
            sides = [metrics[title][cell] for title in titles[at : at + _ABREAST]]
            spread = [f" ± {side['sd']:.1g}" if side["sd"] else "" for side in sides]
            published = [f" ({_three(side['published'])})" if side["published"] is not None else "" for side in sides]
            ours = [_three(side["ours"]) for side in sides]
            table.add_row(cell, *("".join(parts) for parts in zip(ours, spread, published, strict=True)))
        console.print(table)


def _ensembles(ensembles: dict[str, dict[str, float] | None], console: PlainConsole) -> None:
    """Print a row a cell and a column a metric of its runs as one deep ensemble."""
    names = next((list(numbers) for numbers in ensembles.values() if numbers), [])
    table = console.table("cell", *(name.replace("_", " ") for name in names))
    for cell, numbers in ensembles.items():
        table.add_row(cell, *(_three((numbers or {}).get(name)) for name in names))
    console.print()
    console.print("all seeds of a cell as one deep ensemble")
    console.print(table)


def _four(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _three(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def estimate(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print the estimated time by cell."""
    for cell, seconds in answer["seconds"].items():
        console.print(f"{cell:<20} about {duration(seconds)}")
    console.print(f"in all               about {duration(sum(answer['seconds'].values()))} on this machine")


def again(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print each run that was run again with the recorded number and the new one, and how many came out the same."""
    table = console.table("cell", "seed", "weights", "numbers", "recorded", "again")
    for found in answer["runs"]:
        name = found["cell"] if found["choice"] is None else f"{found['cell']}, {found['choice']}"
        verdicts = ("same" if found[what] else "differ" for what in ("weights", "numbers"))
        table.add_row(name, f"{found['seed']}", *verdicts, *map(_four, (found["recorded"], found["now"])))
    console.print(table)
    for found in answer["runs"]:
        if found["error"] is not None:
            console.print(f"{found['cell']}, seed {found['seed']}: {found['error']}")
    signed = "; their records now name today's code" if answer["same"] else ""
    console.print(
        f"{answer['same']} of {len(answer['runs'])} runs came out as recorded, of {answer['records']:,} records{signed}"
    )


def stale(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print the cells with records of other code, and by table how many records name no code."""
    for found in answer["tables"]:
        for cell in found["cells"]:
            changed = "a commit that is not here" if cell["changed"] is None else some(cell["changed"], 3) or "no file"
            console.print(f"{found['command']}  {cell['cell']}: {cell['records']} of other code")
            console.print(f"  commit {some(cell['commits'], 3)}; changed since: {changed}")
    table = console.table("table", "records", "of other code", "of an unknown version")
    for found in answer["tables"]:
        counts = (found["records"], sum(cell["records"] for cell in found["cells"]), found["unknown"])
        table.add_row(found["command"].removeprefix("siloflow reproduce "), *(f"{count:,}" for count in counts))
    console.print(table)
    console.print(
        f"records: {answer['stale']:,} of other code, {answer['unknown']:,} of an unknown version, {answer['today']:,} of "
        "today's code"
    )


def listing(answer: dict[str, Any], console: PlainConsole) -> None:
    """Print a block a paper: each table with its state, and the verdict or the reason that there is none."""
    found = [(paper, list(lines(paper))) for paper in answer["papers"]]
    width = max((len(name) for _, rows in found for name, _, _ in rows), default=0)
    for at, (paper, rows) in enumerate(found):
        if at:
            console.print()
        console.print(console.render_str(paper["title"] or paper["paper"], style="bold"))
        more = f"; more in {paper['page']}" if paper["page"] else ""
        console.print(f"`siloflow reproduce {paper['paper']} --table NAME` or `--figure N`{more}")
        for scale, why in paper["not_at"].items():
            console.print(f"scale {scale}: {why}")
        for name, state, sentence in rows:
            console.print(f"  {name:<{width}}  {state}")
            for line in wrap(console.render_str(sentence).plain, max(console.width - 4, 20), break_on_hyphens=False):
                console.print(f"    {line}")
