"""Counts and moments of training rows by class, reported for a diagnosis as far as each client's ledger allows."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.shift.client_summaries.client_summary import (
    Columns,
    Summaries,
    assign_columns,
    concatenate_summaries,
    effective_rows,
    summarize,
    withheld_columns,
)
from models.shift.client_summaries.feature_pairs import clip_far_values
from models.shift.client_summaries.gaussian_mechanism import add_noise, counts_sensitivity, epsilon, sigma
from models.shift.client_summaries.query import Query
from models.shift.client_summaries.random_projections import project_pictures
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos
from silos.errors import RefusalError
from silos.param_limits import EPSILON
from silos.privacy.differencing import EVERY, OTHER, ReportedGroups
from silos.privacy.ledger import Draw, Ledger
from silos.privacy.privacy_budget import RHO, Unit
from silos.storage.partition_store import open_missing, open_units
from silos.units import count_copies, number_units, unit_weights
from tasks.execution.load_client_data import load_rows, number_different_rows
from tasks.execution.task_types import step
from tasks.messages.diagnosis_messages import NoisyCounts, Refusal, ShiftNumbers


class LocalSummary:
    """One client's training rows: x (rows, *shape) as used in training, y (rows,), unit (rows,) uint64 or None."""

    def __init__(self, silos: Silos, client: str, x: Tensor, y: Tensor) -> None:
        self.client, self._names = client, silos.manifest.classes
        self._as_opened = x
        self.x, self.y = x.numpy().astype(np.float64), y.numpy()
        self.unit = open_units(Path(silos.folder), silos.entries(client), "train")
        masks = [open_missing(Path(silos.folder), entry, "train") for entry in silos.entries(client)]
        if any(mask is not None for mask in masks):
            flat = self.x.reshape(len(self.x), -1)
            flat[np.concatenate([mask for mask in masks if mask is not None])] = np.nan

    @cached_property
    def row_ids(self) -> np.ndarray:
        """The index of each row among the client's distinct rows, (rows,); and of its unit if it has one, (rows, 2)."""
        rows = number_different_rows(self._as_opened) if len(self.y) else np.zeros(0, np.int64)
        return rows if self.unit is None else np.stack([rows, number_units(self.unit)], 1)

    def weights(self, query: Query) -> np.ndarray | None:
        """Return the weight of each row, (rows,) float64, by which each unit counts the same; None without units.

        Without noise the weights add up to the `effective_rows`. With noise a unit adds 1, which bounds what it changes.
        """
        if self.unit is None:
            return None
        effective = effective_rows(self.features(query), self.y, number_units(self.unit), query.layout, query.counts)
        return unit_weights(self.unit, None if query.rho else effective)

    @cached_property
    def version(self) -> str:
        """A hash of these rows; changes at other clients do not change it."""
        units = b"" if self.unit is None else self.unit.tobytes()
        return hashlib.blake2b(self.x.tobytes() + self.y.tobytes() + units, digest_size=16).hexdigest()

    def features(self, query: Query) -> np.ndarray:
        """Return (rows, features) float64, NaN if missing."""
        pictures = query.pictures
        x = project_pictures(self.x, pictures == "light")[1] if pictures else self.x.reshape(len(self.x), -1)
        return np.concatenate([x, self.y[:, None].astype(np.float64)], 1) if query.targets else x

    def columns(self, query: Query) -> Columns:
        """Return the column of counts of each row."""
        return assign_columns(self.y, self.row_ids, query.layout)

    def hashes(self, ledger: Ledger, query: Query) -> np.ndarray:
        """Hash each row with its class's name, or with its target if there are no classes: (rows,) uint64.

        The name is used since a class's code changes when another silo brings a label that sorts before it.
        """
        flat = self.x.reshape(len(self.x), -1)
        if query.layout.targets or query.targets:
            return ledger.row_hashes(np.concatenate([flat, self.y[:, None]], 1), "")
        classes = query.layout.classes_of(self.y)
        hashes = np.zeros(len(self.y), np.uint64)
        for c in np.unique(classes).tolist():
            hashes[classes == c] = ledger.row_hashes(flat[classes == c], self._name(c))
        return hashes

    def unit_hashes(self, ledger: Ledger) -> np.ndarray | None:
        """Hash the unit of each row, (rows,) uint64, equal in all versions and for all classes; None without units."""
        halves = None if self.unit is None else self.unit.view(np.uint32).reshape(-1, 2)  # which float64 represents
        return None if halves is None else ledger.row_hashes(halves, "unit")

    def stands_for(self, ledger: Ledger, query: Query) -> ReportedGroups:
        """Return the hashes of rows behind each count and moment, which the ledger compares with other answers."""
        layout, x, column = query.layout, self.features(query), self.columns(query)
        names = [self._name(c) for c in range(layout.classes)] + [OTHER]
        hashes = self.hashes(ledger, query)
        groups = {EVERY: dict(_groups(hashes, column.index, column.reported, names))}
        reported = np.flatnonzero(column.reported)
        for feature, withheld in withheld_columns(x[reported], column.index[reported], self.row_ids[reported], layout):
            used = column.reported & ~np.isnan(x[:, feature]) & ~withheld[column.index]
            groups[layout.names[feature]] = dict(_groups(hashes, column.index, used, names))
        return groups

    def _name(self, class_index: int) -> str:
        """Return the name of a class, or the index of a group of targets."""
        return self._names[class_index] if self._names else str(class_index)


