"""Clients of a test's own rows, as the server knows them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from models.diagnosis.client_summaries.client_summary import Layout, Summaries, concatenate_summaries, summarize
from models.diagnosis.diagnose_pairs import Findings, diagnose_pairs

Rows = tuple[np.ndarray, np.ndarray]


class Told:
    """What clients told of these rows on this layout, and what is found of pairs of them."""

    def __init__(self, clients: Sequence[Rows], layout: Layout) -> None:
        parts = [
            summarize(x, y, np.unique(np.nan_to_num(x, nan=1e9), axis=0, return_inverse=True)[1].ravel(), layout)
            for x, y in clients
        ]
        self.summaries: Summaries = concatenate_summaries(parts)
        self.layout = layout

    def between(self, first: int = 0, second: int = 1, **more: Any) -> Findings:
        """Of one pair."""
        return diagnose_pairs(self.summaries, self.layout, np.array([first]), np.array([second]), **more)

    def types(self, first: int = 0, second: int = 1) -> list[bool]:
        """Feature, label, concept."""
        return self.between(first, second).verdicts.types[0].tolist()


@pytest.fixture(scope="session")
def tell() -> Callable[..., Told]:
    """Asks clients, each (x, y), on bins from low to high."""

    def ask(clients: Sequence[Rows], classes: int = 2, **more: Any) -> Told:
        count = clients[0][0].shape[1]
        usual: dict[str, Any] = {
            "names": tuple(f"x{at}" for at in range(count)),
            "categories": (None,) * count,
            "low": np.full(count, -4.0),
            "high": np.full(count, 4.0),
            "bins": 32,
            "missing": (False,) * count,
        }
        return Told(clients, Layout(classes=classes, **{**usual, **more}))

    return ask
