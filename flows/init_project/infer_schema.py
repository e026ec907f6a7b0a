"""Infer the schema of a user's own file: the role of each column, and the reason for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from silos.dataset import Rows, some
from silos.errors import UserError, shown
from silos.schema import Task
from silos.sources.image_folder import are_splits, list_pictures
from silos.sources.npz import read_arrays
from silos.sources.source_params import NPZ_ARRAYS, Folder, Npz, Table
from silos.sources.source_registry import load_source
from silos.sources.tabular.column_kinds import ODD_NUMBERS, Column, Conventions
from silos.sources.tabular.column_rules import (
    check_usable,
    describe_odd_numbers,
    is_row_number,
    is_unit_name,
    looks_like_unit,
)
from silos.sources.tabular.number_parser import Censored, Decimal
from silos.sources.tabular.table_reader import ENDINGS, TableSample, sample_table

LABELS = ("label", "target", "outcome", "class", "y")
CLIENTS = ("client", "hospital", "site", "silo", "clinic", "centre", "center")

_SHOWN = 20  # columns in a message
_FEW = 20  # so many values are classes whatever the number of rows
_ROWS_PER_CLASS = 10  # on average; with fewer, more than _FEW values are numbers
_LEAST_PIXELS, _MOST_PIXELS = 8, 64  # of a side of an image
_SAMPLED = 100  # images whose size is read
_MOST_DROPPED = 0.1  # share of the rows that may be dropped for a missing value
_FEW_UNITS = 10  # with no more values a column names no units
UNIT_ARRAYS = ("unit", "patient", "patient_id", "subject", "subject_id", "person", "participant", "machine", "plant")
_WHY = {"date": "dates", "empty": "no values"}


@dataclass(frozen=True)
class DataOptions:
    """The options of the command line for a file; None if the value is to be inferred."""

    label: str | None = None
    client: str | None = None
    clients: int | None = None
    task: Task | None = None
    decimal: Decimal | None = None
    censored: Censored | None = None
    unit: str | None = None


@dataclass(frozen=True)
class OwnData:
    """The source that reads a file, its rows, and the guesses in words.

    `left_out` has a sentence for each column whose numbers are written in another form.
    """

    source: Npz | Table | Folder
    rows: Rows
    guessed: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def infer_schema(file: Path, options: DataOptions) -> OwnData:
    """Infer the source of a file or folder; UserError if it is ambiguous, or cannot be read as a source."""
    name = file.name.lower()
    is_folder = file.is_dir() and not name.endswith((".npz", *ENDINGS))
    if not is_folder and not name.endswith((".npz", *ENDINGS)):
        raise UserError(
            f"--data: got {file}, expected .npz, {', '.join(ENDINGS)} or a folder of images. Save the data as one "
            "of these."
        )
    if options.client is not None and options.clients is not None:
        raise UserError(
            "--clients: got it with --client, expected one of them: --client names the silo of each row, "
            "--clients deals the rows. Drop one."
        )
    if is_folder:
        return _infer_images(file, options)
    if not file.is_file():
        raise UserError(
            f"--data: got {file}, which {'is a folder' if file.is_dir() else 'does not exist'}, expected a file. "
            "Correct the path."
        )
    return _infer_archive(file, options) if name.endswith(".npz") else _infer_table(file, options)


def _infer_archive(file: Path, options: DataOptions) -> OwnData:
    """Infer the task only, because the arrays have fixed names."""
    for option, value, array in (("--label", options.label, "y"), ("--client", options.client, "client")):
        if value not in (None, array):
            raise UserError(
                f"{option}: got {value}, expected no column, since {file.name} is an archive and has "
                f"the array {array} for it. Drop {option}."
            )
    if options.unit in NPZ_ARRAYS:
        raise UserError(
            f"--unit: got {options.unit}, which has another meaning, expected another array of {file.name}. Name the array "
            "with the unit of each row."
        )
    names = UNIT_ARRAYS if options.unit is None else (options.unit,)
    arrays = read_arrays(file.name, file, ("x", "y"), ("client", *names))
    if "client" not in arrays and options.clients is None:
        raise UserError(f"{file.name}: got no array client, expected one with the silo of each row. To go on, {_DEAL}.")
    task, reason = _infer_task(options, arrays["y"].ravel())
    unit, unit_note = options.unit, tuple[str, ...]()
    rows = len(arrays["y"])
    for name in names if unit is None else ():
        values = arrays.get(name)
        if values is not None and values.shape == (rows,) and values.dtype.kind in "iuU":
            count = len(np.unique(values))
            if _FEW_UNITS < count < rows:
                unit, unit_note = name, _unit_note(name, "by its name", count, rows)
                break
    source = Npz(kind="npz", path=file.name, task=task, unit=unit)
    return OwnData(source, load_source(source, file.parent, 0), (*unit_note, *reason, *_dealt_note(options)))


def _unit_note(name: str, reason: str, units: int, rows: int) -> tuple[str, ...]:
    return (f"unit {shown(name, 40)} ({reason}: {units:,} values in {rows:,} rows)",)


def _infer_images(folder: Path, options: DataOptions) -> OwnData:
    """Take the classes, and the silos if there are domains, from the folders' names; infer the size of a row."""
    for option, value in (("--label", options.label), ("--client", options.client), ("--unit", options.unit)):
        if value is not None:
            raise UserError(
                f"{option}: got {value}, expected no column, since {folder.name} is a folder of images. Drop "
                f"{option}: the label is the folder of an image, and the silo is the folder above it."
            )
    if options.task == "regression":
        raise UserError(
            f"--task: got regression, expected classification, since the label in {folder.name} is the name of a folder. "
            "Save x and y as .npz for numbers."
        )
    images = list_pictures(folder.name, folder)
    domains = {domain for domain, _, _ in images}
    has_domains = domains != {""} and not are_splits(domains)
    if options.clients is None and not has_domains:
        raise UserError(
            f"{folder.name}: got no folders of silos above those of the classes, expected "
            f"silo/class/file. To go on, {_DEAL}."
        )
    size = _infer_size([path for _, _, path in images])
    source = Folder(kind="folder", path=folder.name, size=size)
    silos = ("silos by the folders above those of the classes",) if options.clients is None else _dealt_note(options)
    guessed = ("labels by the folders' names", *silos, f"each image is resized to {size} x {size} pixels")
    return OwnData(source, load_source(source, folder.parent, 0), guessed)


