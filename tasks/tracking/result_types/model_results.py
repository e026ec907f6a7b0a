"""Types of what the commands that use a model print: predict, evaluate, export and stats."""

from typing import Literal, TypedDict

from models.metrics.client_metrics import MetricRecord
from models.model_card import CardStatistics, Column, Scale, Task
from tasks.tracking.result_types.run_result import Metrics


class UnknownClient(TypedDict):
    """A client that data/ lacks, whose rows a model for all clients answered."""

    rows: int
    hint: str
    """The known clients with similar names, as a sentence; of the first ten such clients."""


class FilledIn(TypedDict):
    """A value that replaced missing numbers of a column."""

    column: str
    client: str | None
    """The client that the value is of; null for the one of training."""
    rows: int
    value: float


class SkippedRow(TypedDict):
    """A row that was left out, and why."""

    row: int
    reason: str


class PredictedLabels(TypedDict):
    """How often each class was predicted, and the mean entropy in nats; both null for a regression."""

    labels: dict[str, int] | None
    entropy: float | None


class Predictions(PredictedLabels):
    """What `siloflow predict` prints."""

    model: str
    version: str | None
    """The number of the registered version; null of a run."""
    run: str | None
    """The folder of the run that trained the model; null if its version does not name it."""
    client: str | None
    """The client that the user named."""
    clients: dict[str, int] | None
    """The predicted rows of each client; null if the file names none."""
    unknown_clients: dict[str, UnknownClient]
    filled_in: list[FilledIn]
    rows: int
    """The number of predicted rows."""
    skipped: list[SkippedRow]
    columns: list[str]
    """Of the file that was written."""
    file: str


ScoredSilo = dict[str, str | float | None]
"""A client under `client`, its `role` and number of test `rows`, and its values by metric; null if undefined."""


class ModelScores(MetricRecord):
    """What `siloflow evaluate` prints."""

    run: str
    """The run's folder, relative to the project."""
    version: str | None
    """The champion's number; null of a run."""
    method: str
    seed: int
    round: int
    data_version: str
    trained_on: str
    """The data version of training."""
    metrics: Metrics
    clients: list[ScoredSilo]


class ExportCheck(TypedDict):
    """The comparison of the file that was written, opened again, with the model."""

    rows: int
    whose: Literal["test", "random"]
    """Test rows of the client, or random ones."""
    largest_difference: float
    """Relative to the largest prediction if that is above 1."""


class ExportedCard(TypedDict):
    """What describes an exported model; the file has it, too."""

    method: str
    seed: int
    round: int
    client: str | None
    """The client whose model it is; null of one for all clients."""
    data_version: str
    task: Task
    classes: list[str]
    shape: list[int]
    """Of a row."""
    dtype: str
    features: list[str]
    columns: list[Column] | None
    """Of a table: how raw values become numbers."""
    inputs: Scale | None
    """How rows are standardised; null if they are not."""
    targets: Scale | None
    """The same for predicted numbers."""
    statistics: CardStatistics | None
    """What a conditional model reads of the client."""


class ExportResult(ExportedCard):
    """What `siloflow export` prints."""

    run: str
    """The run's folder, relative to the project."""
    format: Literal["pt2", "onnx"]
    file: str
    bytes: int
    personal: bool
    """Whether the file has private values of the client."""
    compared: ExportCheck


Fault = Literal["noise", "related noise", "canaries"]


class WeakestNoise(TypedDict):
    """The noise of one kind of weights: that which is lowest for its number of draws."""

    weights: str
    noise: float


class ClaimedPrivacy(TypedDict):
    """What training.privacy claims of a run: epsilon at delta, and μ of Gaussian differential privacy."""

    epsilon: float
    delta: float
    mu: float


class RevealedPrivacy(TypedDict):
    """What training revealed of canaries, beside what it claims. Bounds hold in 95 % of audits."""

    claimed: ClaimedPrivacy
    noise: float
    """The deviation of the noise that was added, over the claimed one."""
    weakest: WeakestNoise
    noise_of_sum: float
    """That of its sum over rounds, which is larger or smaller if rounds have related noise."""
    mu: float
    """The distance between scores of canaries inside and outside, in deviations."""
    mu_error: float
    least_mu: float
    least_epsilon: float
    """Of `least_mu` at delta, if scores are normal."""
    guesses: int
    right: int
    least_epsilon_by_guesses: float
    """If nothing is assumed of scores."""
    most_epsilon_by_guesses: float
    """What so many guesses show if all are right."""
    faults: list[Fault]
    """What shows that more is revealed than claimed: less noise, related noise of rounds, or canaries' mu (which does so in
    one of 1,000 audits of right training, the others less often)."""


class AuditResult(RevealedPrivacy):
    """What `siloflow audit` prints: what training on a copy of the silos, with canaries in one, revealed of them."""

    client: str
    """The silo that had the canaries."""
    silos: int
    """The silos that trained: several with secure sums."""
    rows: int
    """The training rows of that silo, without canaries."""
    rounds: int
    """Rounds of one step: those of params.yaml, times its local epochs."""
    seed: int
    canaries: int
    inside: int
    """The canaries that were trained on."""
