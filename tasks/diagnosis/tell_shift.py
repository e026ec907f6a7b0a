"""Each client of a cohort tells counts and moments of its training rows, by class, on what was agreed; its ledger knows."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.shift.told.noise import counts_sensitivity, noisy, sigma
from models.shift.told.projections import projected
from models.shift.told.question import Question
from models.shift.told.summaries import Summaries, columns, joined, summary, too_few
from silos.cohort import Cohort, Silos
from silos.errors import RefusalError
from silos.ledgers.differencing import EVERY, OTHER, Told
from silos.ledgers.ledger import Draw, Ledger
from silos.private import PrivateStore
from silos.store import open_missing
from tasks.messages import NoisyCounts, ShiftNumbers, Silence
from tasks.running.opening import different, open_rows
from tasks.running.step import step

_PARTS = ("rows", "labels", "counts", "moments")


@step
def tell_shift(
    cohort: Cohort, private: PrivateStore, question: Question, budget: float | None = None
) -> list[ShiftNumbers | NoisyCounts | Silence]:
    """A record a stack, with noise of counts only, and another of the clients of which the ledger lets nothing be told.

    Asked again, a client tells what it told before, bit for bit. It is silent where its budget is spent, or where an answer
    without noise and an earlier one would differ by a few rows: the others' answers are of use without it.
    budget: of each client, in zCDP, over all that it ever told with noise.
    """
    messages: list[ShiftNumbers | NoisyCounts | Silence] = []
    for stack in cohort.stacks:
        opened = open_rows(cohort.silos, stack, "train", "cpu")
        counts = opened.counts.tolist()[: len(stack.clients)]
        told, why = {}, {}
        for client, x, y, n in zip(stack.clients, opened.x, opened.y, counts, strict=False):
            mine = _Mine(cohort.silos, client, x[:n], y[:n])
            try:
                told[client] = _told(Ledger(private.folder, client), mine, question, budget)
            except RefusalError as refusal:
                why[client] = str(refusal)
        if told:
            arrays = [torch.from_numpy(np.concatenate(part)) for part in zip(*told.values(), strict=True)]
            messages.append((NoisyCounts if question.rho else ShiftNumbers)(tuple(told), *arrays))
        if why:
            messages.append(Silence(tuple(why), why))
    return messages


def summaries(messages: Sequence[ShiftNumbers | NoisyCounts]) -> Summaries:
    """What clients told without noise, in the order of the messages."""
    told = [message for message in messages if isinstance(message, ShiftNumbers)]
    return joined([Summaries(*(getattr(message, part).numpy() for part in _PARTS)) for message in told])


class _Mine:
    """One client's training rows: x (rows, *shape) as trained on, y (rows,)."""

    def __init__(self, silos: Silos, client: str, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x.double().numpy(), y.numpy()
        self.same = different(x) if len(y) else np.zeros(0, np.int64)
        masks = [open_missing(Path(silos.folder), entry, "train") for entry in silos.entries(client)]
        if any(mask is not None for mask in masks):
            flat = self.x.reshape(len(self.x), -1)
            flat[np.concatenate([mask for mask in masks if mask is not None])] = np.nan

    @property
    def version(self) -> str:
        """Of these rows: another client's change is none of this one."""
        return hashlib.blake2b(self.x.tobytes() + self.y.tobytes(), digest_size=16).hexdigest()

    def features(self, question: Question) -> np.ndarray:
        """(rows, features) float64, NaN where missing."""
        pictures = question.pictures
        x = projected(self.x, pictures == "light")[1] if pictures else self.x.reshape(len(self.x), -1)
        return np.concatenate([x, self.y[:, None].astype(np.float64)], 1) if question.targets else x


def _told(ledger: Ledger, mine: _Mine, question: Question, budget: float | None) -> list[np.ndarray]:
    if question.rho:
        answer = ledger.answer(mine.version, question.id, _with_noise(mine, question), question.rho, budget)
        return [answer["counts"]]

    def compute(_: Draw) -> dict[str, np.ndarray]:
        told = summary(mine.features(question), mine.y, mine.same, question.layout)
        counts = told.counts if question.counts else told.counts[..., :0, :]
        return {"rows": told.rows, "labels": told.labels, "counts": counts, "moments": told.moments}

    answer = ledger.answer(mine.version, question.id, compute, told=_stands_for(ledger, mine, question))
    return [answer[part] for part in _PARTS]


def _with_noise(mine: _Mine, question: Question) -> Callable[[Draw], dict[str, np.ndarray]]:
    """Of all classes, whatever their rows: which are told may not depend on them."""

    def compute(draw: Draw) -> dict[str, np.ndarray]:
        counts = question.layout.counts(mine.features(question), question.layout.classes_of(mine.y))
        size = sigma(counts_sensitivity(counts.shape[0]), question.rho)
        return noisy({"counts": counts[None].astype(np.int64)}, {"counts": size}, draw)

    return compute


def _stands_for(ledger: Ledger, mine: _Mine, question: Question) -> Told:
    """The rows behind each number, for the ledger to hold against earlier answers."""
    layout, x = question.layout, mine.features(question)
    column = columns(mine.y, mine.same, layout)
    names = [str(c) for c in range(layout.classes)] + [OTHER]
    hashes = _hashes(ledger, mine, None if layout.targets or question.targets else layout.classes_of(mine.y))
    told = {EVERY: dict(_groups(hashes, column.of, column.kept, names))}
    kept = np.flatnonzero(column.kept)
    for feature, few in too_few(x[kept], column.of[kept], mine.same[kept], layout):
        there = column.kept & ~np.isnan(x[:, feature]) & ~few[column.of]
        told[layout.names[feature]] = dict(_groups(hashes, column.of, there, names))
    return told


def _hashes(ledger: Ledger, mine: _Mine, classes: np.ndarray | None) -> np.ndarray:
    """Of each row with its class, or with its target where there are none: (rows,) uint64."""
    flat = mine.x.reshape(len(mine.x), -1)
    if classes is None:
        return ledger.row_hashes(np.concatenate([flat, mine.y[:, None]], 1), "")
    hashes = np.zeros(len(mine.y), np.uint64)
    for c in np.unique(classes).tolist():
        hashes[classes == c] = ledger.row_hashes(flat[classes == c], str(c))
    return hashes


def _groups(hashes: np.ndarray, of: np.ndarray, told: np.ndarray, names: list[str]) -> Iterator[tuple[str, np.ndarray]]:
    for c in np.unique(of[told]).tolist():
        yield names[c], hashes[told & (of == c)]
