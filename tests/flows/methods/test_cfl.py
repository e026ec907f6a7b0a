"""CFL and its reductions (Sattler et al. 2019)."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from flows.methods.cfl import CFL
from flows.methods.common.group_training import Tree
from flows.methods.fedavg import FedAvg
from models.client_model import Model
from models.networks.resnet_vgg import Residual
from models.training.optimizers import SGD
from tasks.aggregate import aggregate
from tasks.local_train import local_train

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}
OPPOSED = {"a": (4, 1, 2), "b": (4, 1, 4), "c": (4, 1, 4), "d": (4, 1, 2), "e": (4, 1, 5), "f": (4, 1, 1)}  # start 3
LOW, HIGH = {"a", "d", "f"}, {"b", "c", "e"}
ALWAYS = {"mean_below": 1e9, "longest_above": 0.0}


def clusters(played) -> list[set[str]]:
    held: dict[int, set[str]] = {}
    for client in played.setup.silos.clients:
        held.setdefault(Tree.from_state(played.state).node_of(client), set()).add(client)
    return sorted(held.values(), key=min)


def test_a_bound_of_0_on_the_mean_is_fedavg_to_the_bit(make_problem, play):
    setup, absent = make_problem(SIZES), {2: ["b", "e"]}
    cfl, fedavg = (play(page, setup, [1, 2, 3], absent=absent) for page in (CFL(mean_below=0), FedAvg()))
    for name, w in fedavg.state.tensors["weights"].items():
        assert torch.equal(cfl.state.tensors["weights"][name], w[None])
    for ours, theirs in zip(cfl.reports, fedavg.reports, strict=True):
        assert ours.metrics["loss/train"] == theirs.metrics["loss/train"]
    for ours, theirs in zip(cfl.rounds, fedavg.rounds, strict=True):
        assert (ours.tally.bytes_up, ours.tally.bytes_down) == (theirs.tally.bytes_up, theirs.tally.bytes_down)


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_without_bounds_every_round_splits_down_to_clusters_of_two_at_most(linkage, make_problem, play):
    setup = make_problem({f"c{i}": 6 + i for i in range(7)})
    page = CFL(**ALWAYS, linkage=linkage)
    counts = [r.metrics["clusters"] for r in play(page, setup, range(1, 8)).reports]
    assert counts[:3] == sorted(set(counts[:3]))  # at least one more a round
    final = clusters(play(page, setup, range(1, 8)))
    assert max(len(c) for c in final) <= 2
    assert sorted(c for cluster in final for c in cluster) == sorted(setup.silos.clients)


def test_two_groups_with_opposite_gradients_split_exactly_in_one_step(quadratic, play):
    played = play(CFL(mean_below=0.01, longest_above=0.05), quadratic(OPPOSED), [1])
    assert clusters(played) == [LOW, HIGH]
    tree = played.state
    assert tree.numbers["parent"] == [None, 0, 0]
    assert tree.tensors["weights"]["w"][0].item() == 3  # where the updates left from
    assert torch.equal(tree.tensors["weights"]["w"][1], tree.tensors["weights"]["w"][2])
    assert tree.tensors["toward"]["w"][1].item() == pytest.approx(-1)  # a, the first by name, goes down
    assert tree.tensors["toward"]["w"][2].item() == pytest.approx(1)


def test_a_cluster_that_was_split_keeps_the_weights_that_the_updates_left_from(quadratic, play):
    """Its children go on from the average: 3 less 0.1 times the mean of 3 - m."""
    played = play(CFL(**ALWAYS), quadratic({"a": (4, 1, 2), "b": (4, 1, 4), "c": (4, 1, 9)}), [1])
    assert played.state.tensors["weights"]["w"][:, 0].tolist() == pytest.approx([3, 3.2, 3.2], abs=1e-12)
    assert played.state.tensors["weights"]["w"][0].item() == 3


def test_after_a_split_each_part_goes_on_as_fedavg_among_its_clients(quadratic, play):
    setup = quadratic(OPPOSED)
    page = CFL(mean_below=0.01, longest_above=0.15)
    played = play(page, setup, range(1, 61))
    ends = [played.state.tensors["weights"]["w"][node].item() for node in (1, 2)]
    assert ends == pytest.approx([(2 + 2 + 1) / 3, (4 + 4 + 5) / 3], abs=0.02)


@pytest.mark.parametrize(
    ("below", "above", "splits"),
    [(0.0, 0.05, False), (0.01, 0.3, False), (0.01, 0.19, True), (0.01, 0.201, False), (1e-9, 0.0, True)],
)
def test_both_bounds_must_be_passed(below, above, splits, quadratic, play):
    """The mean update is 0, the longest 0.1 * 2."""
    played = play(CFL(mean_below=below, longest_above=above), quadratic(OPPOSED), [1])
    assert (len(clusters(played)) == 2) == splits
    assert played.reports[0].metrics["update/mean"] == pytest.approx(0, abs=1e-12)
    assert played.reports[0].metrics["update/longest"] == pytest.approx(0.2)


def test_the_longest_update_must_exceed_its_bound_and_not_only_reach_it(quadratic, play):
    setup = quadratic(OPPOSED)
    longest = play(CFL(), setup, [1]).reports[0].metrics["update/longest"]
    for bound, parts in ((longest, 1), (math.nextafter(longest, 0), 2)):
        assert len(clusters(play(CFL(mean_below=0.01, longest_above=bound), setup, [1]))) == parts


def test_bounds_that_are_not_given_are_shares_of_the_first_rounds_longest_update(quadratic, play):
    """At first the mean is above a tenth of it; near the stationary point it is below, and the longest above .2 of it."""
    setup = quadratic({"a": (4, 1, 2), "b": (4, 1, 4), "c": (4, 1, 6), "d": (4, 1, 2)})  # mean 3.5, start 3
    played = play(CFL(), setup, range(1, 30))
    counts = [r.metrics["clusters"] for r in played.reports]
    assert counts[0] == 1
    assert counts[-1] > 1
    parted = counts.index(2)
    means = [r.metrics["update/mean"] for r in played.reports]
    assert means[parted] < 0.03 <= means[parted - 1]  # the first longest update is 0.1 * 3


@pytest.mark.parametrize("bound", [0.001, 0.1, 1e9])
def test_clients_that_are_alike_never_split(bound, make_problem, play):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)), rng.integers(0, 3, 60)
    setup = make_problem(
        dict.fromkeys("abcd", 12), batch=100, silos={"rows_of": lambda _, total: (x[:total], y[:total])}
    )
    played = play(CFL(mean_below=bound, longest_above=bound), setup, range(1, 6))
    assert clusters(played) == [{"a", "b", "c", "d"}]
    guarded = play(CFL(**ALWAYS, separation=0.1), setup, range(1, 4))
    assert clusters(guarded) == [{"a", "b", "c", "d"}]
    assert len(clusters(play(CFL(**ALWAYS), setup, [1]))) == 2


def test_clients_that_pull_apart_pass_the_separation(quadratic, play):
    page = CFL(mean_below=0.01, longest_above=0.05, separation=0.999)  # cosine -1 across
    assert clusters(play(page, quadratic(OPPOSED), [1])) == [LOW, HIGH]


def test_the_order_of_the_clients_is_nothing(quadratic, play):
    setup, page = quadratic(OPPOSED), CFL(mean_below=0.01, longest_above=0.05)
    turned = replace(setup, silos=setup.silos.select(setup.silos.clients[::-1]))
    one, other = (play(page, p, range(1, 6)) for p in (setup, turned))
    assert one.state.sha256() == other.state.sha256()


def test_running_statistics_are_in_no_length_and_no_cosine(make_problem, make_round, play):
    """They follow a client's rows, not what it learned; here they are nearly all of an update."""

    def rows_of(client, total):
        rng = np.random.default_rng(list(client.encode()))
        return rng.normal(0, 9, size=(total, 8, 8)), rng.integers(0, 3, total)

    network = Residual((8, 8), 3, (6,), 0.0, True, (4, 8))
    setup = make_problem(SIZES, network=network, optimiser=SGD(0.001), silos={"rows_of": rows_of})
    page, round = CFL(**ALWAYS), make_round(setup)
    start = page.init(setup)
    current = {name: w[0] for name, w in start.tensors["weights"].items()}
    sent = round.train(local_train, Model(network, shared=current, clients=round.clients), each=True)
    state, report = page.run_round(start, round)
    expected = {}
    for update in sent:
        moved = {n: w - current[n] for n, w in update.each.items() if n not in network.buffers}
        lengths = sum((w.double() ** 2).flatten(1).sum(1) for w in moved.values()).sqrt()
        expected |= dict(zip(update.clients, lengths.tolist(), strict=True))
    assert report.client_metrics["update"] == pytest.approx(expected)
    assert report.metrics["update/longest"] == pytest.approx(max(expected.values()))
    assert set(state.tensors["toward"]) == set(current) - set(network.buffers)
    average = aggregate.fn(sent, current)
    step = sum(float(((average[n] - current[n]).double() ** 2).sum()) for n in state.tensors["toward"]) ** 0.5
    assert report.metrics["update/mean"] == pytest.approx(step)
    assert split_of(state) == best_split(sent, current, set(state.tensors["toward"]))
    assert split_of(state) != best_split(sent, current, set(current))  # buffers would have parted others


