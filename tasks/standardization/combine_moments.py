"""Combine the moments of clients into one mean and scale, and check whether rows are far from unit scale."""

import numpy as np
import torch

from models.client_model import Model
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.standardizer import Standardizer
from tasks.execution.load_client_data import has_enough_rows, load_rows
from tasks.execution.task_types import server_step, step
from tasks.messages.statistics_messages import ScaleCheck, ScaleMoments


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
