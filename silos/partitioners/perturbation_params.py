"""Steps of `data.scheme` that make clients differ, that thin classes, and that say who takes part: one record a step."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from silos import param_types
from silos.param_types import Name, Names
from silos.sources.source_params import Section


def _several(value: Any) -> Any:
    """One value as a list of one: a union of both would name each of its members in an error."""
    return value if isinstance(value, list | tuple) else [value]


def _once(classes: tuple[str, ...]) -> tuple[str, ...]:
    """A class that is there twice would be thinned twice, or is a slip."""
    for name in classes:
        if classes.count(name) > 1:
            raise ValueError(f"class {name!r} is there twice; name it once")
    return classes


class ByCluster(Section):
    """A step that treats contiguous blocks of clients differently, over all clients or within each domain."""

    within: Literal["domain"] | None = None


class Rotation(ByCluster):
    """Feature shift: contiguous blocks of clients see their images turned by one angle each (degrees).

    `centre` is the middle of the image, or the point (width / 2, height / 2) in pixel numbers, half a pixel
    further, about which code turns that calls OpenCV in the usual way.
    """

    kind: Literal["rotation"]
    angles: tuple[Annotated[float, Field(ge=-param_types.TURN, le=param_types.TURN)], ...] = Field(min_length=1)
    centre: Literal["middle", "opencv"] = "middle"


class PermutePixels(ByCluster):
    """Feature shift: contiguous blocks of clients see the pixels of their images in one drawn order each.

    `clusters` is the number of blocks; left out, every client is one.
    """

    kind: Literal["permute_pixels"]
    clusters: int | None = Field(default=None, ge=1, le=param_types.CLIENTS)

    @model_validator(mode="after")
    def _has_clusters_within_domains(self) -> "PermutePixels":
        if self.within and self.clusters is None:
            raise ValueError("it has within and no clusters; say how many orders a domain has, or drop within")
        return self


class Noise(ByCluster):
    """Feature shift: Gaussian noise, one standard deviation for all clients or one a block (pixels: of 255).

    `mean` is the noise's, of the same units. With `common_rows` the rows that no client owns are noisy as well. Without
    `clip` pixels become numbers of which 0 to 1 was the range, and are neither rounded nor clipped.
    """

    kind: Literal["noise"]
    sd: Annotated[
        tuple[Annotated[float, Field(ge=0, le=param_types.MAX_REAL)], ...],
        BeforeValidator(_several),
        Field(min_length=1),
    ]
    mean: float = Field(default=0.0, ge=-param_types.MAX_REAL, le=param_types.MAX_REAL)
    common_rows: bool = False
    clip: bool = True

    @model_validator(mode="after")
    def _has_one_law_for_common_rows(self) -> "Noise":
        if self.common_rows and len(self.sd) > 1:
            raise ValueError(
                f"it has {len(self.sd)} sd, and common rows have one law; give one sd, or drop common_rows"
            )
        return self


class PermuteLabels(ByCluster):
    """Concept shift: each block of clients names the classes in another order; the first keeps theirs."""

    kind: Literal["permute_labels"]
    clusters: int = Field(ge=2, le=param_types.CLIENTS)


class MergeLabels(ByCluster):
    """Concept shift or coarser classes: new: [old, ...] for all clients, or a list of such maps, one a block."""

    kind: Literal["merge_labels"]
    into: Annotated[tuple[dict[Name, Names], ...], BeforeValidator(_several), Field(min_length=1)]

    @model_validator(mode="after")
    def _names_a_class_once(self) -> "MergeLabels":
        for each in self.into:
            named = [old for olds in each.values() for old in olds]
            for old in named:
                if named.count(old) > 1:
                    raise ValueError(f"class {old!r} is merged twice; name it once")
        return self


class Imbalance(Section):
    """Class imbalance: of the training rows of some classes, every client keeps one in `ratio`."""

    kind: Literal["imbalance"]
    classes: Annotated[Names, AfterValidator(_once)]
    ratio: float = Field(ge=1, le=param_types.MAX_REAL)


class Subsample(Section):
    """Class imbalance of all clients together: of the training rows of each of these classes one in `ratio`, exactly.

    The one step that may also stand before the step that makes clients: then the rows that they are made of are thinned.
    """

    kind: Literal["subsample"]
    classes: Annotated[Names, AfterValidator(_once)]
    ratio: float = Field(ge=1, le=param_types.MAX_REAL)


class HoldOut(Section):
    """Leave-domain-out: the clients of these domains get the role `unseen`."""

    kind: Literal["hold_out"]
    domains: Names


class Fresh(Section):
    """The last `per_domain` clients of each domain get the role `fresh`: a known law, but never trained on."""

    kind: Literal["fresh"]
    per_domain: int = Field(ge=1, le=param_types.CLIENTS)
