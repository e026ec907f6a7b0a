"""Two methods are compared row by row on the client's side; only sums leave."""

from collections.abc import Sequence

import numpy as np
import torch

from models.metrics.paired_difference import Stratum
from models.metrics.task_metrics import QUANTITIES
from silos.client_store import PrivateStore
from silos.cohort import Cohort, Silos, open_stack
from tasks.messages import CommonSums, PairedSums
from tasks.running.step import step
from tasks.scoring.evaluate import OUTCOMES

Kept = tuple[PrivateStore, dict[str, str]]
"""Where a run's clients keep their outcomes, and each client's hash."""


@step
def pair(
    cohort: Cohort, first: Sequence[Kept], second: Sequence[Kept], classes: Sequence[str] | None = None
) -> list[PairedSums]:
    """One record a stack: first minus second, both lists by seed and over the same rows, or over those of some classes."""
    silos, messages = cohort.silos, []
    codes = [silos.manifest.classes.index(each) for each in classes or ()]
    for stack in cohort.stacks:
        strata, opened = {}, None if classes is None else open_stack(silos, stack, "test")
        for at, (client, rows) in enumerate(silos.select(stack.clients).rows("test").items()):
            counted = np.ones(rows, bool) if opened is None else np.isin(opened.y[at, :rows], codes)
            if counted.any():
                strata[client] = Stratum.of(_difference(silos, first, second, client, rows)[:, counted])
        messages.append(_message(strata, len(first)))
    return messages


@step
def pair_common(cohort: Cohort, first: Sequence[Kept], second: Sequence[Kept]) -> list[CommonSums]:
    """One record a stack: first minus second on the test rows that nobody owns, added over the stack's clients."""
    silos, messages = cohort.silos, []
    rows = silos.common("test")
    for stack in cohort.stacks:
        total = np.zeros((len(first), rows))
        for client in stack.clients:
            total += _difference(silos, first, second, client, rows)
        messages.append(CommonSums(stack.clients, torch.from_numpy(total)))
    return messages


def _message(strata: dict[str, Stratum], seeds: int) -> PairedSums:
    sums = [s.by_seed for s in strata.values()]
    return PairedSums(
        tuple(strata),
        torch.tensor([s.rows for s in strata.values()], dtype=torch.int64),
        torch.tensor(sums, dtype=torch.float64).view(len(sums), seeds),
        torch.tensor([s.mean_squares for s in strata.values()], dtype=torch.float64),
        torch.tensor([s.squares for s in strata.values()], dtype=torch.float64),
    )


def _difference(silos: Silos, first: Sequence[Kept], second: Sequence[Kept], client: str, rows: int) -> np.ndarray:
    """(seeds, rows); NaN where both methods' squared errors are infinite."""
    name = QUANTITIES[silos.manifest.task].outcome
    with np.errstate(invalid="ignore"):
        return _outcomes(first, name, client, rows) - _outcomes(second, name, client, rows)


def _outcomes(runs: Sequence[Kept], name: str, client: str, rows: int) -> np.ndarray:
    """(seeds, rows): 1 where that seed's model was right, or its squared error."""
    outcomes = [store.load(OUTCOMES, refs, client)[name][:rows] for store, refs in runs]
    return np.stack(outcomes).astype(float)
