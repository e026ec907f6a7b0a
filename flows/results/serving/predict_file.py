"""Predicts a file of raw rows, read as `data.source` reads them, by the champion or the model of a run."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flows.project.project import Project
from flows.results.serving.client_statistics import client_statistics
from flows.results.serving.open_model import OpenModel, open_model
from flows.results.serving.raw_rows import RowFile, client_column, ignored_columns
from flows.results.serving.row_predictor import ClientMismatchError, ParamsOf, RowPredictor
from silos.errors import UserError, shown, some
from silos.io.atomic_io import is_there, writing
from silos.privacy.owned_source import check_file
from tasks.tracking.json_io import output_file, unwritable
from tasks.tracking.result_types.model_results import PredictedLabels, Predictions

_ENDINGS = (".csv", ".parquet")
FOLDER = Path("runs") / "predictions"
"""Where a deployment's runs read and write: anyone who reaches Prefect's API may set their parameters."""


def predict_file(
    project: Project,
    input: str,
    output: str,
    client: str | None,
    model: str,
    keep: Sequence[str] = (),
    skip_bad_rows: bool = False,
    opens: Callable[[Project, str, Sequence[str]], OpenModel] | None = None,
) -> Predictions:
    """Write the number, label, probabilities and entropy of each row, and return what was written.

    Args:
        project: The project.
        input: A file with rows as `data.source` reads them, relative to the project's folder.
        output: The .csv or .parquet file to write.
        client: The client whose rows they are; by default each row's own, if the file names it.
        model: `champion`, or the run's folder or name.
        keep: Columns of the file to copy to the output, besides those that `data.source` says are no features.
        skip_bad_rows: Leave out rows that cannot be predicted.
        opens: Opens the model for some clients; `open_model` if None.

    Raises:
        UserError: For a model, client or file that cannot be used, and for a row that the model does not take.
    """
    place = _output(project, output)
    check_file(project.root, project.root / input)
    file = _open(project.root / input, input, skip_bad_rows, place, output)
    _check_keep(keep, file)
    own = _own_clients(project, file)
    opened = (opens or open_model)(project, model, _distinct([*(own or ()), client]))
    predictor = RowPredictor(project, opened, "--client")
    if own is None or client is not None:
        _check_client(predictor, client)
    kept = _kept(file, opened, predictor.client_column, keep)
    try:
        clients = predictor.clients(own if predictor.client_column else None, client, file.numbers.tolist())
        rows = file.rows(opened.card, kept)
        chosen, skipped, predictions = _predict(predictor, file, rows, clients, skip_bad_rows)
    # a ValueError as well, so it comes first; its message names the option itself
    except ClientMismatchError as error:
        raise UserError(str(error)) from None
    except ValueError as error:
        raise UserError(f"{input}: {error}") from None
    table = _with_input(file, file.others(kept, keep), chosen, predictions)
    _write(place, output, table)
    predicted = [clients[at] for at in chosen.tolist()]
    of_clients = Counter(predicted)
    return {
        "model": opened.name,
        "version": opened.version,
        "run": opened.run,
        "client": client,
        "clients": None if own is None else {name: count for name, count in of_clients.items() if name is not None},
        "unknown_clients": predictor.unknown_clients(predicted),
        "filled_in": predictor.filled_in(_taken(rows, chosen), predicted),
        "rows": len(predictions),
        **_summary(predictions, opened.card["classes"]),
        "skipped": [{"row": row, "reason": reason} for row, reason in sorted(skipped.items())],
        "columns": list(table.columns),
        "file": output,
    }


def _output(project: Project, output: str) -> Path:
    if not output.lower().endswith(_ENDINGS):
        raise UserError(
            f"--output: got {shown(repr(output))}, expected {' or '.join(_ENDINGS)}. Name a file with such an ending."
        )
    return output_file(project.root, output, getattr(project.params.data.source, "path", None), FOLDER)


def _open(source: Path, input: str, skip_bad_rows: bool, place: Path, output: str) -> RowFile:
    """Open the file with rows; UserError if it does not exist, or is the file to write."""
    if not is_there(source):
        raise UserError(f"input: got {shown(repr(input))}, expected a file with rows. Correct the path.")
    if place.exists() and place.samefile(source):
        raise UserError(
            f"--output: got {shown(repr(output))}, which holds the rows of INPUT, expected another file. Name another one."
        )
    return RowFile.open(input, source, skip_bad_rows)


def _check_keep(keep: Sequence[str], file: RowFile) -> None:
    """Raise a UserError if a column to keep is not in the file."""
    for name in keep:
        if name not in file.column_names:
            names = some([shown(repr(each), 40) for each in file.column_names]) or "a table"
            raise UserError(
                f"--keep: got {shown(repr(name))}, expected a column of {file.name}: {names}. Correct the name."
            )


def _own_clients(project: Project, file: RowFile) -> list[str | None] | None:
    """Return the client that the file names in each row; None if it has no such column."""
    column = client_column(project.params.data)
    return None if column is None else file.texts(column, getattr(project.params.data.source, "na_values", None))


def _distinct(clients: Sequence[str | None]) -> list[str]:
    return [client for client in dict.fromkeys(clients) if client is not None]


def _predict(
    predictor: RowPredictor, file: RowFile, rows: pd.DataFrame | np.ndarray, clients: Sequence[str | None], skip: bool
) -> tuple[np.ndarray, dict[int, str], pd.DataFrame]:
    """Return the positions of the rows that were predicted, the reasons for others by number, and the predictions.

    Raises:
        UserError: If a row cannot be predicted, unless bad rows are skipped, or training left out such rows, too.
        ValueError: If the columns are not those of the model.
    """
    chosen, params_of = np.arange(len(rows)), _params_of(predictor.project, predictor.opened)
    try:
        return chosen, dict(file.ragged), predictor.predict(rows, clients, params_of)
    except ValueError:
        named_by = predictor.client_column or predictor.option
        faults = predictor.faults(rows, clients, file.numbers.tolist(), named_by)
        if not faults:
            raise
    refused = [fault for fault in faults.values() if not (skip or predictor.leaves_out(fault))]
    if refused:
        more = len(refused) - 1
        also = f" {more:,} more row{'s' * (more > 1)} cannot be predicted." if more else ""
        raise UserError(f"{file.name}: {refused[0].message}{also} --skip-bad-rows predicts the others.")
    chosen = np.setdiff1d(chosen, [*faults])
    if not len(chosen):
        raise UserError(f"{file.name}: got no row that can be predicted. {next(iter(faults.values())).message}")
    skipped = {int(file.numbers[row]): fault.message for row, fault in faults.items()}
    left = [clients[at] for at in chosen.tolist()]
    return chosen, file.ragged | skipped, predictor.predict(_taken(rows, chosen), left, params_of)


def _taken(rows: pd.DataFrame | np.ndarray, at: np.ndarray) -> pd.DataFrame | np.ndarray:
    return rows.iloc[at] if isinstance(rows, pd.DataFrame) else rows[at]


def _kept(file: RowFile, opened: OpenModel, own: str | None, keep: Sequence[str]) -> list[str]:
    """Return the columns to copy: those that are no features, and those that the user names, in the file's order."""
    ignored = ignored_columns(opened.card)
    features = [column["name"] for column in opened.card["columns"] or ()]
    names = file.column_names
    kept = [name for name in names if name in keep or name == own or (name in ignored and name not in features)]
    unknown = [name for name in names if name not in features and name not in kept]
    if unknown and features and not [name for name in features if name not in names]:
        listed = some([shown(repr(name), 40) for name in unknown], 5)
        raise UserError(
            f"{file.name}: columns: got {listed}, expected columns of the model, or columns that data.source does not "
            f"use as features. To copy {'it' if len(unknown) == 1 else 'them'} to the output add --keep NAME, or delete "
            "them."
        )
    return kept


