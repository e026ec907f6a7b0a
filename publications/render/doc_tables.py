"""Tables in docs/ that are written from the records: a layout in a comment, and below it what this module has made of it.

    <!-- table: fed-focal 2
    columns:
      - [ours, "{*}"]
      - [published, "{*: published?}"]
    rows:
      - [FedAvg, fedavg]
      - ["VIRTUAL, κ 0.001", "**{virtual}**", "{virtual: published}"]
    -->
    | | ours | published |
    ...
    <!-- end -->

After the paper stands the table, and after that the scale where it is not cpu. A row names its title and a cell, which takes
the place of `*` in every column; or what stands in each column. `fedavg: published` in place of a cell asks that of it in
every column that asks nothing itself. A column's third entry, `highest` or `lowest`, makes one number bold. Figures are read
by publications/render/template_values.py. `<!-- list: PAPER -->` is the list of a paper's tables, which `siloflow
reproduce` prints. `<!-- table: bench` is likewise a table of what benchmarks measured, `{W2: ratio}`. What stands in a
fenced block is an example.

    python -m publications.render.doc_tables        writes them all; `make docs` does
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from benchmarks.bench_results import BenchQuotes, BenchRecords
from publications.curves import Record
from publications.render.table_list import lines, listing
from publications.render.template_values import Quotes
from publications.sweep import Sweep
from silos import strict_yaml
from silos.errors import UserError

_BLOCK = re.compile(
    r"(?P<comment><!-- (?P<kind>table|list): (?P<about>[^\n]*?)(?: -->\n|\n(?P<layout>.*?)-->\n))"
    r"(?P<text>.*?)(?=<!-- end -->)",
    re.DOTALL,
)


_NUMBER = re.compile(r"−?[\d,]*\.?\d+")

Best = Literal["highest", "lowest"]


class Layout(Record):
    """corner: over the titles of the rows. rows: title and cell, or title and texts.

    columns: title, what stands in it, and whether its highest or lowest number is to be bold.
    """

    corner: str = ""
    columns: tuple[tuple[str, str] | tuple[str, str, Best], ...] = Field(min_length=1)
    rows: tuple[tuple[str, ...], ...] = Field(min_length=1)


def pages(docs: Path) -> list[Path]:
    """Those that have such a table."""
    return [page for page in sorted(docs.rglob("*.md")) if any(map(_BLOCK.search, _prose(page)[::2]))]


def renewed(page: Path) -> str:
    """The page with every table as the records have it now; UserError naming the page and the table that cannot be made."""
    made: dict[str, Quotes | BenchQuotes] = {}

    def block(found: re.Match[str]) -> str:
        try:
            text = (
                _listed(found["about"])
                if found["kind"] == "list"
                else _table(found["about"], found["layout"] or "", made)
            )
        except UserError as error:
            raise UserError(f"{page.name}, <!-- {found['kind']}: {found['about']}: {error}") from None
        return f"{found['comment']}{text}"

    parts = _prose(page)
    return "".join(part if at % 2 else _BLOCK.sub(block, part) for at, part in enumerate(parts))


def _prose(page: Path) -> list[str]:
    """The page cut at its fenced blocks, every other part of which is one: what stands there is an example."""
    return re.split(r"(^```.*?^```$)", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def main(docs: Path) -> None:
    """Writes those that have changed, and names them."""
    for page in pages(docs):
        text = renewed(page)
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(f"written {page}")


def _table(about: str, written: str, made: dict[str, Quotes | BenchQuotes]) -> str:
    layout = _layout(written)
    if about not in made:
        made[about] = _quotes(about)
    rows = [[row[0], *(made[about].fill(text) for text in _texts(row, layout))] for row in layout.rows]
    for at, (_, _, *best) in enumerate(layout.columns, 1):
        if best:
            _mark(rows, at, max if best[0] == "highest" else min)
    rows.insert(0, [layout.corner, *(column[0] for column in layout.columns)])
    return "".join(_line(row) + ("|" + "---|" * len(row) + "\n" if row is rows[0] else "") for row in rows)


def _quotes(about: str) -> Quotes | BenchQuotes:
    """Of a paper's table, or of `bench`."""
    if about == "bench":
        return BenchQuotes(BenchRecords(Path().resolve()).all())
    paper, table, scale = [*about.split(), "cpu", "cpu"][:3]
    return Quotes(Sweep(paper, table, scale), short=True)


def _mark(rows: list[list[str]], at: int, best: Callable[[Iterable[float]], float]) -> None:
    """Makes a column's best number bold."""
    numbers = {
        i: float(found[0].replace("−", "-").replace(",", ""))
        for i, row in enumerate(rows)
        if (found := _NUMBER.search(row[at]))
    }
    for i, number in numbers.items():
        if number == best(numbers.values()):
            rows[i][at] = f"**{rows[i][at]}**"


def _layout(written: str) -> Layout:
    try:
        return Layout.model_validate(strict_yaml.load(written))
    except strict_yaml.NotYamlError as error:
        raise UserError(f"the layout is not valid YAML: {error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"the layout, {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None


def _texts(row: tuple[str, ...], layout: Layout) -> list[str]:
    """What stands in each column of a row."""
    title, *texts = row
    if len(texts) == 1 and "{" not in texts[0]:
        cell, _, what = texts[0].partition(": ")
        return [_asked(text, cell, what) for _, text, *_ in layout.columns]
    if len(texts) != len(layout.columns):
        raise UserError(f"the row {title!r} has {len(texts)} texts, and there are {len(layout.columns)} columns.")
    return texts


def _asked(text: str, cell: str, what: str) -> str:
    text = re.sub(r"\{[^{}]*\}", lambda figure: figure[0].replace("*", cell), text)
    return re.sub(r"\{([^{}:]+?)(\?)?\}", rf"{{\1: {what}\2}}", text) if what else text


def _listed(paper: str) -> str:
    (found,) = listing(paper)["papers"]
    rows = [["", "", ""], *([_code(name), state, said] for name, state, said in lines(found))]
    notes = [f"Scale {scale}: {why}\n" for scale, why in found["not_at"].items()]
    heads = [f"`siloflow reproduce {paper}`: {found['title']}.\n", *notes, ""]
    return "\n".join(heads) + "".join(_line(row) + ("|---|---|---|\n" if row is rows[0] else "") for row in rows)


def _code(name: str) -> str:
    """What can be typed, as code."""
    return f"`{name}`" if name.startswith("--") else name


def _line(cells: list[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in escaped) + "\n"


if __name__ == "__main__":
    main(Path("docs"))
