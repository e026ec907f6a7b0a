"""Defines the sections and types of params.yaml."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from flows.core.config.clients_params import ClientsParams
from flows.core.config.diagnose_params import DiagnoseParams
from flows.core.plugin_loader import NONE, Plugins
from silos import param_limits
from silos.data_params import DataParams
from silos.errors import shown
from silos.io.addresses import has_wrong_port
from silos.param_types import PlainText
from silos.plugin_registry import Registered
from silos.strict_yaml import refuse_booleans


class Section(BaseModel):
    """A part of params.yaml: no unknown keys, no changes after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    _numbers = model_validator(mode="before")(refuse_booleans)


Widths = Annotated[list[Annotated[int, Field(ge=1, le=param_limits.WIDTH)]], Field(max_length=param_limits.LAYERS)]
Channels = Annotated[list[Annotated[int, Field(ge=1, le=param_limits.CHANNELS)]], Field(max_length=param_limits.LAYERS)]


def _refuse_any(sections: object) -> object:
    if isinstance(sections, list) and sections:
        raise ValueError(
            f"got {shown(repr(sections))}, expected []. Name a file that registers such a kind under plugins"
        )
    return sections


Choices = Annotated[list[Registered], BeforeValidator(_refuse_any)]
"""Sections whose kinds plugins register (see flows.core.config.plugin_params); empty without a plugin."""


class NetworkParams(Section):
    """Options of every network.

    `members` is the number of networks of a deep ensemble, 1 for no ensemble; `inputs` and `targets` say whether rows
    are standardised.
    """

    members: int = Field(default=1, ge=1, le=param_limits.COPIES)
    inputs: Literal["none", "standardise"] = "none"
    targets: Literal["none", "standardise"] = "none"


def layers_of(network: NetworkParams) -> dict[str, Any]:
    """Return the options that a single built-in network is built with."""
    return network.model_dump(exclude={"kind", *NetworkParams.model_fields})


class MLPParams(NetworkParams):
    """Dense layers; without hidden layers, logistic or linear regression."""

    kind: Literal["mlp"]
    hidden: Widths = [64]
    dropout: float = Field(default=0.0, ge=0, lt=1)
    statistics: int = Field(default=0, ge=0, le=param_limits.WIDTH)


class CNNParams(NetworkParams):
    """Convolutions with pooling, then dense layers."""

    kind: Literal["cnn"]
    channels: Channels = Field(default=[10, 20], min_length=1)
    kernel: int = Field(default=5, ge=1, le=param_limits.COPIES)
    padding: bool = False
    hidden: Widths = [50]
    dropout: float = Field(default=0.0, ge=0, lt=1)
    channel_dropout: float = Field(default=0.0, ge=0, lt=1)
    statistics: int = Field(default=0, ge=0, le=param_limits.WIDTH)


class NormalisedCNNParams(NetworkParams):
    """3 x 3 convolutions, each `pooled` or not, and dense layers; all but the last have batch normalisation."""

    kind: Literal["cnn_bn"]
    channels: Channels = Field(default=[32, 64, 128], min_length=1)
    pooled: list[bool] = Field(default=[False, True, True], min_length=1, max_length=param_limits.LAYERS)
    hidden: Widths = [128, 64]
    dropout: float = Field(default=0.5, ge=0, lt=1)


class ResidualParams(NetworkParams):
    """Residual stages with pooling, then dense layers with GELU; dropout also on the logits, as in the codebook paper."""

    kind: Literal["residual"]
    widths: Channels = Field(default=[16, 32, 64], min_length=1)
    hidden: Widths = [512]
    dropout: float = Field(default=0.1, ge=0, lt=1)
    logit_dropout: bool = True


class VGGParams(NetworkParams):
    """VGG16 with batch normalisation up to its last pooling, then the head of `residual`."""

    kind: Literal["vgg16_bn"]
    hidden: Widths = [512]
    dropout: float = Field(default=0.1, ge=0, lt=1)
    logit_dropout: bool = True
    pretrained: str | None = Field(default=None, min_length=1)


class ResNetParams(NetworkParams):
    """ResNet18 up to its global average pooling, then the head of `residual`."""

    kind: Literal["resnet18"]
    hidden: Widths = [512]
    dropout: float = Field(default=0.1, ge=0, lt=1)
    logit_dropout: bool = True
    pretrained: str | None = Field(default=None, min_length=1)


Networks = MLPParams | CNNParams | NormalisedCNNParams | ResidualParams | VGGParams | ResNetParams


class CrossEntropyParams(Section):
    """-log p."""

    kind: Literal["cross_entropy"]


Weight = Annotated[float, Field(ge=0, le=param_limits.MAX_REAL)]


