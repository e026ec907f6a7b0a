"""Types of a comparison: comparison.json, and what `siloflow compare` and `siloflow results NAME` print."""

from typing import Literal, NotRequired, TypedDict

from models.metrics.client_metrics import MetricRecord
from models.metrics.paired_difference import DifferenceRecord
from tasks.tracking.result_types.registry_records import RegisteredCandidates
from tasks.tracking.result_types.run_result import ConstantBaseline, Note, RunResult

TableRow = dict[str, str | float | None]
"""A method under `method`, its `model` (global or personal) and number of `seeds`, and its means over seeds.

A metric such as `accuracy/mean` has its standard deviation over seeds under `accuracy/mean/sd`. There are also `seconds`,
`bytes/up` and `bytes/down` of a run. `worst_client` names a client, if the comparison has one partition.
"""

EnsembleScores = dict[str, str | list[int] | float]
"""What a method's runs predict together: `method`, `seeds`, and means over clients of test scores.

These are `accuracy`, `nll` (in nats), `brier`, `ece` (the expected calibration error), `entropy` and `mutual_information`
(in nats). A score that is finite for no client is left out.
"""

Role = Literal["federated", "fresh", "unseen"]


class FailedRun(TypedDict):
    """A run that failed; `partition` counts from 2, and is there on a further partition only."""

    method: str
    seed: int
    partition: NotRequired[int]
    error: str


class TunedSettings(TypedDict):
    """The settings that a method was tuned to, on validation rows of one seed."""

    method: str
    settings: list[str]
    """Each as section.key=value."""
    at: int
    """The index of the run with these settings among all that were tried."""
    tried: int
    score: float | None
    """The metric on validation rows, with a sign such that more is better; null if no setting has one."""
    at_edge: list[str]
    """The keys with the smallest or largest value that was tried."""
    seed: int


class PartitionRuns(TypedDict):
    """The runs on a further partition of the source, as another data seed draws it."""

    data_seed: int
    data_version: str
    runs: list[RunResult]


class ComparisonNote(Note):
    """A note of several runs, with the methods that it applies to."""

    methods: list[str]


class BaselineDifference(DifferenceRecord):
    """The paired difference of a method from the constant answer, over all of its seeds."""

    method: str


class ComparedBaseline(ConstantBaseline):
    """The constant answer, and each method compared with it."""

    paired: list[BaselineDifference]
    sentence: str | None
    """That no method is certainly better than the constant answer; null if one is."""


class Interval(TypedDict):
    """The 95 % interval of a difference, and its p-value; null where they are not finite."""

    low: float | None
    high: float | None
    p: float | None


class CorrectedInterval(Interval):
    """The interval that the comparison asks for, corrected for several methods (Holm), and the verdict by it."""

    better: str | None
    sentence: str


class PairedDifference(DifferenceRecord):
    """The paired difference of a method from the reference; `low`, `high` and `p` are not corrected for several methods."""

    method: str
    reference: str
    seeds: list[int]
    """The seeds that both methods finished."""
    distinguishable: bool
    """Whether the corrected interval excludes zero; `better` and `sentence` follow that interval, too."""
    matters: float
    """The smallest difference that names a winner, in units of the metric."""
    p: float | None
    silos: NotRequired[Interval]
    """The interval for other silos, of a comparison over silos."""
    corrected: CorrectedInterval
    withheld: NotRequired[bool]
    """True if a winner is not named, since the comparison lacks what --publish or intervals over silos need."""


class Draws(TypedDict):
    """What the intervals are about: these silos' rows, other silos too, or other partitions too."""

    draws: Literal["rows", "silos", "partitions"]
    silos: int
    """The number of silos that can be scored."""
    partitions: int


class ComparedClient(TypedDict):
    """A client with its numbers of rows, and its mean metric over seeds by method; null without a finite one."""

    client: str
    role: Role
    rows: int
    """Training rows."""
    test_rows: int
    domain: str
    """The name of the client's distribution; empty if the partition made no differences."""
    metrics: dict[str, float | None]


