"""Clients whose validation loss went down are called again: equations 7 to 13 of Fed-Focal Loss."""

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from scipy import stats

from flows.methods.base import RoundReport
from flows.methods.client_sampler import LossBasedSampler, Uniform
from flows.methods.fedavg import FedAvg
from flows.training.run_records.run_folder import RunFolder
from silos.errors import UserError
from tasks.tracking.checkpoint import Journal, load_state

NAMES = [f"c{i:02d}" for i in range(20)]
HALF = NAMES[::2]


@pytest.fixture
def setup(make_problem):
    return make_problem(dict.fromkeys(NAMES, 2), silos={"validation": 10, "test": 1})


def after(number, improved):
    """The memory after a round in which these clients improved."""
    return {"round": number, "improved": list(improved), "last": {}}


def drawn(sampler, setup, number, improved):
    return sampler.sample(setup, number, after(number - 1, improved)).clients


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    fraction=some.floats(0.01, 1),
    focus=some.floats(0, 1),
    improved=some.lists(some.sampled_from(NAMES), unique=True),
    number=some.integers(1, 10**6),
)
def test_always_k_clients_each_once_and_of_those_that_improved_as_many_as_focus_allows(
    fraction, focus, improved, number, setup
):
    clients = drawn(LossBasedSampler(fraction, focus=focus), setup, number, improved)
    wanted = max(1, round(fraction * 20))
    assert len(clients) == len(set(clients)) == wanted
    assert list(clients) == [c for c in setup.silos.clients if c in clients]
    assert len(set(clients) & set(improved)) >= min(len(improved), math.floor(focus * wanted))


def test_focus_0_draws_those_that_uniform_draws_whoever_improved(setup):
    for number in range(1, 40):
        ours = LossBasedSampler(0.4, 0.2, {"c03": 9}, focus=0.0).sample(setup, number, after(number - 1, HALF))
        assert ours == Uniform(0.4, 0.2, {"c03": 9}).sample(setup, number, {})


def test_in_the_first_round_and_after_a_round_that_nobody_answered_the_draw_is_uniform(setup):
    for memory in ({}, after(3, HALF)):
        for number in (1, 2, 5, 6):
            assert LossBasedSampler(0.4, focus=1.0).sample(setup, number, memory) == Uniform(0.4).sample(
                setup, number, {}
            )


def test_focus_1_calls_all_again_where_all_improved(setup):
    clients = Uniform(0.25).sample(setup, 1, {}).clients
    for number in range(2, 30):
        assert drawn(LossBasedSampler(0.25, focus=1.0), setup, number, clients) == clients


def test_focus_1_is_still_filled_up_where_few_improved(setup):
    for number in range(1, 20):
        clients = drawn(LossBasedSampler(0.25, focus=1.0), setup, number, ["c07", "c11"])
        assert len(clients) == 5
        assert {"c07", "c11"} <= set(clients)


def test_where_all_are_wanted_all_are_called(setup):
    assert drawn(LossBasedSampler(1.0, focus=0.8), setup, 2, HALF) == setup.silos.clients


def test_29_of_50_are_29_though_the_product_rounds_down(make_problem):
    assert math.floor(0.58 * 50) == 28
    clients = [f"c{i:02d}" for i in range(60)]
    setup, improved = make_problem(dict.fromkeys(clients, 1)), clients[10:39]
    for number in range(1, 30):
        assert set(improved) <= set(drawn(LossBasedSampler(50 / 60, focus=0.58), setup, number, improved))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("focus", "improved"), [(0.0, HALF), (0.4, []), (0.4, HALF[:8]), (0.45, HALF[:8]), (0.8, HALF[:8]), (0.8, HALF[:3])]
)
def test_how_often_each_client_is_called_is_as_the_equations_say(focus, improved, setup):
    """Chi-square over clients: those that improved with one chance, all others with another."""
    wanted, rounds = 10, 1500
    sampler, counts = LossBasedSampler(0.5, focus=focus), dict.fromkeys(NAMES, 0)
    for number in range(1, rounds + 1):
        for client in drawn(sampler, setup, number, improved):
            counts[client] += 1
    first = min(len(improved), math.floor(focus * wanted + 1e-9))
    rest = (wanted - first) / (20 - first)
    again = first / max(len(improved), 1)
    chance = {c: again + (1 - again) * rest if c in improved else rest for c in NAMES}
    assert math.fsum(chance.values()) == pytest.approx(wanted)
    unequal = [c for c in NAMES if 0 < chance[c] < 1]
    # a count's variance is rounds p (1 - p); those of one sum are a little less free than independent ones
    squares = sum((counts[c] - rounds * chance[c]) ** 2 / (rounds * chance[c] * (1 - chance[c])) for c in unequal)
    assert 0.001 < stats.chi2.cdf(squares * (len(unequal) - 1) / len(unequal), len(unequal) - 1) < 0.999
    assert all(counts[c] == rounds for c in NAMES if chance[c] == 1)