def _infer_size(paths: Sequence[Path]) -> int:
    """Return the median side of the images in pixels, within what a small network learns quickly."""
    from PIL import Image

    sides = []
    for path in paths[:: max(1, len(paths) // _SAMPLED)]:
        try:
            with Image.open(path) as picture:
                sides.append(min(picture.size))
        except Exception:  # reported when all images are read
            continue
    return min(max(int(np.median(sides or [_MOST_PIXELS])), _LEAST_PIXELS), _MOST_PIXELS)


def _infer_table(file: Path, options: DataOptions) -> OwnData:
    conventions = Conventions(options.decimal, options.censored or "refuse")
    sample = sample_table(file, conventions=conventions)
    label, label_note = _find_role(sample, "label", options.label, LABELS, "")
    client, client_note = None, _dealt_note(options)
    if options.clients is None:
        client, client_note = _find_role(sample, "client", options.client, CLIENTS, f"; or {_DEAL}")
    unit, unit_note = _find_unit(sample, options.unit, label, client)
    _check_distinct({"label": label, "client": client, "unit": unit})
    absent = {text: name for name in (label, client, unit) if name for text in _column(sample, name).na_texts}
    if absent:
        conventions = replace(conventions, na_values=tuple(absent))
        sample = sample_table(file, conventions=conventions)
    column = _column(sample, label)
    if (
        options.task is None
        and column.kind in ODD_NUMBERS
        and len(column.used) > max(_FEW, sample.rows // _ROWS_PER_CLASS)
    ):
        fault = describe_odd_numbers(sample, column)
        raise UserError(
            f"{sample.name}: the label {shown(repr(label))}: {fault}, or add --task classification. In this "
            "message `decimal` and `censored` are the options --decimal and --censored."
        )
    numbers = column.per_row()[~column.missing] if column.kind == "number" else np.array(["a text"])
    task, task_note = _infer_task(options, numbers)
    roles = [column for column in sample.columns if column.name in (label, client, unit)]
    features = [column for column in sample.columns if column not in roles and not is_row_number(column, sample.rows)]
    odd = {column.name: describe_odd_numbers(sample, column) for column in features if column.kind in ODD_NUMBERS}
    useless = {c.name: why for c in features if c.name not in odd and (why := _why_useless(sample, c))}
    left_out = [column.name for column in features if column.name in odd or column.name in useless]
    missing, missing_note = _missing_policy(sample, roles, [c for c in features if c.name not in left_out])
    source = Table.model_validate(
        {
            **{"kind": "table", "path": file.name, "label": label, "client": client, "unit": unit, "task": task},
            **{"drop": tuple(left_out), "missing": missing},
            **{"decimal": conventions.decimal, "censored": conventions.censored, "na_values": conventions.na_values},
        }
    )
    absent_notes = [f"{text!r} of {shown(name, 40)} is a missing value" for text, name in absent.items()]
    left_out_note = (
        [f"left out: {some([f'{shown(name, 40)} ({why})' for name, why in useless.items()])}"] if useless else []
    )
    rows = load_source(source, file.parent, 0)
    guessed = (*label_note, *client_note, *unit_note, *task_note, *absent_notes, *missing_note, *left_out_note)
    return OwnData(source, rows, guessed, tuple(f"{shown(name, 40)}: {why}" for name, why in odd.items()))


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


_DEAL = "add --clients 5 to deal the rows at random to 5 silos"


def _dealt_note(options: DataOptions) -> tuple[str, ...]:
    """Return the note on silos that rows are dealt to."""
    return () if options.clients is None else (f"{options.clients} silos with randomly dealt rows (--clients)",)


def _find_role(
    sample: TableSample,
    role: Literal["label", "client"],
    requested: str | None,
    usual_names: Sequence[str],
    otherwise: str,
) -> tuple[str, tuple[str, ...]]:
    """Return the column of this role, and the reason; UserError with all columns if it is ambiguous."""
    columns = _list_columns(sample)
    if requested is not None:
        if sample.column(requested) is None:
            raise UserError(
                f"--{role}: got {shown(requested)}, expected a column of {sample.name}. Choose one of {columns}."
            )
        return requested, ()
    matches: Callable[[str], bool] = lambda name: name.casefold().removesuffix("_id") in usual_names  # noqa: E731
    names = [column.name for column in sample.columns if matches(column.name)]
    if len(names) != 1:
        problem = f"{' and '.join(names)} may each be" if names else "no column clearly is"
        raise UserError(
            f"{sample.name}: {problem} the {role}. Name it with --{role}{otherwise}. The columns are {columns}."
        )
    return names[0], (f"{role} {shown(names[0], 40)} (by its name)",)


def _find_unit(
    sample: TableSample, requested: str | None, label: str, client: str | None
) -> tuple[str | None, tuple[str, ...]]:
    """Return the column of units, and the reason; None if no column looks like it.

    Of several columns, one with a usual name comes first, then the one with most values.
    """
    if requested is not None:
        if sample.column(requested) is None:
            raise UserError(
                f"--unit: got {shown(requested)}, expected a column of {sample.name}. Choose one of "
                f"{_list_columns(sample)}."
            )
        return requested, ()
    silo = None if client is None else _column(sample, client)
    candidates = [column for column in sample.columns if column.name not in (label, client)]
    candidates = [column for column in candidates if is_unit_name(column.name) or not column.missing.any()]
    units = [column for column in candidates if looks_like_unit(column, silo)]
    if not units:
        return None, ()
    found = max(units, key=lambda column: (is_unit_name(column.name), len(column.used)))
    reason = "by its name" if is_unit_name(found.name) else "each value is of one silo"
    return found.name, _unit_note(found.name, reason, len(found.used), sample.rows)


def _list_columns(sample: TableSample) -> str:
    """List all columns; of many the first and the last, because the label is often one of them."""
    names = [shown(repr(column.name), 40) for column in sample.columns]
    listed = names if len(names) <= _SHOWN else [*names[: _SHOWN // 2], "…", *names[-_SHOWN // 2 :]]
    return ", ".join(listed)


def _infer_task(options: DataOptions, y: np.ndarray) -> tuple[Task, tuple[str, ...]]:
    """Return whether y holds classes or numbers to be predicted, and the reason."""
    if options.task is not None:
        return options.task, ()
    if y.dtype.kind not in "fiu":
        return "classification", ()
    count = len(np.unique(y))
    if y.dtype.kind == "f" and (y != np.floor(y)).any():
        return "regression", ("a regression (the label has numbers with fractions)",)
    if count > max(_FEW, len(y) // _ROWS_PER_CLASS):
        return "regression", (f"a regression (the label has {count:,} values in {len(y):,} rows)",)
    return "classification", (f"a classification (the label has {count:,} values)",)


def _why_useless(sample: TableSample, column: Column) -> str:
    """Return why a column is no feature; "" if it is one."""
    is_key = column.name.casefold() == "id" or column.name.casefold().endswith("_id")
    if is_key and len(column.values) == sample.rows:
        return "another in each row"
    try:
        check_usable(sample, column, listed=False)
    except UserError:
        return _WHY.get(
            column.kind, f"{len(column.values):,} texts" if column.kind == "text" else "no number that fits"
        )
    return ""


def _missing_policy(
    sample: TableSample, roles: Sequence[Column], features: Sequence[Column]
) -> tuple[str | dict[str, str], tuple[str, ...]]:
    """Choose what to do about missing values; a missing text is a category, unless other columns require to drop rows.

    UserError if a row has no label, client or unit, and more than a tenth of all rows would be dropped besides these.
    """
    rows = sample.rows
    texts = [column for column in features if column.kind == "text" and column.missing.any()]
    gaps = _any_missing(rows, [*roles, *(column for column in features if column.kind != "text")])
    category_note = (
        (f"a category for missing values in {some([shown(column.name, 40) for column in texts])}",) if texts else ()
    )
    if not gaps.any():
        return ({"fill": "mean"} if texts else "refuse"), category_note
    count = int((gaps | _any_missing(rows, texts)).sum())
    without_role = _any_missing(rows, roles)
    if count - int(without_role.sum()) > _MOST_DROPPED * rows and without_role.any():
        role = next(column for column in roles if column.missing.any())
        raise UserError(
            f"{sample.name}: the column {shown(repr(role.name), 40)} has no value in {int(role.missing.sum()):,} of "
            f"{rows:,} rows, expected one in each, since {count:,} rows with any missing value would be dropped. Delete "
            f"those without {shown(repr(role.name), 40)} from the file: then other missing values are filled in."
        )
    if count <= _MOST_DROPPED * rows or without_role.any():
        return "drop_rows", (f"{count:,} of {rows:,} rows with a missing value are dropped",)
    fill_note = f"each silo's mean replaces missing values in {int(gaps.sum()):,} of {rows:,} rows"
    return {"fill": "mean"}, (fill_note, *category_note)


def _any_missing(rows: int, columns: Sequence[Column]) -> np.ndarray:
    """Return the rows in which a column has no value: (rows,) bool."""
    gaps = np.zeros(rows, bool)
    for column in columns:
        gaps |= column.missing
    return gaps
