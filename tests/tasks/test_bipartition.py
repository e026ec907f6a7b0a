"""What the server sees in the clients' updates."""

from itertools import permutations

import pytest
import torch

from tasks.cluster_clients import bipartition, lengths, nearer
from tasks.messages.round_messages import Update

CURRENT = {"w": torch.tensor([[1.0], [2.0]]), "b": torch.tensor([5.0])}
MOVES = {
    "a": (3.0, 4.0, 0.0),
    "b": (0.0, 0.0, -2.0),
    "c": (6.0, 8.0, 1.0),
    "d": (0.0, 1.0, -9.0),
}


def update(*clients: str) -> Update:
    """The clients of one stack, moved from CURRENT."""
    moves = torch.tensor([MOVES[c] for c in clients])
    each = {"w": CURRENT["w"] + moves[:, :2, None], "b": CURRENT["b"] + moves[:, 2:]}
    return Update(clients, torch.ones(len(clients)), {}, torch.zeros(len(clients)), each=each)


def test_a_length_is_over_all_numbers_of_all_tensors():
    found = lengths.fn([update("c", "a"), update("b")], CURRENT)
    assert found == {"a": 5, "b": 2, "c": pytest.approx(101**0.5)}


def test_parts_and_their_mean_directions_do_not_depend_on_stacks_or_their_order():
    expected = bipartition.fn([update("a", "b", "c", "d")], CURRENT, "single")
    assert expected.clients == (("a", "c"), ("b", "d"))
    mean = (torch.tensor([0.6, 0.8, 0]) + torch.tensor([6, 8, 1]) / 101**0.5) / 2
    torch.testing.assert_close(expected.toward[0]["w"].ravel(), mean[:2])
    torch.testing.assert_close(expected.toward[0]["b"], mean[2:])
    assert expected.across == pytest.approx(4 / (25 * 82) ** 0.5)  # of a and d
    for order in permutations("abcd"):
        found = bipartition.fn([update(*order[:3]), update(order[3])], CURRENT, "single")
        assert found.clients == expected.clients
        for ours, theirs in zip(found.toward, expected.toward, strict=True):
            assert all(torch.equal(ours[n], theirs[n]) for n in CURRENT)


def test_a_client_is_nearer_to_the_mean_direction_that_its_own_is_more_like():
    toward = bipartition.fn([update("a", "b")], CURRENT, "single").toward
    assert nearer.fn([update("d"), update("c")], CURRENT, toward) == {"c": 0, "d": 1}
    assert nearer.fn([update("d"), update("c")], CURRENT, toward[::-1]) == {"c": 1, "d": 0}