def heard(make_round, setup, number, pairs, clients=NAMES):
    round = make_round(setup, number, clients, validate=True)
    round.validation.update(pairs)
    return round


@pytest.mark.parametrize(("improvement", "second"), [("last_seen", ["c01", "c03"]), ("within_round", ["c02", "c03"])])
def test_improved_is_below_what_was_told_last_or_below_the_start_of_the_same_round(
    improvement, second, setup, make_round
):
    """At a first visit both are the model that the client was given; a tie is no improvement, nor is no number."""
    sampler, nan, inf = LossBasedSampler(0.5, improvement=improvement), math.nan, math.inf
    first = {
        "c00": (1.0, 1.0),
        "c01": (2.0, 1.0),
        "c02": (1.0, 1.5),
        "c04": (1.0, nan),
        "c05": (nan, 1.0),
        "c06": (1.0, inf),
    }
    memory = sampler.update({}, heard(make_round, setup, 1, first), RoundReport())
    assert (memory["round"], memory["improved"]) == (1, ["c01"])
    told = {"c00": (1.0, 1.0), "c01": (0.8, 0.9), "c02": (3.0, 2.0), "c03": (2.0, 1.0), "c04": (nan, nan)}
    memory = sampler.update(memory, heard(make_round, setup, 2, told), RoundReport())
    assert (memory["round"], memory["improved"]) == (2, second)
    assert json.loads(json.dumps(memory, allow_nan=False)) == memory


def test_what_a_client_told_last_may_be_many_rounds_old(setup, make_round):
    sampler = LossBasedSampler(0.5)
    memory = sampler.update({}, heard(make_round, setup, 1, {"c00": (2.0, 1.0), "c01": (2.0, 1.0)}), RoundReport())
    for number in (2, 3, 4):
        memory = sampler.update(memory, heard(make_round, setup, number, {"c02": (2.0, 1.0)}), RoundReport())
    told = {"c00": (9.0, 1.1), "c01": (9.0, 0.9)}
    assert sampler.update(memory, heard(make_round, setup, 5, told), RoundReport())["improved"] == ["c01"]


def test_who_has_left_for_good_is_forgotten_in_the_round_before_and_nobody_else(setup, make_round):
    """Whoever else is called again is held against what it told last: of each one number is kept, however often it told."""
    sampler, memory = LossBasedSampler(0.5, leave={"c00": 3, "c01": 4}), {}
    kept = []
    for number in (1, 2, 3):
        there = [c for c in NAMES if sampler.leave.get(c, 9) > number]
        pairs = dict.fromkeys(there[:4], (2.0, 1.0 / number))
        memory = sampler.update(memory, heard(make_round, setup, number, pairs, there), RoundReport())
        kept.append(memory["last"])
    assert [[*last] for last in kept] == [
        ["c00", "c01", "c02", "c03"],
        ["c01", "c02", "c03"],
        ["c02", "c03", "c04"],
    ]
    assert [last["c02"] for last in kept] == [1.0, 1 / 2, 1 / 3]


def test_a_client_that_did_not_take_part_never_counts_as_improved(setup, make_round):
    """Some pages also train others in a round, who join or are tried."""
    pairs = dict.fromkeys(NAMES, (2.0, 1.0))
    memory = LossBasedSampler(0.5).update({}, heard(make_round, setup, 1, pairs, NAMES[3:6]), RoundReport())
    assert memory["improved"] == NAMES[3:6]
    assert set(memory["last"]) == set(NAMES[3:6])


def test_a_method_whose_clients_tell_nothing_is_refused_and_a_silent_round_later_is_not(setup, make_round):
    silent = make_round(setup, 1, validate=True)
    with pytest.raises(UserError, match=r"clients\.sampling\.kind: got improving, expected uniform or by_size"):
        LossBasedSampler().update({}, silent, RoundReport())
    assert (
        LossBasedSampler().update(after(1, HALF), make_round(setup, 2, validate=True), RoundReport())["improved"] == []
    )


