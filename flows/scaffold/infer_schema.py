"""A first look at a person's own file: which column is what, and why it is thought so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from silos.dataset import Rows, some
from silos.errors import UserError, shown
from silos.schema import Task
from silos.sources.image_folder import are_splits, list_pictures
from silos.sources.npz import read_arrays
from silos.sources.source_params import Folder, Npz, Table
from silos.sources.source_registry import load_source
from silos.sources.tabular.column_kinds import ODD_NUMBERS, Column, Conventions
from silos.sources.tabular.column_selection import check_usable, describe_odd_numbers, is_row_number
from silos.sources.tabular.number_parser import Censored, Decimal
from silos.sources.tabular.table_reader import ENDINGS, TableSample, sample_table

LABELS = ("label", "target", "outcome", "class", "y")
CLIENTS = ("client", "hospital", "site", "silo", "clinic", "centre", "center")

_SHOWN = 20  # columns of a sentence
_FEW = 20  # classes that are not counted by rows
_ROWS_OF_A_CLASS = 10  # on average, or numbers that are more than a few are no classes
_LEAST_PIXELS, _MOST_PIXELS = 8, 64  # of a side of a picture
_LOOKED_AT = 100  # pictures whose size is looked at
_MOST_DROPPED = 0.1  # of the rows, for a value that is missing
_WHY = {"date": "dates", "empty": "no values"}


@dataclass(frozen=True)
class DataOptions:
    """What the command line says of a file; None of what it leaves to be guessed."""

    label: str | None = None
    client: str | None = None
    clients: int | None = None
    task: Task | None = None
    decimal: Decimal | None = None
    censored: Censored | None = None


@dataclass(frozen=True)
class OwnData:
    """The source that reads a file, what it reads there, what was guessed of it, in words, and columns that it cannot read.

    `left_out` has a sentence for each column of numbers that are not written as such.
    """

    source: Npz | Table | Folder
    rows: Rows
    guessed: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def infer_schema(file: Path, asked: DataOptions) -> OwnData:
    """What is in the file or folder; UserError where that is not to be guessed, or cannot be read as a source."""
    name = file.name.lower()
    is_folder = file.is_dir() and not name.endswith((".npz", *ENDINGS))
    if not is_folder and not name.endswith((".npz", *ENDINGS)):
        raise UserError(
            f"{file}: data come as .npz, {', '.join(ENDINGS)} or a folder of pictures; save them as one of these."
        )
    if asked.client is not None and asked.clients is not None:
        raise UserError(
            "--client names the silo of each row, and --clients deals the rows to others; give one of them."
        )
    if is_folder:
        return _pictures(file, asked)
    if not file.is_file():
        raise UserError(f"--data {file}: {'this is a folder' if file.is_dir() else 'there is no such file'}.")
    return _archive(file, asked) if name.endswith(".npz") else _table(file, asked)


def _archive(file: Path, asked: DataOptions) -> OwnData:
    """Its arrays have the names that they need, so that only the task is guessed."""
    for option, value, array in (("--label", asked.label, "y"), ("--client", asked.client, "client")):
        if value not in (None, array):
            raise UserError(f"{option} {value} names a column of a table; in {file.name} that is the array {array}.")
    held = read_arrays(file.name, file, ("x", "y"), ("client",))
    if "client" not in held and asked.clients is None:
        raise UserError(f"{file.name} has no array client, the silo of each row; {_DEAL}.")
    task, why = _task(asked, held["y"].ravel())
    source = Npz(kind="npz", path=file.name, task=task)
    return OwnData(source, load_source(source, file.parent, 0), (*why, *_dealt(asked)))


def _pictures(folder: Path, asked: DataOptions) -> OwnData:
    """Take the classes, and the silos if there are domains, from the names of folders; guess the size of a row."""
    for option, value in (("--label", asked.label), ("--client", asked.client)):
        if value is not None:
            raise UserError(
                f"{option}: got {value}, expected no column, since {folder.name} is a folder of pictures. Drop {option}: "
                "the label is the folder of a picture, and the silo is the folder above it."
            )
    if asked.task == "regression":
        raise UserError(
            f"--task: got regression, expected classification, since the label in {folder.name} is the name of a folder. "
            "Save x and y as .npz for numbers."
        )
    found = list_pictures(folder.name, folder)
    domains = {domain for domain, _, _ in found}
    has_domains = domains != {""} and not are_splits(domains)
    if asked.clients is None and not has_domains:
        raise UserError(f"{folder.name} has no folders of silos above those of the classes; {_DEAL}.")
    size = _size([path for _, _, path in found])
    source = Folder(kind="folder", path=folder.name, size=size)
    silos = ("silos by the folders above those of the classes",) if asked.clients is None else _dealt(asked)
    guessed = ("labels by the folders' names", *silos, f"each picture is squeezed to {size} x {size} pixels")
    return OwnData(source, load_source(source, folder.parent, 0), guessed)


def _size(paths: Sequence[Path]) -> int:
    """Choose the pixels of a side: as most of the pictures have, within what a small network learns from quickly."""
    from PIL import Image

    sides = []
    for path in paths[:: max(1, len(paths) // _LOOKED_AT)]:
        try:
            with Image.open(path) as picture:
                sides.append(min(picture.size))
        except Exception:  # reading all pictures names it
            continue
    return min(max(int(np.median(sides or [_MOST_PIXELS])), _LEAST_PIXELS), _MOST_PIXELS)


def _table(file: Path, asked: DataOptions) -> OwnData:
    conventions = Conventions(asked.decimal, asked.censored or "refuse")
    seen = sample_table(file, conventions=conventions)
    label, why_label = _role(seen, "label", asked.label, LABELS, "")
    client, why_client = None, _dealt(asked)
    if asked.clients is None:
        client, why_client = _role(seen, "client", asked.client, CLIENTS, f"; or {_DEAL}")
    absent = {text: name for name in (label, client) if name for text in _column(seen, name).na_texts}
    if absent:
        conventions = replace(conventions, na_values=tuple(absent))
        seen = sample_table(file, conventions=conventions)
    column = _column(seen, label)
    if (
        asked.task is None
        and column.kind in ODD_NUMBERS
        and len(column.used) > max(_FEW, seen.rows // _ROWS_OF_A_CLASS)
    ):
        raise UserError(
            f"{seen.name}: the label {shown(repr(label))} {describe_odd_numbers(seen, column)}, or give --task "
            "classification. Here `decimal` and `censored` are the options --decimal and --censored."
        )
    numbers = column.per_row()[~column.missing] if column.kind == "number" else np.array(["a text"])
    task, why_task = _task(asked, numbers)
    roles = [column for column in seen.columns if column.name in (label, client)]
    features = [column for column in seen.columns if column not in roles and not is_row_number(column, seen.rows)]
    odd = {column.name: describe_odd_numbers(seen, column) for column in features if column.kind in ODD_NUMBERS}
    useless = {c.name: why for c in features if c.name not in odd and (why := _useless(seen, c))}
    left_out = [column.name for column in features if column.name in odd or column.name in useless]
    missing, why_missing = _missing(seen.rows, roles, [c for c in features if c.name not in left_out])
    source = Table.model_validate(
        {
            **{"kind": "table", "path": file.name, "label": label, "client": client, "task": task},
            **{"drop": tuple(left_out), "missing": missing},
            **{"decimal": conventions.decimal, "censored": conventions.censored, "na_values": conventions.na_values},
        }
    )
    why_absent = [f"{text!r} of {shown(name, 40)} is a missing value" for text, name in absent.items()]
    why_left_out = (
        [f"left out: {some([f'{shown(name, 40)} ({why})' for name, why in useless.items()])}"] if useless else []
    )
    rows = load_source(source, file.parent, 0)
    guessed = (*why_label, *why_client, *why_task, *why_absent, *why_missing, *why_left_out)
    return OwnData(source, rows, guessed, tuple(f"{shown(name, 40)} {why}" for name, why in odd.items()))


def _column(seen: TableSample, name: str) -> Column:
    column = seen.column(name)
    assert column is not None
    return column


_DEAL = "give --clients 5 to deal the rows to so many silos that are alike"


def _dealt(asked: DataOptions) -> tuple[str, ...]:
    return () if asked.clients is None else (f"{asked.clients} silos that are alike, as asked",)


def _role(
    seen: TableSample, role: Literal["label", "client"], named: str | None, usual: Sequence[str], otherwise: str
) -> tuple[str, tuple[str, ...]]:
    """The column of this role, and why it is taken for that; UserError with all columns where it is not to be told."""
    there = _columns(seen)
    if named is not None:
        if seen.column(named) is None:
            raise UserError(f"--{role} {shown(named)}: {seen.name} has no such column; it has {there}.")
        return named, ()
    fits: Callable[[str], bool] = lambda name: name.casefold().removesuffix("_id") in usual  # noqa: E731
    found = [column.name for column in seen.columns if fits(column.name)]
    if len(found) != 1:
        what = f"{' and '.join(found)} may each be" if found else "no column is obviously"
        raise UserError(f"{seen.name}: {what} the {role}; name it with --{role}{otherwise}. It has {there}.")
    return found[0], (f"{role} {shown(found[0], 40)} (by its name)",)


def _columns(seen: TableSample) -> str:
    """The names of all columns; of many the first and the last, one of which the label often is."""
    names = [shown(repr(column.name), 40) for column in seen.columns]
    few = names if len(names) <= _SHOWN else [*names[: _SHOWN // 2], "…", *names[-_SHOWN // 2 :]]
    return ", ".join(few)


def _task(asked: DataOptions, y: np.ndarray) -> tuple[Task, tuple[str, ...]]:
    """Whether y are classes or numbers to be predicted, and why."""
    if asked.task is not None:
        return asked.task, ()
    if y.dtype.kind not in "fiu":
        return "classification", ()
    count = len(np.unique(y))
    if y.dtype.kind == "f" and (y != np.floor(y)).any():
        return "regression", ("a regression (the label is no whole number)",)
    if count > max(_FEW, len(y) // _ROWS_OF_A_CLASS):
        return "regression", (f"a regression (the label has {count:,} values in {len(y):,} rows)",)
    return "classification", (f"a classification (the label has {count:,} values)",)


def _useless(seen: TableSample, column: Column) -> str:
    """Why no feature is made of a column; "" if one is."""
    is_key = column.name.casefold() == "id" or column.name.casefold().endswith("_id")
    if is_key and len(column.values) == seen.rows:
        return "another in each row"
    try:
        check_usable(seen, column, listed=False)
    except UserError:
        return _WHY.get(
            column.kind, f"{len(column.values):,} texts" if column.kind == "text" else "no number that fits"
        )
    return ""


def _missing(
    rows: int, roles: Sequence[Column], features: Sequence[Column]
) -> tuple[str | dict[str, str], tuple[str, ...]]:
    """What is done where a value is missing: a text's is a category of its own, where no row has to go for others'."""
    texts = [column for column in features if column.kind == "text" and column.missing.any()]
    gaps = _any_missing(rows, [*roles, *(column for column in features if column.kind != "text")])
    own = (
        (f"a category of its own where {some([shown(column.name, 40) for column in texts])} is missing",)
        if texts
        else ()
    )
    if not gaps.any():
        return ({"fill": "mean"} if texts else "refuse"), own
    count = int((gaps | _any_missing(rows, texts)).sum())
    if count <= _MOST_DROPPED * rows or any(column.missing.any() for column in roles):
        return "drop_rows", (f"{count:,} of {rows:,} rows with a missing value are dropped",)
    filled = f"each silo's mean stands where a value is missing, in {int(gaps.sum()):,} of {rows:,} rows"
    return {"fill": "mean"}, (filled, *own)


def _any_missing(rows: int, columns: Sequence[Column]) -> np.ndarray:
    """The rows in which one of the columns has no value: (rows,) bool."""
    gaps = np.zeros(rows, bool)
    for column in columns:
        gaps |= column.missing
    return gaps
