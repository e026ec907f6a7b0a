"""Types of a diagnosis, as report.json holds it: of silos compared with each other, or each with its earlier version.

Each of the two grows in three steps: `Facts`, then `Report` with sentences, then `Result` with the files that were saved.
"""

from typing import Literal, NotRequired, TypedDict, final

from models.diagnosis.shift_words import ShiftType
from tasks.tracking.result_types.diagnosis_records import (
    GroupPairRecord,
    InsideRecord,
    NewRowsRecord,
    OddSilosRecord,
    PairRecord,
    RankedFeature,
    SiloRecord,
)

Table = list[list[float | None]]
"""A number for each two silos or groups; null if it is undefined."""


class QueryRecord(TypedDict):
    """What the silos were queried for."""

    question: str
    """The hash of the query."""
    pictures: bool
    """Whether rows are pictures, which are projected to a few numbers each."""
    counts: bool
    """Whether silos report counts in bins; otherwise moments alone."""
    targets: list[float]
    """The cuts between groups of targets, which replace classes in a regression."""
    bins: int
    rows_noise: float
    """The standard deviation of noise in a silo's number of rows; 0 without noise."""


class NoiseRecord(TypedDict):
    """The noise of each silo's reports: epsilon and delta of differential privacy; `budget` is null if none is set."""

    epsilon: float
    delta: float
    budget: float | None


class Gaps(TypedDict):
    """Silos by feature that report no value of it or one cell only, and features whose bins are too wide."""

    absent: dict[str, list[str]]
    """No reported row has a value."""
    withheld: dict[str, list[str]]
    """Too few rows of a class have a value."""
    merged: dict[str, list[str]]
    """All values are counted in one cell, since too few rows of a class would be in two."""
    crowded: list[str]


class PairMatrices(TypedDict):
    """Square tables of silos or groups, in the order of `names`."""

    names: list[str]
    order: list[int]
    """Indices that put similar silos next to each other."""
    means: Table
    """The largest difference of a mean, in pooled standard deviations."""
    shares: Table
    """The largest difference of a label's share."""
    feature: Table
    """The published distance D_X; `label` and `concept` are D_Y and D_{Y|X}."""
    label: Table
    concept: Table
    in_classes: Table
    wasserstein: Table
    chance: Table
    """The p-value of any difference, 1 on the diagonal."""
    verdict: list[list[list[ShiftType | Literal["undetermined"]]]]


class SilosFault(TypedDict):
    """Silos whose rows look like several of each person, or two silos that seem to hold the same rows; `names` is empty."""

    what: Literal["persons", "shared"]
    names: list[str]
    silos: list[str]


class ClassFault(TypedDict):
    """Silos that have no row of a class, given by its index."""

    what: Literal["class"]
    names: list[int]
    silos: list[str]


class EmptyFault(TypedDict):
    """Silos that have no value of a feature."""

    what: Literal["empty"]
    names: list[str]
    silos: list[str]


class ConstantFault(TypedDict):
    """Silos at which a feature has one value, with this value by silo."""

    what: Literal["constant"]
    names: list[str]
    silos: list[str]
    values: list[float]


class UnitFault(TypedDict):
    """Silos that seem to record a feature in another unit than most silos.

    A value there is `scale` times a usual one, plus `offset`.
    """

    what: Literal["unit"]
    names: list[str]
    silos: list[str]
    scale: float
    offset: float
    unit: str
    """The likely unit of these silos, and of most silos; empty if only the factor is known."""
    usual_unit: str
    means: list[float]
    """By silo."""
    usual_mean: float


DataFault = SilosFault | ClassFault | EmptyFault | ConstantFault | UnitFault


class ClassNotCompared(TypedDict):
    """Classes, given by their indices, that were not compared at some silos, or not in cells: by their shares alone."""

    what: Literal["class", "class in cells"]
    why: str
    names: list[int]
    silos: list[str]


class NotCompared(TypedDict):
    """What was not compared; empty `names` are all features, and empty `silos` all silos."""

    what: Literal["targets", "feature", "values", "feature pairs", "interactions", "shared rows", "rest"]
    why: str
    names: list[str]
    silos: list[str]
    rows: NotRequired[dict[str, list[int]]]
    """Of `values`: the numbers of values far below and far above all others, by silo."""


class BytesSent(TypedDict):
    """Bytes that all silos sent, and the most that one silo sent."""

    up: int
    up_of_a_client: int


class SecondLookClients(TypedDict):
    """The silos that reported models of their labels, and those that reported predictions of models."""

    models: list[str]
    predictions: list[str]


