"""Params of the steps of `data.scheme` that make clients differ, thin classes, or decide who takes part."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from silos import param_limits
from silos.param_types import Name, Names
from silos.sources.source_params import Section


def _as_list(value: Any) -> Any:
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