def _with_input(file: RowFile, others: pd.DataFrame, chosen: np.ndarray, predictions: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions after the number of each row and its other columns."""
    copied = others.iloc[chosen].reset_index(drop=True)
    taken = {"row", *predictions.columns}
    copied = copied.rename(columns={name: f"input/{name}" for name in copied.columns if name in taken})
    return pd.concat([pd.DataFrame({"row": file.numbers[chosen]}), copied, predictions], axis=1)


def _write(place: Path, output: str, table: pd.DataFrame) -> None:
    try:
        with writing(place) as file:
            if place.suffix.lower() == ".csv":
                table.to_csv(file, index=False, lineterminator="\n")
            else:
                table.to_parquet(file, index=False)
    except OSError as error:
        raise UserError(f"--output: {unwritable(error) or f'cannot write {output}: {error.strerror}.'}") from None


def _summary(predictions: pd.DataFrame, classes: list[str]) -> PredictedLabels:
    """Return how often each class was predicted, and the mean entropy; null for a regression."""
    if not classes:
        return {"labels": None, "entropy": None}
    counts = Counter(predictions["label"])
    entropy = float(predictions["entropy"].mean()) if len(predictions) else None
    return {"labels": {name: counts[name] for name in classes}, "entropy": entropy}


def _check_client(predictor: RowPredictor, client: str | None) -> None:
    """Raise UserError before rows are read if the model does not answer for the client that --client names."""
    expected = predictor.expected_client(client)
    if not expected:
        return
    column, personal = client_column(predictor.project.params.data), predictor.opened.card["personal"]
    also = f", or add the column {column!r} to the file" if column and client is None else ""
    other = ", or name a run with a common model" if personal else ""
    raise UserError(
        f"{predictor.option}: got {shown(client or 'none')}, expected {expected}. {predictor.hint(client)}Name the client "
        f"whose rows they are{also}{other}."
    )


def _params_of(project: Project, opened: OpenModel) -> ParamsOf:
    """Return what computes what a conditional model reads of a client, from its training rows."""

    @cache
    def params_of(client: str | None) -> Mapping[str, Any]:
        if client is None or opened.card["statistics"] is None:
            return {}
        found = client_statistics(project, client, opened.method, scaling=opened.scaling)
        return {key: found[key] for key in ("statistics", "made_as")}

    return params_of
