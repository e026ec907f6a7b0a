"""Each client tells of how many values each column of its training rows is made, their sum, and how far they spread.

Combine the moments of clients into one mean and scale, and check whether rows are far from unit scale.
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
from models.shift.client_summaries.client_summary import Layout, too_few
from models.shift.client_summaries.query import Query
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.privacy.differencing import EVERY, OTHER
from silos.privacy.ledger import Ledger, StandInAnswer
from silos.privacy.privacy_budget import Kind
from silos.standardizer import Standardizer
from silos.storage.manifest import Manifest, schema_of
from tasks.diagnosis.report_summary import LocalSummary
from tasks.execution.load_client_data import has_enough_rows, load_rows
from tasks.execution.task_types import server_step, step
from tasks.messages.message_policy import LEAST_ROWS
from tasks.messages.statistics_messages import ScaleCheck, ScaleMoments

INPUTS, TARGETS = Kind("mean and scale of inputs"), Kind("mean and scale of targets")

_Told = list[tuple[np.ndarray, str]]
"""Of inputs and targets, as far as they are wanted: moments (columns, 3), and the version in the way, if one is."""

_AT_ONCE = 16  # clients, whose files a disk syncs in about the time that one's take
_BESIDE = 1 << 26  # bytes of other clients' rows that are worked on beside the largest's; there are some copies of them


@step
def report_moments(
    cohort: Cohort, model: Model, private: ClientStore, inputs: bool, targets: bool, device: str = "cpu"
) -> list[ScaleMoments]:
    """One record a stack, of the numbers of a row where `inputs`, and of the target behind them where `targets`.

    `private` is where clients remember what they told in all runs: one whose rows are nearly those that it told of before
    tells what it told then, or nothing.
    """
    question, messages, at_once = _question(cohort.silos.manifest), list[ScaleMoments](), _at_once(cohort)
    asked: deque[tuple[tuple[str, ...], Iterator[_Told]]] = deque()

    def told_by(client: str, x: Tensor, y: Tensor) -> _Told:
        return _told(
            Ledger(private.folder, client), LocalSummary(cohort.silos, client, x, y), question, inputs, targets
        )

    with ThreadPoolExecutor(at_once) as threads:
        for stack in cohort.stacks:
            rows = load_rows(cohort.silos, stack, "train", "cpu")
            mine = [(x[:n], y[:n]) for x, y, n in zip(rows.x, rows.y, rows.counts.tolist(), strict=True)]
            asked.append((stack.clients, threads.map(told_by, stack.clients, *zip(*mine, strict=True))))
            while sum(len(clients) for clients, _ in asked) > at_once:  # no more rows in memory than are asked about
                messages.append(_message(*asked.popleft()))
        messages += [_message(*each) for each in asked]
    return messages


def _at_once(cohort: Cohort) -> int:
    """How many clients are asked at once: fewer where they have many rows, which take memory and no wait for a disk."""
    silos, width = cohort.silos, math.prod(cohort.silos.manifest.shape) * 8
    largest = np.sort(silos.select(cohort.clients).rows_array("train"))[::-1][:_AT_ONCE].astype(np.int64)
    return 1 + int((np.cumsum(largest[1:] * width) <= _BESIDE).sum())


def _message(clients: tuple[str, ...], answers: Iterator[_Told]) -> ScaleMoments:
    told = [*answers]
    numbers = torch.from_numpy(np.stack([np.concatenate([part for part, _ in parts]) for parts in told]))
    earlier = {client: way for client, parts in zip(clients, told, strict=True) for _, way in parts if way}
    return ScaleMoments(clients, numbers[..., 0].long(), numbers[..., 1], numbers[..., 2], earlier)


def _question(manifest: Manifest) -> Query:
    """As a diagnosis asks: what is told of here adds up from what is told there, and a difference is none."""
    schema, width = schema_of(manifest), math.prod(manifest.shape)
    targets = manifest.task == "regression"
    names = tuple(feature.name for feature in schema.features) or tuple(map(str, range(width)))
    none = np.zeros(width)
    layout = Layout(names, (None,) * width, none, none, 1, 1 if targets else len(manifest.classes))
    return Query(schema.id, layout, counts=False, targets=targets)


def _told(ledger: Ledger, mine: LocalSummary, question: Query, inputs: bool, targets: bool) -> _Told:
    width = len(question.layout.names)
    wanted = [(INPUTS, question.layout.names, slice(width))] * inputs + [(TARGETS, ("",), slice(width, None))] * targets
    known = [ledger.recorded_stand_in(mine.version, _asked(names), kind) for kind, names, _ in wanted]
    standing = [one for one in known if one]
    if len(standing) < len(wanted):
        x = np.c_[mine.features(question)[:, :width], mine.y.astype(np.float64)]
        there = _there(mine, question, x)
        if not there.any():
            return [(np.zeros((len(names), 3)), "") for _, names, _ in wanted]
        hashes = mine.hashes(ledger, question)
        standing = [_standing(ledger, mine, kind, names, x[:, of], there[:, of], hashes) for kind, names, of in wanted]
    none = [np.zeros((len(names), 3)) for _, names, _ in wanted]
    return [
        (zeros if one.answer is None else one.answer["moments"], one.earlier)
        for one, zeros in zip(standing, none, strict=True)
    ]


def _asked(names: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]


def _there(mine: LocalSummary, question: Query, x: np.ndarray) -> np.ndarray:
    """Which rows each column is told of: (rows, columns) bool.

    Those of classes that have LEAST_ROWS different rows there, and of the other classes if these have them together.
    """
    column = mine.columns(question)
    there = column.kept[:, None] & ~np.isnan(x)
    for feature, few in too_few(x[column.kept], column.of[column.kept], mine.same[column.kept], question.layout):
        rest = there[:, feature] & few[column.of]
        if len(np.unique(mine.same[rest])) < LEAST_ROWS:
            there[rest, feature] = False
    return there


def _standing(
    ledger: Ledger,
    mine: LocalSummary,
    kind: Kind,
    names: tuple[str, ...],
    x: np.ndarray,
    there: np.ndarray,
    hashes: np.ndarray,
) -> StandInAnswer:
    """x: (rows, columns) of one kind, with their names. Those that miss values stand for rows of their own."""
    whole = there.any(1)
    told = {EVERY: {OTHER: hashes[whole]}}
    for at in np.flatnonzero(np.isnan(x).any(0)).tolist():
        told[names[at]] = {OTHER: hashes[there[:, at]]} if there[:, at].any() else {}
    return ledger.answer_or_stand_in(
        mine.version,
        _asked(names),
        lambda: {"moments": np.array([_moments(x[there[:, at], at]) for at in range(x.shape[1])])},
        told,
        kind,
    )


def _moments(values: np.ndarray) -> tuple[float, float, float]:
    """Count, sum, and squared distances from the mean, of (rows,); zeros of none.

    About the mean, since of a sum of squares a large mean would leave few digits.
    """
    if not len(values):
        return 0, 0.0, 0.0
    total = float(values.sum())
    return len(values), total, float(np.square(values - total / len(values)).sum())


@server_step
def combine_moments(told: list[ScaleMoments]) -> Standardizer:
    """Of each column; NaN of one that nobody tells of, and scale 1 of one that is constant.

    Clients are added in the order of their names, so that stacks do not matter (Chan, Golub and LeVeque 1979, equation 1.5,
    of any number of parts).
    """
    order = np.argsort([client for message in told for client in message.clients])
    counts, sums, squares = (
        np.concatenate([getattr(message, name).numpy() for message in told])[order].astype(np.float64)
        for name in ("counts", "sums", "squares")
    )
    with np.errstate(invalid="ignore"):
        mean = sums.sum(0) / counts.sum(0)
        apart = np.where(counts > 0, sums / counts - mean, 0.0)
        scale = np.sqrt((squares + counts * apart**2).sum(0) / counts.sum(0))
    return Standardizer(tuple(mean.tolist()), tuple(np.where(scale == 0, 1.0, scale).tolist()))


LARGE = {"inputs": 10.0, "targets": 30.0}
SMALL = 0.01
"""Rows are far from unit scale if a column has a mean or deviation above LARGE, or none has one above SMALL.

