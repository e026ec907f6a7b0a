"""The `data` section of params.yaml: the source, the steps of `data.scheme` that make clients, and the splits.

Some steps deal rows to clients; others make clients differ, thin classes, or decide who takes part.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from silos import param_limits
from silos.errors import UserError, shown
from silos.param_types import Name, Names, PlainName, PlainText
from silos.params_section import Section
from silos.plugin_registry import Registered, Registry
from silos.schema import Features
from silos.sources.source_params import Source


def _as_list(value: object) -> object:
    """Wrap one value as a list of one; a union of both would repeat each member in errors."""
    return value if isinstance(value, list | tuple) else [value]


def _check_distinct(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a class that is listed twice: it would be subsampled twice, or is a mistake."""
    for name in classes:
        if classes.count(name) > 1:
            raise ValueError(f"got the class {name!r} twice, expected it once. Remove one of them")
    return classes


class ByCluster(Section):
    """A step that treats contiguous blocks of clients differently, over all clients or within each domain."""

    within: Literal["domain"] | None = None


class Rotation(ByCluster):
    """Feature shift: the images of each contiguous block of clients are rotated by one angle (degrees).

    The `centre` is the middle of the image, or the point (width / 2, height / 2) in pixel indices. The second lies half
    a pixel further, and is the usual centre in code that calls OpenCV.
    """

    kind: Literal["rotation"]
    angles: tuple[Annotated[float, Field(ge=-param_limits.TURN, le=param_limits.TURN)], ...] = Field(min_length=1)
    centre: Literal["middle", "opencv"] = "middle"


class PermutePixels(ByCluster):
    """Feature shift: the pixels of each contiguous block of clients are permuted by one random order.

    `clusters` is the number of blocks; by default every client is one.
    """

    kind: Literal["permute_pixels"]
    clusters: int | None = Field(default=None, ge=1, le=param_limits.CLIENTS)

    @model_validator(mode="after")
    def _has_clusters_within_domains(self) -> "PermutePixels":
        if self.within and self.clusters is None:
            raise ValueError(
                "within: got it without clusters, expected both. Set clusters to the number of "
                "orders of a domain, or drop within"
            )
        return self


class Noise(ByCluster):
    """Feature shift: Gaussian noise, one standard deviation for all clients or one a block (pixels: of 255).

    `mean` is the mean of the noise, in the same units. With `common_rows`, noise is added to common rows too. Without
    `clip`, pixels are neither rounded nor clipped, and are divided by 255.
    """

    kind: Literal["noise"]
    sd: Annotated[
        tuple[Annotated[float, Field(ge=0, le=param_limits.MAX_REAL)], ...],
        BeforeValidator(_as_list),
        Field(min_length=1),
    ]
    mean: float = Field(default=0.0, ge=-param_limits.MAX_REAL, le=param_limits.MAX_REAL)
    common_rows: bool = False
    clip: bool = True

    @model_validator(mode="after")
    def _has_one_law_for_common_rows(self) -> "Noise":
        if self.common_rows and len(self.sd) > 1:
            raise ValueError(
                f"sd: got {len(self.sd)} values with common_rows, expected one, since common rows have one "
                "distribution. Give one sd, or drop common_rows"
            )
        return self


class PermuteLabels(ByCluster):
    """Concept shift: each block of clients names the classes in another order; the first block keeps the order."""

    kind: Literal["permute_labels"]
    clusters: int = Field(ge=2, le=param_limits.CLIENTS)


class MergeLabels(ByCluster):
    """Concept shift or coarser classes: new: [old, ...] for all clients, or a list of such maps, one a block."""

    kind: Literal["merge_labels"]
    into: Annotated[tuple[dict[Name, Names], ...], BeforeValidator(_as_list), Field(min_length=1)]

    @model_validator(mode="after")
    def _names_a_class_once(self) -> "MergeLabels":
        for mapping in self.into:
            named = [old for olds in mapping.values() for old in olds]
            for old in named:
                if named.count(old) > 1:
                    raise ValueError(f"got the class {old!r} in two merges, expected it in one. Name it once")
        return self


class Imbalance(Section):
    """Class imbalance: every client keeps one in `ratio` of its training rows of some classes."""

    kind: Literal["imbalance"]
    classes: Annotated[Names, AfterValidator(_check_distinct)]
    ratio: float = Field(ge=1, le=param_limits.MAX_REAL)


