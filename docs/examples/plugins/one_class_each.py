"""A partitioner: each client has rows of one class, and a share of all the others."""

from typing import Annotated

import numpy as np
from pydantic import Field

from flows.plugins import register_partitioner
from silos.dataset import At, Rows


@register_partitioner("one_class_each")
def one_class_each(
    rows: Rows, at: At, clients: Annotated[int, Field(ge=1)], share: Annotated[float, Field(ge=0, le=1)] = 0.5
) -> np.ndarray:
    """The number of each row's client; `share` of the rows are dealt at random, the others by their class."""
    if clients < len(rows.classes):
        raise at.error(f"has {clients} clients for {len(rows.classes)} classes. Give each class a client.")
    rng = at.stream()
    by_class = rows.y + len(rows.classes) * rng.randint(0, clients // len(rows.classes), len(rows.y))
    return np.where(rng.random_sample(len(rows.y)) < share, rng.randint(0, clients, len(rows.y)), by_class)
