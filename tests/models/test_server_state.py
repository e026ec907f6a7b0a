"""The state's hash tells any change of what it holds, and nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.server_state import ServerState

TENSORS = {
    "weights": {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(2)},
    "groups": {"owner": torch.arange(3)},
}


def state(**changes) -> ServerState:
    usual = {"tensors": TENSORS, "numbers": {"stage": 1, "level": 0.5}, "private": {"words": {"oslo": "h/0"}}}
    return ServerState(**{**usual, **changes})


@given(st.randoms())
def test_the_order_in_which_a_state_is_built_does_not_matter(random):
    def shuffled(mapping):
        items = list(mapping.items())
        random.shuffle(items)
        return {k: shuffled(v) if isinstance(v, dict) else v for k, v in items}

    other = ServerState(shuffled(TENSORS), shuffled({"stage": 1, "level": 0.5}), {"words": {"oslo": "h/0"}})
    assert other.sha256() == state().sha256()
    assert list(other.tensors) == ["groups", "weights"]
    assert list(other.tensors["weights"]) == ["a", "b"]


@given(st.integers(0, 5), st.integers(0, 31))
def test_any_bit_of_any_number_changes_the_hash(place, bit):
    raw = TENSORS["weights"]["b"].numpy().copy()
    raw.view(np.uint32).ravel()[place] ^= np.uint32(1 << bit)
    weights = {**TENSORS["weights"], "b": torch.from_numpy(raw)}
    assert state(tensors={**TENSORS, "weights": weights}).sha256() != state().sha256()


@pytest.mark.parametrize(
    "changed",
    [
        state(tensors={**TENSORS, "weights": {"c": TENSORS["weights"]["b"], "a": TENSORS["weights"]["a"]}}),
        state(tensors={"other": TENSORS["weights"], "groups": TENSORS["groups"]}),
        state(tensors={**TENSORS, "weights": {**TENSORS["weights"], "b": TENSORS["weights"]["b"].reshape(3, 2)}}),
        state(tensors={**TENSORS, "weights": {**TENSORS["weights"], "b": TENSORS["weights"]["b"].double()}}),
        state(tensors={**TENSORS, "groups": {"owner": torch.arange(3).view(torch.float64)}}),
        state(tensors={**TENSORS, "empty": {}}),
        state(numbers={"stage": 2, "level": 0.5}),
        state(numbers={"stage": 1, "level": np.nextafter(0.5, 1)}),
        state(private={"words": {"oslo": "h/1"}}),
        state(private={"words": {"oslo": "h/0"}, "statistics": {}}),
        state(finished="nothing left to learn"),
    ],
)
def test_a_change_of_name_type_shape_number_or_reference_changes_the_hash(changed):
    assert changed.sha256() != state().sha256()


def test_the_hash_does_not_depend_on_how_a_tensor_lies_in_memory():
    turned = TENSORS["weights"]["b"].T.contiguous().T
    assert not turned.is_contiguous()
    assert state(tensors={**TENSORS, "weights": {**TENSORS["weights"], "b": turned}}).sha256() == state().sha256()


def test_replacing_parts_leaves_the_state_itself_and_its_other_parts_alone():
    before = state()
    after = before.with_tensors(weights={"a": torch.zeros(1)}).with_private("words", {"lyon": "g/0"})
    assert after.tensors["groups"] == before.tensors["groups"]
    assert after.private == {"words": {"lyon": "g/0", "oslo": "h/0"}}
    assert after.numbers == before.numbers
    assert before.sha256() == state().sha256()
