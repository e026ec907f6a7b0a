"""Types of a run's result.json, and of the journal's record of a round."""

from typing import NotRequired, TypedDict

Metrics = dict[str, float]
"""Values by name, as `accuracy/mean`."""


class Note(TypedDict):
    """A sentence on a run's rows, settings or numbers; `about` is inputs, targets, evaluation or training."""

    about: str
    sentence: str


class Bytes(TypedDict):
    """Bytes of all messages, from clients (`up`) and to clients (`down`)."""

    up: int
    down: int


class RunSeconds(TypedDict):
    """Seconds of a run: `total`, the mean of a round, the time in steps of clients, and the rest of the rounds."""

    total: NotRequired[float]
    per_round: float
    clients: float
    orchestration: float


class ConstantBaseline(TypedDict):
    """The best answer that is the same for all rows, with its metrics: a class, a number, or the mean of the targets."""

    name: str
    answer: str | float
    kind: str
    metrics: Metrics


class RunResult(TypedDict):
    """The result of a run: one method with one seed on one data version."""

    method: str
    seed: int
    model: str
    task: str
    metric: str
    higher_is_better: bool
    loss_name: NotRequired[str]
    data_version: str
    rounds: int
    reported_round: int
    ended_by: str
    resumed_from_round: int
    bytes: Bytes
    steps: int
    dropped_out: int
    parameters: int
    metrics: Metrics
    baseline: ConstantBaseline | None
    doubts: dict[str, Metrics]
    notes: list[Note]
    weights_sha256: str
    folder: str
    mlflow_run_id: str | None
    seconds: RunSeconds