def answers_by_stack(
    cohort: Cohort, private: ClientStore, answer: Callable[[Ledger, LocalSummary], list[np.ndarray]]
) -> Iterator[tuple[dict[str, list[np.ndarray]], list[Refusal]]]:
    """Yield for each stack the answers by client, and one refusal with the reasons of the clients that may not answer."""
    for stack in cohort.stacks:
        opened = load_rows(cohort.silos, stack, "train", "cpu")
        counts = opened.counts.tolist()[: len(stack.clients)]
        answers, refusals = {}, {}
        for client, x, y, n in zip(stack.clients, opened.x, opened.y, counts, strict=False):
            local = LocalSummary(cohort.silos, client, x[:n], y[:n])
            try:
                answers[client] = answer(Ledger(private.folder, client), local)
            except RefusalError as refusal:
                refusals[client] = str(refusal)
        yield answers, [Refusal(tuple(refusals), refusals)] if refusals else []


def _groups(
    hashes: np.ndarray, column: np.ndarray, used: np.ndarray, names: list[str]
) -> Iterator[tuple[str, np.ndarray]]:
    for c in np.unique(column[used]).tolist():
        yield names[c], hashes[used & (column == c)]


_PARTS = ("rows", "labels", "counts", "moments")


@step
def report_summary(
    cohort: Cohort, private: ClientStore, query: Query, budget: float | None = None, delta: float | None = None
) -> list[ShiftNumbers | NoisyCounts | Refusal]:
    """Report counts and moments, or with noise counts only.

    Returns one message a stack, and one of its clients that may not answer. For a repeated query a client repeats its
    answer bit for bit. It refuses if its budget is spent, or if an answer without noise and an earlier one would
    differ by a few rows. The answers of other clients do not need it. budget: of each client, in zCDP, over all its
    reports with noise; delta: at which a refusal gives epsilons.
    """
    messages: list[ShiftNumbers | NoisyCounts | Refusal] = []
    unit = RHO if delta is None else Unit("epsilon", partial(epsilon, delta=delta), EPSILON, f" at delta {delta:g}")
    report = partial(_answer, query=query, budget=budget, unit=unit)
    for answers, refusals in answers_by_stack(cohort, private, report):
        if answers:
            arrays = [torch.from_numpy(np.concatenate(part)) for part in zip(*answers.values(), strict=True)]
            if query.rho:
                messages.append(NoisyCounts(tuple(answers), *arrays))
            else:
                *parts, repeats = arrays
                copied = tuple(client for client, repeat in zip(answers, repeats.tolist(), strict=True) if repeat)
                messages.append(ShiftNumbers(tuple(answers), *parts, repeats=copied))
        messages += refusals
    return messages


def join_summaries(messages: Sequence[ShiftNumbers | NoisyCounts]) -> Summaries:
    """Concatenate the reports without noise, in the order of the messages."""
    precise = [message for message in messages if isinstance(message, ShiftNumbers)]
    return concatenate_summaries([Summaries(*(getattr(m, part).numpy() for part in _PARTS)) for m in precise])


def _answer(ledger: Ledger, local: LocalSummary, query: Query, budget: float | None, unit: Unit) -> list[np.ndarray]:
    if query.rho:
        noisy_counts = _noisy_counts(local, query)
        answer = ledger.answer(local.version, query.id, noisy_counts, query.rho, budget, unit=unit)
        return [answer["counts"]]

    def compute_summary(_: Draw) -> dict[str, np.ndarray]:
        x = local.features(query)
        if not query.counts and query.pictures is None:
            # bounds are derived from these moments, and a single far value would make all bins too wide
            x = np.where(query.layout.numeric, clip_far_values(x), x)
        summary_ = summarize(x, local.y, local.row_ids, query.layout, local.weights(query))
        counts = summary_.counts if query.counts else summary_.counts[..., :0, :]
        copies = local.unit is None and count_copies(local.x, local.y) > 0
        parts = {"rows": summary_.rows, "labels": summary_.labels, "counts": counts, "moments": summary_.moments}
        return {**parts, "repeats": np.array([True])} if copies else parts

    answer = ledger.answer(local.version, query.id, compute_summary, groups=local.stands_for(ledger, query))
    return [*(answer[part] for part in _PARTS), answer.get("repeats", np.array([False]))]


def _noisy_counts(local: LocalSummary, query: Query) -> Callable[[Draw], dict[str, np.ndarray]]:
    """Compute counts of all classes: which classes are reported must not depend on their rows."""

    def compute(draw: Draw) -> dict[str, np.ndarray]:
        classes = query.layout.classes_of(local.y)
        counts = query.layout.counts(local.features(query), classes, weights=local.weights(query))
        noise_sd = sigma(counts_sensitivity(counts.shape[0]), query.rho)
        return {"counts": add_noise(counts[None], noise_sd, draw("counts"))}

    return compute
