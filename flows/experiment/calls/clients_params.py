"""The `clients` section of params.yaml: who takes part in a round."""

from typing import Annotated, Literal

from pydantic import Field

from silos import bounds
from silos.names import Name
from silos.sources.source_params import Section


class UniformParams(Section):
    """Every client with the same chance."""

    kind: Literal["uniform"]


class BySizeParams(Section):
    """In proportion to training rows, one after another."""

    kind: Literal["by_size"]


class ImprovingParams(Section):
    """Up to `focus` of a round's clients from those whose validation loss went down in the round before."""

    kind: Literal["improving"]
    focus: float = Field(default=0.8, ge=0, le=1)
    improvement: Literal["last_seen", "within_round"] = "last_seen"


class ClientsParams(Section):
    """Who takes part in a round."""

    fraction: float = Field(default=1.0, gt=0, le=1)
    sampling: Annotated[UniformParams | BySizeParams | ImprovingParams, Field(discriminator="kind")] = UniformParams(
        kind="uniform"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1)
    join: dict[Name, Annotated[int, Field(ge=1, le=bounds.TIMES)]] = Field(default={})
    leave: dict[Name, Annotated[int, Field(ge=1, le=bounds.TIMES)]] = Field(default={})