class FocalParams(Section):
    """-alpha (1 - p)^gamma log p; alpha is one value, or one for each class in the order of the data's classes."""

    kind: Literal["focal"]
    gamma: float = Field(default=2.0, ge=0, le=param_limits.MAX_REAL)
    alpha: Annotated[
        Annotated[Weight, Tag("number")] | Annotated[tuple[Weight, ...], Tag("list")],
        Discriminator(lambda alpha: "list" if isinstance(alpha, list | tuple) else "number"),
    ] = 1.0

    @field_validator("alpha")
    @classmethod
    def _teaches(cls, alpha: float | tuple[float, ...]) -> float | tuple[float, ...]:
        if not any(alpha if isinstance(alpha, tuple) else (alpha,)):
            raise ValueError("got only weights of 0, expected one above 0. Raise the weight of a class")
        return alpha


class SquaredErrorParams(Section):
    """(prediction - y)^2, for regression."""

    kind: Literal["squared_error"]


class SGDParams(Section):
    """Stochastic gradient descent. `state`: the optimizer state is reset in every round, or kept by clients."""

    kind: Literal["sgd"]
    learning_rate: float = Field(gt=0, le=param_limits.MAX_REAL)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, le=param_limits.MAX_REAL)
    state: Literal["reset", "kept"] = "reset"


class AdamParams(Section):
    """Adam; `adamw` decouples the weight decay. `state` as in SGD."""

    kind: Literal["adam", "adamw"]
    learning_rate: float = Field(gt=0, le=param_limits.MAX_REAL)
    weight_decay: float = Field(default=0.0, ge=0, le=param_limits.MAX_REAL)
    state: Literal["reset", "kept"] = "reset"


class PrivacyParams(Section):
    """Differential privacy of training rows, or of units, in what a run sends of them; None trains without.

    `epsilon` and `delta` are those of a whole run at each client. `clip` is the largest norm of a row's gradient. `divisor`
    divides each client's noisy sum of gradients; None is the mean number of training rows of a client.

    With `secure_sums` the server reads only sums over `least` or more clients of a round, which share one noise; None is all
    of them. Of these, `colluders` may pass what they know to the server.
    """

    epsilon: float | None = Field(default=None, ge=param_limits.EPSILON, le=param_limits.MAX_REAL)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    clip: float = Field(default=1.0, ge=param_limits.CLIP, le=param_limits.MAX_REAL)
    divisor: int | None = Field(default=None, ge=1, le=param_limits.TIMES)
    secure_sums: bool = False
    least: int | None = Field(default=None, ge=2, le=param_limits.TIMES)
    colluders: int = Field(default=1, ge=0, le=param_limits.TIMES)


class TrainingParams(Section):
    """The training budget, equal for every method of a comparison.

    `rows`: an epoch takes every row once, shuffled; or samples as many, with equal probability for each of a client's
    classes.
    """

    rounds: int = Field(ge=1, le=param_limits.TIMES)
    epochs: int = Field(ge=1, le=param_limits.TIMES)
    batch: int = Field(ge=1, le=param_limits.TIMES)
    rows: Literal["shuffled", "balanced"] = "shuffled"
    privacy: PrivacyParams = PrivacyParams()
    optimiser: Annotated[SGDParams | AdamParams, Field(discriminator="kind")]
    objective: Annotated[CrossEntropyParams | FocalParams | SquaredErrorParams, Field(discriminator="kind")]

    @model_validator(mode="after")
    def _balanced_classes(self) -> "TrainingParams":
        if self.rows == "balanced" and self.objective.kind == "squared_error":
            raise ValueError("got balanced, expected shuffled, since a regression has no classes. Use shuffled")
        return self


_TRIM = 0.2


class AggregationParams(Section):
    """How the server averages clients.

    `clip` bounds the L2 norm of each client's update; `trim` is the share of clients that `trimmed_mean` leaves out at
    each end.
    """

    clip: float | None = Field(default=None, le=param_limits.MAX_REAL)
    rule: Literal["mean", "median", "trimmed_mean"] = "mean"
    trim: float = Field(default=_TRIM, gt=0, lt=0.5)

    @field_validator("clip")
    @classmethod
    def _moves(cls, clip: float | None) -> float | None:
        if clip is not None and clip <= 0:
            raise ValueError(f"got {clip:g}, expected more than 0, or null. Use null to leave updates as they are")
        return clip

    @model_validator(mode="after")
    def _trims(self) -> "AggregationParams":
        if "trim" in self.model_fields_set and self.rule != "trimmed_mean" and self.trim != _TRIM:
            raise ValueError(f"got trim with rule {self.rule}, expected trimmed_mean. Remove trim, or change rule")
        return self


class EvaluationParams(Section):
    """When models are scored, on which clients, by which metrics, and which round is reported.

    `metric` decides tables, the best round, tuning and sentences; None is accuracy or rmse. See load_config.quantity_of.
    """

    metric: Annotated[str, PlainText()] | None = None
    every: int = Field(default=1, ge=1, le=param_limits.TIMES)
    clients: Literal["all"] | Annotated[int, Field(ge=1, le=param_limits.CLIENTS)] = "all"
    report: Literal["last", "best"] = "last"
    stop_at: float | None = Field(default=None, gt=0, le=param_limits.MAX_REAL)
    passes: int = Field(default=20, ge=0, le=param_limits.PASSES)
    metrics: Choices = []


