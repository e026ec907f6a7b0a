"""The `data` section of params.yaml: where rows come from and how they become clients."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from silos import param_types
from silos.param_types import PlainName
from silos.partitioners.partition_params import Step, assignment_at
from silos.schema import Features
from silos.sources.source_params import Section, Source


class SplitParams(Section):
    """Fractions of the rows that are kept out of training, in [0, 1), and whose they are.

    `own` rows are a client's, of its own law. `common` rows are drawn before any are dealt, and no client
    owns them; with `validation_from: start` common validation rows are not drawn but the first of the source. Where the
    source marks test (or validation) rows itself, those are taken.
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
                f"validation {self.validation:g} and test {self.test:g} leave no rows to train on; "
                "their sum must be below 1"
            )
        return self

    @model_validator(mode="after")
    def _starts_with_common_rows(self) -> "SplitParams":
        if self.validation_from == "start" and self.validation_rows == "own":
            raise ValueError("validation_from start is of common rows; set validation_rows to common, or drop it")
        return self


class DataParams(Section):
    """All that decides the bytes of data/<name>."""

    name: PlainName
    seed: int = Field(ge=0, le=param_types.SEED)
    source: Source
    scheme: tuple[Step, ...]
    split: SplitParams
    features: Features = Field(default=(), description="one a column of a flat table; left out, x0, x1 ... are numeric")

    @field_validator("scheme")
    @classmethod
    def _begins_with_an_assignment(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        assignment_at(steps)
        return steps

    def recipe(self) -> dict[str, Any]:
        """What the bytes depend on, as JSON that reads back as these params.

        Without defaults, so that a key added later leaves older versions alone, and without the place of a
        download.
        """
        return self.model_dump(mode="json", exclude_defaults=True, exclude=_PLACE)

    def in_full(self) -> dict[str, Any]:
        """The recipe with its defaults."""
        return self.model_dump(mode="json", exclude=_PLACE)


_PLACE: Any = {"source": {"download_dir": True, "download": True}}
