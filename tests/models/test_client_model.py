"""What travels to a client is its own part of the model, and its bytes are counted."""

import pickle

import torch

from models.client_model import GroupedWeights, Model, size_in_bytes
from models.networks.mlp import MLP
from models.prng import server_stream
from models.server_state import ClientStateRefs

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
    private = ClientStateRefs("weights", {"a": "ha/0", "b": "hb/0"})
    assert Model(NETWORK, {}, private, clients=CLIENTS).select(["b", "c"]).personal.refs == {"b": "hb/0"}


def test_bytes_down_are_the_shared_weights_and_the_clients_own_part():
    numbers = 5 * 7 + 7 + 7 * 3 + 3
    assert size_in_bytes(SHARED) == 4 * numbers
    assert Model(NETWORK, SHARED, clients=CLIENTS).bytes_down == 4 * numbers
    own = Model(NETWORK, SHARED, {"head": torch.zeros(3, 2)}, {"word": torch.zeros(3, dtype=torch.int64)}, CLIENTS)
    assert own.bytes_down == 4 * numbers + 4 * 2 + 8
    assert Model(NETWORK, {}, ClientStateRefs("weights", {"a": "h/0"}), clients=CLIENTS).bytes_down == 0


def test_a_model_is_personal_if_clients_differ_in_it():
    assert not Model(NETWORK, SHARED, clients=CLIENTS).is_personal
    assert Model(NETWORK, SHARED, ClientStateRefs("weights", {}), clients=CLIENTS).is_personal
    assert Model(NETWORK, SHARED, context=ClientStateRefs("statistics", {}), clients=CLIENTS).is_personal
    assert Model(NETWORK, SHARED, context={"statistics": torch.eye(3)}, clients=CLIENTS).is_personal
    assert Model(NETWORK, SHARED, {"head": torch.zeros(3, 2)}, clients=CLIENTS).is_personal


def test_of_groups_every_client_has_its_groups_weights_and_no_copy():
    """They are what (clients, ...) would be, and travel as the groups that are needed."""
    groups = {"head": torch.arange(8.0).reshape(4, 2), "word": torch.arange(4)}
    place = (3, 1, 3)
    each = {name: w[list(place)] for name, w in groups.items()}
    lazy, plain = (Model(NETWORK, SHARED, part, clients=CLIENTS) for part in (GroupedWeights(groups, place), each))
    assert lazy.is_personal
    assert lazy.bytes_down == plain.bytes_down
    for clients in (CLIENTS, ("c", "a"), ("b",), ()):
        mine, other = lazy.select(clients), plain.select(clients)
        assert {name: w.tolist() for name, w in mine.personal.items()} == {
            name: w.tolist() for name, w in other.personal.items()
        }
    assert {len(w) for w in lazy.select(["c", "a"]).personal.groups.values()} == {1}
    many = GroupedWeights({"head": torch.zeros(2, 1000)}, tuple(at % 2 for at in range(500)))
    assert len(pickle.dumps(many)) < 4 * 2 * 1000 + 10_000
    assert many["head"].shape == (500, 1000)
