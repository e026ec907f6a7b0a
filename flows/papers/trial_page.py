"""What a page says of cells that are no runs but trials: pairs of clients whose shift is known are drawn, and judged."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, field_validator

from flows.papers.curves import Record
from publications.synthetic_pairs.evaluate_verdicts import named_types
from publications.synthetic_pairs.families import FAMILIES


class Trial(Record):
    """What a cell does that is no run: so many pairs of clients are drawn, of a row of the table's family, and judged.

    rows: of both clients, or of a random pair the fewest and the most of either; effect: φ of what shifts, of a random pair;
    epsilon: of the noise that both add to their counts, for differential privacy; 0 is none.
    """

    row: str
    rows: tuple[PositiveInt, PositiveInt]
    pairs: PositiveInt
    effect: NonNegativeFloat = 0.0
    epsilon: NonNegativeFloat = 0.0


class KnownSilos(Record):
    """What a cell does that diagnoses silos of its settings' making: which pairs it looks at, and how these truly differ.

    across: pairs of silos of different domains; within: of the same one. truth: types joined by +, or none.
    """

    truth: str
    pairs: Literal["across", "within"]

    @field_validator("truth")
    @classmethod
    def _types(cls, truth: str) -> str:
        right = named_types(frozenset(truth.split("+")))
        if truth != right:
            raise ValueError(
                f"{truth!r} is no name of types: it is feature, label, concept, joined by + in this order, or none"
            )
        return truth


class Confusion(Record):
    """Cells of trials that are shown together; `published` is the balanced accuracy by judge.

    With `by` it is also shown of which kinds of pairs verdicts are right.
    """

    cells: tuple[str, ...] = Field(min_length=1)
    published: dict[str, float] = Field({})
    by: bool = False


def check_trials(family: str | None, second_look: bool, trials: Mapping[str, Trial | None]) -> None:
    """ValueError unless all cells are trials on rows that the family has, or none is and there is no family.

    A second look is only at trials, and at none with noise.
    """
    if second_look and family is None:
        raise ValueError("a second look is at trials, and the table has no family of pairs: drop `second_look`")
    if family is not None and family not in FAMILIES:
        raise ValueError(f"there is no family {family!r} of pairs; there are {', '.join(FAMILIES)}")
    for name, trial in trials.items():
        if family is None and trial is not None:
            raise ValueError(f"the cell {name} is a trial, and the table does not say on which pairs: add `family`")
        if family is None:
            continue
        if trial is None:
            raise ValueError(f"the cell {name} has no trial, and all cells of a family are trials: add `trial`")
        rows = FAMILIES[family].truths
        if trial.row not in rows:
            raise ValueError(f"the cell {name}: {family} has no row {trial.row!r}; there are {', '.join(rows)}")
        if second_look and trial.epsilon:
            raise ValueError(f"the cell {name} has noise, of which there is no second look: drop `epsilon`")


def check_silos(family: str | None, silos: Mapping[str, KnownSilos | None]) -> None:
    """ValueError unless all cells diagnose silos, and no family of pairs is drawn from, or none does."""
    there, others = ([name for name, one in silos.items() if bool(one) is wanted] for wanted in (True, False))
    if there and family is not None:
        raise ValueError(f"the cell {there[0]} diagnoses silos, and the table draws pairs: drop `silos`, or `family`")
    if there and others:
        raise ValueError(
            f"the cell {others[0]} has no silos, and {there[0]} has: add `silos`, or give it another table"
        )
