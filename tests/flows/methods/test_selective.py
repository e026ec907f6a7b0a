"""Selective averaging and its reductions (Liu, Lee and Julien 2020)."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flows.methods.common import correctness_overlap
from flows.methods.common.group_training import select_group
from flows.methods.fedavg import FedAvg
from flows.methods.local_only import LocalOnly
from flows.methods.selective import LOCAL, TRAINED, Selective
from models.networks.mlp import MLP
from models.prng import server_stream
from models.training.optimizers import SGD, Adam
from silos.cohort import Stack
from silos.errors import UserError
from tasks.cluster_clients import OverlapClusters, candidates
from tasks.execution.load_client_data import load_weights
from tasks.messages.round_messages import CorrectnessBits

pytestmark = pytest.mark.slow

SIZES = {"a": 13, "b": 5, "c": 8, "d": 3, "e": 10}
COMMON = {"common": ["validation"], "validation": 8}


@pytest.fixture
def setup(make_problem):
    return make_problem(SIZES, silos=COMMON)


def weights_of(played, client):
    model = played.page.model(played.state, played.setup).select([client])
    return {n: w[0] for n, w in load_weights(model, Stack((client,), 1), played.private, "cpu")[0].items()}


def test_threshold_0_is_fedavg_to_the_bit(setup, play):
    ours = play(Selective(local_rounds=2, threshold=0.0), setup, [1, 2, 3, 4, 5])
    theirs = play(FedAvg(), setup, [1, 2, 3])
    assert set(ours.state.numbers["group"].values()) == {0}
    for name, w in theirs.state.tensors["weights"].items():
        assert torch.equal(ours.state.tensors["weights"][name], w[None])
    for mine, other in zip(ours.reports[2:], theirs.reports, strict=True):
        assert mine.client_metrics["train_loss"] == other.client_metrics["train_loss"]


@pytest.fixture
def kept(make_problem):
    """As `setup`, with Adam's state going on from round to round."""
    return make_problem(SIZES, silos=COMMON, optimiser=Adam(0.01), keeps=True)


def test_threshold_0_is_fedavg_to_the_bit_where_optimisers_are_kept(kept, play):
    """A common start is one of the optimisers, too: they remember nothing of the models of phase 1."""
    ours = play(Selective(local_rounds=2, threshold=0.0), kept, [1, 2, 3, 4, 5])
    theirs = play(FedAvg(), kept, [1, 2, 3])
    for name, w in theirs.state.tensors["weights"].items():
        assert torch.equal(ours.state.tensors["weights"][name], w[None])


@pytest.mark.parametrize("absent", [[1, 2, 3, 4], [2, 3, 4]])
@pytest.mark.parametrize("optimisers", ["reset", "kept"])
@pytest.mark.parametrize("late", ["a", "d"])
def test_a_late_client_trains_alone_as_if_it_had_been_there(late, optimisers, absent, request, play):
    """Client a has several batches, whose order depends on the random stream; client d has one."""
    setup = request.getfixturevalue("kept" if optimisers == "kept" else "setup")
    page = Selective(local_rounds=3, start="mean").model_copy(update={"threshold": 1.1})
    ours = play(page, setup, range(1, 7), absent={number: [late] for number in absent}, stack=1)
    theirs = play(LocalOnly(), setup, [1, 2, 3], stack=1)
    mine = ours.private.load(LOCAL, ours.state.private[LOCAL], late)
    other = theirs.private.load("weights", theirs.state.private["weights"], late)
    assert all((mine[name] == other[name]).all() for name in other)


@pytest.mark.parametrize("start", ["common", "mean"])
def test_above_1_it_is_local_training_to_the_bit(start, setup, play, tmp_path):
    page = Selective(local_rounds=2, start=start).model_copy(update={"threshold": 1.1})
    ours = play(page, setup, [1, 2, 3, 4])
    theirs = play(LocalOnly(), setup, [1, 2] if start == "common" else [1, 2, 3, 4])
    assert sorted(ours.state.numbers["group"].values()) == list(range(len(SIZES)))
    for client in SIZES:
        mine, other = weights_of(ours, client), weights_of(theirs, client)
        assert all(torch.equal(mine[name], other[name]) for name in other), client


def test_clients_with_nothing_to_part_are_one_group_and_it_says_so(setup, play):
    played = play(Selective(local_rounds=1), setup, [1, 2])
    assert set(played.state.numbers["group"].values()) == {0}
    (message,) = played.reports[0].messages
    assert message == "one group, since clients of one law may overlap like this by chance (p = 0.56): a b c d e"


