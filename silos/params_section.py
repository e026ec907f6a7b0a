"""The base class of sections of params.yaml, and what several sections have."""

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from silos import param_limits
from silos.errors import shown
from silos.strict_yaml import refuse_booleans


def _unsigned_zero(value: float) -> float:
    return value + 0.0


Number = Annotated[float, Field(ge=-param_limits.VALUE, le=param_limits.VALUE), AfterValidator(_unsigned_zero)]


class Section(BaseModel):
    """A part of params.yaml: frozen, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    _numbers = model_validator(mode="before")(refuse_booleans)


class Fill(Section):
    """Allow missing values, which this number replaces in x; a mask stored with the rows marks them.

    `mean` is each client's own mean over its training rows.
    """

    fill: Number | Literal["mean"]


def one_fault(fault: str) -> WrapValidator:
    """Replace the errors of a union's members by one sentence: the value and then `fault`."""

    def checked(value: object, validate: ValidatorFunctionWrapHandler) -> object:
        try:
            return validate(value)
        except ValidationError:
            raise ValueError(f"got {shown(repr(value))}, {fault}") from None

    return WrapValidator(checked)