def test_a_fresh_client_is_asked_where_batches_normalise_too(make_problem, make_round, play):
    def rows_of(client, total):
        rng = np.random.default_rng(list(client.encode()))
        return rng.normal(0, 9, size=(total, 8, 8)), rng.integers(0, 3, total)

    network = Residual((8, 8), 3, (6,), 0.0, True, (4, 8))
    everybody = make_problem(SIZES, network=network, optimiser=SGD(0.001), silos={"rows_of": rows_of})
    state = play(CFL(**ALWAYS), replace(everybody, silos=everybody.silos.select("abcd")), [1]).state
    assert set(CFL().scored_model(state, make_round(everybody)).clients) == set(SIZES)


def split_of(state) -> set[frozenset[str]]:
    cluster = state.numbers["cluster"]
    return {frozenset(c for c in cluster if cluster[c] == node) for node in cluster.values()}


def best_split(sent, current, names) -> set[frozenset[str]]:
    """The two parts whose largest cosine across is least, of all that there are."""
    moved = {
        c: [(u.each[n][at] - current[n]).double().ravel() for n in sorted(names)]
        for u in sent
        for at, c in enumerate(u.clients)
    }
    units = {client: np.concatenate(parts) for client, parts in moved.items()}
    units = {client: unit / np.linalg.norm(unit) for client, unit in units.items()}
    parts = [set(part) for size in range(1, len(units)) for part in itertools.combinations(units, size)]
    across = [max(units[a] @ units[b] for a in part for b in units.keys() - part) for part in parts]
    best = parts[int(np.argmin(across))]
    return {frozenset(best), frozenset(units.keys() - best)}


