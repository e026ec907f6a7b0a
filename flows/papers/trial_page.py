"""What a page says of cells that are no runs but trials: pairs of clients whose shift is known are drawn, and judged."""

from collections.abc import Mapping

from pydantic import Field, NonNegativeFloat, PositiveInt

from flows.papers.curves import Record
from models.shift.known.families import FAMILIES


class Trial(Record):
    """What a cell does that is no run: so many pairs of clients are drawn, of a row of the table's family, and judged.

    rows: of both clients, or of a random pair the fewest and the most of either; effect: φ of what shifts, of a random pair.
    """

    row: str
    rows: tuple[PositiveInt, PositiveInt]
    pairs: PositiveInt
    effect: NonNegativeFloat = 0.0


class Confusion(Record):
    """Cells of trials that are shown together; `published` is the balanced accuracy by judge.

    With `by` it is also shown of which kinds of pairs verdicts are right.
    """

    cells: tuple[str, ...] = Field(min_length=1)
    published: dict[str, float] = Field({})
    by: bool = False


def check_trials(family: str | None, trials: Mapping[str, Trial | None]) -> None:
    """ValueError unless all cells are trials on rows that the family has, or none is and there is no family."""
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