def test_every_client_is_in_one_group_and_groups_say_their_margins(setup, play):
    played = play(Selective(local_rounds=1, threshold=0.9), setup, [1, 2])
    assert played.state.numbers["group"].keys() == SIZES.keys()
    numbers = played.reports[0].metrics
    assert numbers["groups"] == len(set(played.state.numbers["group"].values()))
    assert numbers.get("overlap/across", 0) <= numbers["overlap/threshold"] <= numbers.get("overlap/within", 1)
    assert played.reports[0].client_metrics["group"] == played.state.numbers["group"]
    (said,) = played.reports[0].messages
    assert said.startswith(f"{numbers['groups']:.0f} groups at an overlap of {numbers['overlap/threshold']:.3f}: a")
    assert not played.reports[1].messages


def with_common_labels(*seen):
    """The clouds of three classes, of which the common rows, 8 of each client, have these."""

    def rows_of(client, total):
        rng = np.random.default_rng(list(client.encode()))
        y = np.arange(total) % 3
        y[SIZES[client] : SIZES[client] + 8] = np.resize(seen, 8)
        return 2 * np.eye(3, 5)[y] + rng.normal(size=(total, 5)), y

    return {**COMMON, "rows_of": rows_of}


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ((0, 1), "class 2, so clients are not compared on it"),
        ((1,), "the classes 0, 2, so clients are not compared on them"),
        ((2, 1, 0), None),
    ],
)
def test_classes_that_no_common_row_has_are_said_once(seen, said, make_problem, play):
    setup = make_problem(SIZES, silos=with_common_labels(*seen))
    played = play(Selective(local_rounds=2, regroup_every=1), setup, [1, 2, 3])
    assert not played.reports[0].messages
    _, *unasked = played.reports[1].messages
    assert unasked == ([f"none of the 40 common rows belongs to {said}"] if said else [])
    assert len(played.reports[2].messages) == 1


@pytest.mark.parametrize("kind", ["jaccard", "equal", "dot"])
def test_common_rows_of_one_class_make_groups(kind, make_problem, play):
    setup = make_problem(SIZES, silos=with_common_labels(1))
    played = play(Selective(local_rounds=1, overlap=kind), setup, [1, 2])
    assert played.state.numbers["group"].keys() == SIZES.keys()


