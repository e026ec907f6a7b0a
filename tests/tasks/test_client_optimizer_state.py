"""Optimisers that go on from round to round stay with the clients, whatever the method."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flows.core.plugin_loader import PluginFiles
from flows.methods.base import find_method
from flows.methods.ditto import Ditto
from flows.methods.fedavg import FedAvg
from flows.methods.local_only import LocalOnly
from flows.methods.uefl import UEFL
from models.networks.mlp import MLP
from models.training.optimizers import SGD, Adam
from silos.errors import UserError

EXAMPLES = {path.stem: str(path) for path in (Path(__file__).parents[2] / "docs" / "examples").glob("*.py")}
PLUGINS = PluginFiles(Path()).load(sorted(EXAMPLES.values()))
SIZES = {"a": 9, "b": 6, "c": 4}


@pytest.fixture
def kept(make_problem):
    def build(sizes=SIZES, **training):
        return make_problem(sizes, **{"optimiser": Adam(0.01), "keeps": True, **training})

    return build


def reset(setup):
    return replace(setup, training=replace(setup.training, keeps=False))


@pytest.mark.parametrize("optimiser", [Adam(0.01), SGD(0.1, momentum=0.9)])
def test_of_one_client_in_full_batches_rounds_are_epochs(optimiser, kept, play):
    """Then an average is the client's own weights, and an order is nothing."""
    setup = kept({"a": 9}, optimiser=optimiser, epochs=1, batch=9)
    longer = replace(setup, training=replace(setup.training, epochs=4))
    found = [
        play(FedAvg(), one, rounds).state.tensors["weights"]
        for one, rounds in ((setup, [1, 2, 3, 4]), (longer, [1]), (reset(setup), [1, 2, 3, 4]))
    ]
    for name, w in found[0].items():
        torch.testing.assert_close(w, found[1][name], rtol=0, atol=1e-6)
    assert not all(torch.allclose(w, found[2][name], atol=1e-4) for name, w in found[0].items())


def test_it_is_the_page_of_the_docs_that_keeps_adam(kept, play):
    page = find_method("kept_adam", PLUGINS)()
    setup, absent = kept(), {2: ["b"]}
    ours = play(FedAvg(), setup, [1, 2, 3], absent=absent)
    theirs = play(page, reset(setup), [1, 2, 3], absent=absent)
    for name, w in theirs.state.tensors["weights"].items():
        assert torch.equal(ours.state.tensors["weights"][name], w)


def test_an_optimiser_that_remembers_nothing_keeps_nothing(kept, play):
    setup = kept(optimiser=SGD(0.1))
    ours, theirs = (play(FedAvg(), one, [1, 2]) for one in (setup, reset(setup)))
    assert ours.state.sha256() == theirs.state.sha256()
    assert not ours.state.private


def test_two_trainings_of_a_round_have_an_optimiser_each(kept, play):
    """Ditto's own weights without a pull are those of local training, and its shared ones those of FedAvg."""
    setup = kept()
    ditto = play(Ditto(personal_weight=0.0), setup, [1, 2, 3])
    sections = sorted(name for name in ditto.state.private if name.startswith("optimiser"))
    assert [name[:10] for name in sections] == ["optimiser0", "optimiser1"]
    shared = play(FedAvg(), setup, [1, 2, 3]).state.tensors["weights"]
    for name, w in shared.items():
        assert torch.equal(ditto.state.tensors["weights"][name], w)
    alone = play(LocalOnly(), setup, [1, 2, 3])
    for client in SIZES:
        (refs,) = [refs for name, refs in ditto.state.private.items() if name in ("personal", "weights")]
        (section,) = [name for name in ditto.state.private if name in ("personal", "weights")]
        mine = ditto.private.load(section, refs, client)
        other = alone.private.load("weights", alone.state.private["weights"], client)
        assert all((mine[name] == other[name]).all() for name in other)


def test_where_weights_change_their_shape_the_optimiser_starts_anew_and_the_old_one_is_forgotten(kept, play):
    page = UEFL(arm="paper", words=4, first_rounds=1, more_rounds=1, tolerance=-1.0)
    setup = kept(network=MLP(5, (6,), 3, dropout=0.3))
    played = play(page, setup, [1, 2, 3])
    assert played.state.numbers["room"]
    assert len([name for name in played.state.private if name.startswith("optimiser")]) == 1


def test_nothing_of_it_travels(kept, play):
    setup = kept()
    ours, theirs = (play(FedAvg(), one, [1, 2]).rounds[1].tally for one in (setup, reset(setup)))
    assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)


def test_a_page_whose_step_cannot_go_on_says_what_it_needs(kept, play):
    with pytest.raises(
        UserError, match=r"training\.optimiser\.state: got kept, expected reset, since train_body of this method"
    ):
        play(find_method("fedbabu", PLUGINS)(), kept(), [1])
