"""Who is called in a round: by the seed, the round and a memory that a resumed run finds again."""

import math
from collections import Counter
from dataclasses import replace
from itertools import permutations

import pytest
from scipy import stats

from flows.methods.client_sampler import (
    BySize,
    FractionSampler,
    LossBasedSampler,
    SampledClients,
    Sampler,
    Uniform,
    evaluation_clients,
    sample_clients,
)
from flows.training.run_records.run_folder import RunFolder
from models.server_state import ServerState
from silos.errors import UserError
from tasks.tracking.checkpoint import Journal, load_state, save_state

NAMES = [f"c{i:02d}" for i in range(20)]


@pytest.fixture
def setup(make_problem):
    return make_problem(dict.fromkeys(NAMES, 2), silos={"validation": 0, "test": 1})


@pytest.mark.parametrize(
    ("fraction", "size"), [(1.0, 20), (0.5, 10), (0.1, 2), (0.05, 1), (0.001, 1), (0.12, 2), (0.13, 3), (0.99, 20)]
)
def test_a_fraction_of_the_clients_is_drawn_and_never_nobody(fraction, size, setup):
    for number in range(1, 6):
        called = Uniform(fraction, 0.0).sample(setup, number, {})
        there, dropped = called.clients, called.dropped
        assert len(there) == size
        assert dropped == ()
        assert len(set(there)) == size
        assert list(there) == [c for c in setup.silos.clients if c in there]


def test_the_same_seed_draws_the_same_clients_and_another_others(setup):
    def drawn(p):
        return [Uniform(0.25, 0.2).sample(p, n, {}) for n in range(1, 30)]

    assert drawn(setup) == drawn(setup)
    assert drawn(setup) != drawn(replace(setup, seed=1))
    assert len(set(drawn(setup))) > 20


def test_who_is_scored_is_the_same_in_every_version_so_that_scores_of_a_kept_run_can_be_compared(setup):
    scored = {seed: evaluation_clients(setup.silos, 4, seed).clients for seed in (0, 1)}
    assert scored == {0: ("c01", "c02", "c08", "c11"), 1: ("c00", "c04", "c09", "c14")}
    fewer = setup.silos.select([c for c in NAMES if c in scored[0] or c < "c10"])
    assert evaluation_clients(fewer, 4, 0).clients == scored[0], "whoever else is listed"


def test_every_client_is_drawn_about_equally_often(setup):
    counts = dict.fromkeys(NAMES, 0)
    for number in range(400):
        for client in Uniform(0.25, 0.0).sample(setup, number, {}).clients:
            counts[client] += 1
    deviation = (400 * 0.25 * 0.75) ** 0.5
    assert all(abs(n - 100) < 4 * deviation for n in counts.values())


def test_of_clients_of_one_size_those_are_drawn_by_size_that_are_drawn_uniformly(setup):
    for number in range(1, 30):
        assert BySize(0.25, 0.3).sample(setup, number, {}) == Uniform(0.25, 0.3).sample(setup, number, {})


@pytest.mark.slow
def test_each_next_client_is_drawn_with_chance_in_proportion_to_rows_among_those_left(make_problem):
    """Every pair's exact probability, from both orders in which it can be drawn."""
    rows, rounds = {"a": 1, "b": 2, "c": 3, "d": 8}, 3000
    setup, total = make_problem(rows), sum(rows.values())
    expected: Counter[frozenset[str]] = Counter()
    for first, second in permutations(rows, 2):
        expected[frozenset((first, second))] += rows[first] / total * rows[second] / (total - rows[first])
    assert math.fsum(expected.values()) == pytest.approx(1)
    drawn = Counter(frozenset(BySize(0.5).sample(setup, n, {}).clients) for n in range(1, rounds + 1))
    seen, there = zip(*((drawn[pair], rounds * p) for pair, p in expected.items()), strict=True)
    assert stats.chisquare(seen, there).pvalue > 0.001
    single = Counter(BySize(0.25).sample(setup, n, {}).clients[0] for n in range(1, rounds + 1))
    assert stats.chisquare([single[c] for c in rows], [rounds * n / total for n in rows.values()]).pvalue > 0.001