def test_who_has_too_few_rows_to_tell_is_named_in_one_sentence(make_problem):
    few = make_problem(dict.fromkeys(NAMES[:5], 2), silos={"validation": 9})
    (said,) = LossBasedSampler().warnings(few)
    assert said.startswith("c00, c01, c02 and 2 more: fewer than 10 validation rows, so never counted as improving")
    assert LossBasedSampler().warnings(make_problem({"a": 2}, silos={"validation": 10, "name": "ten"})) == ()
    common = make_problem({"a": 2, "b": 3}, silos={"validation": 5, "common": ["validation"], "name": "common"})
    assert LossBasedSampler().warnings(common) == ()
    assert Uniform().warnings(few) == ()


def test_clients_are_called_again_where_training_helped_them(setup, play, make_round):
    """Everybody learns from the start, so in round 2 all that are focused on come from round 1."""
    sampler = LossBasedSampler(0.25, focus=1.0)
    there = sampler.sample(setup, 1, {}).clients
    absent = {1: [c for c in NAMES if c not in there]}
    played = play(FedAvg(), setup, [1], absent=absent, validate=True)
    memory = sampler.update({}, played.rounds[0], played.reports[0])
    assert memory["improved"]
    assert set(memory["improved"]) <= set(sampler.sample(setup, 2, memory).clients)


SETTINGS = ("training.rounds=6", "clients.fraction=0.5", "training.optimiser.learning_rate=0.05")
IMPROVING = "clients.sampling={kind: improving, focus: 1.0}"


def who_trained(folder, result, rounds=6):
    journal = Journal(folder / result["folder"] / "journal").each(rounds)
    return [[c for c, row in record["clients"].items() if "train_loss" in row] for record in journal]


def memory_of(folder, result):
    return load_state(RunFolder(folder / result["folder"]).checkpoint).memory


@pytest.mark.slow
def test_a_resumed_run_has_the_samplers_memory_and_ends_with_the_same_bits(play_run, folder, told):
    def stop():
        raise KeyboardInterrupt

    whole = play_run("fedavg", "threads", 1, *SETTINGS, IMPROVING)
    told.after[3] = stop
    with pytest.raises(KeyboardInterrupt):
        play_run("fedavg", "threads", 1, *SETTINGS, IMPROVING)
    resumed = play_run("fedavg", "threads", 2, *SETTINGS, IMPROVING, resume=True)
    assert resumed["resumed_from_round"] == 3
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert memory_of(folder, resumed) == memory_of(folder, whole)
    assert memory_of(folder, whole)["round"] == 6
    assert who_trained(folder, resumed) == who_trained(folder, whole)
    plain = play_run("fedavg", "threads", 1, *SETTINGS)
    assert who_trained(folder, plain) != who_trained(folder, whole)
    # two float numbers more of each of three clients in each of six rounds
    assert whole["bytes"]["up"] - plain["bytes"]["up"] == 4 * 2 * 3 * 6


@pytest.mark.slow
def test_a_run_with_focus_0_is_a_uniform_run_to_the_bit(play_run, folder):
    ours = play_run("fedavg", "threads", 1, *SETTINGS, "clients.sampling={kind: improving, focus: 0}")
    plain = play_run("fedavg", "threads", 1, *SETTINGS, "clients.sampling={kind: uniform}")
    assert ours["weights_sha256"] == plain["weights_sha256"]
    assert who_trained(folder, ours) == who_trained(folder, plain)


def test_a_method_without_local_training_is_refused_in_a_sentence(play_run):
    with pytest.raises(UserError, match=r"clients\.sampling\.kind: got improving, expected uniform or by_size"):
        play_run("fedsgd", "threads", 1, *SETTINGS, IMPROVING)


@pytest.mark.slow
def test_a_run_says_once_who_has_too_few_rows_to_tell_and_goes_on(play_run, folder, told):
    uneven = ["data.name=uneven", "data.scheme=[{kind: quantity, clients: 6, beta: 0.4}]", *SETTINGS, IMPROVING]
    result = play_run("fedavg", "threads", 1, *uneven, "clients.fraction=1.0")
    assert sum("fewer than 10 validation rows, so never counted as improving" in line for line in told.said) == 1
    memory = memory_of(folder, result)
    assert 0 < len(memory["last"]) < 6
