"""List the tables and figures of papers: the command, what is recorded, the verdict, or why there is none.

Nothing is run, and neither torch nor Prefect is imported. Runs are counted in docs/results/<paper>.json. Verdicts are
templates of the page, which publications/render/template_values.py fills from the records.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from publications.curves import Record
from publications.published_tables import is_own, names, table_of, written
from publications.render.template_values import Figures, render
from publications.results_file import Results
from publications.sweep import Sweep, runs
from silos.errors import UserError, shown


def lines(paper: dict[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Yield for every table the option or the name, its state at every scale, and a sentence."""
    for entry in paper["tables"]:
        states = ", ".join(f"{one['scale']} {one['state']}" for one in entry["scales"])
        sentence = entry["verdict"] or f"{entry['title']}. {entry['not_run'] or ''}".strip()
        yield option(entry["name"]), states, sentence
    for entry in paper["absent"]:
        yield entry["name"], "not here", entry["why"]


def option(table: str) -> str:
    """Return the option that names a table or figure on the command line."""
    kind, _, number = table.partition("-")
    return f"--figure {number}" if kind == "figure" and number else f"--table {table}"


class Sentences(Record):
    """The sentences of a page.

    Attributes:
        paper: The title of the paper.
        verdicts: The outcome by table, as a template of publications/render/template_values.py.
        not_run: Why a table has no record, by table.
        absent: Why the page lacks a part of the paper, by part, such as `table 4` or `figures 5 to 10`.
        not_at: Why a scale is not run, by scale.
    """

    paper: str = ""
    verdicts: dict[str, str] = Field({})
    not_run: dict[str, str] = Field({})
    absent: dict[str, str] = Field({})
    not_at: dict[str, str] = Field({})


def listing(paper: str | None = None) -> dict[str, Any]:
    """List the tables of one paper, or of all papers."""
    return {"papers": [_of_paper(one) for one in ([paper] if paper else names())]}


def read_sentences(paper: str) -> Sentences:
    """Return the sentences of a page; UserError for a sentence about a table that the page lacks."""
    page = written(paper)
    try:
        found = Sentences.model_validate({name: page[name] for name in Sentences.model_fields if name in page})
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{paper}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
    for section in ("verdicts", "not_run"):
        for table in getattr(found, section).keys() - {str(name) for name in page["tables"]}:
            raise UserError(f"{paper}: {section} speaks of {shown(repr(table))}, and there is no such table.")
    return found


def _of_paper(paper: str) -> dict[str, Any]:
    page, results = read_sentences(paper), None
    tables = []
    for table in map(str, written(paper)["tables"]):
        entry, results = _of_table(paper, table, page, results)
        tables.append(entry)
    where = Path("docs") / f"results-{Path(paper).stem}.md"
    return {
        "paper": paper,
        "title": " ".join(page.paper.split()),
        "page": str(where) if where.is_file() and not is_own(paper) else None,
        "tables": tables,
        "absent": [{"name": name, "why": why} for name, why in page.absent.items()],
        "not_at": page.not_at,
    }


def _of_table(paper: str, table: str, page: Sentences, results: Results | None) -> tuple[dict[str, Any], Results]:
    """Return the entry of a table, and the results, which are parsed once for all tables."""
    as_written = written(paper)["tables"][table]
    scales_there = as_written.get("scales") if isinstance(as_written, dict) else None
    first = next(iter(scales_there), "cpu") if isinstance(scales_there, dict) else "cpu"
    sweeps = []
    for scale in table_of(paper, table, first).scales:  # raises UserError for a page that is no table
        sweep = Sweep(paper, table, scale)
        results = sweep.results = results or sweep.results
        sweeps.append(sweep)
    scales = [_runs(sweep) for sweep in sweeps]
    best = max(zip(scales, sweeps, strict=True), key=lambda pair: pair[0]["runs"] / pair[0]["of"])
    verdict = page.verdicts.get(table) if best[0]["runs"] else None
    assert results is not None
    return {
        "name": table,
        "command": f"siloflow reproduce {paper} {option(table)}",
        "title": sweeps[0].page.title,
        "scales": scales,
        "verdict": render(verdict, **Figures(best[1]).functions()) if verdict else None,
        "not_run": page.not_run.get(table),
    }, results


def _runs(sweep: Sweep) -> dict[str, Any]:
    of, done = sum(map(sweep.count, sweep.page.cells)), sum(runs(sweep, cell) for cell in sweep.page.cells)
    state = "recorded" if done == of else f"{done} of {of} runs" if done else "not run"
    return {"scale": sweep.scale, "runs": done, "of": of, "seeds": len(sweep.seeds), "state": state}
