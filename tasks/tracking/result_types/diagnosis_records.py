"""Types of what a diagnosis says of two silos, of a silo and all others, of a silo and its earlier version, and of groups.

Names of features, classes and silos are those of the data.
"""

from typing import Literal, NotRequired, TypedDict

from models.diagnosis.shift_words import ChangeKind, Grade, InsideTest, Reason, ShiftType

Effects = dict[str, float]
"""Effects φ by feature, the largest first."""

Grades = dict[ShiftType, Grade | None]
"""The published grade by type of shift; null if it is undefined."""


class ChangeRecord(TypedDict):
    """A number of two sides, and its difference with a 95 % interval; `Change` of models explains each field.

    Undefined numbers are left out: `first` and `second` together, and `low` and `high` together.
    """

    what: ChangeKind
    name: str
    """The label or feature."""
    first: NotRequired[float]
    second: NotRequired[float]
    difference: float
    low: NotRequired[float]
    high: NotRequired[float]
    deviations: NotRequired[float]
    factor: NotRequired[float]
    value: NotRequired[str]
    cell: NotRequired[str]
    silo: NotRequired[str]
    """The silo of a group whose target differs; only in `target_amounts`."""


Changes = dict[ShiftType, list[ChangeRecord]]
"""Changes by type of shift, for the types that differ."""


class CorrelationsByClass(TypedDict):
    """Rank correlations of two features in each class, at both sides; null if a side does not report one."""

    first: list[float | None]
    second: list[float | None]


class FeaturePairRecord(TypedDict):
    """Two features whose rank correlation differs between two sides; `first` and `second` are those of all rows."""

    features: list[str]
    effect: float
    """φ of the difference within classes."""
    first: float | None
    second: float | None
    by_class: CorrelationsByClass


class LossRecord(TypedDict):
    """What a shared model loses at a silo: accuracy in points, with a 95 % interval, and log loss in nats a row."""

    loss: float
    low: float
    high: float
    own: float
    """The accuracy of the silo's own model."""
    shared: float
    """The accuracy of the shared model."""
    log_loss: float
    log_loss_error: float
    """The standard error of `log_loss` if both silos are alike."""


class SharedModelLosses(TypedDict):
    """The loss by a shared model at either side."""

    first: LossRecord
    second: LossRecord


class RefinementRecord(TypedDict):
    """What pairs of features show of two sides."""

    together: list[FeaturePairRecord]
    """Features that go together differently in the inputs."""
    interactions: list[FeaturePairRecord]
    """Features that act together differently on the label."""
    resolved_by_pairs: bool
    """Whether the inputs explain what seemed to be another rule."""
    second_look_recommended: bool
    shared_model_loss: SharedModelLosses | None
    effect_on_prediction: Literal["seen", "none seen", "unknown"] | None
    """Null, like `shared_model_loss`, if no loss was estimated."""


class StrengthRecord(TypedDict):
    """Effect sizes of two sides; null if undefined."""

    distances: dict[ShiftType, float | None]
    """The published distances D_X, D_Y and D_{Y|X}."""
    grades: Grades
    in_classes: float | None
    """The distance D_{X|Y} of the worst feature."""
    wasserstein: float | None
    """The largest distance of a feature's normals, in standard deviations of all rows."""


class Evidence(TypedDict):
    """What the tests show of two sides; the fields of `RefinementRecord` are there if pairs of features were queried."""

    types: list[ShiftType]
    undetermined: bool
    why: Reason | None
    """Why there is no verdict; null if there is one."""
    reports: list[bool]
    """Whether each side reports more than its number of rows."""
    transform: bool
    """Whether one factor and one offset undo the difference of inputs."""
    margins_only: bool
    """Whether no class is reported by both, so that only inputs and labels were compared."""
    label_or_concept: bool
    """Whether another threshold of the label explains the difference as well."""
    concept_identifiable: bool
    """Whether the inputs overlap enough to show whether the rule differs."""
    features: Effects
    input_features: Effects
    rule_features: Effects
    labels_differ: bool
    inputs_differ: bool
    chance: float
    """The p-value of any difference."""
    overlap: float | None
    """The share of values that both sides have, of the feature where it is smallest."""
    rows: list[float]
    """Training rows of both sides, or the independent rows that they are worth."""
    rows_ratio: float
    strength: StrengthRecord
    together: NotRequired[list[FeaturePairRecord]]
    interactions: NotRequired[list[FeaturePairRecord]]
    resolved_by_pairs: NotRequired[bool]
    second_look_recommended: NotRequired[bool]
    shared_model_loss: NotRequired[SharedModelLosses | None]
    effect_on_prediction: NotRequired[Literal["seen", "none seen", "unknown"] | None]


class PairRecord(Evidence):
    """Two silos, or two groups if there are very many silos."""

    first: str
    second: str
    changes: NotRequired[Changes]
    """Only of a few pairs within a group, which sentences describe one by one."""
    note: str | None
    """Why the pair is undetermined, in words; null if it is not."""


class SiloRecord(Evidence):
    """A silo and all others together, or a silo's earlier version and its present one."""

    client: str
    changes: Changes
    note: str | None
    """Why there is no verdict, in words; null if there is one."""


class OddSilosRecord(Evidence):
    """The silos that take part in most differences, together, and all others together."""

    silos: list[str]
    changes: Changes
    target_amounts: list[list[ChangeRecord]]
    """One list: of each silo whose targets differ, if they differ by unlike amounts."""


class GroupPairRecord(TypedDict):
    """The pairs of silos of two groups, or of one group; `changes` and `target_amounts` are those of two groups."""

    groups: list[int]
    """The indices of both groups, or of a silo before and now."""
    pairs: int
    types: dict[ShiftType, int]
    """The number of pairs by type."""
    grades: Grades
    """The median grade of the pairs that have a type."""
    none: int
    """The number of pairs without a difference; the fields below, up to `rule_unknown`, are numbers of pairs, too."""
    undetermined: int
    transform: int
    margins_only: int
    label_or_concept: int
    labels_differ: int
    inputs_differ: int
    not_identifiable: int
    """Pairs whose inputs hardly overlap."""
    rule_unknown: int
    """Pairs that seem to have another rule, but whose inputs hardly overlap."""
    features: list[str]
    input_features: list[str]
    rule_features: list[str]
    changes: NotRequired[Changes]
    target_amounts: NotRequired[list[list[ChangeRecord]]]
    """For each of the two groups, the silos whose targets differ, if they differ by unlike amounts."""


class InsideRecord(TypedDict):
    """Whether the silos of a group are alike, all together, with the p-value of each test."""

    alike: bool
    differ_in: list[InsideTest]
    chance: dict[InsideTest, float]


class RankedFeature(TypedDict):
    """The mean and the largest effect φ of a feature, over the pairs that differ in it."""

    feature: str
    mean: float
    largest: float


class NewRowsRecord(TypedDict):
    """A silo's new rows, by themselves, and its earlier ones; `grades` and `features` are those of the types that differ."""

    client: str
    rows: list[int]
    """The numbers of new and of earlier training rows."""
    worth: list[float]
    """The independent rows that they are worth."""
    types: list[ShiftType]
    grades: Grades
    undetermined: bool
    features: dict[str, float | None]
    """The difference of means in standard deviations; null if it is not clear."""
