"""Rows of tokens whose class is the token that comes most often; each client writes with a token of its own."""

from typing import Annotated

import numpy as np
from pydantic import Field

from flows.plugins import register_source
from silos.dataset import Rows


@register_source("repeated_tokens")
def repeated_tokens(
    seed: int,
    rows: Annotated[int, Field(ge=1)] = 600,
    length: Annotated[int, Field(ge=2)] = 8,
    classes: Annotated[int, Field(ge=2)] = 3,
    silos: Annotated[int, Field(ge=1)] = 6,
) -> Rows:
    """x: (rows, length) float32 of whole numbers; tokens from `classes` on are the clients' own."""
    rng = np.random.default_rng(seed)
    y, client = rng.integers(0, classes, rows), rng.integers(0, silos, rows)
    x = rng.integers(0, classes, (rows, length))
    x = np.where(rng.random((rows, length)) < 0.5, y[:, None], x)
    x[:, 0] = classes + client
    names = [f"c{number}" for number in range(silos)]
    return Rows(
        x=x.astype(np.float32),
        y=y.astype(np.int64),
        classes=[f"token {number}" for number in range(classes)],
        client=np.array(names)[client],
    )