class ClassRecords(TypedDict):
    """How well methods find each class on test rows of the federated clients; means over seeds."""

    rows: dict[str, int]
    """Test rows by class; a class with fewer than ten is left out."""
    recall: dict[str, dict[str, float]]
    """By method and class."""
    rare: dict[str, float]
    """The share of all test rows, by rare class."""
    confusion: dict[str, dict[str, dict[str, float]]]
    """By method and rare class, the share of its rows that are predicted as another class."""


class ClientDifference(TypedDict):
    """A method minus training alone on a client's test rows; interval and p-values are null for a client with few rows."""

    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    """Corrected for all clients of the method (Holm)."""


class ClientSpread(TypedDict):
    """How a metric spreads over clients."""

    worst_tenth: float
    """The mean over the worst tenth of the clients."""
    worst_client: str
    worst: float
    sd: float
    """The standard deviation over clients."""


class Spreads(TypedDict, total=False):
    """The spread of training alone and of the method; both are left out if no client has a metric under both."""

    alone: ClientSpread
    method: ClientSpread


class MeanGain(TypedDict):
    """The mean gain over clients, positive if better, with its corrected 95 % interval; null if it is not finite."""

    mean: float | None
    low: float | None
    high: float | None
    distinguishable: bool


class GainOfWorst(TypedDict):
    """How the worst clients do under a method."""

    worst_tenth: float | None
    """The gain in the mean metric of the worst tenth of the clients."""
    worst_client: str | None
    """The client with the worst metric under the method."""
    spread: Spreads


class MethodGains(MeanGain, GainOfWorst):
    """A method's gains over training alone."""

    better: int
    """The number of clients."""
    worse: int
    compared: int
    certain_better: list[str]
    certain_worse: list[str]
    left_out: list[str]
    """Clients with a metric and no difference, since one class has a single row among their test rows."""
    untested: list[str]
    """Clients with a difference but too few test rows for a p-value."""
    clients: dict[str, ClientDifference]
    sentence: str


class Gains(TypedDict):
    """Each method's gains over training alone."""

    against: str
    level: float
    """Of Holm's correction over the clients of a method."""
    methods: dict[str, MethodGains]
    sentences: list[str]
    why_not: NotRequired[str]
    """Why there are no gains."""
    of: NotRequired[str]
    """That the gains are those of data/ alone, of a comparison over several partitions."""


class TargetCost(TypedDict):
    """What a method's mean curve costs until it reaches the target; rounds, bytes and seconds are null if it does not."""

    target: float
    rounds: int | None
    bytes: float | None
    """Up and down, of all clients together."""
    seconds: float | None


class CostToTarget(TargetCost):
    """The cost, and how the target was chosen."""

    of_best: float | None
    """The share of the way from the constant answer to the best method; null for a target that the user set."""


class ComparisonConclusions(TypedDict):
    """What a comparison concludes from its runs."""

    table: list[TableRow]
    baseline: ComparedBaseline | None
    """Null without test rows, and with training.privacy."""
    paired: list[PairedDifference]
    over: Draws
    not_published_for: list[str]
    """What --publish needs and the comparison lacks; a winner is then not named."""
    clients: list[ComparedClient]
    classes: NotRequired[ClassRecords]
    """Of a classification with at most 100 classes, if a client may report them."""
    gains: Gains
    ensembles: list[EnsembleScores]


class ComparisonResult(MetricRecord, ComparisonConclusions):
    """The result of a comparison: several methods with the same seeds on the same rows."""

    experiment: str
    """The folder in runs/."""
    data_version: str
    open_faults: list[str]
    """Faults that the newest diagnosis of the data found and that params do not mend."""
    tuning: list[TunedSettings]
    runs: list[RunResult]
    """The finished runs on data/."""
    partitions: list[PartitionRuns]
    failed: list[FailedRun]
    notes: list[ComparisonNote]
    figure: str
    """Relative to the project, as the report."""
    registry: RegisteredCandidates | None
    """Null if MLflow did not answer."""
    report: str
    cost: dict[str, CostToTarget]
    """By method; empty if no method is better than the constant answer."""
