"""Defines the `diagnose` section of params.yaml: what silos are queried for, and how shift is classified."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from silos import param_limits
from silos.params_section import Section

FEW_BINS = 8
"""Number of bins of a numeric feature if clients add noise, which grows with the number of bins."""


class NoiseParams(Section):
    """The noise that every client adds to its reports, as (epsilon, delta)-differential privacy of its rows.

    `budget` lowers the epsilon of all reports that a client ever sends with noise. Clients refuse a budget or delta
    above those of their own policy (silos/privacy/silo_policy.py).
    """

    epsilon: float = Field(ge=param_limits.EPSILON, le=param_limits.MAX_REAL)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    budget: float | None = Field(default=None, gt=0, le=param_limits.MAX_REAL)

    @model_validator(mode="after")
    def _within_the_budget(self) -> "NoiseParams":
        if self.budget is not None and self.epsilon > self.budget:
            raise ValueError(
                f"got epsilon {self.epsilon:g}, expected at most the budget {self.budget:g} of all "
                "reports. Lower epsilon or raise the budget"
            )
        return self


class ReadingsParams(Section):
    """Choices that the published rule leaves open: docs/diagnose.md."""

    aggregate: Literal["max", "mean"] = "max"
    points: int = Field(default=100, ge=1, le=10_000)
    divisor: Literal["printed", "n - 1", "n"] = "printed"


class DiagnoseParams(Section):
    """`verdict`: by counts (guarded), by moments if counts may not be sent, or as published (paper).

    `second_look`: if both inputs and rule seem to differ, silos report models of their labels, and the models'
    predictions.
    """

    verdict: Literal["guarded", "moments", "paper"] = "guarded"
    bins: Annotated[int, Field(ge=2, le=1024)] = 32
    noise: NoiseParams | None = None
    second_look: bool = False
    paper: ReadingsParams = ReadingsParams()

    @model_validator(mode="after")
    def _noise_is_on_counts(self) -> "DiagnoseParams":
        if self.noise is not None and self.verdict == "moments":
            raise ValueError(
                "got noise with the verdict moments, expected it with counts. Set verdict to guarded, or noise to null"
            )
        return self

    @model_validator(mode="after")
    def _second_look_is_at_counts(self) -> "DiagnoseParams":
        if self.second_look and self.noise is not None:
            raise ValueError(
                "got second_look with noise, expected one of them, since models are sent without "
                "noise. Turn one of the two off"
            )
        if self.second_look and self.verdict != "guarded":
            raise ValueError(
                f"got second_look with the verdict {self.verdict}, expected the verdict guarded, which it "
                "refines. Set verdict to guarded"
            )
        return self
