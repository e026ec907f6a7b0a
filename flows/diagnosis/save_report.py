"""What a diagnosis leaves: a folder with report, sentences and pictures, a run in MLflow, a page in Prefect."""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from flows.config.load_config import flatten_params
from flows.console import progress
from flows.diagnosis.text.findings_page import report_markdown
from flows.experiment import prefect_artifacts
from flows.experiment.project import Project, new_experiment
from flows.experiment.run.mlflow_run_metadata import dataset, git_commit
from models.shift.nested_tests import TYPES
from silos.io.atomic_io import write_bytes
from tasks.diagnosis.compare_silos import Compared, ComparedVersions
from tasks.tracking.json_io import write_json
from tasks.tracking.mlflow_logging.async_logger import MLflowLogger
from tasks.tracking.mlflow_logging.run_spec import FinalArtifacts, RunSpec
from tasks.tracking.plots.shift_figures import draw_close_ups, draw_pairs, draw_ranking

EXPERIMENT = "diagnoses"
"""Of all in MLflow, so that one can be held beside another."""

_COLUMNS = ("clients", "groups", "pairs/differ", *(f"pairs/{name}" for name in TYPES), "pairs/undetermined", "bytes/up")


def save_report(project: Project, found: Compared | ComparedVersions, report: dict[str, Any]) -> dict[str, Any]:
    """The report with its folder and pictures; report.json is written last, and is there once all else is."""
    name = new_experiment(project, "diagnose", _about(report))
    called = prefect_artifacts.name_flow_run(f"diagnose {project.params.data.name}, {name.rpartition('-')[2]}")
    folder = project.runs / name
    pictures = _drawn(folder, found, report, _classes(project, report))
    answer = {
        **report,
        "folder": str(folder.relative_to(project.root)),
        "pictures": [picture.name for picture in pictures],
    }
    text = report_markdown(answer, project.params.data.name)
    write_bytes(folder / "findings.md", text.encode())
    write_json(folder / "report.json", answer)
    prefect_artifacts.shown("diagnosis", text)
    files = (folder / "report.json", folder / "findings.md", *pictures)
    _tell_mlflow(project, folder, answer, files, called)
    return answer


def _about(report: dict[str, Any]) -> dict[str, str]:
    """What tells it from other diagnoses; `since`: the version that each silo is held beside, if it is beside itself."""
    return {name: report[name] for name in ("data_version", "since", "verdict") if name in report}


def _drawn(folder: Path, found: Compared | ComparedVersions, report: dict[str, Any], classes: list[str]) -> list[Path]:
    """Those for which there is something to draw."""
    pairs, ranking, closely = (folder / f"{name}.png" for name in ("pairs", "features", "closely"))
    made = []
    if isinstance(found, Compared) and report["pairs"]:
        sizes = [1] * len(found.groups) if found.of_groups else [len(group) for group in found.groups]
        draw_pairs(pairs, report["matrices"], sizes)
        made.append(pairs)
    if report["ranking"]:
        draw_ranking(ranking, report["ranking"])
        made.append(ranking)
    if found.close_ups:
        draw_close_ups(closely, found.close_ups, found.names, report["features"], classes)
        made.append(closely)
    return made


def _classes(project: Project, report: dict[str, Any]) -> list[str]:
    """Names of classes, or of the groups of targets that stand for them."""
    cuts = [f"{cut:.2g}" for cut in report["asked"]["targets"]]
    if not cuts:
        return list(project.manifest.classes)
    between = [f"{low} to {high}" for low, high in pairwise(cuts)]
    return [f"below {cuts[0]}", *between, f"above {cuts[-1]}"]


def _tell_mlflow(
    project: Project, folder: Path, report: dict[str, Any], files: tuple[Path, ...], flow_run: str
) -> None:
    """One run; a store that is away is no reason to fail. `flow_run`: its name in Prefect."""
    params = project.params.model_dump(mode="json", include={"diagnose", "data"})
    ticket = RunSpec(
        uri=project.tracking,
        artifacts=(project.runs / "artifacts" / EXPERIMENT).as_uri(),
        experiment=EXPERIMENT,
        name=folder.name,
        tag=folder.name,
        tags={**_about(report), "git_commit": git_commit(project.root)},
        links=prefect_artifacts.link(flow_run),
        note=prefect_artifacts.sentence(flow_run),
        params=flatten_params(params),
        columns=_COLUMNS,
    )
    metrics = {"round": 0, "time_ms": int(time.time() * 1000), "metrics": _metrics(report)}
    delivery = MLflowLogger(folder, ticket)
    if delivery.finish(FinalArtifacts(files, data=dataset(project, project.silos), metrics=metrics)) is None:
        progress.current().say(f"{delivery.problem}; it has nothing of this diagnosis, and {report['folder']} has all.")
    elif delivery.notice:
        progress.current().say_once(f"{delivery.notice}.")


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