def test_a_client_sends_a_bit_a_row_and_nothing_else_of_phase_1(setup, play):
    played = play(Selective(local_rounds=1), setup, [1])
    rows = setup.silos.common("validation")
    losses_and_rows = 2 * 4 * len(SIZES)
    assert played.rounds[0].tally.bytes_up == losses_and_rows + len(SIZES) * -(-rows // 8)
    assert played.rounds[0].tally.bytes_down == 0


def clusters(client, total):
    """Two laws of labels: what is 0 for the first is 1 for the second, on clouds that are well apart."""
    rng = np.random.default_rng(list(client.encode()))
    y = np.arange(total) % 2
    x = rng.normal(size=(total, 5)) * 0.3 + 3 * np.eye(2, 5)[y]
    return x, y if client[0] == "l" else 1 - y


LAWS = {"l1": 20, "l2": 16, "l3": 18, "r1": 17, "r2": 20}
TRUTH = [{"l1", "l2", "l3"}, {"r1", "r2"}]


def groups(state):
    found = {}
    for client, number in state.numbers["group"].items():
        found.setdefault(number, set()).add(client)
    return [found[number] for number in sorted(found)]


@pytest.fixture
def laws(make_problem):
    def build(network=None, **options):
        silos = {**COMMON, "validation": 6, "rows_of": clusters, **options}
        return make_problem(LAWS, network=network, silos=silos, epochs=10)

    return build


@pytest.mark.parametrize("assign", ["complete", "greedy"])
@pytest.mark.parametrize(("kind", "threshold"), [("jaccard", "gap"), ("equal", "gap"), ("dot", 0.1)])
def test_laws_that_label_the_same_rows_differently_are_told_apart(assign, kind, threshold, laws, play):
    page = Selective(local_rounds=3, overlap=kind, threshold=threshold, assign=assign)
    played = play(page, laws(), [1, 2, 3, 4])
    assert groups(played.state) == TRUTH


def test_a_late_client_goes_into_the_group_that_it_fits_and_nobody_retrains(laws, play):
    page, setup = Selective(local_rounds=3), laws()
    absent = {number: ["r2"] for number in range(1, 5)}
    played = play(page, setup, [1, 2, 3, 4], absent=absent)
    assert groups(played.state) == [TRUTH[0], {"r1"}]
    met = play(page, setup, [5], state=played.state, private=played.private)
    assert groups(met.state) == TRUTH
    assert met.rounds[0].tally.steps["r2"] == 3 * 10 * 5  # rounds, epochs, batches
    others = play(page, setup, [5], state=played.state, private=played.private, absent={5: ["r2"]})
    for name, w in others.state.tensors["weights"].items():
        assert torch.equal(met.state.tensors["weights"][name], w)


def test_a_fresh_client_is_scored_with_the_group_that_it_fits(laws, play, make_round):
    page, setup = Selective(local_rounds=3), laws()
    played = play(page, setup, [1, 2, 3, 4], absent={number: ["r2", "l3"] for number in range(1, 5)})
    before = played.state.sha256()
    model = page.scored_model(played.state, make_round(setup, 4, private=played.private))
    place = {client: at for at, client in enumerate(model.clients)}
    for w in model.personal.values():
        assert torch.equal(w[place["r2"]], w[place["r1"]])
        assert torch.equal(w[place["l3"]], w[place["l1"]])
    assert played.state.sha256() == before


@pytest.mark.parametrize(("start", "last"), [("common", 2), ("common", 3), ("mean", 2)])
def test_a_start_that_nobody_trained_is_never_scored(start, last, setup, play, make_round):
    """At the end of phase 1 clients are scored with their own weights, and those who were away with theirs."""
    page, absent = Selective(local_rounds=2, start=start, threshold=0.0), {1: ["d"], 2: ["d"]}
    played = play(page, setup, range(1, last + 1), absent=absent)
    model = page.scored_model(played.state, make_round(setup, last, private=played.private))
    alone = play(LocalOnly(), setup, [1, 2])
    for client in SIZES:
        mine = load_weights(model.select([client]), Stack((client,), 1), played.private, "cpu")[0]
        same = all(torch.equal(mine[name][0], other) for name, other in weights_of(alone, client).items())
        assert same == ((start, last) == ("common", 2))


@pytest.mark.parametrize("every", [1, 2])
def test_groups_are_made_anew_of_what_was_trained_before_it_is_averaged(every, laws, play):
    page = Selective(local_rounds=1, regroup_every=every, threshold=0.6)
    played = play(page, laws(), range(1, 8))
    assert groups(played.state) == TRUTH
    made = [at for at, report in enumerate(played.reports, 1) if report.messages]
    assert made == list(range(1, 8, every))


def test_groups_that_stay_as_they_are_average_as_without_regrouping(setup, play):
    """Everybody together: to make groups anew is another way to send the same weights."""
    fixed, anew = (
        play(Selective(local_rounds=1, threshold=0.0, regroup_every=every), setup, [1, 2, 3]) for every in (None, 1)
    )
    for name, w in fixed.state.tensors["weights"].items():
        assert torch.equal(anew.state.tensors["weights"][name], w)
    assert anew.rounds[2].tally.bytes_down == fixed.rounds[2].tally.bytes_down
    bits = len(SIZES) * -(-setup.silos.common("validation") // 8)
    assert anew.rounds[2].tally.bytes_up == fixed.rounds[2].tally.bytes_up + bits + 4 * len(SIZES)


def test_what_waited_for_groups_is_told_to_be_of_no_use_any_more(setup, play):
    """The state names the section, so that the files of rounds before are deleted, also after a client came late."""
    played = play(Selective(local_rounds=1, regroup_every=1), setup, [1, 2, 3], absent={1: ["d"]})
    assert played.state.private[TRAINED] == {}


def test_of_several_groups_only_the_last_counts_in_their_means(setup, play, monkeypatch):
    """`c` is right on every row, and joins those who are right on the first ones and those who are on the others."""
    rows = setup.silos.common("validation")
    first = np.arange(rows) < rows // 2
    right = np.stack([first, ~first, np.ones(rows, bool), first, ~first])
    told = CorrectnessBits(tuple("abcde"), torch.from_numpy(np.packbits(right, axis=1)))
    monkeypatch.setattr(correctness_overlap, "collect_correctness", lambda *_: [told])
    page = Selective(local_rounds=1, start="mean", assign="first_member", threshold=0.4)
    played = play(page, setup, [1])
    assert groups(played.state) == [{"a", "d"}, {"b", "c", "e"}]
    refs = played.state.private[LOCAL]
    for number, names in enumerate(groups(played.state)):
        total = sum(SIZES[name] for name in names)
        for tensor, w in select_group(played.state.tensors["weights"], number).items():
            mean = sum(played.private.load(LOCAL, refs, c)[tensor] * float(SIZES[c]) for c in names) / total
            np.testing.assert_allclose(w, mean, atol=1e-6)


def test_the_order_of_the_clients_changes_nothing(laws, play):
    one, more = (play(Selective(local_rounds=2), laws(), [1, 2, 3], stack=n) for n in (2, 5))
    assert one.state.numbers == more.state.numbers


def test_no_two_clients_and_no_client_and_the_server_share_storage(setup, play):
    played = play(Selective(local_rounds=1, threshold=0.0), setup, [1, 2])
    model = played.page.model(played.state, setup)
    held = {t.untyped_storage().data_ptr() for t in played.state.tensors["weights"].values()}
    for name, w in model.personal.items():
        assert w.untyped_storage().data_ptr() not in held
        w[0] += 1
        assert not torch.equal(w[0], w[1]), name


def test_a_model_of_no_numbers_stands_alone_and_is_flagged(setup, play):
    page = Selective(local_rounds=1, threshold=0.0, overlap="equal")
    played = play(page, setup, [1])
    spoilt = played.private.save(
        "weights",
        ("c",),
        {n: np.full((1, *w.shape[1:]), np.nan, np.float32) for n, w in played.state.tensors["weights"].items()},
        "sendable",
    )
    state = page.init(setup).with_private("weights", spoilt)
    round = played.rounds[0]
    found, report = page._end_phase_1(state, round)
    assert report.flagged == ("c",)
    assert ("c",) in report.groups
    assert all(torch.isfinite(w).all() for w in found.tensors["weights"].values())


@pytest.mark.parametrize("threshold", ["gap", "accuracy", 0.0])
@pytest.mark.parametrize("train", [SIZES, {"only": 9}])
def test_where_nobody_is_right_on_any_row_everybody_is_alone(train, threshold, make_problem, play, monkeypatch):
    setup = make_problem(train, silos=COMMON)
    nothing = torch.zeros(len(train), -(-setup.silos.common("validation") // 8), dtype=torch.uint8)
    monkeypatch.setattr(correctness_overlap, "collect_correctness", lambda *_: [CorrectnessBits(tuple(train), nothing)])
    played = play(Selective(local_rounds=1, threshold=threshold, regroup_every=1), setup, [1, 2, 3])
    assert played.state.numbers["group"] == {client: at for at, client in enumerate(train)}
    assert played.reports[0].messages[0].endswith(f"; correct on no common row, so alone: {', '.join(train)}")


def test_without_common_rows_it_says_which_key_to_set(make_problem):
    with pytest.raises(UserError, match=r"data\.split\.validation_rows: got no common rows"):
        Selective().init(make_problem(SIZES))


def test_one_client_is_one_group(make_problem, play):
    played = play(Selective(local_rounds=1), make_problem({"only": 9}, silos=COMMON), [1, 2])
    assert played.state.numbers["group"] == {"only": 0}


def test_a_group_may_be_away_when_groups_are_made_anew_and_optimisers_are_kept(laws, play):
    setup = laws()
    setup = replace(setup, training=replace(setup.training, optimiser=Adam(0.01), keeps=True))
    page = Selective(local_rounds=1, regroup_every=1, threshold=0.6)
    played = play(page, setup, [1, 2, 3], absent={2: ["r1", "r2"]})
    assert groups(played.state) == TRUTH


def test_a_group_without_participants_keeps_its_weights_when_groups_are_made_again(laws, play):
    page, setup = Selective(local_rounds=1, regroup_every=1, threshold=0.6), laws()
    first = play(page, setup, [1, 2])
    assert groups(first.state) == TRUTH
    second = play(page, setup, [3], state=first.state, private=first.private, absent={3: ["r1", "r2"]})
    assert groups(second.state) == TRUTH
    for name, w in weights_of(first, "r1").items():
        assert torch.equal(weights_of(second, "r1")[name], w)
    assert any(not torch.equal(weights_of(second, "l1")[name], w) for name, w in weights_of(first, "l1").items())


def test_the_threshold_found_in_the_first_grouping_is_kept_in_later_ones(laws, play):
    """Later groupings train no trial: they take the steps that a fixed threshold takes."""
    options = {"local_rounds": 1, "regroup_every": 1, "overlap": "dot"}
    found = play(Selective(threshold="accuracy", trial_rounds=1, **options), laws(), [1, 2, 3])
    fixed = play(Selective(threshold=0.1, **options), laws(), [1, 2, 3])
    steps = [[sum(round.tally.steps.values()) for round in played.rounds] for played in (found, fixed)]
    assert steps[0][0] > steps[1][0]
    assert steps[0][1:] == steps[1][1:]


@pytest.mark.parametrize("assign", ["complete", "greedy", "first_member"])
@pytest.mark.parametrize("start", ["common", "mean"])
def test_the_threshold_that_is_worth_most_tells_laws_apart(start, assign, laws, play):
    """The same clouds have other names there, so that one model for all is right for half of the clients."""

    def rows_of(client, total):
        x, _ = clusters("l" + client, total)
        return x, np.arange(total) % 2 + 2 * (client[0] == "r")

    page = Selective(local_rounds=2, overlap="dot", threshold="accuracy", trial_rounds=2, start=start, assign=assign)
    played = play(page, laws(MLP(5, (6,), 4), rows_of=rows_of), [1, 2, 3])
    assert groups(played.state) == TRUTH
    assert played.rounds[1].tally.steps["l1"] > played.rounds[0].tally.steps["l1"]  # trials are counted
    assert played.rounds[2].tally.bytes_up < played.rounds[1].tally.bytes_up


@pytest.mark.parametrize("threshold", ["gap", "accuracy"])
def test_where_every_model_diverged_everybody_is_alone_and_named(threshold, setup, play):
    training = replace(setup.training, optimiser=SGD(1e30), epochs=3)
    played = play(Selective(local_rounds=2, threshold=threshold), replace(setup, training=training), [1, 2, 3])
    assert groups(played.state) == [{name} for name in sorted(SIZES)]
    assert "correct on no common row, so alone: a, b, c, d, e" in played.reports[1].messages[0]


def test_a_trial_leaves_kept_optimisers_as_they_were(kept, play):
    """Groups of a trial have, after so many rounds, the weights of phase 2; kept optimisers are as without a trial."""
    page = Selective(local_rounds=2, threshold="accuracy", trial_rounds=2, start="mean")
    tried, plain = (play(p, kept, [1, 2]) for p in (page, Selective(local_rounds=2, threshold=0.0, start="mean")))

    def optimisers(played):
        return {name: refs for name, refs in played.state.private.items() if name.startswith("optimiser")}

    assert {name: {*refs} for name, refs in optimisers(tried).items()} == {
        name: {*refs} for name, refs in optimisers(plain).items()
    }
    for section, refs in optimisers(plain).items():
        for client in refs:
            mine, other = (p.private.load(section, optimisers(p)[section], client) for p in (tried, plain))
            assert all((mine[name] == other[name]).all() for name in other)


def test_groups_of_a_trial_have_the_weights_that_phase_2_gives_them(setup, play):
    played = play(Selective(local_rounds=2, threshold=0.0), setup, [1, 2, 3, 4])
    names, drawn = tuple(SIZES), setup.network.init(server_stream(setup.seed, 0, "init"))
    (tried, _) = correctness_overlap._trained([names, ("a",)], played.rounds[1], 2, lambda _: drawn)
    for name, w in tried.items():
        assert torch.equal(w, played.state.tensors["weights"][name][0])


@pytest.mark.parametrize("alone", [True, False])
def test_the_threshold_is_that_whose_groups_are_worth_most(alone, setup, play, monkeypatch):
    played = play(Selective(local_rounds=2), setup, [1, 2])
    answers, drawn = (
        correctness_overlap.stored_correctness(played.state),
        setup.network.init(server_stream(setup.seed, 0, "init")),
    )

    def worth(groups, *_):
        return {names: dict.fromkeys(names, float((len(names) == 1) == alone)) for names in groups}

    monkeypatch.setattr(correctness_overlap, "_accuracies", worth)
    seed = correctness_overlap.halving_seed(played.rounds[1], False)
    threshold = correctness_overlap.best_threshold(
        answers, played.rounds[1], seed, "jaccard", "complete", 1, lambda _: drawn
    )
    made = dict(candidates.fn(answers, setup.silos.common("validation"), "jaccard", "complete", seed))
    assert all((len(names) == 1) == alone for names in made[threshold])


@pytest.mark.parametrize(
    ("within", "across", "said"),
    [
        (0.9, 0.2, "; pairs overlap by 0.900 or more within groups, by 0.200 or less across"),
        (0.8, 0.85, "; not clearly separated: a pair within a group overlaps by 0.800, and one across groups by 0.850"),
        (None, 0.85, ""),
        (0.9, None, ""),
    ],
)
def test_it_says_how_far_groups_are_apart(within, across, said):
    made = OverlapClusters((("a", "b"), ("c",)), 0.5, ("c",), within, across)
    assert (
        correctness_overlap.groups_message(made)
        == f"2 groups at an overlap of 0.500: a b; c{said}; correct on no common row, so alone: c"
    )
