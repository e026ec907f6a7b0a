"""The `data` section of params.yaml: where rows come from and how they become clients."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from silos.errors import UserError


class _Section(BaseModel):
    """A part of params.yaml: frozen, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- sources ---------------------------------------------------------------------------------------------


class Digits(_Section):
    """The 1,797 handwritten digits that come with scikit-learn: 8 x 8 pixels, 0 to 255, ten classes."""

    kind: Literal["digits"]


class Npz(_Section):
    """A NumPy archive with the arrays x and y, and optionally client, domain and split."""

    kind: Literal["npz"]
    path: str = Field(min_length=1, description="relative to the folder of params.yaml")


Source = Annotated[Digits | Npz, Field(discriminator="kind")]


# --- steps of a scheme -----------------------------------------------------------------------------------


class Equal(_Section):
    """Rows dealt at random to clients of (nearly) equal size: no heterogeneity."""

    kind: Literal["equal"]
    clients: int = Field(ge=1)


class Column(_Section):
    """Natural clients: each value of a column of the source is a client."""

    kind: Literal["column"]
    column: Literal["client", "domain"]


class Dirichlet(_Section):
    """Label skew: each class is shared among the clients by a draw from Dirichlet(alpha)."""

    kind: Literal["dirichlet"]
    clients: int = Field(ge=1)
    alpha: float = Field(gt=0, allow_inf_nan=False)
    min_rows: int = Field(default=1, ge=1)


class Rotation(_Section):
    """Feature shift: contiguous blocks of clients see their images turned by one angle each (degrees)."""

    kind: Literal["rotation"]
    angles: tuple[Annotated[float, Field(allow_inf_nan=False)], ...] = Field(min_length=1)


Assignment = Equal | Column | Dirichlet  # makes clients; exactly one, and first
Step = Annotated[Equal | Column | Dirichlet | Rotation, Field(discriminator="kind")]


class SplitParams(_Section):
    """Fractions of each client's rows that are kept out of training, in [0, 1)."""

    validation: float = Field(ge=0, lt=1)
    test: float = Field(ge=0, lt=1)

    @model_validator(mode="after")
    def _leaves_training_rows(self) -> "SplitParams":
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation {self.validation:g} and test {self.test:g} leave no rows to train on; "
                "their sum must be below 1"
            )
        return self


class DataParams(_Section):
    """All that decides the bytes of data/<name>."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    seed: int = Field(ge=0)
    source: Source
    scheme: tuple[Step, ...]
    split: SplitParams

    @field_validator("scheme")
    @classmethod
    def _begins_with_an_assignment(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        check_scheme(steps)
        return steps


def check_scheme(steps: tuple[Step, ...]) -> None:
    """Raises UserError unless exactly one step makes clients and it comes first."""
    kinds = [step.kind for step in steps]
    if not steps or not isinstance(steps[0], Assignment):
        found = f"begins with `{kinds[0]}`" if kinds else "is empty"
        raise UserError(
            f"params.yaml: data.scheme {found}, and must begin with a step that makes clients; "
            "put `equal`, `column` or `dirichlet` first."
        )
    for index, step in enumerate(steps[1:], start=1):
        if isinstance(step, Assignment):
            raise UserError(
                f"params.yaml: data.scheme[{index}] is `{step.kind}`, but `{kinds[0]}` has already made the "
                "clients; keep only one of them."
            )
