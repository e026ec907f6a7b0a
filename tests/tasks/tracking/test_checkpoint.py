"""What is on disk is what the server knew, or a sentence that says it is damaged."""

import json
import string
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from models.server_state import ServerState
from silos.errors import UserError
from silos.io.atomic_io import write_bytes
from tasks.tracking.checkpoint import Journal, load_state, save_state

NAMES = st.text(string.ascii_letters + string.digits + "._-é ", min_size=1, max_size=8)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
TYPES = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8])


@st.composite
def tensors(draw) -> torch.Tensor:
    """Any bits at all, NaN and infinities included."""
    shape, kind = draw(SHAPES), draw(TYPES)
    count = int(torch.tensor(shape).prod()) if shape else 1
    if kind.is_floating_point:
        width = 32 if kind == torch.float32 else 64
        numbers = draw(st.lists(st.floats(width=width), min_size=count, max_size=count))
    else:
        top = {torch.int64: 2**62, torch.bool: 1, torch.uint8: 255}[kind]
        numbers = draw(st.lists(st.integers(-top if kind == torch.int64 else 0, top), min_size=count, max_size=count))
    return torch.tensor(numbers, dtype=kind).reshape(shape)


PLAIN = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5)
STATES = st.builds(
    ServerState,
    st.dictionaries(NAMES, st.dictionaries(NAMES | st.just("layer/weight"), tensors(), max_size=3), max_size=3),
    st.dictionaries(NAMES, PLAIN | st.lists(PLAIN, max_size=3), max_size=3),
    st.dictionaries(NAMES, st.dictionaries(NAMES, st.just("0" * 32 + "/0"), max_size=3), max_size=2),
    st.none() | st.text(max_size=5),
)


@given(STATES, st.integers(0, 10**6))
def test_a_state_comes_back_as_it_was(state, round):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        save_state(path, state, round)
        read, number, _ = load_state(path)
    assert number == round
    assert read.sha256() == state.sha256()
    assert list(read.tensors) == list(state.tensors)
    assert (read.numbers, read.private, read.finished) == (state.numbers, state.private, state.finished)
    for section, own in state.tensors.items():
        assert list(read.tensors[section]) == list(own)
        for name, tensor in own.items():
            assert read.tensors[section][name].dtype == tensor.dtype
            assert read.tensors[section][name].shape == tensor.shape


def test_a_ragged_table_of_rows_with_owners_comes_back(tmp_path):
    table = {"rows": torch.randn(7, 3, dtype=torch.float64), "owner": torch.tensor([0, 0, 0, 1, 3, 3, 3])}
    state = ServerState(
        {"words": table, "nobody": {}, "none": {"rows": torch.zeros(0, 3), "owner": torch.zeros(0).long()}}
    )
    save_state(tmp_path / "c", state, 1)
    assert load_state(tmp_path / "c")[0].sha256() == state.sha256()


def test_tensors_that_share_memory_are_each_written(tmp_path):
    """A method may keep the same weights under two names, a view of a stack, or a turned matrix."""
    whole = torch.arange(12.0).reshape(3, 4)
    state = ServerState(
        {
            "now": {"w": whole},
            "before": {"w": whole, "first": whole[0], "turned": whole.T, "same": whole[:1].expand(5, 4)},
        }
    )
    save_state(tmp_path / "c", state, 1)
    assert load_state(tmp_path / "c")[0].sha256() == state.sha256()


