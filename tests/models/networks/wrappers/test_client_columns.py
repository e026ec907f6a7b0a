"""A client's own column is drawn apart from the shared layers, and each of its parts from a stream of its own."""

from itertools import combinations

import pytest
import torch

from models.networks.mlp import MLP
from models.networks.wrappers.client_columns import ClientColumns
from models.prng import server_stream

ALIKE = MLP(4, (4, 4), 4)  # layers of one shape, so that equal streams give equal numbers


@pytest.mark.parametrize("lateral", ["beside", "within"])
def test_no_two_parts_of_a_column_and_the_shared_layers_share_their_draws(lateral):
    weights = ClientColumns(ALIKE, lateral).init(server_stream(0, 0, "init"))
    largest = {name: float(w.abs().max()) for name, w in weights.items()}
    first = {name: (w.flatten()[:4] / largest[name]).abs() for name, w in weights.items() if largest[name] > 0}
    assert sum(name.startswith("gate") for name in first) == 3
    for one, other in combinations(first, 2):
        assert not torch.allclose(first[one], first[other], atol=1e-3), (one, other)


def test_gates_are_uniform_from_0_to_a_tenth():
    gates = ClientColumns(MLP(2, (4000,), 3), "within").init_column(server_stream(0, 0, "init"))["gate0"]
    assert 0 <= float(gates.min()) < 0.001
    assert 0.099 < float(gates.max()) < 0.1
    assert float(gates.mean()) == pytest.approx(0.05, abs=0.002)
