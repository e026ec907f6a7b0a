"""A client's training rows as a diagnosis sees them, and each client's answers as far as its ledger lets it give them."""

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor

from models.shift.client_summaries.client_summary import Columns, columns, too_few
from models.shift.client_summaries.query import Query
from models.shift.client_summaries.random_projections import projected
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos
from silos.errors import RefusalError
from silos.privacy.differencing import EVERY, OTHER, Told
from silos.privacy.ledger import Ledger
from silos.storage.partition_store import open_missing
from tasks.execution.load_client_data import different, load_rows
from tasks.messages.diagnosis_messages import Refusal


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
        return different(self._as_opened) if len(self.y) else np.zeros(0, np.int64)

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

    def stands_for(self, ledger: Ledger, question: Query) -> Told:
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
