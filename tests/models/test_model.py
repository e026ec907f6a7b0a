"""What travels to a client is its own part of the model, and its bytes are counted."""

import torch

from models.model import Model, size_in_bytes
from models.networks.dense import MLP
from models.state import Private
from models.streams import server_stream

NETWORK = MLP(5, (7,), 3)
SHARED = NETWORK.init(server_stream(0, 0, "init"))
CLIENTS = ("a", "b", "c")


def test_selecting_clients_takes_their_personal_weights_in_the_order_asked():
    personal = {"head": torch.arange(6.0).reshape(3, 2)}
    model = Model(NETWORK, SHARED, personal, {"word": torch.arange(3)}, CLIENTS).select(["c", "a"])
    assert model.clients == ("c", "a")
    assert model.personal["head"].tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert model.context["word"].tolist() == [2, 0]
    assert model.shared is SHARED


def test_selecting_clients_takes_their_references_only():
    private = Private("weights", {"a": "ha/0", "b": "hb/0"})
    assert Model(NETWORK, {}, private, clients=CLIENTS).select(["b", "c"]).personal.refs == {"b": "hb/0"}


def test_bytes_down_are_the_shared_weights_and_the_clients_own_part():
    numbers = 5 * 7 + 7 + 7 * 3 + 3
    assert size_in_bytes(SHARED) == 4 * numbers
    assert Model(NETWORK, SHARED, clients=CLIENTS).bytes_down == 4 * numbers
    own = Model(NETWORK, SHARED, {"head": torch.zeros(3, 2)}, {"word": torch.zeros(3, dtype=torch.int64)}, CLIENTS)
    assert own.bytes_down == 4 * numbers + 4 * 2 + 8
    assert Model(NETWORK, {}, Private("weights", {"a": "h/0"}), clients=CLIENTS).bytes_down == 0


def test_a_model_is_personal_if_clients_differ_in_it():
    assert not Model(NETWORK, SHARED, clients=CLIENTS).is_personal
    assert Model(NETWORK, SHARED, Private("weights", {}), clients=CLIENTS).is_personal
    assert Model(NETWORK, SHARED, context=Private("statistics", {}), clients=CLIENTS).is_personal
    assert Model(NETWORK, SHARED, context={"statistics": torch.eye(3)}, clients=CLIENTS).is_personal
    assert Model(NETWORK, SHARED, {"head": torch.zeros(3, 2)}, clients=CLIENTS).is_personal
