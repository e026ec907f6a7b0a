"""The report of a diagnosis: what differs, the limits of that, what to do, and every silo."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.diagnosis.text.findings_page import rows_of_silos
from flows.experiment.comparison.cost_text import bytes_text
from flows.experiment.project import Project
from flows.reports.html_report import (
    FILE,
    Section,
    Table,
    figure_of,
    origin_section,
    repeated,
    write_report,
)

_FIGURES = {
    "pairs.png": "How much each pair of silos differs",
    "features.png": "Features by how much silos differ in them",
    "closely.png": "The pairs of silos that differ most, in the features that carry the difference",
}
_TITLES = ("silos", "compared with", "differ in", "most in")


def write_diagnosis_report(project: Project, folder: Path, report: dict[str, Any], figures: Sequence[str]) -> Path:
    """Write the report into the folder of the diagnosis, with these of its figures."""
    against = report.get("against")
    title = f"How the silos of {project.params.data.name} " + (f"changed since {against}" if against else "differ")
    command = repeated("diagnose", project, *(["--against", against] if against else []))
    sections = [*diagnosis_sections(report, folder, figures), origin_section(project, report["data_version"], command)]
    return write_report(folder / FILE, title, f"{folder.name}: {len(report['clients']):,} silos.", sections)


def diagnosis_sections(report: dict[str, Any], folder: Path, figures: Sequence[str]) -> list[Section]:
    """Return the sections that follow from the report's JSON and the figures in its folder."""
    drawn = [of for name in figures for of in figure_of(folder / name, _FIGURES[name], _alternative(name, report))]
    overview = report["overview"]
    tables = [Table("What differs", _TITLES, _cells(overview["rows"]), note=overview["scale"])]
    silos, full = _cells(rows_of_silos(report)), "report.json"
    other = report.get("against") or "the other silos together"
    return [
        Section("What came out", report["sentences"], tables=tables if overview["rows"] else []),
        *([Section("In pictures", figures=drawn)] if drawn else []),
        *([Section("Limits", report["notes"])] if report["notes"] else []),
        *([Section("What to do", report["next"])] if report["next"] else []),
        *([Section("Each silo", tables=[Table.long(f"Each silo and {other}", _TITLES, silos, full)])] if silos else []),
        Section("What the silos sent", facts=_traffic(report)),
    ]


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            row["first"],
            row["second"],
            ", ".join(what if strength == "-" else f"{what}: {strength}" for what, strength in row["differ"]),
            ", ".join(row["features"]) or "-",
        ]
        for row in rows
    ]


def _alternative(name: str, report: dict[str, Any]) -> str:
    if name == "features.png" and report["ranking"]:
        leading = ", ".join(feature["feature"] for feature in report["ranking"][:5])
        return f"{_FIGURES[name]}, the largest first: {leading}"
    return f"{_FIGURES[name]}. {' '.join(report['sentences'])}"


def _traffic(report: dict[str, Any]) -> list[tuple[str, str]]:
    noise = report["noise"]
    return [
        ("bytes, all silos", bytes_text(report["bytes"]["up"])),
        ("bytes of a silo", bytes_text(report["bytes"].get("up_of_a_client"))),
        ("verdict", str(report["verdict"])),
        ("noise", f"differential privacy with epsilon {noise['epsilon']}" if noise else "none"),
    ]
