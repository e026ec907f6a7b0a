"""Describe a run to MLflow, at its start and at its end, in plain records without MLflow."""

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from tasks.tracking.error_messages import mask_passwords

VIEW = "siloflow"


@dataclass(frozen=True)
class RunSpec:
    """The name of a run in MLflow and where it is stored."""

    uri: str
    artifacts: str
    experiment: str
    name: str
    tag: str  # random; written to disk before the MLflow run exists, so that a killed process finds its run again
    tags: Mapping[str, str]
    params: Mapping[str, Any]
    note: str = ""  # the run's description
    about: str = ""  # the experiment's note, shown above its runs
    quantity: TaskMetrics = TASK_METRICS["classification"]  # orders the experiment's runs
    # more tags, set again by each process that resumes the run
    links: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()  # metrics to show instead, for runs without training


@dataclass(frozen=True)
class FinalArtifacts:
    """What is logged once, at the end of the run."""

    files: tuple[Path, ...] = ()
    model: Mapping[str, Any] | None = None  # arguments of tasks.tracking.mlflow_logging.logged_model.log_once
    data: Mapping[str, Any] | None = None  # name, version, source, profile
    metrics: Mapping[str, Any] | None = None  # as a round's record: round, time_ms, metrics
    scores: tuple[Mapping[str, Any], ...] = ()  # records like a round's, with the metrics of the logged model
    tags: Mapping[str, str] = field(default_factory=dict)
    note: str = ""  # new description of the run
    about: str = ""  # new note of the experiment
    # names of the files that hold `columns` and rows of `data`, as MLflow's own tables do
    tables: tuple[str, ...] = ()
    status: str = "FINISHED"  # or FAILED


def experiment_view(spec: RunSpec) -> dict[str, Any]:
    """Return the columns and order of an experiment's runs on MLflow's page: best first, or newest first."""
    metric = spec.quantity
    if spec.columns:
        columns = ["attributes.`Created`", *(f"metrics.`{name}`" for name in spec.columns)]
        return {"orderByKey": "attributes.`Created`", "orderByAsc": False, "selectedColumns": columns}
    return {
        "orderByKey": f"metrics.`{metric.headline}`",
        "orderByAsc": not metric.higher_is_better,
        "selectedColumns": [
            "attributes.`Created`",
            *(f"metrics.`{name}`" for name in (*metric.columns, "loss/train")),
            "tags.`model tested`",
            "tags.`weights_sha256`",
        ],
    }


_MOST = 500  # characters
_FOLDER = re.compile(r"(?<![\w:/.~*])~?/(?:[^/\s,'\"\]}]+/)+")  # of an absolute path, but not in an address


def run_source(commit: str) -> dict[str, str]:
    """Return MLflow's usual source tags, but without a path of this machine; `commit` may be `none` or end in `+changes`."""
    from mlflow.tracking.context.git_context import GitRunContext
    from mlflow.tracking.context.registry import resolve_tags

    tags = dict(resolve_tags(ignore=[GitRunContext]))  # type: ignore[list-item]  # its commit is of the command's folder
    tags["mlflow.source.name"] = _command_line() or Path(tags.get("mlflow.source.name", "")).name
    if commit != "none":
        tags["mlflow.source.git.commit"] = commit.removesuffix("+changes")
    return {name: value for name, value in tags.items() if value}


def _command_line() -> str:
    """Return the command, as `siloflow run fedavg --seed 1`, with absolute paths reduced to file names.

    Returns "" if another program calls.
    """
    program, *arguments = sys.argv or [""]
    command = shlex.join(["siloflow", *(_FOLDER.sub("", argument) for argument in arguments)])
    return mask_passwords(command)[:_MOST] if Path(program).name == "siloflow" else ""