class ComparisonParams(Section):
    """Defaults of `siloflow compare`, and what its intervals are about.

    `over`: these silos (rows and seeds are draws), or other silos like these. `partitions`: how many are drawn, under
    data.seed and the seeds after it. `publish`: name a winner only if enough seeds, partitions and tuning stand behind it.
    `matters`: the smallest difference that names a winner; None is the metric's own.
    """

    methods: list[Annotated[str, PlainText()]] = Field(min_length=1)
    seeds: list[Annotated[int, Field(ge=0, le=param_limits.SEED)]] = Field(min_length=1)
    reference: Annotated[str, PlainText()] = "fedavg"
    tune: int = Field(default=0, ge=0, le=param_limits.COPIES)
    over: Literal["rows", "silos"] = "rows"
    partitions: int = Field(default=1, ge=1, le=param_limits.COPIES)
    publish: bool = False
    matters: float | None = Field(default=None, ge=0, le=param_limits.MAX_REAL)

    @field_validator("methods", "seeds")
    @classmethod
    def _no_repeats(cls, values: list) -> list:
        for value in values:
            if values.count(value) > 1:
                raise ValueError(f"got {value} twice, expected it once. Remove one of them")
        return values


class AdviseParams(Section):
    """Defaults of `siloflow advise`."""

    minutes: float = Field(default=5.0, gt=0, le=param_limits.TIMES)


class EngineParams(Section):
    """How clients are computed; results are the same for any number of workers."""

    kind: Literal["auto", "batched", "vmap", "sequential"] = "auto"
    stack: Literal["auto"] | Annotated[int, Field(ge=1, le=param_limits.CLIENTS)] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"


class RunnerParams(Section):
    """Where tasks run; results are the same everywhere."""

    kind: Literal["threads", "processes", "dask", "places"] = "threads"
    workers: int = Field(default=1, ge=1, le=256)
    parallel_runs: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = 1
    address: str | None = Field(default=None, min_length=1)
    patience: float = Field(default=600.0, gt=0, le=param_limits.TIMES)

    @field_validator("address")
    @classmethod
    def _port(cls, address: str | None) -> str | None:
        if address is not None and has_wrong_port(address):
            raise ValueError(f"got the port of {address}, expected a number from 1 to 65535. Correct it")
        return address

    @model_validator(mode="after")
    def _address_of_dask(self) -> "RunnerParams":
        if self.address is not None and self.kind != "dask":
            raise ValueError(
                f"got the address of a Dask scheduler with kind {self.kind}, expected kind dask. Set kind to dask "
                "or address to null"
            )
        return self


class TrackingParams(Section):
    """What is sent to MLflow."""

    uri: str | None = None
    system_metrics: bool = True
    personal_models: bool = False

    @field_validator("uri")
    @classmethod
    def _port(cls, uri: str | None) -> str | None:
        if uri is not None and uri.startswith(("http:", "https:")) and has_wrong_port(uri):
            raise ValueError(f"got the port of {uri}, expected a number from 1 to 65535. Correct it")
        return uri


class WatchParams(Section):
    """When a model may become the champion, and when `siloflow watch` trains again.

    `grade`: the least grade of a silo's shift; `methods`: those that train, the champion's if empty.
    """

    grade: Literal["negligible", "moderate", "significant", "critical"] = "negligible"
    methods: list[Annotated[str, PlainText()]] = []
    prefer: Literal["better", "cheaper"] = "better"
    margin: float = Field(default=0.01, ge=0, le=param_limits.MAX_REAL)


class RetentionParams(Section):
    """What `siloflow clean` and the flow `watch` delete by age; None keeps everything."""

    days: float | None = Field(default=None, ge=1, le=param_limits.TIMES)


class FigureParams(Section):
    """A figure that is drawn at the end of every run that has the data for it."""

    kind: Literal["stages", "groups", "codebook"]


class Params(Section):
    """The whole file; in a project with plugins, the type also has the plugins' sections."""

    registered: ClassVar[Plugins] = NONE

    data: DataParams
    model: Annotated[Networks, Field(discriminator="kind")]
    training: TrainingParams
    clients: ClientsParams = ClientsParams()
    aggregation: AggregationParams = AggregationParams()
    evaluation: EvaluationParams = EvaluationParams()
    comparison: ComparisonParams
    watch: WatchParams = WatchParams()
    retention: RetentionParams = RetentionParams()
    method: dict[str, dict[str, Any]] = {}
    plugins: list[str] = []
    figures: list[FigureParams] = []
    callbacks: Choices = []
    engine: EngineParams = EngineParams()
    runner: RunnerParams = RunnerParams()
    tracking: TrackingParams = TrackingParams()
    diagnose: DiagnoseParams = DiagnoseParams()
    advise: AdviseParams = AdviseParams()