class Subsample(Section):
    """Class imbalance over all clients: of the training rows of each of these classes one in `ratio`, exactly.

    Only this step may also come before the step that makes clients: then it subsamples the source.
    """

    kind: Literal["subsample"]
    classes: Annotated[Names, AfterValidator(_check_distinct)]
    ratio: float = Field(ge=1, le=param_limits.MAX_REAL)


class HoldOut(Section):
    """Leave-domain-out: the clients of these domains get the role `unseen`."""

    kind: Literal["hold_out"]
    domains: Names


class Fresh(Section):
    """The last `per_domain` clients of each domain get the role `fresh`: their domain is trained, but they are not."""

    kind: Literal["fresh"]
    per_domain: int = Field(ge=1, le=param_limits.CLIENTS)


def _groups(value: object) -> str | tuple[tuple[str, ...], ...]:
    if isinstance(value, str) and value in ("paper", "code"):
        return value
    try:
        return _GROUPS.validate_python(value)
    except ValidationError:
        text = shown(repr(value))
        raise ValueError(f"got {text}, expected paper, code, or a list with one list of classes a group") from None


_GROUPS: TypeAdapter[tuple[tuple[str, ...], ...]] = TypeAdapter(Annotated[tuple[Names, ...], Field(min_length=1)])


class Column(Section):
    """Natural clients: each value of a column of the source is a client."""

    kind: Literal["column"]
    column: Literal["client", "domain"]


class PartitionerParams(Section):
    """A step that deals rows to numbered clients; `within: domain` gives each domain its own clients."""

    clients: int = Field(ge=1, le=param_limits.CLIENTS)
    within: Literal["domain"] | None = None


class Equal(PartitionerParams):
    """Rows dealt at random to clients of (nearly) equal size: no heterogeneity."""

    kind: Literal["equal"]


class Quantity(PartitionerParams):
    """Quantity skew: the clients' sizes follow Dirichlet(beta)."""

    kind: Literal["quantity"]
    beta: float = Field(ge=param_limits.SMALLEST, le=param_limits.MAX_REAL)


class Dirichlet(PartitionerParams):
    """Label skew: each class is shared among the clients by a draw from Dirichlet(alpha)."""

    kind: Literal["dirichlet"]
    alpha: float = Field(ge=param_limits.SMALLEST, le=param_limits.MAX_REAL)
    min_rows: int = Field(default=1, ge=1, le=param_limits.TIMES)


class Shards(PartitionerParams):
    """Label skew: rows sorted by label and cut into shards, of which each client gets some."""

    kind: Literal["shards"]
    shards_per_client: int = Field(ge=1, le=param_limits.TIMES)


class Balanced(PartitionerParams):
    """Label skew by degree: `percent` of the rows dealt to all, the others to the group that owns their label.

    `authors_deal` takes rows in the order of the source, and leaves out remainders, as the code of the
    selective-averaging paper. `authors_own_test` deals test rows as this code does, by digits of each client instead of
    its group. Both require ten classes.
    """

    kind: Literal["balanced"]
    percent: float = Field(ge=0, le=100)
    # paper, code or a list with a list of classes a group; a union's errors would name pydantic's types
    groups: Annotated[Any, PlainValidator(_groups), PlainText()] = "paper"
    authors_deal: bool = False
    authors_own_test: bool = False


class ClassesPerCluster(PartitionerParams):
    """Label shift by cluster: contiguous blocks of clients get the rows of some classes each, and no others.

    `most_rows` leaves out a client's rows beyond that number, so that clients of common and of rare classes have
    similar sizes.
    """

    kind: Literal["classes_per_cluster"]
    clusters: tuple[Names, ...] = Field(min_length=1)
    most_rows: int | None = Field(default=None, ge=1, le=param_limits.TIMES)


class OwnPartitioner(Section, Registered):
    """A step from a plugin file that deals rows to clients."""


PARTITIONERS = Registry(
    "partitioner",
    {
        "column": "silos.partitioners.iid_partitioners:column",
        "equal": "silos.partitioners.iid_partitioners:equal",
        "quantity": "silos.partitioners.iid_partitioners:quantity",
        "dirichlet": "silos.partitioners.label_partitioners:dirichlet",
        "shards": "silos.partitioners.label_partitioners:shards",
        "balanced": "silos.partitioners.label_partitioners:balanced",
        "classes_per_cluster": "silos.partitioners.label_partitioners:classes_per_cluster",
    },
)