def test_by_size_all_are_drawn_where_all_are_wanted_and_nobody_before_it_joins(make_problem):
    setup = make_problem({"a": 1, "b": 2, "c": 90})
    assert BySize().sample(setup, 1, {}).clients == ("a", "b", "c")
    drawn = [BySize(0.4, 0.0, {"c": 5}).sample(setup, n, {}).clients for n in range(1, 10)]
    assert all("c" not in clients for clients in drawn[:4])
    assert any("c" in clients for clients in drawn[4:])
    assert all(len(clients) == 1 for clients in drawn)


def test_a_client_that_joins_later_is_drawn_from_its_round_on(setup):
    join = {"c03": 4, "c11": 2}
    there = [set(Uniform(1.0, 0.0, join).sample(setup, number, {}).clients) for number in (1, 2, 3, 4)]
    assert [{"c03", "c11"} - clients for clients in there] == [{"c03", "c11"}, {"c03"}, {"c03"}, set()]
    assert all(set(NAMES) - {"c03", "c11"} <= clients for clients in there)
    assert Uniform(0.5, 0.3, join).sample(setup, 4, {}) == Uniform(0.5, 0.3).sample(setup, 4, {})
    half = Uniform(0.5, 0.0, dict.fromkeys(NAMES[:10], 2)).sample(setup, 1, {}).clients
    assert len(half) == 5
    assert set(half) <= set(NAMES[10:])


def test_about_the_asked_share_drops_out(setup):
    lost = [len(Uniform(1.0, 0.3).sample(setup, n, {}).dropped) for n in range(300)]
    share = sum(lost) / (300 * 20)
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / 6000) ** 0.5
    assert len(set(lost)) > 5  # each by itself, not a fixed number


def test_who_drops_out_depends_on_seed_round_and_client_alone(setup):
    """Not on who else was drawn, nor on the method, which is not asked."""
    for number in range(1, 20):
        lost = set(Uniform(1.0, 0.4).sample(setup, number, {}).dropped)
        called = Uniform(0.5, 0.4).sample(setup, number, {})
        there, dropped = called.clients, called.dropped
        assert set(dropped) <= lost
        assert not lost & set(there)
        assert set(there) | set(dropped) == set(Uniform(0.5, 0.0).sample(setup, number, {}).clients)
        more = Uniform(1.0, 0.6).sample(setup, number, {}).dropped
        assert lost <= set(more)  # a higher chance loses the same and more


def test_a_client_leaves_with_the_same_luck_whoever_else_is_listed(setup):
    fewer = replace(setup, silos=setup.silos.select(NAMES[::-1][:7]))
    for number in range(10):
        lost, of_all = (set(Uniform(1.0, 0.4).sample(p, number, {}).dropped) for p in (fewer, setup))
        assert lost == of_all & set(NAMES[::-1][:7])


@pytest.mark.parametrize("kind", [Uniform, BySize, LossBasedSampler])
def test_who_left_is_never_drawn_and_of_the_others_as_many_as_the_fraction_says(kind, setup):
    """Also where memory has them as improved; they leave once, whoever drops out."""
    half = NAMES[::2]
    sampler = kind(0.25, 0.4, leave=dict.fromkeys(half, 5))
    for number in range(1, 20):
        answer = sampler.sample(setup, number, {"round": number - 1, "improved": half, "last": {}})
        drawn = {*answer.clients, *answer.dropped}
        assert answer.leaving == (tuple(half) if number == 5 else ())
        assert len(drawn) == (5 if number < 5 else 2)
        assert number < 5 or not drawn & {*half}


def test_being_drawn_says_nothing_about_dropping_out(setup):
    lost = sum(len(Uniform(0.25, 0.3).sample(setup, n, {}).dropped) for n in range(300))
    assert abs(lost / (300 * 5) - 0.3) < 4 * (0.3 * 0.7 / 1500) ** 0.5


TURNS = """
from flows.methods.client_sampler import SampledClients, Sampler
from flows.methods import fedavg
from flows.plugins import register_method


class Turns(Sampler):
    '''Two clients a round: those called least often so far, and of these whoever had the greatest loss.'''

    def sample(self, setup, number, memory):
        order = sorted(setup.silos.clients, key=lambda c: (memory.get(c, [0])[0], -memory.get(c, [0, 0.0])[1], c))
        return SampledClients(tuple(c for c in setup.silos.clients if c in order[:2]))

    def update(self, memory, round, report):
        loss = report.client_metrics["train_loss"]
        return {**memory, **{c: [memory.get(c, [0])[0] + 1, loss[c]] for c in round.clients}}


@register_method("turns")
class InTurns(fedavg.FedAvg):
    def sampler(self, usual):
        return Turns()
"""


