"""What a task opens on the client's side."""

import numpy as np
import pytest
import torch

from models.dense import MLP
from models.model import Model
from models.state import Private
from models.streams import server_stream
from silos.cohort import Stack
from silos.private import PrivateStore
from tasks.opening import open_weights

NETWORK = MLP(5, (), 2)
SHARED = NETWORK.init(server_stream(0, 0, "init"))


@pytest.fixture
def store(tmp_path):
    return PrivateStore(str(tmp_path / "own"))


def test_dummies_repeat_the_first_client(store):
    model = Model(NETWORK, SHARED, {"head": torch.tensor([[1.0], [2.0], [3.0]])}, clients=("a", "b", "c"))
    weights, context = open_weights(model, Stack(("b", "c"), 4), store, "cpu")
    assert weights["head"].ravel().tolist() == [2, 3, 2, 2]
    assert weights["dense0.weight"].shape == (4, 5, 2)
    assert context == {}
    assert list(weights) == sorted(weights)


def test_clients_have_what_they_stored_and_others_the_start(store):
    refs = store.save("heads", ["a", "c"], {"head": np.array([[1.0], [3.0]], np.float32)})
    model = Model(NETWORK, SHARED, Private("heads", refs, {"head": torch.tensor([7.0])}), clients=("a", "b", "c"))
    for clients, expected in ((("a", "b", "c"), [1, 7, 3]), (("c", "a"), [3, 1]), (("b",), [7])):
        weights, _ = open_weights(model, Stack(clients, len(clients)), store, "cpu")
        assert weights["head"].ravel().tolist() == expected


def test_a_task_reads_no_other_clients_private_file(store, tmp_path):
    refs = {
        **store.save("heads", ["a"], {"head": np.ones((1, 1), np.float32)}),
        **store.save("heads", ["b"], {"head": np.zeros((1, 1), np.float32)}),
    }
    (tmp_path / "own" / "heads" / f"{refs['b'].split('/')[0]}.safetensors").unlink()
    model = Model(NETWORK, SHARED, Private("heads", refs), clients=("a", "b"))
    weights, _ = open_weights(model, Stack(("a",), 1), store, "cpu")
    assert weights["head"].ravel().tolist() == [1]


def test_private_context_is_opened_and_is_not_a_weight(store):
    refs = store.save("words", ["a"], {"word": np.array([[4, 2]])})
    model = Model(NETWORK, SHARED, context=Private("words", refs), clients=("a",))
    weights, context = open_weights(model, Stack(("a",), 2), store, "cpu")
    assert context["word"].tolist() == [[4, 2], [4, 2]]
    assert "word" not in weights