Assignment = Column | Equal | Quantity | Dirichlet | Shards | Balanced | ClassesPerCluster
Change = Rotation | PermutePixels | Noise | PermuteLabels | MergeLabels | Imbalance | Subsample | HoldOut | Fresh
Step = Annotated[Assignment | Change, Field(discriminator="kind")]


def assignment_at(steps: tuple[Assignment | OwnPartitioner | Change, ...]) -> int:
    """Return the index of the one step that makes clients; UserError unless it is first, or after `subsample` only."""
    position = next((index for index, step in enumerate(steps) if not isinstance(step, Subsample)), len(steps))
    kinds = [step.kind for step in steps]
    if position == len(steps) or not isinstance(steps[position], Assignment | OwnPartitioner):
        fault = f"a first step {', '.join(f'`{kind}`' for kind in kinds[: position + 1])}" if kinds else "no step"
        before = ", with only `subsample` before it" if position else ""
        raise UserError(
            f"params.yaml: data.scheme: got {fault}, expected a first step that makes clients{before}. Put "
            "`equal`, `column`, `dirichlet`, `shards`, `balanced`, `quantity` or `classes_per_cluster` first."
        )
    if position and isinstance(steps[position], Column):
        raise UserError(
            "params.yaml: data.scheme[0]: got `subsample` before `column`, expected it after, since a client "
            "could lose all its rows unnoticed. Put it after `column`, where it thins the same rows."
        )
    for index, step in enumerate(steps[position + 1 :], start=position + 1):
        if isinstance(step, Assignment | OwnPartitioner):
            raise UserError(
                f"params.yaml: data.scheme[{index}]: got `{step.kind}`, expected no second step that makes "
                f"clients after `{kinds[position]}`. Keep only one of them."
            )
    return position


class SplitParams(Section):
    """Fractions of the rows that are validation and test rows, in [0, 1), and whether clients own them.

    `own` rows belong to a client, and follow its distribution. `common` rows are drawn before any are dealt, and no
    client owns them; with `validation_from: start` common validation rows are the first of the source instead. If the
    source marks test (or validation) rows itself, its marks are used.
    """

    validation: float = Field(ge=0, lt=1)
    test: float = Field(ge=0, lt=1)
    validation_rows: Literal["own", "common"] = "own"
    test_rows: Literal["own", "common"] = "own"
    validation_from: Literal["anywhere", "start"] = "anywhere"

    @model_validator(mode="after")
    def _leaves_training_rows(self) -> "SplitParams":
        if self.validation + self.test >= 1:
            raise ValueError(
                f"got validation {self.validation:g} and test {self.test:g}, expected a sum below 1, since no "
                "rows would be left to train on. Lower one of them"
            )
        return self

    @model_validator(mode="after")
    def _starts_with_common_rows(self) -> "SplitParams":
        if self.validation_from == "start" and self.validation_rows == "own":
            raise ValueError(
                "validation_from: got start, expected it only for common rows. Set validation_rows "
                "to common, or drop it"
            )
        return self


class DataParams(Section):
    """All settings that decide the bytes of data/<name>."""

    name: PlainName
    seed: int = Field(ge=0, le=param_limits.SEED)
    source: Source
    scheme: tuple[Step, ...]
    split: SplitParams
    features: Features = Field(
        default=(), description="one a column of a flat table; without it the columns are numeric and named x0, x1 ..."
    )

    @field_validator("scheme")
    @classmethod
    def _begins_with_an_assignment(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        assignment_at(steps)
        return steps

    def recipe(self) -> dict[str, Any]:
        """Return the settings that the bytes depend on, as JSON that reads back as these params.

        Defaults are left out, so that keys added later do not change older versions; so is the folder of a download.
        """
        return self.model_dump(mode="json", exclude_defaults=True, exclude=_DOWNLOAD_KEYS)

    def in_full(self) -> dict[str, Any]:
        """Return the recipe with its defaults."""
        return self.model_dump(mode="json", exclude=_DOWNLOAD_KEYS)


_DOWNLOAD_KEYS: Any = {"source": {"download_dir": True, "download": True}}