def test_a_cluster_splits_only_in_a_round_in_which_all_of_it_takes_part(quadratic, play):
    page = CFL(**ALWAYS)
    played = play(page, quadratic(OPPOSED), [1, 2, 3], absent={1: ["a"], 2: ["e"]})
    assert [r.metrics["clusters"] for r in played.reports] == [1, 1, 2]


class LookedUpOnly(dict):
    """Says who is asked for, and cannot be gone through."""

    def values(self):
        pytest.fail("all clients are gone through")

    __iter__ = keys = items = values


def test_a_round_looks_at_those_that_are_called_and_a_root_that_is_whole_names_nobody(quadratic, play):
    setup = quadratic(OPPOSED)
    few = play(CFL(**ALWAYS), setup, [1, 2], absent={1: ["a", "b", "c"], 2: ["e"]})
    assert few.state.numbers["cluster"] == {}
    split = play(CFL(**ALWAYS), setup, [1])
    known = LookedUpOnly(split.state.numbers["cluster"])
    state = split.state.with_numbers(cluster=known)
    again = play(CFL(mean_below=0), setup, [2], state=state, absent={2: ["a", "b", "e"]})
    assert again.reports[0].metrics["clusters"] == 2
    assert again.reports[0].client_metrics["cluster"] == {c: float(dict.__getitem__(known, c)) for c in ("c", "d", "f")}


