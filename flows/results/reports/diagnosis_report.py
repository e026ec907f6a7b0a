"""What a diagnosis saves: a folder with report, sentences and figures, a run in MLflow, and an artifact in Prefect.

The report says what differs, the limits of that, what to do, and describes every silo.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from flows.core.config.load_config import flatten_params
from flows.core.console import progress
from flows.diagnosis.text.findings_page import report_markdown, rows_of_silos
from flows.experiments.comparison.comparison_text import bytes_text
from flows.project.project import Project
from flows.project.run_sets import experiment, new_experiment
from flows.results.reports.html_report import (
    FILE,
    Section,
    Table,
    figure_of,
    origin_section,
    repeated,
    write_report,
)
from flows.training.run_records.mlflow_run_metadata import dataset, git_commit
from models.diagnosis.guarded_tests import TYPES
from silos.io.atomic_io import write_bytes
from tasks.diagnosis.compare_silos import Comparison, VersionComparison
from tasks.tracking import prefect_artifacts
from tasks.tracking.json_io import write_json
from tasks.tracking.mlflow_logging.async_logger import MLflowLogger
from tasks.tracking.mlflow_logging.mlflow_records import DIAGNOSIS, FinalArtifacts, RunSpec
from tasks.tracking.plots.shift_figures import draw_close_ups, draw_pairs, draw_ranking
from tasks.tracking.result_types.diagnosis_result import (
    DiagnosisReport,
    DiagnosisResult,
    OverviewRow,
    SiloReport,
    SiloResult,
    VersionReport,
    VersionResult,
)
from tasks.tracking.result_types.journal_record import TimedMetrics

_COLUMNS = ("clients", "groups", "pairs/differ", *(f"pairs/{name}" for name in TYPES), "pairs/undetermined", "bytes/up")

_FIGURES = {
    "pairs.png": "How much each pair of silos differs",
    "features.png": "Features by how much silos differ in them",
    "closely.png": "The pairs of silos that differ most, in the features that carry the difference",
}
_TITLES = ("silos", "compared with", "differ in", "most in")


@overload
def save_report(project: Project, comparison: Comparison, report: SiloReport) -> SiloResult: ...


@overload
def save_report(project: Project, comparison: VersionComparison, report: VersionReport) -> VersionResult: ...


def save_report(
    project: Project, comparison: Comparison | VersionComparison, report: DiagnosisReport
) -> DiagnosisResult:
    """Save the report with its folder and figures.

    report.json is written last, so it exists only once all else does.
    """
    name = new_experiment(project, "diagnose", _tags(report))
    flow_run = prefect_artifacts.name_flow_run(f"diagnose {project.params.data.name}, {name.rpartition('-')[2]}")
    folder = project.store.runs / name
    figures = _draw_figures(folder, comparison, report)
    saved = _with_files(report, str(folder.relative_to(project.root)), [figure.name for figure in figures])
    text = report_markdown(saved, project.params.data.name)
    write_bytes(folder / "findings.md", text.encode())
    page = write_diagnosis_report(project, folder, saved, saved["pictures"])
    write_json(folder / "report.json", saved)
    prefect_artifacts.show_markdown("diagnosis", f"{text}\n{prefect_artifacts.file_link(page)}\n")
    files = (folder / "report.json", folder / "findings.md", page, *figures)
    _log_to_mlflow(project, folder, saved, files, flow_run)
    return saved


def _with_files(report: DiagnosisReport, folder: str, pictures: list[str]) -> DiagnosisResult:
    if "against" in report:
        of_versions: VersionResult = {**report, "folder": folder, "pictures": pictures}
        return of_versions
    of_silos: SiloResult = {**report, "folder": folder, "pictures": pictures}
    return of_silos


def _tags(report: DiagnosisReport) -> dict[str, str]:
    """Return the tags of a diagnosis; `since` is the version that each silo is compared with."""
    since = {"since": report["since"]} if "against" in report else {}
    return {"data_version": report["data_version"], **since, "verdict": report["verdict"]}


def _draw_figures(folder: Path, comparison: Comparison | VersionComparison, report: DiagnosisReport) -> list[Path]:
    """Draw the figures that have content."""
    pairs, ranking, details = (folder / f"{name}.png" for name in ("pairs", "features", "closely"))
    drawn = []
    if isinstance(comparison, Comparison) and "matrices" in report and report["pairs"]:
        sizes = [1] * len(comparison.groups) if comparison.of_groups else [len(group) for group in comparison.groups]
        draw_pairs(pairs, report["matrices"], sizes, published=report["verdict"] == "paper")
        drawn.append(pairs)
    if report["ranking"]:
        draw_ranking(ranking, report["ranking"])
        drawn.append(ranking)
    if comparison.pair_details:
        draw_close_ups(details, comparison.pair_details, comparison.names, report["features"], report["classes"])
        drawn.append(details)
    return drawn


def _log_to_mlflow(
    project: Project, folder: Path, report: DiagnosisResult, files: tuple[Path, ...], flow_run: str
) -> None:
    """Log one run; an unreachable store is not an error. `flow_run`: its name in Prefect."""
    params = project.params.model_dump(mode="json", include={"diagnose", "data"})
    spec = RunSpec(
        uri=project.store.tracking,
        experiment=project.store.mlflow_experiment,
        name=folder.name,
        tag=experiment(project, folder.name)["tag"],
        tags={"kind": DIAGNOSIS, **_tags(report), "git_commit": git_commit(project.root)},
        links=prefect_artifacts.flow_run_tags(flow_run),
        note=prefect_artifacts.flow_run_markdown(flow_run),
        params=flatten_params(params),
    )
    metrics: TimedMetrics = {"round": 0, "time_ms": int(time.time() * 1000), "metrics": {**_metrics(report)}}
    logger = MLflowLogger(folder, spec)
    artifacts = FinalArtifacts(files, data=dataset(project, project.silos), metrics=metrics, columns=_COLUMNS)
    if logger.finish(artifacts) is None:
        progress.say(f"{logger.problem}; it has nothing of this diagnosis, and {report['folder']} has all.")
    elif logger.notice:
        progress.current().say_once(f"{logger.notice}.")


def _metrics(report: DiagnosisReport) -> dict[str, float]:
    pairs = report["pairs"]
    return {
        "clients": len(report["clients"]),
        **({"groups": len(report["groups"])} if "groups" in report else {}),
        "pairs": len(pairs),
        "pairs/differ": sum(bool(pair["types"]) for pair in pairs),
        **{f"pairs/{name}": sum(name in pair["types"] for pair in pairs) for name in TYPES},
        "pairs/undetermined": sum(pair["undetermined"] for pair in pairs),
        "bytes/up": report["bytes"]["up"],
    }


def write_diagnosis_report(project: Project, folder: Path, report: DiagnosisReport, figures: Sequence[str]) -> Path:
    """Write the report into the folder of the diagnosis, with these of its figures."""
    differ, options = "differ", list[str]()
    if "against" in report:
        differ, options = f"changed since {report['against']}", ["--against", report["against"]]
    title, command = f"How the silos of {project.params.data.name} {differ}", repeated("diagnose", project, *options)
    sections = [*diagnosis_sections(report, folder, figures), origin_section(project, report["data_version"], command)]
    return write_report(folder / FILE, title, f"{folder.name}: {len(report['clients']):,} silos.", sections)


def diagnosis_sections(report: DiagnosisReport, folder: Path, figures: Sequence[str]) -> list[Section]:
    """Return the sections that follow from the report's JSON and the figures in its folder."""
    drawn = [of for name in figures for of in figure_of(folder / name, _FIGURES[name], _alternative(name, report))]
    overview = report["overview"]
    tables = [Table("What differs", _TITLES, _cells(overview["rows"]), note=overview["scale"])]
    silos, full = _cells(rows_of_silos(report)), "report.json"
    other = "the other silos together"
    if "against" in report:
        other = report["against"]
    return [
        Section("What came out", report["sentences"], tables=tables if overview["rows"] else []),
        *([Section("In pictures", figures=drawn)] if drawn else []),
        *([Section("Limits", report["notes"])] if report["notes"] else []),
        *([Section("What to do", report["next"])] if report["next"] else []),
        *([Section("Each silo", tables=[Table.long(f"Each silo and {other}", _TITLES, silos, full)])] if silos else []),
        Section("What the silos sent", facts=_traffic(report)),
    ]


def _cells(rows: Sequence[OverviewRow]) -> list[list[str]]:
    return [
        [
            row["first"],
            row["second"],
            ", ".join(what if strength == "-" else f"{what}: {strength}" for what, strength in row["differ"]),
            ", ".join(row["features"]) or "-",
        ]
        for row in rows
    ]


def _alternative(name: str, report: DiagnosisReport) -> str:
    if name == "features.png" and report["ranking"]:
        leading = ", ".join(feature["feature"] for feature in report["ranking"][:5])
        return f"{_FIGURES[name]}, the largest first: {leading}"
    return f"{_FIGURES[name]}. {' '.join(report['sentences'])}"


def _traffic(report: DiagnosisReport) -> list[tuple[str, str]]:
    noise = report["noise"]
    return [
        ("bytes, all silos", bytes_text(report["bytes"]["up"])),
        ("bytes of a silo", bytes_text(report["bytes"].get("up_of_a_client"))),
        ("verdict", str(report["verdict"])),
        ("noise", f"differential privacy with epsilon {noise['epsilon']}" if noise else "none"),
    ]
