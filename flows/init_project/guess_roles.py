"""Guess the role of each column of a user's table, and the reason for it; where that is unsure, ask the user."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from silos.errors import UserError, shown, some
from silos.sources.source_checks import named_splits
from silos.sources.tabular.column_kinds import Column
from silos.sources.tabular.column_rules import is_row_number, is_unit_name, looks_like_unit
from silos.sources.tabular.table_reader import TableSample

Ask = Callable[[str, Sequence[str], str | None], str]
"""Asks the user for the column of a role, among these columns; the last argument is the guess, if there is one."""

DEAL = "add `--clients 5` to deal the rows at random to 5 silos"

LABELS = ("label", "target", "outcome", "class", "y")
CLIENTS = ("client", "hospital", "site", "silo", "clinic", "centre", "center")
# words of a name that often is the label, or the client if few values have many rows each
_WORDS = {
    "label": (
        "alive dead death deceased died mortality survival survived diagnosis disease recurrence readmission readmitted "
        "relapse response severity stage grade churn churned defaulted demand event failure fraud power price quality "
        "result yield"
    ),
    "client": (
        "bank branch city cohort company country county department district facility factory farm institute institution "
        "lab laboratory location node park party plant practice provider region school shop station store university"
    ),
    # where no column has one of the words above: things of which a place may have several
    "thing": "device machine office robot sensor ship team turbine vehicle vessel warehouse",
}
_OF_A_KEY = {"code", "id", "key", "name", "no", "nr", "number"}  # plant_id is a plant, and plant_type is none
_USUAL_WORDS = {*LABELS} - {"class", "y"}  # first_class and pos_y are no labels
_LABEL_WORDS = {*_USUAL_WORDS, *_WORDS["label"].split()}
_CLIENT_WORDS = {*CLIENTS, *_WORDS["client"].split()}
_THINGS = {*_WORDS["thing"].split()}

_SHOWN = 20  # columns in a message
_MOST_CLASSES = 20  # values of a text that may be a label
_LEAST_ROWS = 10  # of the median client


@dataclass(frozen=True)
class Roles:
    """The columns with a role, and the reasons in words; `unused` names a column of splits that cannot be used, and why."""

    label: str
    client: str | None
    split: str | None
    unit: str | None
    notes: tuple[str, ...]
    unused: Mapping[str, str]

    @property
    def columns(self) -> dict[str, str]:
        """Return the columns with a role, by role."""
        columns = {role: getattr(self, role) for role in ("label", "client", "split", "unit")}
        return {role: name for role, name in columns.items() if name is not None}


def guess_roles(
    sample: TableSample, label: str | None, client: str | None, unit: str | None, dealt: bool, ask: Ask | None = None
) -> Roles:
    """Guess the roles that the user has not named.

    Args:
        sample: The table.
        label: The column that the user named as label, or None; likewise `client` and `unit`.
        client: See label.
        unit: See label.
        dealt: Whether rows are dealt at random, so that there is no client column.
        ask: Asks the user where a guess is unsure; without it the guess is taken, and its note says so.

    Raises:
        UserError: If the user named a column that the table lacks, or no guess is possible.
    """
    for role, name in (("label", label), ("client", client), ("unit", unit)):
        if name is not None and sample.column(name) is None:
            raise UserError(
                f"--{role}: got {shown(name)}, expected a column of {sample.name}. Choose one of {_list_columns(sample)}."
            )
    named = {name for name in (label, client, unit) if name is not None}
    # the split first, the label after the client: without a usual name, the label is the last column still free
    split, split_note, unused = _find_split(sample, named)
    taken = named | {*unused} | ({split} if split else set())
    client_note = label_note = ""
    if client is None and not dealt:
        client, client_note = _find_client(sample, taken, label is None, ask)
    if label is None:
        label, label_note = _find_label(sample, taken | ({client} if client else set()), ask)
    unit_note = ""
    if unit is None:
        unit, unit_note = _find_unit(sample, {label, client, split, *unused}, client, split)
    _check_distinct({"label": label, "client": client, "unit": unit})
    notes = tuple(note for note in (label_note, client_note, split_note, unit_note) if note)
    return Roles(label, client, split, unit, notes, unused)


def _find_label(sample: TableSample, taken: Collection[str], ask: Ask | None) -> tuple[str, str]:
    """Return the label and the reason: by a usual name, else by a word of the name, else the last plausible column."""
    columns = [column for column in sample.columns if column.name not in taken]
    usual = [column.name for column in columns if _is_usual(column.name, LABELS)]
    if len(usual) == 1:
        return usual[0], f"label {shown(usual[0], 40)} (by its name)"
    plausible = [column.name for column in columns if _may_be_label(sample, column)]
    worded = [name for name in plausible if _words(name) & _LABEL_WORDS]
    by_name = ([name for name in worded if _words(name) & _USUAL_WORDS] or worded)[-1:]
    if not usual and by_name and by_name == plausible[-1:]:
        return by_name[0], f"label {shown(by_name[0], 40)} (by its name, and the last column)"
    guess = next(iter(by_name or plausible[-1:]), None)
    if ask is not None:
        return ask("label", [column.name for column in columns], None if usual else guess), ""
    if usual or guess is None:
        raise _unclear(sample, "label", usual, "")
    reason = "by its name" if by_name else "the last column that can be one"
    return guess, f"label {shown(guess, 40)} ({reason}; if it is another, add `--label COLUMN --force`)"


def _find_client(sample: TableSample, taken: Collection[str], before_label: bool, ask: Ask | None) -> tuple[str, str]:
    """Return the client and the reason: by a usual name, or by a word of it if few values have many rows each."""
    columns = [column for column in sample.columns if column.name not in taken]
    columns = [column for column in columns if not (before_label and _is_usual(column.name, LABELS))]
    usual = [column.name for column in columns if _is_usual(column.name, CLIENTS)]
    if len(usual) == 1:
        return usual[0], f"client {shown(usual[0], 40)} (by its name)"
    plausible = [column for column in columns if _may_be_client(column)]
    worded = [column.name for column in plausible if _last_word(column.name) in _CLIENT_WORDS]
    worded = worded or [column.name for column in plausible if _last_word(column.name) in _THINGS]
    if not usual and len(worded) == 1:
        count = len(_column(sample, worded[0]).used)
        return worded[0], f"client {shown(worded[0], 40)} (by its name, and {count:,} values with many rows each)"
    texts = [column.name for column in plausible if column.kind == "text"]
    if ask is not None:
        guesses = [*usual, *worded, *texts]
        return ask("client", [column.name for column in columns], guesses[0] if guesses else None), ""
    raise _unclear(sample, "client", usual or worded, f"; or {DEAL}", [] if worded else texts)


def _unclear(
    sample: TableSample, role: str, names: Sequence[str], otherwise: str, likely: Sequence[str] = ()
) -> UserError:
    problem = f"{some(names, 3).replace(', ', ' and ')} may each be" if names else "no column clearly is"
    hint = f" Few values with many rows each have {some([shown(name, 40) for name in likely], 3)}." if likely else ""
    return UserError(
        f"{sample.name}: {problem} the {role}. Name it with --{role}{otherwise}.{hint} The columns are "
        f"{_list_columns(sample)}."
    )


def _find_split(sample: TableSample, named: Collection[str]) -> tuple[str | None, str, Mapping[str, str]]:
    """Return the column that marks rows as train and test, and the reason, or columns that mark no test rows.

    Numbers are marks in a column called `split` only.
    """
    unused: dict[str, str] = {}
    for column in sample.columns:
        if column.name in named or (column.kind != "text" and column.name.casefold() != "split"):
            continue
        splits = named_splits([column.texts[code] for code in column.used])
        if splits is None or "train" not in splits:
            continue
        if "test" in splits:
            texts = [column.texts[code] for code in column.used]
            meanings = [text if text in splits else f"{text} for {min(named_splits([text]) or ())}" for text in texts]
            return column.name, f"split {shown(column.name, 40)} (by its values: {some(meanings, 4)})", {}
        if "validation" in splits:
            unused[column.name] = "it marks no test rows, so rows are split at random"
    return None, "", unused


def _find_unit(
    sample: TableSample, taken: Collection[str | None], client: str | None, split: str | None
) -> tuple[str | None, str]:
    """Return the column of units, and the reason; None if no column looks like it.

    Of several columns, one with a usual name comes first, then the one with most values. Units that the user's own
    splits part are none.
    """
    silo = None if client is None else _column(sample, client)
    candidates = [column for column in sample.columns if column.name not in taken]
    candidates = [column for column in candidates if is_unit_name(column.name) or not column.missing.any()]
    units = [column for column in candidates if looks_like_unit(column, silo)]
    if not units:
        return None, ""
    found = max(units, key=lambda column: (is_unit_name(column.name), len(column.used)))
    if split is not None and (parted := _parted(found, _column(sample, split))):
        return None, (
            f"no unit, since {parted:,} of {len(found.used):,} values of {shown(found.name, 40)} have rows in several "
            "splits: test rows may be of patients or machines that train"
        )
    reason = "by its name" if is_unit_name(found.name) else "each value is of one silo"
    return found.name, unit_note(found.name, reason, len(found.used), sample.rows)


def _parted(unit: Column, split: Column) -> int:
    """Count the units with rows in several splits."""
    both = ~unit.missing & ~split.missing
    pairs = np.unique(np.stack([unit.codes[both], split.codes[both]]), axis=1)
    return int((np.bincount(pairs[0]) > 1).sum())


def unit_note(name: str, reason: str, units: int, rows: int) -> str:
    """Return the note about a column or array of units."""
    return f"unit {shown(name, 40)} ({reason}: {units:,} values in {rows:,} rows)"


def _may_be_label(sample: TableSample, column: Column) -> bool:
    """Return whether a column may be predicted: a few texts, or numbers that are no key."""
    values = len(column.used)
    if values < 2 or is_row_number(column, sample.rows) or is_unit_name(column.name) or "id" in _words(column.name):
        return False
    return column.kind in ("number", "boolean") or (column.kind == "text" and values <= _MOST_CLASSES)


def _may_be_client(column: Column) -> bool:
    """Return whether a column has at least two texts or whole numbers, and half of these have many rows each."""
    numbers = column.numbers[column.used]
    whole = column.kind == "text" or (column.kind == "number" and bool((numbers == np.floor(numbers)).all()))
    if not whole or len(column.used) < 2 or (is_unit_name(column.name) and looks_like_unit(column)):
        return False
    rows = np.bincount(column.codes[~column.missing])
    return float(np.median(rows[rows > 0])) >= _LEAST_ROWS


def _is_usual(name: str, usual: Sequence[str]) -> bool:
    return name.casefold().removesuffix("_id") in usual


def _words(name: str) -> set[str]:
    """Return the words of a name such as wind_park, windPark or `Wind park`, in lower case."""
    return {*_word_list(name)}


def _last_word(name: str) -> str:
    """Return the last word of a name that does not say how something is named: `plant` of plant_id, `type` of plant_type."""
    return next((word for word in reversed(_word_list(name)) if word not in _OF_A_KEY), "")


def _word_list(name: str) -> list[str]:
    return [word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]


def _check_distinct(columns: Mapping[str, str | None]) -> None:
    """Raise UserError if two roles name the same column."""
    first: dict[str, str] = {}
    for role, name in columns.items():
        if name is not None and first.setdefault(name, role) != role:
            raise UserError(
                f"--{role}: got {shown(name, 40)}, which is the {first[name]} too, expected another. Name another with "
                f"--{role} or --{first[name]}."
            )


def _column(sample: TableSample, name: str) -> Column:
    column = sample.column(name)
    assert column is not None
    return column


def _list_columns(sample: TableSample) -> str:
    """List all columns; of many the first and the last, because the label is often one of them."""
    names = [shown(repr(column.name), 40) for column in sample.columns]
    listed = names if len(names) <= _SHOWN else [*names[: _SHOWN // 2], "…", *names[-_SHOWN // 2 :]]
    return ", ".join(listed)
