"""Compute statistics of each client's training rows, which the client stores privately or reports to the server."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.networks.statistics_context import STATISTICS
from models.statistics.feature_vector import Statistic, StatisticError, Statistics, compute, length, make, too_few_rows
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack
from silos.errors import UserError
from tasks.execution.load_client_data import load_rows, may_report
from tasks.execution.steps import step
from tasks.messages.statistics_messages import StatsKept, StatsMessage

REPORTABLE = {
    "class_counts": make({"kind": "class_frequencies"}),
    "mean": make({"kind": "mean"}),
    "variance": make({"kind": "variance"}),
    "eigenvalues": make({"kind": "fingerprint", "values": 32}),
}


@dataclass(frozen=True, repr=False)
class PrivateStatistics:
    """Statistics that stay with their clients: vectors (clients, length) float32.

    They cannot be pickled, and their repr shows no values.
    """

    vectors: np.ndarray

    def keep(self, private: ClientStore, section: str, clients: Sequence[str]) -> dict[str, str]:
        """Store each client's vector as the tensor `statistics`; return the references."""
        return private.save(section, clients, {STATISTICS: self.vectors}, "statistics")

    def __repr__(self) -> str:
        return f"PrivateStatistics of {len(self.vectors)} clients"

    def __reduce__(self) -> NoReturn:
        raise TypeError("private statistics do not leave their client")


@step
def client_stats(
    cohort: Cohort,
    model: Model,
    private: ClientStore,
    statistics: tuple[Statistic, ...],
    section: str = STATISTICS,
    few_rows: Literal["zeros", "refuse"] = "zeros",
    device: str = "cpu",
) -> list[StatsKept]:
    """Store the statistics of each client's training rows in its private store; none of their values leave the client.

    Values are computed in float64 on the CPU, and stored as float32. If a client has too few rows for a statistic, its
    values are zeros and `ok` is False.

    Args:
        cohort: The clients, in stacks.
        model: The model of the round, which is not read.
        private: Where clients keep private state.
        statistics: What is computed, in this order.
        section: The private section that holds the vector of each client.
        few_rows: With "refuse", a client with too few rows for a statistic is an error.
        device: Not used.

    Returns:
        One record per stack: the references, and the quality of the statistics.

    Raises:
        UserError: If a statistic is undefined for a client's rows, or if a client has too few of them and `few_rows` is
            "refuse". It names the client, the statistic and the rows needed.
    """
    messages = []
    for stack in cohort.stacks:
        per_client = [s for _, s in describe(cohort.silos, stack, statistics, few_rows == "refuse")]
        vectors = torch.stack([s.vector for s in per_client])
        # a type that refuses to be pickled, so that values cannot leave in a message by mistake
        refs = PrivateStatistics(vectors.float().numpy()).keep(private, section, stack.clients)
        messages.append(_stored_message(stack.clients, refs, vectors, per_client))
    return messages


@step
def report_stats(
    cohort: Cohort, model: Model, private: ClientStore, names: tuple[str, ...], device: str = "cpu"
) -> list[StatsMessage]:
    """Report the statistics of REPORTABLE that `names` lists, and nothing else.

    Args:
        cohort: The clients, in stacks.
        model: The model of the round, which is not read.
        private: Where clients keep their policies: a client with fewer rows than its own requires withholds its values.
        names: Names of REPORTABLE.
        device: Not used.

    Returns:
        One record per stack.

    Raises:
        ValueError: If `names` is empty or has an unknown name.
    """
    unknown = [name for name in names if name not in REPORTABLE]
    if unknown or not names:
        raise ValueError(f"statistics: got the names {unknown or 'nothing'}, expected some of {', '.join(REPORTABLE)}")
    return [_reported_message(cohort.silos, stack, names, private) for stack in cohort.stacks]


def describe(
    silos: Silos, stack: Stack, statistics: Sequence[Statistic], refuse: bool = False
) -> list[tuple[int, Statistics]]:
    """Compute, at the client, the number of training rows and the statistics of each client of a stack.

    Args:
        silos: The silos of the clients.
        stack: The clients.
        statistics: What is computed.
        refuse: Whether too few rows for a statistic are an error; otherwise its values are zeros.

    Raises:
        UserError: If a client's rows have no such statistics, or, with `refuse`, too few rows for them.
    """
    classes, features = len(silos.manifest.classes), int(np.prod(silos.manifest.shape))
    rows = load_rows(silos, stack, "train", "cpu")
    pairs = []
    for client, x, y, count in zip(stack.clients, rows.x, rows.y, rows.counts.tolist(), strict=False):
        few = too_few_rows(statistics, count, features, classes)
        if refuse and few:
            raise UserError(f"client {client} of {silos.folder} {few}. Give it more rows or choose another statistic.")
        try:
            pairs.append((count, compute(statistics, x[:count], y[:count], classes)))
        except StatisticError as error:
            raise UserError(f"client {client} of {silos.folder}: {error}.") from None
    return pairs


def _stored_message(
    clients: tuple[str, ...], refs: dict[str, str], vectors: Tensor, statistics: Sequence[Statistics]
) -> StatsKept:
    norm = vectors.norm(dim=1) if vectors.shape[1] > 1 else torch.full((len(clients),), torch.nan)
    ok = torch.tensor([s.ok for s in statistics])
    quality = {
        name: [[math.nan if value is None else value for value in getattr(s, name)] for s in statistics]
        for name in ("gap", "agreement")
    }
    gap, agreement = (torch.tensor(rows, dtype=torch.float64) for rows in quality.values())
    return StatsKept(clients, refs, norm.double(), ok, gap, agreement)


def _reported_message(silos: Silos, stack: Stack, names: tuple[str, ...], private: ClientStore) -> StatsMessage:
    requested = [REPORTABLE[name] for name in names]
    classes, features = len(silos.manifest.classes), int(np.prod(silos.manifest.shape))
    pairs = describe(silos, stack, requested)
    rows = torch.tensor([count for count, _ in pairs])
    reports = may_report(silos, stack, "train", load_rows(silos, stack, "train", "cpu"), private)[: len(stack.clients)]
    vectors = torch.stack([s.vector for _, s in pairs])
    vectors = torch.where(reports[:, None], vectors, torch.zeros_like(vectors))  # times 0 a zero would keep its sign
    parts = dict(zip(names, vectors.split([length([s], features, classes) for s in requested], 1), strict=True))
    if "class_counts" in parts:
        parts["class_counts"] = (parts["class_counts"] * rows[:, None]).round()
    withheld = tuple(client for client, reported in zip(stack.clients, reports.tolist(), strict=True) if not reported)
    return StatsMessage(stack.clients, rows, {name: part.float() for name, part in parts.items()}, withheld)
