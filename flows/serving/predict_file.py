"""Predicts a file of raw rows, read as `data.source` reads them, by the champion or the model of a run."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flows.experiment.project import Project
from flows.serving.client_statistics import client_statistics
from flows.serving.open_model import OpenModel, open_model
from silos.dataset import some
from silos.errors import UserError, shown
from silos.io.atomic_io import is_there, writing
from silos.sources.npz import read_arrays
from silos.sources.tabular.column_kinds import ODD_NUMBERS, Column, Conventions
from silos.sources.tabular.column_rules import describe_odd_numbers
from silos.sources.tabular.table_reader import ENDINGS, TableSample, sample_table
from silos.storage.partition_store import open_client, open_missing
from tasks.tracking.json_io import output_file, unwritable

_ENDINGS = (".csv", ".parquet")
FOLDER = Path("runs") / "predictions"
"""Where a deployment's runs read and write: anyone who reaches Prefect's API may set their parameters."""


def predict_file(project: Project, input: str, output: str, client: str | None, model: str) -> dict[str, Any]:
    """Write label, probabilities and entropy of each row, and return what was written as plain JSON.

    Args:
        project: The project.
        input: A file with rows as `data.source` reads them, relative to the project's folder.
        output: The .csv or .parquet file to write.
        client: The client whose rows they are; None if it is not known.
        model: `champion`, or the run's folder or name.

    Raises:
        UserError: For a model, client or file that cannot be used, and for a row that the model does not take.
    """
    if not output.lower().endswith(_ENDINGS):
        raise UserError(
            f"--output: got {shown(repr(output))}, expected {' or '.join(_ENDINGS)}. Name a file with such an ending."
        )
    own = getattr(project.params.data.source, "path", None)
    source, place = project.root / input, output_file(project.root, output, own, FOLDER)
    if not is_there(source):
        raise UserError(f"input: got {shown(repr(input))}, expected a file with rows. Correct the path.")
    if place.exists() and place.samefile(source):
        raise UserError(
            f"--output: got {shown(repr(output))}, which holds the rows of INPUT, expected another file. Name another one."
        )
    opened = open_model(project, model, client)
    _check_client(opened, client)
    rows = read_rows(input, source, opened.card)
    if isinstance(rows, pd.DataFrame) and client is not None:
        opened = _with_means(project, client, rows, opened)
    try:
        predictions = opened.predict(rows, client or "", **_statistics(project, opened, client))
    except ValueError as error:
        raise UserError(f"{input}: {error}") from None
    try:
        with writing(place) as file:
            if place.suffix.lower() == ".csv":
                predictions.to_csv(file, index=False, lineterminator="\n")
            else:
                predictions.to_parquet(file, index=False)
    except OSError as error:
        raise UserError(f"--output: {unwritable(error) or f'cannot write {output}: {error.strerror}.'}") from None
    return {
        "model": opened.name,
        "version": opened.version,
        "run": opened.run,
        "client": client,
        "rows": len(predictions),
        **_summary(predictions, opened.card["classes"]),
        "columns": list(predictions.columns),
        "file": output,
    }


def read_rows(name: str, path: Path, card: Mapping[str, Any]) -> pd.DataFrame | np.ndarray:
    """Return the rows of a file: a data frame with its columns, or an array for a model of rows without names.

    Args:
        name: The file's name in messages.
        path: A .csv, .csv.gz or .parquet file, or a .npz archive with the array x, and `features` if columns have names.
        card: The card of the model that will predict the rows.

    Raises:
        UserError: For a file that cannot be read, and for numbers that are not written plainly.
    """
    columns = card["columns"]
    if name.lower().endswith(".npz"):
        arrays = read_arrays(name, path, ("x",), ("features",))
        return arrays["x"] if columns is None else _named(name, arrays)
    if columns is None:
        raise UserError(
            f"{name}: got a file that is no archive, expected .npz with the array x of shape (rows, "
            f"{', '.join(map(str, card['shape']))}), since the model's rows have no named columns. Save them with "
            "numpy.savez."
        )
    if not name.lower().endswith(ENDINGS):
        raise UserError(f"{name}: got another ending, expected {', '.join(ENDINGS)} or .npz. Export the rows as CSV.")
    reading = dict(card.get("reading") or {})
    ignored = reading.pop("ignored", [])
    if reading.get("na_values") is not None:
        reading["na_values"] = tuple(reading["na_values"])
    kinds = {column["name"]: column["kind"] for column in columns}
    numbers = frozenset(column for column, kind in kinds.items() if kind == "number")
    sample = sample_table(path, name, Conventions(**reading, numbers=numbers))
    listed = [column for column in sample.columns if column.name not in ignored]
    return pd.DataFrame({column.name: _values(sample, column, kinds.get(column.name)) for column in listed})


def _named(name: str, arrays: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Return an archive's table with the names of its array `features`."""
    x, names = arrays["x"], arrays.get("features")
    if names is None or x.ndim != 2 or names.shape != x.shape[1:]:
        got = "no names" if names is None else f"{names.size} names"
        raise UserError(
            f"{name}: features: got {got} for x of shape {x.shape}, expected one for each column of a table, by which "
            "the model finds its inputs. Save them as the array `features`."
        )
    return pd.DataFrame(x, columns=[str(each) for each in names])


