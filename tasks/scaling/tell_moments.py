"""Each client tells of how many values each column of its training rows is made, their sum, and how far they spread."""

import hashlib
import json
import math

import numpy as np
import torch

from models.model import Model
from models.shift.told.question import Question
from models.shift.told.summaries import Layout, too_few
from silos.cohort import Cohort
from silos.ledgers.differencing import EVERY, OTHER
from silos.ledgers.ledger import Ledger
from silos.ledgers.refusals import Kind
from silos.private import PrivateStore
from silos.schema import schema_of
from silos.stored.manifest import Manifest
from tasks.diagnosis.own_rows import Mine
from tasks.messages import LEAST_ROWS, ScaleMoments
from tasks.running.opening import open_rows
from tasks.running.step import step

INPUTS, TARGETS = Kind("mean and scale of inputs"), Kind("mean and scale of targets")


@step
def tell_moments(
    cohort: Cohort, model: Model, private: PrivateStore, inputs: bool, targets: bool, device: str = "cpu"
) -> list[ScaleMoments]:
    """One record a stack, of the numbers of a row where `inputs`, and of the target behind them where `targets`.

    `private` is where clients remember what they told in all runs: one whose rows are nearly those that it told of before
    tells what it told then, or nothing.
    """
    messages, question = [], _question(cohort.silos.manifest)
    for stack in cohort.stacks:
        rows, told, earlier = open_rows(cohort.silos, stack, "train", "cpu"), [], dict[str, str]()
        for client, x, y, count in zip(stack.clients, rows.x, rows.y, rows.counts.tolist(), strict=False):
            mine = Mine(cohort.silos, client, x[:count], y[:count])
            parts = _told(Ledger(private.folder, client), mine, question, inputs, targets)
            told.append(np.concatenate([numbers for numbers, _ in parts]))
            for version in filter(None, (version for _, version in parts)):
                earlier[client] = version
        numbers = torch.from_numpy(np.stack(told))
        messages.append(ScaleMoments(stack.clients, numbers[..., 0].long(), numbers[..., 1], numbers[..., 2], earlier))
    return messages


def _question(manifest: Manifest) -> Question:
    """As a diagnosis asks: what is told of here adds up from what is told there, and a difference is none."""
    schema, width = schema_of(manifest), math.prod(manifest.shape)
    targets = manifest.task == "regression"
    names = tuple(feature.name for feature in schema.features) or tuple(map(str, range(width)))
    none = np.zeros(width)
    layout = Layout(names, (None,) * width, none, none, 1, 1 if targets else len(manifest.classes))
    return Question(schema.id, layout, counts=False, targets=targets)


def _told(ledger: Ledger, mine: Mine, question: Question, inputs: bool, targets: bool) -> list[tuple[np.ndarray, str]]:
    """Of inputs and targets, as far as they are wanted: moments (columns, 3), and the version in the way."""
    width = len(question.layout.names)
    x = np.c_[mine.features(question)[:, :width], mine.y.astype(np.float64)]
    there = _there(mine, question, x)
    wanted = [(INPUTS, slice(width))] * inputs + [(TARGETS, slice(width, None))] * targets
    if not there.any():
        return [(np.zeros((x[:, of].shape[1], 3)), "") for _, of in wanted]
    hashes = mine.hashes(ledger, question)
    return [_standing(ledger, mine, question, kind, x[:, of], there[:, of], hashes) for kind, of in wanted]


def _there(mine: Mine, question: Question, x: np.ndarray) -> np.ndarray:
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
    ledger: Ledger, mine: Mine, question: Question, kind: Kind, x: np.ndarray, there: np.ndarray, hashes: np.ndarray
) -> tuple[np.ndarray, str]:
    """x: (rows, columns) of one kind. Those that miss values stand for rows of their own."""
    whole = there.any(1)
    names = question.layout.names if kind is INPUTS else ("",)
    told = {EVERY: {OTHER: hashes[whole]}}
    for at in np.flatnonzero(np.isnan(x).any(0)).tolist():
        told[names[at]] = {OTHER: hashes[there[:, at]]} if there[:, at].any() else {}
    standing = ledger.standing(
        mine.version,
        hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16],
        lambda: {"moments": np.array([_moments(x[there[:, at], at]) for at in range(x.shape[1])])},
        told,
        kind,
    )
    none = np.zeros((x.shape[1], 3))
    return (none if standing.answer is None else standing.answer["moments"]), standing.earlier


def _moments(values: np.ndarray) -> tuple[float, float, float]:
    """Count, sum, and squared distances from the mean, of (rows,); zeros of none.

    About the mean, since of a sum of squares a large mean would leave few digits.
    """
    if not len(values):
        return 0, 0.0, 0.0
    total = float(values.sum())
    return len(values), total, float(np.square(values - total / len(values)).sum())
