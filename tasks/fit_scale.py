"""Report each client's feature moments, combine them into one mean and scale, and check rows for unit scale.

Moments of a column of training rows are the count, the sum, and the squared distances from the mean.
"""

import hashlib
import json
import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.diagnosis.client_summaries.client_summary import Layout, count_different, withheld_columns
from models.diagnosis.client_summaries.query import Query
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.privacy.differencing import OTHER
from silos.privacy.ledger import Ledger, StandInAnswer
from silos.privacy.report_rules import Kind
from silos.standardizer import Standardizer
from silos.storage.manifest import Manifest, schema_of
from tasks.diagnosis.report_summary import TARGET_COLUMN, LocalSummary, open_ledger
from tasks.execution.load_client_data import load_rows, may_report
from tasks.execution.steps import server_step, step
from tasks.messages.statistics_messages import ScaleCheck, ScaleMoments

INPUTS, TARGETS = Kind("mean and scale of inputs"), Kind("mean and scale of targets")

_ClientMoments = list[tuple[np.ndarray, str]]
"""For inputs and targets, if requested: moments (columns, 3), and the earlier version that prevents a report, or ""."""

_MOST_CONCURRENT = 16  # clients; a disk syncs their files in about the time of one client's files
_MOST_CONCURRENT_BYTES = 1 << 26  # of rows in addition to those of the largest client; several copies of them exist


@step
def report_moments(
    cohort: Cohort, model: Model, private: ClientStore, inputs: bool, targets: bool, device: str = "cpu"
) -> list[ScaleMoments]:
    """Report moments of the columns of a row if `inputs`, and of the target after them if `targets`; one record per stack.

    `private` has the ledgers in which clients record their reports of all runs. A client with nearly the rows of an
    earlier report repeats that report, or reports nothing.
    """
    query, messages, concurrent = _moments_query(cohort.silos.manifest), list[ScaleMoments](), _num_concurrent(cohort)
    pending: deque[tuple[tuple[str, ...], Iterator[_ClientMoments]]] = deque()

    def report(client: str, x: Tensor, y: Tensor) -> _ClientMoments:
        ledger, summary = open_ledger(cohort.silos, private, client, x, y, "run")
        return _client_moments(ledger, summary, query, inputs, targets)

    with ThreadPoolExecutor(concurrent) as threads:
        for stack in cohort.stacks:
            rows = load_rows(cohort.silos, stack, "train", "cpu")
            by_client = [(x[:n], y[:n]) for x, y, n in zip(rows.x, rows.y, rows.counts.tolist(), strict=True)]
            pending.append((stack.clients, threads.map(report, stack.clients, *zip(*by_client, strict=True))))
            while sum(len(clients) for clients, _ in pending) > concurrent:  # bounds the rows in memory
                messages.append(_message(*pending.popleft()))
        messages += [_message(*each) for each in pending]
    return messages


def _num_concurrent(cohort: Cohort) -> int:
    """Return how many clients report at a time, fewer if they have many rows, because rows take memory."""
    silos, width = cohort.silos, math.prod(cohort.silos.manifest.shape) * 8
    largest = np.sort(silos.select(cohort.clients).rows_array("train"))[::-1][:_MOST_CONCURRENT].astype(np.int64)
    return 1 + int((np.cumsum(largest[1:] * width) <= _MOST_CONCURRENT_BYTES).sum())


def _message(clients: tuple[str, ...], results: Iterator[_ClientMoments]) -> ScaleMoments:
    reports = [*results]
    moments = torch.from_numpy(np.stack([np.concatenate([part for part, _ in parts]) for parts in reports]))
    earlier = {client: old for client, parts in zip(clients, reports, strict=True) for _, old in parts if old}
    return ScaleMoments(clients, moments[..., 0].long(), moments[..., 1], moments[..., 2], earlier)


def _moments_query(manifest: Manifest) -> Query:
    """Build the query as a diagnosis does, so that these moments add up from its reports and reveal no difference."""
    schema, width = schema_of(manifest), math.prod(manifest.shape)
    targets = manifest.task == "regression"
    names = tuple(feature.name for feature in schema.features) or tuple(map(str, range(width)))
    none = np.zeros(width)
    layout = Layout(names, (None,) * width, none, none, 1, 1 if targets else len(manifest.classes))
    return Query(schema.id, layout, counts=False, targets=targets)


def _client_moments(ledger: Ledger, summary: LocalSummary, query: Query, inputs: bool, targets: bool) -> _ClientMoments:
    width = len(query.layout.names)
    requests = [(INPUTS, query.layout.names, slice(width))] * inputs + [(TARGETS, ("",), slice(width, None))] * targets
    hashes = [(kind, _hash_names(names)) for kind, names, _ in requests]
    saved = [ledger.recorded(summary.version, names, kind=kind, or_earlier=True) for kind, names in hashes]
    entries = [entry for entry in saved if entry]
    zeros = [np.zeros((len(names), 3)) for _, names, _ in requests]
    if len(entries) < len(requests):
        x = np.c_[summary.features(query)[:, :width], summary.y.astype(np.float64)]
        reportable = _reportable_rows(summary, query, x)
        if not reportable.any():
            return [(empty, "") for empty in zeros]
        entries = [
            _ledger_entry(ledger, summary, query, kind, names, x[:, columns], reportable[:, columns])
            for kind, names, columns in requests
        ]
    return [
        (empty if entry.answer is None else entry.answer["moments"], entry.earlier)
        for entry, empty in zip(entries, zeros, strict=True)
    ]