class SecondLook(TypedDict):
    """What models of silos show of pairs that differ in inputs and rule."""

    silos: list[str]
    """All silos that were queried."""
    reported: SecondLookClients
    of_groups: bool
    """Whether groups are compared, so that no silo was queried."""
    pairs: int
    explained: int
    """The number of pairs of which the inputs explain what seemed to be another rule."""
    refused: dict[str, str]
    bytes: BytesSent


class NewRows(TypedDict):
    """What silos report of the rows that came since an earlier version, by themselves."""

    silos: list[NewRowsRecord]
    refused: dict[str, str]
    bytes: int
    reason: str | None
    """Why no silo was queried; null if silos were."""


class OverviewRow(TypedDict):
    """A row of the table: what differs between two sides, each with its strength or `-`, and the features that carry it."""

    first: str
    second: str
    differ: list[tuple[str, str]]
    features: list[str]


class Overview(TypedDict):
    """The table of differences; `more` names the omitted rows, and `scale` explains strengths, if there are any."""

    rows: list[OverviewRow]
    more: str
    scale: str


class DependentRows(TypedDict):
    """What counts as one row, and the silos whose rows are not independent."""

    unit: str | None
    """The column by which rows are counted; null if each row counts."""
    repeats: list[str]
    """Silos of which a tenth of the rows or more are copies."""
    persons: list[str]
    """Silos whose rows look like several of each person."""


class GroupDifferences(TypedDict):
    """The differences between groups of silos, and within them; or one record for each silo and its earlier version."""

    between: list[GroupPairRecord]


class _Compared(GroupDifferences):
    clients: list[str]
    features: list[str]
    classes: list[str]
    """The names of classes, or of the groups of targets."""
    query: QueryRecord
    ranking: list[RankedFeature]
    """The features by their effect on inputs or rule."""
    ranking_of_inputs: list[RankedFeature]
    gaps: Gaps


class ComparedSilos(_Compared):
    """All pairs of silos, the groups of similar silos, and each silo against all others."""

    groups: list[list[str]]
    inside: list[InsideRecord]
    pairs_of: Literal["groups", "silos"]
    odd: OddSilosRecord | None
    rest: list[SiloRecord]
    pairs: list[PairRecord]
    matrices: PairMatrices


class ComparedVersions(_Compared):
    """Each silo's earlier version and its present one."""

    pairs: list[SiloRecord]


class _Request(DependentRows):
    verdict: Literal["guarded", "moments", "paper"]
    """The tests: diagnose.verdict of params.yaml."""
    noise: NoiseRecord | None
    label: str
    """The column of labels; empty if the source is no table."""
    least_rows: list[int]
    """The smallest and the largest least number of rows of the silos' policies."""
    refused: dict[str, str]
    """Why silos did not report."""
    bytes: BytesSent
    data_version: str


class _SiloFacts(_Request, ComparedSilos):
    data_faults: list[DataFault]
    not_compared: list[ClassNotCompared | NotCompared]
    second_look: SecondLook | None


class _VersionFacts(_Request, ComparedVersions):
    came: list[str]
    """Silos that the earlier version does not have."""
    left: list[str]
    """Silos that the present version does not have."""
    new_rows: NewRows
    against: str
    """The earlier version, as the user named it."""
    since: str
    """The hash of the earlier version."""


class DiagnosisText(TypedDict):
    """Sentences on what differs, on the limits of this, and on what to do next; and the table."""

    sentences: list[str]
    notes: list[str]
    next: list[str]
    overview: Overview


class _Saved(DiagnosisText):
    folder: str
    """The folder in runs/, relative to the project."""
    pictures: list[str]
    """The names of the figures in it."""


@final
class SiloFacts(_SiloFacts):
    """The diagnosis of silos, without words."""


@final
class VersionFacts(_VersionFacts):
    """The diagnosis of silos since an earlier version, without words."""


@final
class SiloReport(_SiloFacts, DiagnosisText):
    """The diagnosis of silos, in numbers and words."""


@final
class VersionReport(_VersionFacts, DiagnosisText):
    """The diagnosis of silos since an earlier version, in numbers and words."""


@final
class SiloResult(_SiloFacts, _Saved):
    """The report.json of silos that are compared with each other."""


@final
class VersionResult(_VersionFacts, _Saved):
    """The report.json of silos that are each compared with an earlier version."""


DiagnosisFacts = SiloFacts | VersionFacts
"""Only facts on versions have the key `against`."""
DiagnosisReport = SiloReport | VersionReport
DiagnosisResult = SiloResult | VersionResult
