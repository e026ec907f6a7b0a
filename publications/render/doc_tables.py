"""Write the tables of docs/ from records.

A comment in a page holds a Jinja2 template, and its text follows the comment:

    <!-- table: fed-focal 2
    {% filter bold(highest=['ours']) %}
    | | ours | published |
    |---|---|---|
    {% for title, cell in [('FedAvg', 'fedavg'), ('VIRTUAL, κ 0.001', 'virtual')] %}
    | {{ title }} | {{ figure(cell) }} | {{ published(cell) | default }} |
    {% endfor %}
    {% endfilter %}
    -->
    | | ours | published |
    ...
    <!-- end -->

The comment names the paper, the table, and the scale if it is not cpu; publications/render/template_values.py has the
functions and filters. `<!-- table: bench` is a table of benchmarks: `bench` has the records of docs/results/bench.json by
name, and `MiB` is 2**20. `<!-- list: PAPER -->` is the list of a paper's tables, which `siloflow reproduce` prints. Blank
lines of a table are left out. A comment in a fenced block is an example. Below a table that shows records of older code is a
mark.

    python -m publications.render.doc_tables        writes all tables; `make docs` calls it
"""

import re
from pathlib import Path
from typing import Any

from benchmarks.bench_results import BenchRecords
from publications.render.table_list import listing
from publications.render.template_values import Figures, render
from publications.sweep import Sweep
from silos.errors import UserError

_BLOCK = re.compile(
    r"(?P<comment><!-- (?P<kind>table|list): (?P<about>[^\n]*?)(?: -->\n|\n(?P<template>.*?)-->\n))"
    r"(?P<text>.*?)(?=<!-- end -->)",
    re.DOTALL,
)


_MARK = "\nOlder code: `siloflow reproduce --stale`.\n"


def unmarked(text: str) -> str:
    """Return a page without marks of older code, which change with the code and not with the records."""
    return text.replace(_MARK, "")


def pages(docs: Path) -> list[Path]:
    """Return the pages that have such a table."""
    return [page for page in sorted(docs.rglob("*.md")) if any(map(_BLOCK.search, _prose(page)[::2]))]


def renewed(page: Path) -> str:
    """Return a page with all its tables written from the records; UserError with the page and the table that fails."""
    figures: dict[str, Figures] = {}

    def block(found: re.Match[str]) -> str:
        about = found["about"]
        try:
            if found["kind"] == "list":
                return f"{found['comment']}{_list(about)}"
            template = found["template"] or ""
            if about == "bench":
                names = {"bench": BenchRecords(Path().resolve()).all(), "MiB": 2**20}
                return f"{found['comment']}{_table(template, names)}"
            if about not in figures:
                figures[about] = _figures(about)
            table = _table(template, figures[about].functions())
            return f"{found['comment']}{table}{_MARK if figures[about].take_stale() else ''}"
        except UserError as error:
            raise UserError(f"{page.name}, <!-- {found['kind']}: {about}: {error}") from None

    return "".join(part if at % 2 else _BLOCK.sub(block, part) for at, part in enumerate(_prose(page)))


def _prose(page: Path) -> list[str]:
    """Split a page at its fenced blocks: every other part is one."""
    return re.split(r"(^```.*?^```$)", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def main(docs: Path) -> None:
    """Write the pages that have changed, and print their names."""
    for page in pages(docs):
        text = renewed(page)
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(f"written {page}")


def _figures(about: str) -> Figures:
    """Return the figures of the table of a paper that a comment names."""
    paper, table, scale = [*about.split(), "cpu", "cpu"][:3]
    return Figures(Sweep(paper, table, scale), short=True)


def _table(template: str, names: dict[str, Any]) -> str:
    rows = [re.sub(r"\|\s+(?=\|)", "| ", line.strip()) for line in render(template, **names).splitlines()]
    return "".join(f"{row}\n" for row in rows if row)


def _list(paper: str) -> str:
    """List a paper's tables: the option's value, and the outcome or the reason for a missing record."""
    (found,) = listing(paper)["papers"]
    rows = [f"`{entry['name']}` | {_outcome(entry)}" for entry in found["tables"]]
    absent = " ".join(f"{entry['name'].capitalize()}: {entry['why']}" for entry in found["absent"])
    table = ["`--table` | outcome", "---|---", *rows]
    mark = _MARK if any(entry["stale"] for entry in found["tables"]) else ""
    return "\n".join([f"{found['title']}.\n", *table, f"{mark}\nNot repeated. {absent}\n"])


def _outcome(entry: dict[str, Any]) -> str:
    """Return the outcome of a table; the state of its runs precedes it if no scale is complete."""
    states = [scale["state"] for scale in entry["scales"]]
    if "recorded" in states:
        return str(entry["verdict"])
    state = max(states, key=lambda one: one != "not run")
    return f"{state.capitalize()}: {entry['verdict'] or entry['not_run'] or entry['title']}"


if __name__ == "__main__":
    main(Path("docs"))
