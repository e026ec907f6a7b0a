"""What is printed of how silos differ."""

from typing import Any

from flows.console.printing.literal_text import PlainConsole, text_table
from flows.console.printing.run_printing import LOOK_CLOSER

_NARROW = 72  # columns of a terminal, below which a table with sentences in it cannot be read


def diagnose(answer: dict[str, Any], console: PlainConsole) -> None:
    """Sentences first, then one table, and where to look; `since`: the version that each silo is held beside."""
    since = answer.get("since")
    for sentence in answer["sentences"]:
        console.print(sentence)
    rows = answer["overview"]["rows"]
    if rows:
        console.print()
        if console.width < _NARROW:
            _one_below_another(rows, console)
        else:
            _beside_each_other(rows, console)
        if answer["overview"]["more"]:
            console.print(f"{answer['overview']['more']}; --json has them all")
        if answer["overview"]["scale"]:
            console.print(answer["overview"]["scale"])
    if answer["notes"] or answer["next"]:
        console.print()
    for note in answer["notes"]:
        console.print(note)
    for step in answer["next"]:
        console.print(f"next: {step}")
    console.print()
    console.print(f"data version  {answer['data_version']}" + (f", since {since}" if since else ""))
    console.print(f"told          {answer['bytes']['up_of_a_client']:,} bytes of a silo at most, no row")
    console.print(f"files         {answer['folder']}")
    if answer["pictures"]:
        console.print(f"pictures      {', '.join(answer['pictures'])}")
    console.print(f"look closer   {LOOK_CLOSER}")


def _beside_each_other(rows: list[dict[str, Any]], console: PlainConsole) -> None:
    table = text_table("silos", "beside", "differ in", "strength", "most in")
    for row in rows:
        for at, (what, strength) in enumerate(row["differ"]):
            sides = (row["first"], row["second"]) if at == 0 else ("", "")
            table.add_row(*sides, what, strength, ", ".join(row["features"]) if at == 0 else "")
    table.columns[0].no_wrap = False
    console.print(table)


def _one_below_another(rows: list[dict[str, Any]], console: PlainConsole) -> None:
    """Where no table fits."""
    for row in rows:
        console.print(f"{row['first']} beside {row['second']}")
        for what, strength in row["differ"]:
            console.print(f"  {what}: {strength}" if strength != "-" else f"  {what}")
        if row["features"]:
            console.print(f"  most in {', '.join(row['features'])}")
