"""Each client tells of how many values each column of its training rows is made, their sum, and how far they spread."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from models.model import Model
from silos.cohort import Cohort, Silos
from silos.private import PrivateStore
from silos.store import open_missing
from tasks.messages import LEAST_ROWS, ScaleMoments
from tasks.running.opening import different, open_rows
from tasks.running.step import step


@step
def tell_moments(
    cohort: Cohort, model: Model, private: PrivateStore, inputs: bool, targets: bool, device: str = "cpu"
) -> list[ScaleMoments]:
    """One record a stack, of the numbers of a row where `inputs`, and of the target behind them where `targets`."""
    messages = []
    for stack in cohort.stacks:
        rows, told = open_rows(cohort.silos, stack, "train", "cpu"), []
        for client, x, y, count in zip(stack.clients, rows.x, rows.y, rows.counts.tolist(), strict=False):
            same = different(x[:count]) if count else np.zeros(0, np.int64)
            values = _columns(cohort.silos, client, x[:count].numpy(), y[:count].numpy(), inputs, targets)
            told.append([_moments(column[there], same[there]) for column, there in values])
        numbers = torch.tensor(told, dtype=torch.float64)
        messages.append(ScaleMoments(stack.clients, numbers[..., 0].long(), numbers[..., 1], numbers[..., 2]))
    return messages


def _columns(
    silos: Silos, client: str, x: np.ndarray, y: np.ndarray, inputs: bool, targets: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each column (rows,) float64, and in which rows it has a value that is not missing (rows,) bool."""
    flat = x.reshape(len(x), int(np.prod(x.shape[1:])))
    there = np.ones(flat.shape, bool)
    masks = [open_missing(Path(silos.folder), entry, "train") for entry in silos.entries(client)]
    if any(mask is not None for mask in masks):
        there = ~np.concatenate([mask for mask in masks if mask is not None])
    if inputs:
        yield from ((flat[:, at].astype(np.float64), there[:, at]) for at in range(flat.shape[1]))
    if targets:
        yield y.astype(np.float64), np.ones(len(y), bool)


def _moments(values: np.ndarray, same: np.ndarray) -> tuple[float, float, float]:
    """Count, sum, and squared distances from the mean; zeros of fewer than LEAST_ROWS different rows. (rows,) each.

    About the mean, since of a sum of squares a large mean would leave few digits.
    """
    if len(values) < LEAST_ROWS or len(np.unique(same)) < LEAST_ROWS:
        return 0, 0.0, 0.0
    total = float(values.sum())
    return len(values), total, float(np.square(values - total / len(values)).sum())
