"""The card of a logged model: the plain JSON that says which network it is and how its rows are read."""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

Task = Literal["classification", "regression"]

NetworkSpec = dict[str, Any]
"""The `kind` of a network with its sizes, as `network_factory.to_json` returns it; parts of a network are such, too."""

StatisticSpec = Mapping[str, Any]
"""The `kind` of a statistic with its options."""


class Scale(TypedDict):
    """The scale of each number of a row, or of the target, as in silos.standardizer."""

    mean: list[float]
    scale: list[float]
    segments: NotRequired[list[list[list[float]]]]
    """There if the numbers become sums over segments at first."""


class TextColumn(TypedDict):
    """A column of a table's file with texts, each of which is a feature of the model."""

    name: str
    kind: Literal["text"]
    values: list[str]
    missing: bool
    """Whether there is a feature for missing values, the last one."""


class NumberColumn(TypedDict):
    """A column of a table's file that is one feature of the model."""

    name: str
    kind: Literal["number", "boolean"]
    missing: float | str
    """The value that replaces a missing one, `mean` or `refuse`."""
    allowed: NotRequired[list[float]]
    range: NotRequired[list[float]]
    """The smallest and the largest number."""


Column = TextColumn | NumberColumn


class ReadingRules(TypedDict):
    """How the model's table is read from a file, by the keys of `data.source`."""

    ignored: list[str]
    """Columns that are no features, such as the label."""
    decimal: Literal[".", ","] | None
    censored: Literal["refuse", "limit", "half"]
    na_values: list[str] | None


class CardStatistics(TypedDict):
    """The statistics of a client that a conditional model reads besides rows."""

    kinds: list[StatisticSpec]
    length: int


class ModelCard(TypedDict):
    """What a program needs besides the weights to use a model."""

    method: str
    network: NetworkSpec
    task: Task
    classes: list[str]
    """Empty for a regression."""
    shape: list[int]
    """Of a row."""
    dtype: str
    columns: list[Column] | None
    """Null if rows have no named columns."""
    reading: NotRequired[ReadingRules | None]
    """Null if the source is no table; earlier versions wrote none."""
    inputs: Scale | None
    targets: Scale | None
    own_columns: NotRequired[list[int]]
    """The features that each client aligns by its own rows."""
    by_quantiles: NotRequired[bool]
    personal: bool
    """Whether each client has a model, or a scale, of its own."""
    clients: list[str]
    """Those with a model of their own, in the order of the tensors' first axis."""
    context: list[str]
    """Names of tensors that the network reads besides weights."""
    statistics: CardStatistics | None