def test_the_state_of_an_earlier_version_which_names_everybody_goes_on_alike(quadratic, play):
    setup, page = quadratic(OPPOSED), CFL(mean_below=0.01, longest_above=0.05)
    begun = page.init(setup)
    earlier = begun.with_numbers(cluster=dict.fromkeys(setup.silos.clients, 0))
    one, other = (play(page, setup, [1, 2, 3], state=state) for state in (begun, earlier))
    assert one.state.sha256() == other.state.sha256()


def test_the_first_rounds_can_be_left_to_fedavg(quadratic, play):
    played = play(CFL(**ALWAYS, after_round=2), quadratic(OPPOSED), [1, 2, 3])
    assert [r.metrics["clusters"] for r in played.reports] == [1, 1, 2]


def test_a_fresh_client_goes_down_the_tree_to_the_part_whose_direction_is_its_own(quadratic, make_round, play):
    everybody = quadratic({**OPPOSED, "x": (3, 1, -4), "y": (2, 1, 9)})
    setup = replace(everybody, silos=everybody.silos.select(list(OPPOSED)))
    page = CFL(mean_below=0.01, longest_above=0.05)
    played = play(page, setup, range(1, 10))
    low, high = (played.state.tensors["weights"]["w"][node].item() for node in (1, 2))
    before = played.state.sha256()
    model = page.scored_model(played.state, make_round(everybody))
    answers = dict(zip(model.clients, model.personal["w"][:, 0].tolist(), strict=True))
    assert answers == {**dict.fromkeys(LOW | {"x"}, low), **dict.fromkeys(HIGH | {"y"}, high)}
    assert played.state.sha256() == before


def test_two_levels_of_the_tree_are_gone_down(make_problem, make_round, play):
    """Four laws, each client on one of four axes; a fresh client of each law ends beside its fellows."""

    def rows_of(client, total):
        law = int(client[1])
        y = np.arange(total) % 4
        x = np.zeros((total, 5))
        x[np.arange(total), y] = 3.0
        return x, (y + law) % 4

    names = [f"l{law}{i}" for law in range(4) for i in range(4)]
    everybody = make_problem(dict.fromkeys(names, 16), batch=100, optimiser=SGD(0.5), silos={"rows_of": rows_of})
    everybody = replace(everybody, network=type(everybody.network)(5, (), 4))
    setup = replace(everybody, silos=everybody.silos.select([n for n in names if not n.endswith("3")]))
    page = CFL(mean_below=0.2, longest_above=0.2)
    played = play(page, setup, range(1, 12))
    assert clusters(played) == [{f"l{law}{i}" for i in range(3)} for law in range(4)]
    model = page.scored_model(played.state, make_round(everybody))
    at = {client: place for place, client in enumerate(model.clients)}
    for law in range(4):
        for w in model.personal.values():
            assert torch.equal(w[at[f"l{law}3"]], w[at[f"l{law}0"]])


def test_clients_that_left_or_never_train_are_not_waited_for(quadratic, play):
    setup = quadratic(OPPOSED)
    page = CFL(mean_below=0.05, longest_above=0.05)
    assert clusters(play(page, setup, [1, 2], absent={1: ["f"], 2: ["f"]})) == [{*OPPOSED}]  # f may come
    assert clusters(play(page, setup, [1, 2], leave={1: ["f"]})) == [LOW - {"f"}, HIGH, {"f"}]


def test_a_cluster_splits_again_after_one_of_its_clients_left(quadratic, play):
    setup, page = quadratic({f"c{i}": (4, 1, i) for i in range(8)}), CFL(**ALWAYS)
    stuck = play(page, setup, [1, 2, 3, 4], absent={number: ["c7"] for number in (2, 3, 4)})
    free = play(page, setup, [1, 2, 3, 4], leave={2: ["c7"]})
    assert Tree.from_state(free.state).num_clusters > Tree.from_state(stuck.state).num_clusters