Of a target a linear network makes steps in proportion, so that more of it does no harm.
"""


@step
def check_scale(cohort: Cohort, model: Model, private: ClientStore, device: str = "cpu") -> list[ScaleCheck]:
    """One record a stack; `targets` is no of a classification."""
    messages = []
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, "train", "cpu")
        counts, speaks = rows.counts.tolist()[: len(stack.clients)], has_enough_rows(rows).tolist()
        x, y = rows.x.flatten(2).numpy(), rows.y[..., None].numpy()
        inputs = [speaks[at] and _is_far(x[at, :count], LARGE["inputs"]) for at, count in enumerate(counts)]
        targets = [
            rows.y.is_floating_point() and speaks[at] and _is_far(y[at, :n], LARGE["targets"])
            for at, n in enumerate(counts)
        ]
        messages.append(ScaleCheck(stack.clients, torch.tensor(inputs), torch.tensor(targets)))
    return messages


def _is_far(values: np.ndarray, large: float) -> bool:
    """values: (rows, columns)."""
    mean, deviation = np.abs(values.mean(0, dtype=np.float64)), values.std(0, dtype=np.float64)
    small = (mean < SMALL).all() and (deviation < SMALL).all() and deviation.any()
    return bool((mean > large).any() or (deviation > large).any() or small)
