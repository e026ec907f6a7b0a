"""Writes a comparison's numbers to fixed files, which `dvc metrics` and `dvc plots` compare between revisions."""

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.experiment.project import Project
from flows.experiment.run.run_folder import RunFolder
from silos.io.atomic_io import write_bytes
from tasks.tracking.json_io import write_json


def write_summary(project: Project, comparison: Mapping[str, Any], folder: Path) -> None:
    """Write `metrics.json`, the table and the paired differences, and `curves.csv`, the headline metric by round.

    Args:
        project: The project.
        comparison: The result of the comparison.
        folder: Where to write; it is created.
    """
    quantity = project.quantity
    folder.mkdir(parents=True, exist_ok=True)
    table = {row["method"]: {name: row.get(name) for name in quantity.columns} for row in comparison["table"]}
    paired = {
        pair["method"]: {"difference": pair["difference"], **{key: pair["corrected"][key] for key in ("low", "high")}}
        for pair in comparison["paired"]
    }
    write_json(folder / "metrics.json", {"methods": table, "paired": paired})
    write_bytes(folder / "curves.csv", _curves(project, comparison).encode())


def _curves(project: Project, comparison: Mapping[str, Any]) -> str:
    """Return a row for each round with the mean over seeds of each method; empty where a method was not scored."""
    values: dict[str, dict[int, list[float]]] = {}
    for run in comparison["runs"]:
        by_round = values.setdefault(run["method"], {})
        folder = RunFolder(project.root / run["folder"])
        for round, value in folder.curve(project.quantity.headline, run["rounds"]):
            by_round.setdefault(round, []).append(value)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["round", *values])
    for round in sorted({round for by_round in values.values() for round in by_round}):
        cells = [by_round.get(round, []) for by_round in values.values()]
        writer.writerow([round, *(f"{math.fsum(cell) / len(cell):.6g}" if cell else "" for cell in cells)])
    return text.getvalue()
