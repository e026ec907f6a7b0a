"""A problem with a closed form for the tests of methods."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from models.networks.network import Network
from models.networks.network_abilities import BatchedNetwork, FusedSGD
from models.training.optimizers import SGD


@dataclass(frozen=True)
class Quadratic(Network):
    """a / 2 (w - m)^2 of one number w in float64; a row is (a, m)."""

    start: float = 3.0
    dropout = 0.0
    max_width = 2

    def init(self, stream):
        return {"w": torch.tensor([self.start], dtype=torch.float64)}

    def apply(self, weights, context, x, stream):
        return x[:, :1] / 2 * (weights["w"] - x[:, 1:]) ** 2


@pytest.fixture
def without_stacks(monkeypatch):
    """What a network has by hand for a whole stack raises, whichever network it is."""

    def refusing(name):
        def refuse(*args):
            raise AssertionError(f"{name} is for a stack")

        return refuse

    for cls in {BatchedNetwork, FusedSGD, *_below(BatchedNetwork), *_below(FusedSGD)}:
        for name in [name for name in vars(cls) if name.endswith("_stack") or name == "sgd_step"]:
            monkeypatch.setattr(cls, name, refusing(f"{cls.__name__}.{name}"))


def _below(cls):
    """Every class that extends this one."""
    return {below for child in cls.__subclasses__() for below in (child, *_below(child))}


class Itself:
    """The network's output is the loss."""

    task = "regression"

    def __call__(self, logits, y):
        return logits.sum(-1)


@pytest.fixture
def quadratic(make_problem):
    def build(curves, epochs=1, **training):
        def rows_of(client, total):
            _, a, m = curves[client]
            return np.tile([[a, m]], (total, 1)), np.zeros(total, np.int64)

        sizes = {client: rows for client, (rows, _, _) in curves.items()}
        usual = {"objective": Itself(), "optimiser": SGD(0.1), "epochs": epochs, "batch": 100}
        return make_problem(sizes, network=Quadratic(), silos={"rows_of": rows_of}, **{**usual, **training})

    return build
