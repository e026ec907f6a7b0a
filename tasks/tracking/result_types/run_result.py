"""Types of a run's result.json."""

from typing import Literal, TypedDict

from models.metrics.client_metrics import MetricRecord

Metrics = dict[str, float | None]
"""Values by name, such as `accuracy/mean`; null for one that is not finite, since JSON has no such numbers."""

ClientScore = dict[str, str | float | None]
"""A client under `client`, its `role`, and under the metric's name its value on test rows; null without one."""

RunMetrics = dict[str, float | list[ClientScore] | None]
"""Values by name, as in `Metrics`, and the score of each client under the metric's name and `/by_client`."""


class Note(TypedDict):
    """A sentence on a run's rows, settings or numbers."""

    about: Literal["inputs", "targets", "evaluation", "training"]
    sentence: str


class Bytes(TypedDict):
    """Bytes of all messages, from clients (`up`) and to clients (`down`)."""

    up: int
    down: int


class RoundSeconds(TypedDict):
    """Seconds of all rounds of a run, also before a resume."""

    per_round: float
    """The mean of a round."""
    clients: float
    """The time in steps of clients."""
    orchestration: float
    """The rest of the rounds."""


class RunSeconds(RoundSeconds):
    """Seconds of a run."""

    total: float


class BaselineAnswer(TypedDict):
    """A constant answer: the label of a class, or the mean of the targets."""

    name: str
    """As tables show it, such as `always "3"`."""
    answer: str | float
    kind: str
    """How the answer was chosen, such as `commonest class`."""


class ConstantBaseline(BaselineAnswer):
    """The constant answer that results are compared with, and its metrics on the same test rows."""

    metrics: Metrics


class RunResult(MetricRecord):
    """The result of a run: one method with one seed on one data version."""

    method: str
    seed: int
    model: Literal["global", "personal"]
    """Whether all clients were scored on one model, or each on its own."""
    data_version: str
    rounds: int
    reported_round: int
    """The round whose model is scored: the last one, or the best."""
    ended_by: str
    """The setting or the method's reason that ended training."""
    resumed_from_round: int
    """The round after which the last process continued, 0 if one process played all."""
    bytes: Bytes
    steps: int
    """Optimizer steps: the sum over rounds of the largest number of a client."""
    dropped_out: int
    """How often a sampled client dropped out of a round."""
    parameters: int
    metrics: RunMetrics
    baseline: ConstantBaseline | None
    doubts: dict[str, dict[str, float]]
    """By client the uncertainty of the model on its test rows."""
    notes: list[Note]
    weights_sha256: str
    folder: str
    """Relative to the project."""
    mlflow_run_id: str | None
    """Null if MLflow has not received the run."""
    seconds: RunSeconds
