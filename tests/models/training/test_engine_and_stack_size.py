"""The engine's table: what it picks follows from the network, the batch and the device alone."""

from dataclasses import dataclass

import pytest

from models.networks.cnn import CNN
from models.networks.mlp import MLP
from models.networks.network import Network
from models.training.engine_and_stack_size import even_stack_size, pick_kernel


def test_a_stack_of_large_networks_is_small_and_one_of_small_networks_is_large():
    assert pick_kernel(MLP(784, (200,), 10), 32, "cpu").stack == 5
    assert pick_kernel(MLP(10, (), 1), 100, "cpu").stack == 512
    assert pick_kernel(MLP(64, (200,), 10), 20, "cpu").stack > 40
    assert 3 <= pick_kernel(CNN((28, 28), (10, 20), (50,), 10), 64, "cpu").stack <= 5


def test_a_network_larger_than_the_budget_stands_alone():
    assert pick_kernel(MLP(4000, (4000,), 10), 32, "cpu").stack == 1


def test_what_is_asked_for_is_taken():
    assert pick_kernel(MLP(784, (200,), 10), 32, "cpu", "sequential", 7).stack == 7
    assert pick_kernel(MLP(784, (200,), 10), 32, "cpu", "vmap").kind == "vmap"


@dataclass(frozen=True)
class Own(Network):
    """A user's own network, written for one client."""

    dropout = 0.0
    max_width = 3

    def init(self, stream):
        return {}

    def apply(self, weights, context, x, stream):
        return x


def test_a_network_without_a_form_of_its_own_is_mapped():
    assert pick_kernel(Own(), 8, "cpu").kind == "vmap"
    with pytest.raises(ValueError, match=r"engine\.kind: got batched, which the network Own does not support"):
        pick_kernel(Own(), 8, "cpu", "batched")


@pytest.mark.parametrize(
    ("clients", "most", "size"), [(9, 5, 5), (9, 4, 3), (9, 3, 3), (9, 100, 9), (100, 5, 5), (1, 5, 1), (11, 5, 4)]
)
def test_stacks_are_as_even_as_they_can_be(clients, most, size):
    found = even_stack_size(clients, most)
    assert found == size
    assert -(-clients // found) == -(-clients // most)
