"""Each client of a cohort describes its own training rows, and keeps the description to itself."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.networks.wrappers.per_row_context import STATISTICS
from models.statistics.feature_vector import (
    Statistic,
    StatisticError,
    Statistics,
    compute,
    length,
    make,
    too_few_rows,
)
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack
from silos.errors import UserError
from tasks.execution.load_client_data import has_enough_rows, load_rows
from tasks.execution.task_types import step
from tasks.messages.statistics_messages import StatsKept, StatsMessage

TELLABLE = {
    "class_counts": make({"kind": "class_frequencies"}),
    "mean": make({"kind": "mean"}),
    "variance": make({"kind": "variance"}),
    "eigenvalues": make({"kind": "fingerprint", "values": 32}),
}


@dataclass(frozen=True, repr=False)
class PrivateStatistics:
    """What stays: vectors (clients, length) float32, which no pickle takes away and no log line shows."""

    vectors: np.ndarray

    def keep(self, private: ClientStore, section: str, clients: Sequence[str]) -> dict[str, str]:
        """Stores each client's as the tensor `statistics`; the references."""
        return private.save(section, clients, {STATISTICS: self.vectors})

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
    """One record a stack; each client stores the statistics of its training rows in the private `section`.

    Where a client has too few rows for a statistic, zeros stand in and `ok` says so; or, with `refuse`, a UserError
    names the client, the statistic and the number needed. Computed in float64 on the CPU, stored as float32.
    """
    kept = []
    for stack in cohort.stacks:
        numbers = [s for _, s in describe(cohort.silos, stack, statistics, few_rows == "refuse")]
        vectors = torch.stack([s.vector for s in numbers])
        refs = PrivateStatistics(vectors.float().numpy()).keep(private, section, stack.clients)
        kept.append(_kept(stack.clients, refs, vectors, numbers))
    return kept


@step
def report_stats(
    cohort: Cohort, model: Model, private: ClientStore, names: tuple[str, ...], device: str = "cpu"
) -> list[StatsMessage]:
    """One record a stack: what clients tell of their training rows, by the names in TELLABLE, and nothing else."""
    unknown = [name for name in names if name not in TELLABLE]
    if unknown or not names:
        raise ValueError(
            f"clients tell {', '.join(TELLABLE)} if asked by name, and were asked for {unknown or 'nothing'}"
        )
    return [_told(cohort.silos, stack, names) for stack in cohort.stacks]


def describe(
    silos: Silos, stack: Stack, statistics: Sequence[Statistic], refuse: bool = False
) -> list[tuple[int, Statistics]]:
    """On the client's side: the number of training rows and the statistics of each client of a stack.

    UserError names the client whose rows have no statistics, or, with `refuse`, are too few for them.
    """
    classes, features = len(silos.manifest.classes), int(np.prod(silos.manifest.shape))
    rows = load_rows(silos, stack, "train", "cpu")
    pairs = []
    for client, x, y, count in zip(stack.clients, rows.x, rows.y, rows.counts.tolist(), strict=False):
        few = too_few_rows(statistics, count, features, classes)
        if refuse and few:
            raise UserError(f"client {client} of {silos.folder} {few}; give it more rows or ask for another statistic.")
        try:
            pairs.append((count, compute(statistics, x[:count], y[:count], classes)))
        except StatisticError as error:
            raise UserError(f"client {client} of {silos.folder}: {error}.") from None
    return pairs


def _kept(
    clients: tuple[str, ...], refs: dict[str, str], vectors: Tensor, statistics: Sequence[Statistics]
) -> StatsKept:
    norm = vectors.norm(dim=1) if vectors.shape[1] > 1 else torch.full((len(clients),), torch.nan)
    ok = torch.tensor([s.ok for s in statistics])
    gap, agreement = (_numbers([getattr(s, name) for s in statistics]) for name in ("gap", "agreement"))
    return StatsKept(clients, refs, norm.double(), ok, gap, agreement)


def _numbers(rows: Sequence[Sequence[float | None]]) -> Tensor:
    """(clients, statistics) float64, NaN for None."""
    return torch.tensor([[math.nan if n is None else n for n in row] for row in rows], dtype=torch.float64)


def _told(silos: Silos, stack: Stack, names: tuple[str, ...]) -> StatsMessage:
    asked = [TELLABLE[name] for name in names]
    classes, features = len(silos.manifest.classes), int(np.prod(silos.manifest.shape))
    pairs = describe(silos, stack, asked)
    rows = torch.tensor([count for count, _ in pairs])
    speaks = has_enough_rows(load_rows(silos, stack, "train", "cpu"))[: len(stack.clients)]
    vectors = torch.stack([s.vector for _, s in pairs])
    vectors = torch.where(speaks[:, None], vectors, torch.zeros_like(vectors))  # times 0 a zero would keep its sign
    parts = dict(zip(names, vectors.split([length([s], features, classes) for s in asked], 1), strict=True))
    if "class_counts" in parts:
        parts["class_counts"] = (parts["class_counts"] * rows[:, None]).round()
    silent = tuple(client for client, spoke in zip(stack.clients, speaks.tolist(), strict=True) if not spoke)
    return StatsMessage(stack.clients, rows, {name: part.float() for name, part in parts.items()}, silent)