def _hash_names(names: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]


def _reportable_rows(summary: LocalSummary, query: Query, x: np.ndarray) -> np.ndarray:
    """Return which rows the report of each column may include: (rows, columns) bool.

    A class is included if it has the client's least of different rows there; the other classes, if together they have.
    """
    column = summary.columns(query)
    reportable = column.reported[:, None] & ~np.isnan(x)
    for feature, few in withheld_columns(
        x[column.reported],
        column.index[column.reported],
        summary.row_ids[column.reported],
        query.layout,
        summary.least_rows,
    ):
        rest = reportable[:, feature] & few[column.index]
        if count_different(summary.row_ids[rest]) < summary.least_rows:
            reportable[rest, feature] = False
    return reportable


def _ledger_entry(
    ledger: Ledger,
    summary: LocalSummary,
    query: Query,
    kind: Kind,
    names: tuple[str, ...],
    x: np.ndarray,
    reportable: np.ndarray,
) -> StandInAnswer:
    """Record the moments of the columns of one kind, x (rows, columns), in the client's ledger."""
    columns, group = (TARGET_COLUMN,) if kind == TARGETS else names, np.where(reportable.any(1), 0, -1)
    values = summary.values(ledger, query, columns, x, reportable, (OTHER,), group, {})
    return ledger.answer_or_stand_in(
        summary.version,
        _hash_names(names),
        lambda _: {"moments": np.array([_moments(x[reportable[:, i], i]) for i in range(x.shape[1])])},
        values,
        kind,
    )


def _moments(values: np.ndarray) -> tuple[float, float, float]:
    """Return count, sum, and squared distances from the mean of values (rows,); zeros if there are none.

    The distances are from the mean, because a plain sum of squares loses digits if the mean is large.
    """
    if not len(values):
        return 0, 0.0, 0.0
    total = float(values.sum())
    return len(values), total, float(np.square(values - total / len(values)).sum())


@server_step
def combine_moments(messages: list[ScaleMoments]) -> Standardizer:
    """Combine the clients' moments into the mean and scale of each column.

    A column that no client reports has NaN, a constant one has scale 1. Clients are added in the order of their names,
    whatever the stacks (Chan, Golub and LeVeque 1979, equation 1.5, of any number of parts).
    """
    order = np.argsort([client for message in messages for client in message.clients])
    counts, sums, squares = (
        np.concatenate([getattr(message, name).numpy() for message in messages])[order].astype(np.float64)
        for name in ("counts", "sums", "squares")
    )
    with np.errstate(invalid="ignore"):
        mean = sums.sum(0) / counts.sum(0)
        deviation = np.where(counts > 0, sums / counts - mean, 0.0)
        scale = np.sqrt((squares + counts * deviation**2).sum(0) / counts.sum(0))
    return Standardizer(tuple(mean.tolist()), tuple(np.where(scale == 0, 1.0, scale).tolist()))


LARGE = {"inputs": 10.0, "targets": 30.0}
SMALL = 0.01
"""Rows are far from unit scale if a column has a mean or deviation above LARGE, or none has one above SMALL.

Targets may be larger, because the steps of a linear network are proportional to them.
"""


@step
def check_scale(cohort: Cohort, model: Model, private: ClientStore, device: str = "cpu") -> list[ScaleCheck]:
    """Check whether each client's training rows are far from unit scale; one record per stack.

    In a classification, `targets` is False.
    """
    messages = []
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, "train", "cpu")
        counts, reports = (
            rows.counts.tolist()[: len(stack.clients)],
            may_report(cohort.silos, stack, "train", rows, private).tolist(),
        )
        x, y = rows.x.flatten(2).numpy(), rows.y[..., None].numpy()
        inputs = [reports[i] and _is_far(x[i, :count], LARGE["inputs"]) for i, count in enumerate(counts)]
        targets = [
            rows.y.is_floating_point() and reports[i] and _is_far(y[i, :count], LARGE["targets"])
            for i, count in enumerate(counts)
        ]
        messages.append(ScaleCheck(stack.clients, torch.tensor(inputs), torch.tensor(targets)))
    return messages


def _is_far(values: np.ndarray, large: float) -> bool:
    """Return whether values (rows, columns) are far from unit scale."""
    mean, deviation = np.abs(values.mean(0, dtype=np.float64)), values.std(0, dtype=np.float64)
    small = (mean < SMALL).all() and (deviation < SMALL).all() and deviation.any()
    return bool((mean > large).any() or (deviation > large).any() or small)