def _values(sample: TableSample, column: Column, expected: str | None) -> Any:
    """Return each row's value: numbers where the model expects them, else the value in the file; None if missing."""
    if expected == "number" and column.kind == "number":
        return column.per_row()
    if expected == "number" and column.kind in ODD_NUMBERS:
        raise UserError(
            f"{sample.name}: the column {shown(repr(column.name))}: {describe_odd_numbers(sample, column)}."
        )
    values = np.array([*column.values.to_pylist(), None], object)
    return values[column.codes]  # code -1 selects the None at the end


def _summary(predictions: pd.DataFrame, classes: list[str]) -> dict[str, Any]:
    """Return how often each class was predicted, and the mean entropy; null for a regression."""
    if not classes:
        return {"labels": None, "entropy": None}
    counts = Counter(predictions["label"])
    entropy = float(predictions["entropy"].mean()) if len(predictions) else None
    return {"labels": {name: counts[name] for name in classes}, "entropy": entropy}


def _check_client(opened: OpenModel, client: str | None) -> None:
    """Raise UserError before rows are read if the model needs a client that is not named, or that it does not know."""
    card = opened.card
    if card["personal"] and client not in card["clients"]:
        raise UserError(
            f"--client: got {client or 'none'}, expected one of {some(card['clients'], 5)}, since {opened.name} has a "
            "model for each client. Name one of them, or a run with a common model."
        )
    if card["statistics"] is not None and client is None:
        raise UserError(
            f"--client: got none, expected a client of data/, since {opened.name} also reads the client's statistics. "
            "Name the client whose rows they are."
        )


def _statistics(project: Project, opened: OpenModel, client: str | None) -> dict[str, Any]:
    """Return what a conditional model reads of the client, from its training rows."""
    if client is None or opened.card["statistics"] is None:
        return {}
    found = client_statistics(project, client, opened.method)
    return {key: found[key] for key in ("statistics", "made_as")}


def _with_means(project: Project, client: str, rows: pd.DataFrame, opened: OpenModel) -> OpenModel:
    """Return the model with the client's means for columns with `fill: mean`, as in training, from its training rows.

    The model refuses what stays missing: a client that is not in data/ has no mean here.
    """
    columns = opened.card["columns"]
    lacking = [
        c["name"] for c in columns if c["missing"] == "mean" and c["name"] in rows and rows[c["name"]].isna().any()
    ]
    if not lacking or client not in project.manifest.names:
        return opened
    manifest, folder = project.manifest, Path(project.silos.folder)
    project.silos.check([client])
    x, _ = open_client(folder, manifest.client(client), "train")
    missing, means = open_missing(folder, manifest.client(client), "train"), {}
    for index, feature in enumerate(manifest.features):
        present = np.ones(len(x), bool) if missing is None else ~missing[:, index]
        if feature.name in lacking and present.any():
            means[feature.name] = float(x[present, index].astype(np.float64).mean())
    columns = [{**column, "missing": means.get(column["name"], column["missing"])} for column in columns]
    return replace(opened, served=type(opened.served)({**opened.card, "columns": columns}, opened.served.tensors))
