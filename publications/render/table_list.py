"""Every table and figure of a paper: how it is repeated, what of it is recorded, what came out, or why it is not here.

Nothing is run, and neither torch nor Prefect is imported. What is recorded is counted in docs/results/<paper>.json;
sentences are the page's own, and their figures are filled in from the records.

The list of all tables as lines for people; every command's printing has this, so it imports nothing.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from publications.curves import Record
from publications.published_tables import is_own, names, table_of, written
from publications.render.template_values import Quotes
from publications.results_file import Results
from publications.sweep import Sweep, runs
from silos.errors import UserError, shown


def lines(paper: dict[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Of the list for people: what to type or what it is called, its state at every scale, and the sentence."""
    for entry in paper["tables"]:
        states = ", ".join(f"{one['scale']} {one['state']}" for one in entry["scales"])
        said = entry["verdict"] or f"{entry['title']}. {entry['not_run'] or ''}".strip()
        yield option(entry["name"]), states, said
    for entry in paper["absent"]:
        yield entry["name"], "not here", entry["why"]


def option(table: str) -> str:
    """What names a table or figure on the command line."""
    kind, _, number = table.partition("-")
    return f"--figure {number}" if kind == "figure" and number else f"--table {table}"


class Told(Record):
    """What a page says beside its tables, each in a sentence.

    verdicts: what came out of a table, with figures as publications/render/template_values.py reads them. not_run: why
    a table has no record. absent: what the paper has and the page has not, `table 4` or `figures 5 to 10`, and why.
    not_at: why a scale is not run.
    """

    paper: str = ""
    verdicts: dict[str, str] = Field({})
    not_run: dict[str, str] = Field({})
    absent: dict[str, str] = Field({})
    not_at: dict[str, str] = Field({})


def listing(paper: str | None = None) -> dict[str, Any]:
    """Of one paper, or of all that there are pages of."""
    return {"papers": [_of_paper(one) for one in ([paper] if paper else names())]}


def told(paper: str) -> Told:
    """UserError for what is no sentence, or about no table."""
    page = written(paper)
    try:
        found = Told.model_validate({name: page[name] for name in Told.model_fields if name in page})
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{paper}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
    for section in ("verdicts", "not_run"):
        for table in getattr(found, section).keys() - {str(name) for name in page["tables"]}:
            raise UserError(f"{paper}: {section} speaks of {shown(repr(table))}, and there is no such table.")
    return found


def _of_paper(paper: str) -> dict[str, Any]:
    page, results = told(paper), None
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


def _of_table(paper: str, table: str, page: Told, results: Results | None) -> tuple[dict[str, Any], Results]:
    """One line of the list; and the results, parsed once for all lines."""
    as_written = written(paper)["tables"][table]
    scales_there = as_written.get("scales") if isinstance(as_written, dict) else None
    first = next(iter(scales_there), "cpu") if isinstance(scales_there, dict) else "cpu"
    sweeps = []
    for scale in table_of(paper, table, first).scales:  # which says what is wrong with a page that is no table
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
        "verdict": Quotes(best[1]).fill(verdict) if verdict else None,
        "not_run": page.not_run.get(table),
    }, results


def _runs(sweep: Sweep) -> dict[str, Any]:
    of, done = sum(map(sweep.count, sweep.page.cells)), sum(runs(sweep, cell) for cell in sweep.page.cells)
    state = "recorded" if done == of else f"{done} of {of} runs" if done else "not run"
    return {"scale": sweep.scale, "runs": done, "of": of, "seeds": len(sweep.seeds), "state": state}
