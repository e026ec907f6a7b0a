"""Types of an advice: advice.json and race.json, and what `siloflow advise` prints."""

from typing import NotRequired, TypedDict

from models.metrics.client_metrics import MetricRecord
from tasks.tracking.result_types.comparison_result import ComparisonResult

RacingCandidate = tuple[str, list[str], int, bool]
"""A method, its settings, their index among those of the method, and whether it can only be a bound for others."""

RaceLeg = tuple[int, tuple[float, float | None] | None, float, str]
"""The rounds that a candidate trained, its score and loss on validation rows, seconds, and why it has no score.

The score has a sign such that more is better. The loss is null if it is not finite.
"""


class RaceRecord(TypedDict):
    """The state of a race between methods and their settings: the content of race.json."""

    rungs: list[int]
    """The rounds after which candidates are compared."""
    alive: list[RacingCandidate]
    legs: dict[str, RaceLeg]
    """By candidate, such as `fedavg 0`."""
    dropped: dict[str, str]
    """Why each other candidate was dropped: `behind`, `time`, or the reason of its failure."""
    rung: int
    """The number of complete rungs."""
    seconds: float
    before: float
    """Seconds of the command before the race."""
    minutes: float
    pace: tuple[float, float] | None
    """Seconds of a run and of one of its rounds."""


class NearestCell(TypedDict):
    """The cell of the evidence whose silos differ most like these."""

    cell: str
    distance: float


class AdviceDiagnosis(TypedDict):
    """What the advice takes from the newest diagnosis; folder and cell are null if the silos refused one."""

    folder: str | None
    sentences: list[str]
    nearest: NearestCell | None


class ProvedMethod(TypedDict):
    """A method of the proof with its settings, each as section.key=value."""

    method: str
    settings: list[str]


class ProvedDifference(TypedDict):
    """The paired difference of two methods on fresh seeds and test rows; all intervals hold at once (95 %)."""

    first: str
    second: str
    difference: float | None
    low: float | None
    high: float | None


class RunCost(TypedDict):
    """What a run of a method costs: bytes that a silo sends and receives, and seconds; means over seeds."""

    sent: float
    received: float
    seconds: float
    keeps_state: bool
    """Whether silos keep tensors of their own between rounds."""


class AdviceDecision(TypedDict):
    """What is advised, and the differences that it rests on."""

    choice: str
    """The method that won the race."""
    advised: str
    settings: list[str]
    train_alone: list[str]
    """The silos that should not take part in FedAvg."""
    differences: list[ProvedDifference]
    costs: dict[str, RunCost]
    lines: list[str]
    """The advice in sentences."""


class Advice(MetricRecord, AdviceDecision):
    """The result of `siloflow advise`: the content of advice.json."""

    experiment: str
    data_version: str
    minutes: float
    seconds: float
    diagnosis: AdviceDiagnosis
    race: RaceRecord
    race_seed: int
    proved: list[ProvedMethod]
    comparison: ComparisonResult
    """The runs of the proof."""
    apply: NotRequired[str | None]
    """The command that writes the advice into params.yaml; only as the command prints it."""
