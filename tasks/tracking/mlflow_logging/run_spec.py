"""What MLflow is told of a run besides its rounds, before it starts and when it is done; plain records, without MLflow.

Who started a run, and by which command: the tags of which MLflow makes `Created by` and `Source`.
"""

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from tasks.tracking.error_messages import masked

VIEW = "siloflow"


@dataclass(frozen=True)
class RunSpec:
    """What MLflow should call this run, and where it is kept."""

    uri: str
    artifacts: str
    experiment: str
    name: str
    tag: str  # random; written to disk before the MLflow run exists, so that a killed process finds its run again
    tags: Mapping[str, str]
    params: Mapping[str, Any]
    note: str = ""  # the run's description
    about: str = ""  # the experiment's note, shown above its runs
    quantity: TaskMetrics = TASK_METRICS["classification"]  # what its runs are ordered by
    # more tags, said anew by each process that goes on with the run
    links: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()  # metrics that are shown instead, of runs that are none of training


@dataclass(frozen=True)
class FinalArtifacts:
    """What is logged once, when the run is done."""

    files: tuple[Path, ...] = ()
    model: Mapping[str, Any] | None = None  # arguments of tasks.tracking.mlflow_logging.logged_model.log_once
    data: Mapping[str, Any] | None = None  # name, version, source, profile
    metrics: Mapping[str, Any] | None = None  # as a round's record: round, time_ms, metrics
    scores: tuple[Mapping[str, Any], ...] = ()  # records like a round's: what of it are the model's own numbers
    tags: Mapping[str, str] = field(default_factory=dict)
    note: str = ""  # the run's description, and the experiment's note, from now on
    about: str = ""
    # names of those files that hold `columns` and rows of `data`, as MLflow's own tables do
    tables: tuple[str, ...] = ()
    status: str = "FINISHED"  # or FAILED


def note(ticket: RunSpec) -> dict[str, Any]:
    """How MLflow's page shows the runs of an experiment when its address names this view: the best first, or the newest."""
    quantity = ticket.quantity
    if ticket.columns:
        columns = ["attributes.`Created`", *(f"metrics.`{name}`" for name in ticket.columns)]
        return {"orderByKey": "attributes.`Created`", "orderByAsc": False, "selectedColumns": columns}
    return {
        "orderByKey": f"metrics.`{quantity.headline}`",
        "orderByAsc": not quantity.higher_is_better,
        "selectedColumns": [
            "attributes.`Created`",
            *(f"metrics.`{name}`" for name in (*quantity.columns, "loss/train")),
            "tags.`model tested`",
            "tags.`weights_sha256`",
        ],
    }


_MOST = 500  # characters
_PLACE = re.compile(r"(?<![\w:/.~*])~?/(?:[^/\s,'\"\]}]+/)+")  # of a file, by an absolute path; of an address nothing


def run_source(commit: str) -> dict[str, str]:
    """As MLflow's own clients say it, but without a path of this machine; `commit`: `none`, or with `+changes` behind it."""
    from mlflow.tracking.context.git_context import GitRunContext
    from mlflow.tracking.context.registry import resolve_tags

    tags = dict(resolve_tags(ignore=[GitRunContext]))  # type: ignore[list-item]  # its commit is the command's own folder's
    tags["mlflow.source.name"] = _typed() or Path(tags.get("mlflow.source.name", "")).name
    if commit != "none":
        tags["mlflow.source.git.commit"] = commit.removesuffix("+changes")
    return {name: value for name, value in tags.items() if value}


def _typed() -> str:
    """`siloflow run fedavg --seed 1`; empty where another program has called. Of an absolute path stays the file's name."""
    program, *words = sys.argv or [""]
    typed = shlex.join(["siloflow", *(_PLACE.sub("", word) for word in words)])
    return masked(typed)[:_MOST] if Path(program).name == "siloflow" else ""
