"""A served model knows its statistics from others of the same length by how they were made."""

import numpy as np
import pytest

from models.client_statistics.made_as import made_as
from models.client_statistics.spectrum import Loadings
from models.networks.dense import MLP
from models.networks.registry import to_json
from models.served_model import Answering
from models.streams import server_stream

FEATURES, CLASSES = 98, 3  # with the labels 101 columns, of which `free` and the signed rules make as many numbers


def kinds(sign):
    return [{"kind": "loadings", "components": 1, "sign": sign, "norm": None}]


@pytest.fixture
def served():
    length = Loadings(sign="free").length(FEATURES, CLASSES)
    assert length == Loadings(sign="ones").length(FEATURES, CLASSES)
    network = MLP(FEATURES, (), CLASSES, statistics=length)
    card = {"method": "Conditional", "network": to_json(network), "task": "classification", "classes": list("abc")}
    card |= {"shape": [FEATURES], "personal": False, "clients": [], "context": [], "inputs": None, "targets": None}
    card |= {"statistics": {"kinds": kinds("free"), "length": length}}
    weights = network.init(server_stream(0, 0, "init"))
    return Answering(card, {f"shared/{name}": tensor for name, tensor in weights.items()}), [0.5] * length


def test_statistics_of_another_sign_are_refused_where_their_length_is_the_same(served):
    model, numbers = served
    rows = np.zeros((2, FEATURES), np.float32)
    free, ones = (made_as(kinds(sign)) for sign in ("free", "ones"))
    assert free == "loadings components 1 sign free norm null"
    assert len(model.answer(rows, {"statistics": numbers, "made_as": free})) == 2
    assert len(model.answer(rows, {"statistics": numbers})) == 2
    with pytest.raises(
        ValueError, match=f"the statistics were made as {ones}, and this model takes 101 numbers .{free}."
    ):
        model.answer(rows, {"statistics": numbers, "made_as": ones})
