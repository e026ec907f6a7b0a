"""Choose what to do about a table's missing values, and say what each choice does to rows now and to `predict` later."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from silos.errors import UserError, shown, some
from silos.schema import Task
from silos.sources.tabular.column_kinds import Column
from silos.sources.tabular.column_rules import describe_lost
from silos.sources.tabular.table_reader import TableSample

Choice = Literal["drop_rows", "mean", "zero"]
"""A value of `--missing`; without missing values, `missing: refuse` is written."""

MissingValue = str | dict[str, str | int]
"""A value of `missing` in params.yaml."""

_VALUES: dict[Choice, MissingValue] = {"drop_rows": "drop_rows", "mean": {"fill": "mean"}, "zero": {"fill": 0}}
_MOST_DROPPED = 0.1  # share of the rows that may be dropped for a missing value


@dataclass(frozen=True)
class MissingPolicy:
    """The value of `data.source.missing`, and a sentence on each choice, the chosen one first."""

    value: MissingValue
    choices: tuple[str, ...] = ()


def choose_missing(
    sample: TableSample, roles: Mapping[str, Column], features: Sequence[Column], requested: Choice | None, task: Task
) -> MissingPolicy:
    """Choose a policy; a missing text is a category, unless rows must be dropped.

    Rows without a label, client, split or unit can only be dropped. Otherwise rows are dropped if they are at most a
    tenth of all. Missing numbers are filled in if they are more, or if a class or silo would be lost.

    Raises:
        UserError: If a row has no value in a role, and more than a tenth of all rows would be dropped besides these, or
            if the user wants to keep the rows.
    """
    rows = sample.rows
    numbers = [column for column in features if column.kind != "text"]
    without_role, without_number = _any_missing(rows, [*roles.values()]), _any_missing(rows, numbers)
    gaps = without_role | _any_missing(rows, features)
    classes_and_clients = {role: each for role, each in roles.items() if not (task == "regression" and role == "label")}
    dropped, lost = int(gaps.sum()), describe_lost(classes_and_clients, features, ~gaps)
    if not dropped:
        return MissingPolicy("refuse" if requested is None else _VALUES[requested])
    role = next((column for column in roles.values() if column.missing.any()), None)
    too_many = dropped - int(without_role.sum()) > _MOST_DROPPED * rows
    if role is not None and (requested in ("mean", "zero") or (requested is None and too_many)):
        raise UserError(
            f"{sample.name}: the column {shown(repr(role.name), 40)} has no value in {int(role.missing.sum()):,} of "
            f"{rows:,} rows, expected one in each. Delete the rows without {shown(repr(role.name), 40)} from the "
            "file, and other missing values are filled in. Or add `--missing drop_rows`, which drops all "
            f"{dropped:,} rows with any missing value."
        )
    if not (without_role | without_number).any():  # only texts
        fitting: Choice = "mean"
        reason = "no number is missing, and a missing text is a category"
    elif role is not None:
        fitting, reason = "drop_rows", f"{shown(role.name, 40)} has no value in {int(role.missing.sum()):,} of them"
    elif lost:
        fitting, reason = "mean", f"dropping would leave no row of {some(lost, 2)}"
    elif dropped <= _MOST_DROPPED * rows:
        fitting, reason = "drop_rows", f"{dropped / rows:.1%} of the rows are at most a tenth"
    else:
        fitting, reason = "mean", f"dropping would lose {dropped / rows:.0%} of the rows"
    chosen = requested or fitting
    why = "as requested" if requested else f"chosen, since {reason}"
    effects = _effects(
        rows, dropped, int(without_number.sum()), [column for column in features if column.kind == "text"]
    )
    effects["drop_rows"] += f"; no row is left of {some(lost, 4)}" if lost else ""
    others = [] if role is not None else [name for name in effects if name != chosen]
    return MissingPolicy(
        _VALUES[chosen],
        (
            f"{effects[chosen]} ({why}: `missing: {_text(chosen)}`)",
            *(f"or `--missing {name} --force`: {effects[name]}" for name in others),
        ),
    )


def _effects(rows: int, dropped: int, without_number: int, texts: Sequence[Column]) -> dict[Choice, str]:
    """Return what each choice does to rows now, and to `predict` later."""
    absent = [shown(column.name, 40) for column in texts if column.missing.any()]
    category = f"a category for missing values in {some(absent)}" if absent else ""

    def filled(value: str, later: str) -> str:
        numbers = f"{value} replaces missing numbers in {without_number:,} of {rows:,} rows" if without_number else ""
        return f"{' and '.join(filter(None, (numbers, category)))}; {later if numbers else 'predict takes such rows'}"

    return {
        "drop_rows": f"{dropped:,} of {rows:,} rows with a missing value are dropped; later `predict` leaves out "
        "and lists rows without a feature",
        "mean": filled("each silo's mean", "later `predict` must know the silo of such a row"),
        "zero": filled("0", "later `predict` does the same for every silo"),
    }


def _text(choice: Choice) -> str:
    value = _VALUES[choice]
    return value if isinstance(value, str) else f"{{fill: {value['fill']}}}"


def _any_missing(rows: int, columns: Sequence[Column]) -> np.ndarray:
    """Return the rows in which a column has no value: (rows,) bool."""
    gaps = np.zeros(rows, bool)
    for column in columns:
        gaps |= column.missing
    return gaps