def test_the_same_state_is_the_same_file(tmp_path):
    for name in ("a", "b"):
        save_state(tmp_path / name, ServerState({"w": {"x": torch.ones(3)}}, {"stage": 1}), 4)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_no_checkpoint_is_none(tmp_path):
    assert load_state(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    "damage", ["empty", "garbage", "cut 1", "cut 8", "cut half", "cut last", "longer", "header", "foreign"]
)
def test_a_damaged_checkpoint_is_told_in_a_sentence(tmp_path, damage):
    path = tmp_path / "checkpoint.safetensors"
    save_state(path, ServerState({"w": {"x": torch.ones(300)}}, {"stage": 1}), 4)
    whole = path.read_bytes()
    if damage == "foreign":
        save_file({"x": torch.ones(3)}, path)
    else:
        path.write_bytes(
            {
                "empty": b"",
                "garbage": b"not a checkpoint at all",
                "cut 1": whole[:1],
                "cut 8": whole[:8],
                "cut half": whole[: len(whole) // 2],
                "cut last": whole[:-1],
                "longer": whole + b"\0" * 8,
                "header": whole[:20] + bytes(20) + whole[40:],
            }[damage]
        )
    with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged .*without --resume\.$"):
        load_state(path)


@pytest.mark.slow
def test_every_flipped_bit_of_what_is_beside_the_weights_is_told_in_a_sentence(tmp_path):
    """Round and memory too: a run that goes on at another round, or calls others, has other weights."""
    path = tmp_path / "checkpoint.safetensors"
    state = ServerState({"w": {"x": torch.ones(1)}}, {"stage": 1}, {"own": {"lyon": "ab/0"}})
    save_state(path, state, 7, {"seen": ["lyon"]})
    whole = path.read_bytes()
    for place in range(8, len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            try:
                found = load_state(path)
            except UserError:
                continue
            assert found.round == 7
            assert found.memory == {"seen": ["lyon"]}
            assert found.state.sha256() == state.sha256()


def test_one_flipped_bit_of_a_weight_is_noticed(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save_state(path, ServerState({"weights": {"w": torch.ones(100)}}), 3)
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="its hash differs"):
        load_state(path)


def test_a_journal_gives_back_its_rounds_and_replaces_what_a_dead_process_left(tmp_path):
    journal = Journal(tmp_path / "journal")
    write_bytes(*journal.file({"round": 1, "metrics": {"accuracy/mean": 0.25}}))
    write_bytes(*journal.file({"round": 2, "metrics": {"accuracy/mean": 0.5}}))
    write_bytes(*journal.file({"round": 2, "metrics": {"accuracy/mean": 0.75}}))
    assert [r["metrics"]["accuracy/mean"] for r in journal.each(2)] == [0.25, 0.75]
    assert json.loads((tmp_path / "journal" / "000002.json").read_text())["round"] == 2
    with pytest.raises(UserError, match=r"000003\.json is missing"):
        list(journal.each(3))


@pytest.mark.parametrize("damage", ["", "half", "[1, 2]", "\xff\xfe", "[" * 100_000, "another"])
def test_a_damaged_round_of_the_journal_is_told_in_a_sentence(tmp_path, damage):
    journal = Journal(tmp_path)
    for number in (1, 2, 3):
        write_bytes(*journal.file({"round": number, "metrics": {"accuracy/mean": 0.25}}))
    path = tmp_path / "000002.json"
    whole = path.read_text()
    cut = {"half": whole[: len(whole) // 2], "another": (tmp_path / "000003.json").read_text()}
    path.write_text(cut.get(damage, damage), encoding="latin-1")
    with pytest.raises(UserError, match=r"Restore it from a copy, or start again without --resume\.") as said:
        list(journal.each(3))
    assert len(str(said.value)) < 400
    assert [r["round"] for r in journal.each(1)] == [1]


def test_a_checkpoint_whose_memory_of_the_sampler_was_changed_is_damaged(tmp_path):
    path = tmp_path / "state"
    save_state(path, ServerState({"weights": {"a": torch.ones(2)}}, {}, {}, None), 3, {"seen": [1, 2]})
    assert load_state(path).memory == {"seen": [1, 2]}
    path.write_bytes(path.read_bytes().replace(b"[1, 2]", b"[1, 3]"))
    with pytest.raises(UserError, match="its hash differs"):
        load_state(path)
