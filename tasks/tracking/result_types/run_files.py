"""Types of the other JSON files in the folders of a run and of a set of runs."""

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypedDict

from tasks.tracking.result_types.run_result import Metrics

PlainParams = dict[str, Any]
"""Sections of params.yaml as plain JSON: plugins may add any content."""


class Fingerprint(TypedDict):
    """What determines a run's results, so that a resumed run must have the same."""

    method: str
    seed: int
    data_version: str
    params: PlainParams
    """The run's own method is under `method`; sections that change no result are left out."""


class Noted(TypedDict, total=False):
    """Content of run.json that may differ when a run is resumed."""

    plugins: Sequence[str]


class RunIdentity(Fingerprint, Noted):
    """The content of run.json."""

    tag: str
    """Random: MLflow's run is found again by it."""


Kind = Literal["run", "compare", "advise", "diagnose", "reproduce"]


class ExperimentRecord(TypedDict):
    """The content of experiment.json, which begins a set of runs; what else is there depends on its kind."""

    kind: Kind
    name: str
    started: NotRequired[str]
    """In UTC, as 20261129-084515."""
    tag: NotRequired[str]
    """Random: MLflow's run of a comparison is found again by it."""
    flow_run: NotRequired[str | None]
    """The id of Prefect's flow run."""
    overrides: NotRequired[list[str]]
    """Each as section.key=value."""
    about: NotRequired[str]
    """The description of MLflow's run."""
    data_version: NotRequired[str]
    methods: NotRequired[list[str]]
    seeds: NotRequired[list[int]]
    reference: NotRequired[str]
    tune: NotRequired[int]
    partitions: NotRequired[int]
    minutes: NotRequired[float]
    settings: NotRequired[str]
    """The hash of the settings of a race."""
    since: NotRequired[str | None]
    """The data version that a diagnosis compares with."""
    verdict: NotRequired[str]


class ValidationRecord(TypedDict):
    """The content of validation.json: scores on validation rows after `round`, when the run paused or ended."""

    round: int
    metrics: Metrics
    outcomes: dict[str, str]
    """By client the hash of its stored outcomes."""


class EndRecord(TypedDict):
    """The content of on_end.json: the last round when `on_end` of all user callbacks was called."""

    round: int
