"""What is printed of what earlier commands left: results, two of them beside each other, and what may go."""

from typing import Any

from flows.console.printing.literal_text import PlainConsole, text_table
from flows.console.printing.run_printing import spread
from models.metrics.task_metrics import QUANTITIES
from silos.io.free_memory import size

_MOST = 40  # of the newest
_PLACES = 3  # of a kind


def results(answer: dict[str, Any], console: PlainConsole) -> None:
    """Two lines each: the name with its time, state and number, and what it is."""
    if not answer["results"]:
        console.print("nothing has been run here; `siloflow compare` does.")
        return
    for one in answer["results"][:_MOST]:
        told = ", ".join(filter(None, (one["state"], one["headline"])))
        console.print(f"{one['name']}  {told}", style="bold" if one["state"] == "finished" else None)
        on = f"; data {one['data_version']}" if one["data_version"] else ""
        console.print(f"  {one['started'][:16].replace('T', ' ')} UTC  {one['what']}{on}")
    left = len(answer["results"]) - _MOST
    if left > 0:
        console.print(f"… and {left} more; --json has them all")
    console.print("`siloflow results NAME` prints one again, `siloflow results A B` two comparisons beside each other.")


def beside(answer: dict[str, Any], console: PlainConsole) -> None:
    """A row a method and side, then the differences, then what differs in params."""
    quantity = QUANTITIES[answer["task"]]
    table = text_table("method", "", *quantity.columns.values())
    for row in answer["table"]:
        for at, side in enumerate(("first", "second")):
            numbers = (spread(row[side], name, quantity) for name in quantity.columns)
            table.add_row(row["method"] if at == 0 else "", side, *numbers)
    console.print(f"first   {answer['first']}")
    console.print(f"second  {answer['second']}")
    console.print()
    if answer["table"]:
        console.print(table)
    else:
        console.print("they have no method in common")
    for side, methods in zip(("first", "second"), answer["only"], strict=True):
        if methods:
            console.print(f"only in the {side}: {', '.join(methods)}")
    for pair in answer["paired"]:
        if "sentence" in pair:
            seeds = ", ".join(map(str, pair["seeds"]))
            console.print(f"  {pair['method']}: {pair['sentence']} (seed{'s' * (len(pair['seeds']) > 1)} {seeds})")
        else:
            console.print(f"  {pair['method']}: not paired, since {pair['why_not'].rstrip('.')}")
    console.print()
    old, new = answer["data_versions"]
    console.print(f"data version  {old}" if old == new else f"data version  {old} → {new}")
    console.print(f"params        {'differ in' if answer['params'] else 'the same'}")
    of_all = {row["method"] for row in answer["table"]}
    for line in answer["params"]:
        whose = "" if of_all == {*line["methods"]} else f"  ({', '.join(line['methods'])})"
        console.print(f"  {line['difference']}{whose}")


def clean(answer: dict[str, Any], console: PlainConsole) -> None:
    """A kind and its size, what is lost without it, and some of its places."""
    if not answer["kinds"]:
        console.print("there is nothing to delete.")
        return
    for kind in answer["kinds"]:
        console.print(f"{kind['kind']}  {size(kind['bytes'])}  {'deleted' if kind['deleted'] else 'there'}")
        console.print(f"  lost without them: {kind['lost']}")
        for place in kind["places"][:_PLACES]:
            console.print(f"  {place}" + ("  stays: it is in use" if place in kind["kept"] else ""))
        if len(kind["places"]) > _PLACES:
            console.print(f"  … and {len(kind['places']) - _PLACES} more; --json has them all")
    if not any(kind["deleted"] for kind in answer["kinds"]):
        console.print(
            f"{size(sum(kind['bytes'] for kind in answer['kinds']))} in all; nothing was deleted, --yes does that."
        )
