"""Defines the `clients` section of params.yaml: which clients take part in a round, and on which scale."""

from typing import Annotated, Literal

from pydantic import Field

from silos import param_limits
from silos.param_types import Name
from silos.params_section import Section
from silos.plugin_registry import Entry, Registered


class UniformParams(Section):
    """Samples every client with the same probability."""

    kind: Literal["uniform"]


class BySizeParams(Section):
    """Samples clients in proportion to training rows, one after another."""

    kind: Literal["by_size"]


class ImprovingParams(Section):
    """Samples up to `focus` of a round's clients from those whose validation loss decreased in the last round."""

    kind: Literal["improving"]
    focus: float = Field(default=0.8, ge=0, le=1)
    improvement: Literal["last_seen", "within_round"] = "last_seen"


class OwnSampler(Section, Registered):
    """A sampler of a plugin file: a function that samples, or a class that extends Sampler."""


_COMMON_OPTIONS = ("fraction", "dropout", "join", "leave")


def options_given(entry: Entry) -> tuple[str, ...]:
    """Return the parameters of a plugin's sampler that siloflow passes, and that are no options."""
    return _COMMON_OPTIONS if isinstance(entry.target, type) else ("setup", "clients", "wanted", "number", "memory")


Sampling = UniformParams | BySizeParams | ImprovingParams


class AlignParams(Section):
    """Sets which numeric features each client brings to a common scale by its own training rows.

    standardise: mean 0 and deviation 1; quantiles: the quantiles of a normal distribution.
    """

    kind: Literal["none", "standardise", "quantiles"] = "none"
    features: Literal["all"] | tuple[Name, ...] = "all"


class ClientsParams(Section):
    """Sets which clients take part in a round, and how each brings its rows to a common scale."""

    fraction: float = Field(default=1.0, gt=0, le=1)
    sampling: Annotated[Sampling, Field(discriminator="kind")] = UniformParams(kind="uniform")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    join: dict[Name, Annotated[int, Field(ge=1, le=param_limits.TIMES)]] = Field(default={})
    leave: dict[Name, Annotated[int, Field(ge=1, le=param_limits.TIMES)]] = Field(default={})
    align: AlignParams = AlignParams()
    least: int = Field(default=1, ge=1, le=param_limits.CLIENTS)
