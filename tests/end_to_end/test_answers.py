"""`siloflow advise` on silos of which it is known what should be done with them: five answers, each where it is true."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

Rows = tuple[np.ndarray, np.ndarray]
"""Features, (silos, rows, features), and labels, (silos, rows)."""


def own_rules(rng: np.random.Generator) -> Rows:
    """Each silo's labels follow a rule of its own."""
    x, w = rng.normal(size=(6, 120, 6)), rng.normal(size=(6, 6))
    return x, np.einsum("srf,sf->sr", x, w) > 0


def alike(rng: np.random.Generator) -> Rows:
    """All silos follow one rule, and none has enough rows to learn it alone."""
    x, w = rng.normal(size=(8, 30, 12)), rng.normal(size=12)
    return x, x @ w + 0.5 * rng.normal(size=(8, 30)) > 0


def many_small(rng: np.random.Generator) -> Rows:
    """Many silos follow one rule, and have so few rows that a round makes a single step."""
    x, w = rng.normal(size=(24, 24, 10)), rng.normal(size=10)
    return x, x @ w > 0


def other_unit(rng: np.random.Generator) -> Rows:
    """Every other silo measures the decisive feature in another unit."""
    x, w = rng.normal(size=(8, 40, 8)), np.r_[3.0, 0.7 * rng.normal(size=7)]
    y = x @ w > 0
    x[1::2, :, 0] = 30 * x[1::2, :, 0] + 150
    return x, y


def three_opposed(rng: np.random.Generator) -> Rows:
    """Three of ten silos follow the opposite of the others' rule, and no silo has rows enough to learn its own alone."""
    x, w = rng.normal(size=(10, 150, 60)), rng.normal(size=60)
    y = x @ w > 0
    y[7:] = ~y[7:]
    return x, y


@pytest.mark.parametrize(
    ("silos", "rounds", "answer"),
    [
        (own_rules, 9, "Train alone ("),
        (alike, 9, "FedAvg is enough ("),
        (many_small, 5, "Training on pooled rows would gain +"),
        (other_unit, 9, "Align first: let each silo standardise x0 by its own rows. Then FedAvg is enough ("),
        (three_opposed, 9, "Train FedAvg ("),
    ],
)
def test_the_answer_is_the_one_that_is_true(
    silos: Callable[[np.random.Generator], Rows],
    rounds: int,
    answer: str,
    tmp_path: Path,
    server: str,
    folder_at: Callable[..., Any],
) -> None:
    x, y = silos(np.random.default_rng(7))
    count, rows, features = x.shape
    client = np.repeat([f"s{number}" for number in range(count)], rows)
    np.savez(
        tmp_path / "rows.npz", x=x.reshape(-1, features).astype(np.float32), y=y.reshape(-1).astype(int), client=client
    )
    folder_at(tmp_path, server).type("init", "project", "--data", "rows.npz")
    folder = folder_at(tmp_path / "project", server)
    folder.type("partition")
    advice = folder.type("advise", "fedavg", "--minutes", "30", "--set", f"training.rounds={rounds}", "--json").json
    assert any(line.startswith(answer) for line in advice["lines"]), advice["lines"]
    assert advice["train_alone"] == (["s7", "s8", "s9"] if silos is three_opposed else [])
    apply = f"siloflow advise --resume --apply --name {advice['experiment']} --set=training.rounds={rounds}"
    assert advice["apply"] == apply
