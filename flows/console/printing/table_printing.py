"""What is printed of published tables beside ours."""

from typing import Any

from flows.console.printing.durations import duration
from flows.console.printing.literal_text import PlainConsole, text_table
from flows.console.printing.truth_printing import truth_table

_ABREAST = 5  # columns of other metrics that fit beside each other


def reproduce(answer: dict[str, Any], console: PlainConsole) -> None:
    """Published beside ours."""
    if "confusions" in answer:
        truth_table(answer, console)
        return
    console.print(answer["title"])
    console.print(answer["source"])
    rows = answer["rows"]
    also = [name for name in ("floor", "fresh", "unseen") if any(row[name] is not None for row in rows)]
    table = text_table("cell", "published", "ours", *also, "each seed", "s a run", "what it is")
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
        _chosen(rows, console)
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


def _chosen(rows: list[dict[str, Any]], console: PlainConsole) -> None:
    """What each cell was tuned to; a choice at the edge of what was tried might be better still beyond it."""
    table = text_table("cell", "chosen", "settings tried", "at the edge of these")
    for row in rows:
        if row["choice"]:
            chosen = ", ".join(setting.rpartition(".optimiser.")[2] for setting in row["choice"].split("; "))
            edge = ", ".join(key.rpartition(".")[2] for key in row["at_edge"])
            table.add_row(row["cell"], chosen, f"{row['tried']}", edge)
    console.print()
    console.print("each cell's settings, chosen on the first seed")
    console.print(table)


def _by_class(classes: dict[str, dict[str, dict[str, float | None]]], console: PlainConsole) -> None:
    """A row a class, published / ours in each cell's column."""
    table = text_table("class", *next(iter(classes.values())))
    for name, cells in classes.items():
        table.add_row(name, *(f"{_three(c['published'])} / {_three(c['ours'])}" for c in cells.values()))
    console.print()
    console.print("published / ours, share of the class's test rows that are right")
    console.print(table)


def _also(metrics: dict[str, dict[str, dict[str, float | None]]], console: PlainConsole) -> None:
    """A row a cell, a column a metric, as many as fit: ours ± spread over seeds, and what is published in brackets."""
    console.print()
    console.print("of the same runs: ours ± standard deviation (published)")
    titles = list(metrics)
    for at in range(0, len(titles), _ABREAST):
        table = text_table("cell", *titles[at : at + _ABREAST])
        for cell in metrics[titles[at]]:
            sides = [metrics[title][cell] for title in titles[at : at + _ABREAST]]
            spread = [f" ± {side['sd']:.1g}" if side["sd"] else "" for side in sides]
            published = [f" ({_three(side['published'])})" if side["published"] is not None else "" for side in sides]
            ours = [_three(side["ours"]) for side in sides]
            table.add_row(cell, *("".join(parts) for parts in zip(ours, spread, published, strict=True)))
        console.print(table)


def _ensembles(ensembles: dict[str, dict[str, float] | None], console: PlainConsole) -> None:
    """A row a cell, a column a number of its runs together."""
    names = next((list(numbers) for numbers in ensembles.values() if numbers), [])
    table = text_table("cell", *(name.replace("_", " ") for name in names))
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
    """Minutes by cell."""
    for cell, seconds in answer["seconds"].items():
        console.print(f"{cell:<20} about {duration(seconds)}")
    console.print(f"in all               about {duration(sum(answer['seconds'].values()))} on this machine")
