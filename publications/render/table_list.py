"""List the tables and figures of papers: the command, what is recorded, the verdict or why there is none, and stale records.

Nothing is run, and neither torch nor Prefect is imported. Runs are counted in docs/results/<paper>.json. Verdicts are
templates of the page, which publications/render/template_values.py fills from the records.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from publications.code_version import changed_since
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


def stale_records(paper: str | None = None) -> dict[str, Any]:
    """Compare the code of recorded runs with today's, over the tables of one paper or of all.

    A table or cell that shows another's runs is left out. Without a record that names its code, nothing of the code is read.
    """
    tables = [found for one in ([paper] if paper else names()) for found in _code_of_tables(one)]
    sums = {name: sum(found[name] for found in tables) for name in ("today", "unknown")}
    return {**sums, "stale": sum(cell["records"] for found in tables for cell in found["cells"]), "tables": tables}


def _code_of_tables(paper: str) -> Iterator[dict[str, Any]]:
    """Yield for every table and scale with records the counts by code, and the cells with records of other code."""
    results: Results | None = None
    for table in map(str, written(paper)["tables"]):
        for sweep in _sweeps(paper, table, results):
            results = sweep.results
            own = [cell for cell, page_cell in sweep.page.cells.items() if page_cell.shared is None]
            records = {cell: sweep.all_records(cell) for cell in own}
            count = sum(map(len, records.values()))
            if not count or sweep.page.runs_of is not None:
                continue
            cells = [_stale_cell(sweep, cell, stale) for cell in records if (stale := sweep.stale(cell))]
            unknown = sum("code" not in record for of_cell in records.values() for record in of_cell)
            yield {
                "command": f"siloflow reproduce {paper} {option(table)} --scale {sweep.scale}",
                "records": count,
                "unknown": unknown,
                "today": count - unknown - sum(cell["records"] for cell in cells),
                "cells": cells,
            }


def _stale_cell(sweep: Sweep, cell: str, stale: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe a cell with records of other code: their commits, and the modules that differ from the first of these."""
    commits = list(dict.fromkeys(record["commit"] for record in stale))
    return {
        "cell": cell,
        "records": len(stale),
        "commits": commits,
        "changed": changed_since(commits[0], sweep.modules(cell)),
    }


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
    sweeps = _sweeps(paper, table, results)
    results = sweeps[0].results
    scales = [_runs(sweep) for sweep in sweeps]
    best = max(zip(scales, sweeps, strict=True), key=lambda pair: pair[0]["runs"] / pair[0]["of"])
    verdict = page.verdicts.get(table) if best[0]["runs"] else None
    figures = Figures(best[1])
    return {
        "name": table,
        "command": f"siloflow reproduce {paper} {option(table)}",
        "title": sweeps[0].page.title,
        "scales": scales,
        "verdict": render(verdict, **figures.functions()) if verdict else None,
        "stale": bool(figures.take_stale()),
        "not_run": page.not_run.get(table),
    }, results


def _sweeps(paper: str, table: str, results: Results | None) -> list[Sweep]:
    """Return the sweep of every scale of a table, with these results if they are parsed already."""
    as_written = written(paper)["tables"][table]
    scales_there = as_written.get("scales") if isinstance(as_written, dict) else None
    first = next(iter(scales_there), "cpu") if isinstance(scales_there, dict) else "cpu"
    sweeps = []
    for scale in table_of(paper, table, first).scales:  # raises UserError for a page that is no table
        sweep = Sweep(paper, table, scale)
        results = sweep.results = results or sweep.results
        sweeps.append(sweep)
    return sweeps


def _runs(sweep: Sweep) -> dict[str, Any]:
    of, done = sum(map(sweep.count, sweep.page.cells)), sum(runs(sweep, cell) for cell in sweep.page.cells)
    state = "recorded" if done == of else f"{done} of {of} runs" if done else "not run"
    return {"scale": sweep.scale, "runs": done, "of": of, "seeds": len(sweep.seeds), "state": state}
