"""A client's training rows as a diagnosis sees them, and each client's answers as far as its ledger lets it give them.

Each client of a cohort tells counts and moments of its training rows, by class, on what was agreed; its ledger knows.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.shift.client_summaries.client_summary import Columns, Summaries, columns, joined, summary, too_few
from models.shift.client_summaries.gaussian_mechanism import counts_sensitivity, epsilon, noisy, sigma
from models.shift.client_summaries.query import Query
from models.shift.client_summaries.random_projections import projected
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos
from silos.errors import RefusalError
from silos.param_types import EPSILON
from silos.privacy.differencing import EVERY, OTHER, ReportedGroups
from silos.privacy.ledger import Draw, Ledger
from silos.privacy.privacy_budget import RHO, Unit
from silos.storage.partition_store import open_missing
from tasks.execution.load_client_data import load_rows, number_different_rows
from tasks.execution.task_types import step
from tasks.messages.diagnosis_messages import NoisyCounts, Refusal, ShiftNumbers


class LocalSummary:
    """One client's training rows: x (rows, *shape) as trained on, y (rows,)."""

    def __init__(self, silos: Silos, client: str, x: Tensor, y: Tensor) -> None:
        self.client, self._names = client, silos.manifest.classes
        self._as_opened = x
        self.x, self.y = x.numpy().astype(np.float64), y.numpy()
        masks = [open_missing(Path(silos.folder), entry, "train") for entry in silos.entries(client)]
        if any(mask is not None for mask in masks):
            flat = self.x.reshape(len(self.x), -1)
            flat[np.concatenate([mask for mask in masks if mask is not None])] = np.nan

    @cached_property
    def same(self) -> np.ndarray:
        """Which of its different rows each is: (rows,) numbers from 0, as `different` has them."""
        return number_different_rows(self._as_opened) if len(self.y) else np.zeros(0, np.int64)

    @cached_property
    def version(self) -> str:
        """Of these rows: another client's change is none of this one."""
        return hashlib.blake2b(self.x.tobytes() + self.y.tobytes(), digest_size=16).hexdigest()

    def features(self, question: Query) -> np.ndarray:
        """(rows, features) float64, NaN where missing."""
        pictures = question.pictures
        x = projected(self.x, pictures == "light")[1] if pictures else self.x.reshape(len(self.x), -1)
        return np.concatenate([x, self.y[:, None].astype(np.float64)], 1) if question.targets else x

    def columns(self, question: Query) -> Columns:
        """Which column of counts each row is told in."""
        return columns(self.y, self.same, question.layout)

    def hashes(self, ledger: Ledger, question: Query) -> np.ndarray:
        """Of each row with its class's name, or with its target where there are none: (rows,) uint64.

        A class's code is no name: it is another once some other silo has a label that comes before.
        """
        flat = self.x.reshape(len(self.x), -1)
        if question.layout.targets or question.targets:
            return ledger.row_hashes(np.concatenate([flat, self.y[:, None]], 1), "")
        classes = question.layout.classes_of(self.y)
        hashes = np.zeros(len(self.y), np.uint64)
        for c in np.unique(classes).tolist():
            hashes[classes == c] = ledger.row_hashes(flat[classes == c], self._name(c))
        return hashes

    def stands_for(self, ledger: Ledger, question: Query) -> ReportedGroups:
        """The rows behind each number of counts and moments, for the ledger to hold against other answers."""
        layout, x, column = question.layout, self.features(question), self.columns(question)
        names = [self._name(c) for c in range(layout.classes)] + [OTHER]
        hashes = self.hashes(ledger, question)
        told = {EVERY: dict(_groups(hashes, column.of, column.kept, names))}
        kept = np.flatnonzero(column.kept)
        for feature, few in too_few(x[kept], column.of[kept], self.same[kept], layout):
            there = column.kept & ~np.isnan(x[:, feature]) & ~few[column.of]
            told[layout.names[feature]] = dict(_groups(hashes, column.of, there, names))
        return told

    def _name(self, c: int) -> str:
        """Of a class; groups of targets have none but their place."""
        return self._names[c] if self._names else str(c)


