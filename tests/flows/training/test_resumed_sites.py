"""A run of virtual that is killed goes on with the same bits, and what of its checkpoint grows with the clients is said."""

import pytest

from flows.methods.common.posterior_sites import SITES
from flows.methods.virtual import Virtual
from flows.training.run_records.run_folder import RunFolder
from tasks.tracking.checkpoint import Journal, load_state, save_state

SETTINGS = (
    "training.rounds=5",
    "training.optimiser={kind: adam, learning_rate: 0.01}",
    "clients.fraction=0.6",
    "clients.sampling={kind: improving, focus: 1.0}",
    "method.virtual.columns=beside",
)


GONE = {"c05": 3, "c00": 3, "c01": 4}


@pytest.mark.slow
def test_a_run_that_was_killed_twice_has_the_same_bits_with_sites_columns_and_the_samplers_memory(
    play_run, folder, told
):
    """Before the round of leaving and after it; it goes on in two threads."""

    def stop():
        raise KeyboardInterrupt

    settings = (*SETTINGS, f"clients.leave={GONE}")
    whole = play_run("virtual", "threads", 1, *settings)
    for number, resume in ((2, False), (3, True)):
        told.after[number] = stop
        with pytest.raises(KeyboardInterrupt):
            play_run("virtual", "threads", 1 + resume, *settings, resume=resume)
    resumed = play_run("virtual", "threads", 2, *settings, resume=True)
    assert resumed["resumed_from_round"] == 3
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert resumed["metrics"] == whole["metrics"]
    one, other = (RunFolder(folder / result["folder"]) for result in (whole, resumed))
    expected, found = load_state(one.checkpoint), load_state(other.checkpoint)
    assert (found.memory, found.state.private) == (expected.memory, expected.state.private)
    assert found.memory["round"] == 5
    private = found.state.private
    assert private["columns"].keys() == private["posterior"].keys()
    assert private[SITES].keys() == private["posterior"].keys() - GONE.keys()
    journals = [list(Journal(run.path / "journal").each(5)) for run in (one, other)]
    calls = [[[c for c, row in r["clients"].items() if "train_loss" in row] for r in journal] for journal in journals]
    assert calls[0] == calls[1]
    assert not any(number >= GONE.get(c, 6) for number, clients in enumerate(calls[0], 1) for c in clients)


def test_a_checkpoint_is_as_large_with_1000_clients_as_with_10_but_for_two_references_of_each_that_was_ever_called(
    make_problem, play, tmp_path
):
    """Of 52 bytes each, and 10 for the name where it was called last. The server that holds sites has 16 bytes a weight."""

    def size(state):
        save_state(tmp_path / "checkpoint", state, 1)
        return (tmp_path / "checkpoint").stat().st_size

    names = [f"c{number:03d}" for number in range(1000)]
    few, many = (
        make_problem(dict.fromkeys(names[:count], 2), silos={"validation": 0, "test": 1, "name": f"of{count}"})
        for count in (10, 1000)
    )
    ten = play(Virtual(), few, [1]).state
    of_many = play(Virtual(), many, [1], absent={1: names[10:]}).state
    assert size(of_many) == size(ten)
    everybody = play(Virtual(), many, [1], stack=100).state
    assert size(everybody) - size(ten) == pytest.approx(990 * (2 * 52 + 10), rel=0.01)
    weights = 5 * 6 + 6 * 3
    held, held_of_many = (Virtual(site="free").init(setup) for setup in (few, many))
    assert size(held_of_many) - size(held) == pytest.approx(990 * 16 * weights, abs=100)
