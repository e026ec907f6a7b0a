"""What a diagnosis saves: a folder with report, sentences and figures, a run in MLflow, and an artifact in Prefect."""

import time
from pathlib import Path
from typing import Any

from flows.config.load_config import flatten_params
from flows.console import progress
from flows.diagnosis.text.findings_page import report_markdown
from flows.experiment import prefect_artifacts
from flows.experiment.project import Project, experiment, new_experiment
from flows.experiment.run.mlflow_run_metadata import dataset, git_commit
from flows.reports.diagnosis_report import write_diagnosis_report
from models.shift.nested_tests import TYPES
from silos.io.atomic_io import write_bytes
from tasks.diagnosis.compare_silos import Comparison, VersionComparison
from tasks.tracking.json_io import write_json
from tasks.tracking.mlflow_logging.async_logger import MLflowLogger
from tasks.tracking.mlflow_logging.run_spec import DIAGNOSIS, FinalArtifacts, RunSpec
from tasks.tracking.plots.shift_figures import draw_close_ups, draw_pairs, draw_ranking

_COLUMNS = ("clients", "groups", "pairs/differ", *(f"pairs/{name}" for name in TYPES), "pairs/undetermined", "bytes/up")


def save_report(project: Project, comparison: Comparison | VersionComparison, report: dict[str, Any]) -> dict[str, Any]:
    """Save the report with its folder and figures.

    report.json is written last, so it exists only once all else does.
    """
    name = new_experiment(project, "diagnose", _tags(report))
    flow_run = prefect_artifacts.name_flow_run(f"diagnose {project.params.data.name}, {name.rpartition('-')[2]}")
    folder = project.runs / name
    figures = _draw_figures(folder, comparison, report)
    saved = {**report, "folder": str(folder.relative_to(project.root)), "pictures": [figure.name for figure in figures]}
    text = report_markdown(saved, project.params.data.name)
    write_bytes(folder / "findings.md", text.encode())
    page = write_diagnosis_report(project, folder, saved, saved["pictures"])
    write_json(folder / "report.json", saved)
    prefect_artifacts.show_markdown("diagnosis", f"{text}\n{prefect_artifacts.file_link(page)}\n")
    files = (folder / "report.json", folder / "findings.md", page, *figures)
    _log_to_mlflow(project, folder, saved, files, flow_run)
    return saved


def _tags(report: dict[str, Any]) -> dict[str, str]:
    """Return the tags of a diagnosis; `since` is the version that each silo is compared with."""
    return {name: report[name] for name in ("data_version", "since", "verdict") if name in report}


def _draw_figures(folder: Path, comparison: Comparison | VersionComparison, report: dict[str, Any]) -> list[Path]:
    """Draw the figures that have content."""
    pairs, ranking, details = (folder / f"{name}.png" for name in ("pairs", "features", "closely"))
    drawn = []
    if isinstance(comparison, Comparison) and report["pairs"]:
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
    project: Project, folder: Path, report: dict[str, Any], files: tuple[Path, ...], flow_run: str
) -> None:
    """Log one run; an unreachable store is not an error. `flow_run`: its name in Prefect."""
    params = project.params.model_dump(mode="json", include={"diagnose", "data"})
    spec = RunSpec(
        uri=project.tracking,
        experiment=project.mlflow_experiment,
        name=folder.name,
        tag=experiment(project, folder.name)["tag"],
        tags={"kind": DIAGNOSIS, **_tags(report), "git_commit": git_commit(project.root)},
        links=prefect_artifacts.flow_run_tags(flow_run),
        note=prefect_artifacts.flow_run_markdown(flow_run),
        params=flatten_params(params),
    )
    metrics = {"round": 0, "time_ms": int(time.time() * 1000), "metrics": _metrics(report)}
    logger = MLflowLogger(folder, spec)
    artifacts = FinalArtifacts(files, data=dataset(project, project.silos), metrics=metrics, columns=_COLUMNS)
    if logger.finish(artifacts) is None:
        progress.current().say(f"{logger.problem}; it has nothing of this diagnosis, and {report['folder']} has all.")
    elif logger.notice:
        progress.current().say_once(f"{logger.notice}.")


def _metrics(report: dict[str, Any]) -> dict[str, float]:
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