def each_allowed(
    cohort: Cohort, private: ClientStore, answer: Callable[[Ledger, LocalSummary], list[np.ndarray]]
) -> Iterator[tuple[dict[str, list[np.ndarray]], list[Refusal]]]:
    """Of each stack what each client answers, and of those whose ledger refuses a record of why, if there are any."""
    for stack in cohort.stacks:
        opened = load_rows(cohort.silos, stack, "train", "cpu")
        counts = opened.counts.tolist()[: len(stack.clients)]
        told, why = {}, {}
        for client, x, y, n in zip(stack.clients, opened.x, opened.y, counts, strict=False):
            mine = LocalSummary(cohort.silos, client, x[:n], y[:n])
            try:
                told[client] = answer(Ledger(private.folder, client), mine)
            except RefusalError as refusal:
                why[client] = str(refusal)
        yield told, [Refusal(tuple(why), why)] if why else []


def _groups(hashes: np.ndarray, of: np.ndarray, told: np.ndarray, names: list[str]) -> Iterator[tuple[str, np.ndarray]]:
    for c in np.unique(of[told]).tolist():
        yield names[c], hashes[told & (of == c)]


_PARTS = ("rows", "labels", "counts", "moments")


@step
def report_summary(
    cohort: Cohort,
    private: ClientStore,
    question: Query,
    budget: float | None = None,
    delta: float | None = None,
) -> list[ShiftNumbers | NoisyCounts | Refusal]:
    """A record a stack, with noise of counts only, and another of the clients of which the ledger lets nothing be told.

    Asked again, a client tells what it told before, bit for bit. It is silent where its budget is spent, or where an answer
    without noise and an earlier one would differ by a few rows: the others' answers are of use without it.
    budget: of each client, in zCDP, over all that it ever told with noise. delta: at which a refusal names epsilons.
    """
    messages: list[ShiftNumbers | NoisyCounts | Refusal] = []
    unit = RHO if delta is None else Unit("epsilon", partial(epsilon, delta=delta), EPSILON, f" at delta {delta:g}")
    for told, silence in each_allowed(
        cohort, private, lambda ledger, mine: _told(ledger, mine, question, budget, unit)
    ):
        if told:
            arrays = [torch.from_numpy(np.concatenate(part)) for part in zip(*told.values(), strict=True)]
            messages.append((NoisyCounts if question.rho else ShiftNumbers)(tuple(told), *arrays))
        messages += silence
    return messages


def summaries(messages: Sequence[ShiftNumbers | NoisyCounts]) -> Summaries:
    """What clients told without noise, in the order of the messages."""
    told = [message for message in messages if isinstance(message, ShiftNumbers)]
    return joined([Summaries(*(getattr(message, part).numpy() for part in _PARTS)) for message in told])


def _told(ledger: Ledger, mine: LocalSummary, question: Query, budget: float | None, unit: Unit) -> list[np.ndarray]:
    if question.rho:
        compute = _with_noise(mine, question)
        answer = ledger.answer(mine.version, question.id, compute, question.rho, budget, unit=unit)
        return [answer["counts"]]

    def truth(_: Draw) -> dict[str, np.ndarray]:
        told = summary(mine.features(question), mine.y, mine.same, question.layout)
        counts = told.counts if question.counts else told.counts[..., :0, :]
        return {"rows": told.rows, "labels": told.labels, "counts": counts, "moments": told.moments}

    answer = ledger.answer(mine.version, question.id, truth, groups=mine.stands_for(ledger, question))
    return [answer[part] for part in _PARTS]


def _with_noise(mine: LocalSummary, question: Query) -> Callable[[Draw], dict[str, np.ndarray]]:
    """Of all classes, whatever their rows: which are told may not depend on them."""

    def compute(draw: Draw) -> dict[str, np.ndarray]:
        counts = question.layout.counts(mine.features(question), question.layout.classes_of(mine.y))
        size = sigma(counts_sensitivity(counts.shape[0]), question.rho)
        return {"counts": noisy(counts[None].astype(np.int64), size, draw("counts"))}

    return compute
