"""How the list of all published tables is printed: by paper, what to type, what is recorded, and what came out."""

from textwrap import wrap
from typing import Any

from flows.console.printing.literal_text import PlainConsole
from flows.papers.writing.list_lines import lines


def listing(answer: dict[str, Any], console: PlainConsole) -> None:
    """A block a paper; of every table a line with its state, and below it what came out or why it is not here."""
    found = [(paper, list(lines(paper))) for paper in answer["papers"]]
    width = max((len(name) for _, rows in found for name, _, _ in rows), default=0)
    for at, (paper, rows) in enumerate(found):
        if at:
            console.print()
        console.print(console.render_str(paper["title"] or paper["paper"], style="bold"))
        more = f"; more in {paper['page']}" if paper["page"] else ""
        console.print(f"siloflow reproduce {paper['paper']} --table NAME or --figure N{more}")
        for scale, why in paper["not_at"].items():
            console.print(f"scale {scale}: {why}")
        for name, state, sentence in rows:
            console.print(f"  {name:<{width}}  {state}")
            for line in wrap(console.render_str(sentence).plain, max(console.width - 4, 20), break_on_hyphens=False):
                console.print(f"    {line}")
