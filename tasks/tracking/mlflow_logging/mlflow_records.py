"""Describe a run to MLflow, at its start and at its end, in plain records without MLflow."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from models.model_card import ModelCard
from silos.io.addresses import mask_passwords
from tasks.tracking.result_types.journal_record import TimedMetrics

if TYPE_CHECKING:  # `siloflow history` imports no torch
    from models.server_state import Weights

VIEW = "siloflow"
"""The view of the newest comparison's runs; `TREND` and `DIAGNOSES` list the comparisons and the diagnoses."""
TREND, DIAGNOSES = "comparisons", "diagnoses"
COMPARISON, RUN, DIAGNOSIS = "comparison", "run", "diagnosis"
"""The values of the tag `kind`."""


@dataclass(frozen=True)
class Experiment:
    """The MLflow experiment of a project, and the folder of its artifacts if the store is a database.

    `owner` is the project's random id: an experiment of this name that another project owns is left alone. It is empty
    for a name that the user has chosen, which projects may share.
    """

    name: str
    artifacts: str
    owner: str = ""


@dataclass(frozen=True)
class RunSpec:
    """The name of a run in MLflow and where it is stored."""

    uri: str
    experiment: Experiment
    name: str
    tag: str  # random; written to disk before the MLflow run exists, so that a killed process finds its run again
    tags: Mapping[str, str]
    params: Mapping[str, object]
    note: str = ""  # the run's description
    quantity: TaskMetrics = TASK_METRICS["classification"]  # orders the experiment's runs
    # more tags, set again by each process that resumes the run
    links: Mapping[str, str] = field(default_factory=dict)
    parent: "RunSpec | None" = None  # the run below which MLflow shows this one; created if it does not exist
    system_metrics: bool = False  # whether MLflow samples the machine's load while the run lasts

    @property
    def kind(self) -> str:
        """Return the kind of the run: one of `COMPARISON`, `RUN` and `DIAGNOSIS`."""
        return self.tags.get("kind", RUN)


class TrainingData(TypedDict):
    """The dataset input of a run."""

    name: str
    version: str
    source: str
    """JSON: the path and DVC's version."""
    profile: str
    """JSON: the number of clients, and of rows in each split."""


class ModelContent(TypedDict):
    """A model as `models.served_model.ServedModel` takes it, and the store that it is logged to."""

    uri: str
    card: ModelCard
    shared: "Weights"
    personal: "Weights"
    """With a leading axis over the clients of the card."""


class LoggedModel(ModelContent):
    """A model with its name and tags in MLflow."""

    name: str
    tags: Mapping[str, str]


@dataclass(frozen=True)
class FinalArtifacts:
    """What is logged once, at the end of the run."""

    files: tuple[Path, ...] = ()
    model: LoggedModel | None = None
    data: TrainingData | None = None
    metrics: TimedMetrics | None = None
    scores: tuple[TimedMetrics, ...] = ()  # of the logged model
    tags: Mapping[str, str] = field(default_factory=dict)
    note: str = ""  # new description of the run
    about: str = ""  # new note of the experiment
    # names of the files that hold `columns` and rows of `data`, as MLflow's own tables do
    tables: tuple[str, ...] = ()
    status: str = "FINISHED"  # or FAILED
    columns: tuple[str, ...] = ()  # metrics to show in the list of runs of this kind


def view_tags(spec: RunSpec, run_id: str, columns: Sequence[str] = ()) -> dict[str, str]:
    """Return the tags of the experiment with the views on MLflow's page that a run changes.

    A comparison changes the view of its runs, grouped by method and best first, and the view of all comparisons, newest
    first, with its metrics as columns. `siloflow ui` prints the addresses of both. A diagnosis changes that of diagnoses.

    Args:
        spec: The run.
        run_id: Its id.
        columns: The names of its metrics.
    """
    listed: dict[str, object] = {
        "orderByKey": "attributes.`Created`",
        "orderByAsc": False,
        "searchFilter": f"tags.kind = '{spec.kind}'",
    }
    listed |= {"selectedColumns": ["attributes.`Created`", *(f"metrics.`{name}`" for name in columns)]}
    views: dict[str, Mapping[str, object]] = {}
    if spec.kind == COMPARISON:
        views = {VIEW: _children(spec, run_id), TREND: listed}
    elif spec.kind == DIAGNOSIS:
        views = {DIAGNOSES: listed}
    return {f"{SAVED_VIEW}{name}": json.dumps(view) for name, view in views.items()}


def _children(spec: RunSpec, run_id: str) -> dict[str, object]:
    """Return the view of a comparison's runs; MLflow's page reads the form of `groupBy` from its own code."""
    metric = spec.quantity
    return {
        "searchFilter": f"tags.`{PARENT}` = '{run_id}'",
        "orderByKey": f"metrics.`{metric.headline}`",
        "orderByAsc": not metric.higher_is_better,
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "method"}]},
        "selectedColumns": [
            "attributes.`Created`",
            "tags.`method`",
            "tags.`seed`",
            *(f"metrics.`{name}`" for name in (*metric.columns, "loss/train")),
            "tags.`model tested`",
            "tags.`weights_sha256`",
        ],
    }


PARENT = "mlflow.parentRunId"
SAVED_VIEW = "mlflow.sharedViewState."
"""The start of an experiment's tag that holds a saved view."""


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
