"""Infer the schema of a user's own file: the role of each column, and the reason for it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flows.init_project.guess_roles import DEAL, Ask, Roles, guess_roles, unit_note
from flows.init_project.missing_policy import Choice, choose_missing
from silos.dataset import Rows
from silos.errors import UserError, shown, some
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
)
from silos.sources.tabular.ingest_report import missing_code_notes
from silos.sources.tabular.number_parser import Censored, Decimal
from silos.sources.tabular.table_reader import ENDINGS, TableSample, sample_table

_FEW = 20  # so many values are classes whatever the number of rows
_ROWS_PER_CLASS = 10  # on average; with fewer, more than _FEW values are numbers
_LEAST_PIXELS, _MOST_PIXELS = 8, 64  # of a side of an image
_SAMPLED = 100  # images whose size is read
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
    missing: Choice | None = None


@dataclass(frozen=True)
class OwnData:
    """The source that reads a file, its rows, and the guesses in words.

    `left_out` has a sentence for each column whose numbers are written in another form, `missing` one for each choice about
    missing values, the chosen one first.
    """

    source: Npz | Table | Folder
    rows: Rows
    guessed: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def infer_schema(file: Path, options: DataOptions, ask: Ask | None = None) -> OwnData:
    """Infer the source of a file or folder; UserError if it is ambiguous, or cannot be read as a source.

    `ask` asks the user for the column of a role that is unclear.
    """
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
    return _infer_archive(file, options) if name.endswith(".npz") else _infer_table(file, options, ask)


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
        raise UserError(f"{file.name}: got no array client, expected one with the silo of each row. To go on, {DEAL}.")
    task, reason = _infer_task(options, arrays["y"].ravel())
    unit, unit_notes = options.unit, tuple[str, ...]()
    rows = len(arrays["y"])
    for name in names if unit is None else ():
        values = arrays.get(name)
        if values is not None and values.shape == (rows,) and values.dtype.kind in "iuU":
            count = len(np.unique(values))
            if _FEW_UNITS < count < rows:
                unit, unit_notes = name, (unit_note(name, "by its name", count, rows),)
                break
    source = Npz(kind="npz", path=file.name, task=task, unit=unit)
    return OwnData(source, load_source(source, file.parent, 0), (*unit_notes, *reason, *_dealt_note(options)))


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
            f"silo/class/file. To go on, {DEAL}."
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


def _infer_table(file: Path, options: DataOptions, ask: Ask | None) -> OwnData:
    conventions = Conventions(options.decimal, options.censored or "refuse")
    sample = sample_table(file, conventions=conventions)
    roles = guess_roles(sample, options.label, options.client, options.unit, options.clients is not None, ask)
    of_roles = _columns_of(sample, roles)
    absent = {text: column.name for column in of_roles.values() for text in column.na_texts}
    # read again, since a text that means a missing value changes the kind of every column that contains it
    if absent:
        conventions = replace(conventions, na_values=tuple(absent))
        sample = sample_table(file, conventions=conventions)
        of_roles = _columns_of(sample, roles)
    task, task_note = _task_of_column(sample, roles.label, options)
    others = [column for column in sample.columns if column.name not in roles.columns.values()]
    features = [column for column in others if not is_row_number(column, sample.rows)]
    odd = {c.name: describe_odd_numbers(sample, c, options=True) for c in features if c.kind in ODD_NUMBERS}
    useless = dict(roles.unused)
    useless |= {c.name: why for c in features if c.name not in {*odd, *useless} and (why := _why_useless(sample, c))}
    left_out = [column.name for column in features if column.name in odd or column.name in useless]
    kept = [column for column in features if column.name not in left_out]
    missing = choose_missing(sample, of_roles, kept, options.missing, task)
    source = Table.model_validate(
        {
            **{"kind": "table", "path": file.name, **roles.columns},
            **{"task": task, "drop": tuple(left_out), "missing": missing.value},
            **{"decimal": conventions.decimal, "censored": conventions.censored, "na_values": conventions.na_values},
        }
    )
    absent_notes = [f"{text!r} of {shown(name, 40)} is a missing value" for text, name in absent.items()]
    left_out_note = (
        [f"left out: {some([f'{shown(name, 40)} ({why})' for name, why in useless.items()])}"] if useless else []
    )
    # read as later commands read it, so that `init` refuses what `partition` would refuse
    rows = load_source(source, file.parent, 0)
    numbers = [*kept, of_roles["label"]] if task == "regression" else kept
    code_notes = missing_code_notes(source, numbers, bool(sample.separator))
    guessed = (*roles.notes, *_dealt_note(options), *task_note, *absent_notes, *code_notes, *left_out_note)
    return OwnData(
        source, rows, guessed, tuple(f"{shown(name, 40)}: {why}" for name, why in odd.items()), missing.choices
    )


def _columns_of(sample: TableSample, roles: Roles) -> dict[str, Column]:
    return {role: column for role, name in roles.columns.items() for column in sample.columns if column.name == name}


def _task_of_column(sample: TableSample, label: str, options: DataOptions) -> tuple[Task, tuple[str, ...]]:
    """Return the task and the reason; UserError for a label of numbers that cannot be read."""
    column = sample.column(label)
    assert column is not None
    many = len(column.used) > max(_FEW, sample.rows // _ROWS_PER_CLASS)
    if options.task is None and column.kind in ODD_NUMBERS and many:
        fault = describe_odd_numbers(sample, column, options=True)
        raise UserError(f"{sample.name}: the label {shown(repr(column.name))}: {fault}, or add --task classification.")
    return _infer_task(options, column.per_row()[~column.missing] if column.kind == "number" else np.array(["a text"]))


def _dealt_note(options: DataOptions) -> tuple[str, ...]:
    """Return the note on silos that rows are dealt to."""
    return () if options.clients is None else (f"{options.clients} silos with randomly dealt rows (--clients)",)


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