@pytest.fixture
def play_turns(play_run, folder):
    (folder / "turns.py").write_text(TURNS)

    def play(*more, **options):
        return play_run("turns", "threads", 1, "plugins=[own.py, turns.py]", "training.rounds=5", *more, **options)

    return play


@pytest.mark.slow
def test_nobody_is_remembered_of_a_round_in_which_nobody_answered(play_turns, folder):
    page = (folder / "turns.py").read_text()
    (folder / "turns.py").write_text(
        page.replace("SampledClients(tuple(", "SampledClients(() if number == 2 else tuple(")
    )
    result = play_turns()
    memory = load_state(RunFolder(folder / result["folder"]).checkpoint).memory
    assert sum(calls for calls, _ in memory.values()) == 8


def test_a_resumed_run_calls_whom_the_samplers_memory_says(play_turns, folder, told):
    def called(result):
        rounds = Journal(folder / result["folder"] / "journal").each(5)
        return [[c for c, row in r["clients"].items() if "train_loss" in row] for r in rounds]

    def stop():
        raise KeyboardInterrupt

    whole = play_turns()
    told.after[2] = stop
    with pytest.raises(KeyboardInterrupt):
        play_turns()
    resumed = play_turns(resume=True)
    assert resumed["resumed_from_round"] == 2
    assert called(resumed) == called(whole)
    # everybody once before anybody twice
    assert len({c for round in called(whole)[:3] for c in round}) == 6
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    memory = load_state(RunFolder(folder / resumed["folder"]).checkpoint).memory
    assert sum(calls for calls, _ in memory.values()) == 10


def test_a_memory_that_json_would_change_is_refused_with_what_became_of_it(tmp_path):
    for memory in ({"calls": (1, 2)}, {1: 2}):
        with pytest.raises(TypeError, match=r"sampler: got memory that JSON restores as \{'"):
            save_state(tmp_path / "c", ServerState(), 1, memory)
    with pytest.raises(ValueError, match="JSON compliant"):
        save_state(tmp_path / "c", ServerState(), 1, {"loss": float("nan")})


def test_a_changed_memory_is_noticed(tmp_path):
    path = tmp_path / "c"
    save_state(path, ServerState(), 1, {"calls": 7})
    path.write_bytes(path.read_bytes().replace(b'\\"calls\\": 7', b'\\"calls\\": 8'))
    with pytest.raises(UserError, match="its hash differs"):
        load_state(path)


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (["c00", "c01"], "got a list"),
        (SampledClients(("c00", "c00")), "sampler: got the client 'c00' twice in a round, expected it once"),
        (SampledClients(("c00",), ("c00",)), "sampler: got the client 'c00' twice in a round, expected it once"),
        (SampledClients(("nobody",)), "sampler: got the client 'nobody', expected a client of the data"),
        (SampledClients(("c00",), leaving=("nobody",)), "sampler: got the client 'nobody', expected a client of"),
        (SampledClients(("c00",), leaving=("c00",)), "sampler: got the client 'c00' twice in a round, expected it"),
    ],
)
def test_a_sampler_that_calls_others_than_clients_each_once_is_told(answer, match, setup):
    class Wrong(Sampler):
        def sample(self, setup, number, memory):
            return answer

    with pytest.raises((TypeError, ValueError), match=match):
        sample_clients(Wrong(), setup, 1, {})


class Again(FractionSampler):
    """A rule of a user's own, which calls whom it remembers."""

    def draw(self, setup, clients, wanted, number, memory):
        return memory["again"]


def test_a_rule_of_ones_own_that_draws_who_has_left_or_is_not_there_calls_the_others(setup):
    sampler = Again(0.2, join={"c01": 9}, leave={"c02": 3})
    for number, expected in ((2, ("c02", "c03")), (3, ("c03",)), (9, ("c01", "c03"))):
        called = sampler.sample(setup, number, {"again": ["c03", "c02", "nobody", "c01"]})
        assert called.clients == expected
