"""Types of what `siloflow results` and `siloflow clean` print about earlier results."""

from typing import NotRequired, TypedDict, final

from models.metrics.client_metrics import MetricRecord
from models.metrics.paired_difference import DifferenceRecord
from models.model_card import Task
from tasks.tracking.result_types.comparison_result import ClassRecords, ComparedClient, CostToTarget, Gains, TableRow
from tasks.tracking.result_types.run_files import Kind


class ListedResult(TypedDict):
    """A set of runs in runs/."""

    name: str
    """The folder in runs/."""
    kind: Kind
    what: str
    """Methods and seeds, or the table of a sweep."""
    data_version: str | None
    """Its first ten characters."""
    started: str
    """The time in UTC."""
    headline: str | None
    """The metric of a run, or of the best method; null if the set is not finished."""
    state: str
    """`finished`, or what is missing, such as `3 of 9 runs`."""


class ResultList(TypedDict):
    """What `siloflow results` prints, newest first."""

    results: list[ListedResult]


class ComparisonMetric(TypedDict):
    """A comparison and its metric."""

    experiment: str
    task: Task
    metric: str
    higher_is_better: bool


class ComparisonClients(ComparisonMetric):
    """What `siloflow results NAME --clients` prints."""

    methods: list[str]
    reference: str | None
    clients: list[ComparedClient]
    gains: Gains
    classes: NotRequired[ClassRecords]
    """As in the comparison."""


class ComparisonCost(ComparisonMetric):
    """What `siloflow results NAME --cost` prints."""

    cost: dict[str, CostToTarget]
    """By method; empty if there is no target."""


class BothRows(TypedDict):
    """A method's rows in the tables of two comparisons."""

    method: str
    first: TableRow
    second: TableRow


@final
class NotPaired(TypedDict):
    """Why a method has no paired difference between two comparisons."""

    method: str
    seeds: list[int]
    why_not: str


@final
class PairedComparisons(DifferenceRecord):
    """The paired difference of a method between two comparisons, second minus first, on the seeds of both."""

    method: str
    seeds: list[int]


class ChangedParam(TypedDict):
    """A param that differs, as `key: old → new`, with the methods whose runs differ in it."""

    difference: str
    methods: list[str]


class TwoComparisons(MetricRecord):
    """What `siloflow results A B` prints."""

    first: str
    second: str
    data_versions: list[str]
    table: list[BothRows]
    paired: list[PairedComparisons | NotPaired]
    only: list[list[str]]
    """The methods that only the first, and only the second comparison has."""
    params: list[ChangedParam]


class CleanedKind(TypedDict):
    """A kind of files that can be deleted."""

    kind: str
    lost: str
    """What is lost with them."""
    bytes: int
    deleted: bool
    kept: list[str]
    """Places that are in use."""
    places: list[str]


class Cleaned(TypedDict):
    """What `siloflow clean` prints."""

    kinds: list[CleanedKind]
