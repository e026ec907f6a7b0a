"""Pages of docs/examples: methods in one short file each, which nothing in siloflow knows of."""

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from flows.core.plugin_loader import PluginFiles
from flows.methods.base import find_method
from flows.methods.fedavg import FedAvg
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.network_factory import learned
from models.prng import fold_in, server_stream
from models.training.engine import Rows, train
from models.training.optimizers import SGD, Adam
from silos.cohort import Stack, open_stack
from tasks.execution.load_client_data import load_streams

PAGES = {path.stem: str(path) for path in (Path(__file__).parents[3] / "docs" / "examples").glob("*.py")}
PLUGINS = PluginFiles(Path()).load(sorted(PAGES.values()))
SIZES = {"lyon": 40, "oslo": 30, "rome": 23}


def page(name, **options):
    return find_method(name, PLUGINS)(**options)


def with_optimiser(setup, optimiser):
    return replace(setup, training=replace(setup.training, optimiser=optimiser))


def test_they_are_the_four_and_each_is_short():
    assert set(PAGES) == {"fedavgm", "fedbabu", "class_gradients", "kept_adam"}
    for path in PAGES.values():
        assert len(Path(path).read_text(encoding="utf-8").splitlines()) < 60, path


def test_the_page_that_the_docs_show_is_the_file():
    text = (Path(__file__).parents[3] / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(\"\"\"FedAvgM.*?)```", text, re.DOTALL)
    assert shown == Path(PAGES["fedavgm"]).read_text(encoding="utf-8")


def test_fedavgm_without_momentum_is_fedavg(make_problem, play):
    setup = make_problem(SIZES)
    ours = play(page("fedavgm", momentum=0.0), setup, [1, 2, 3]).state.tensors["weights"]
    fedavg = play(FedAvg(), setup, [1, 2, 3]).state.tensors["weights"]
    for name, w in fedavg.items():
        assert torch.allclose(ours[name], w, atol=1e-6)


def test_fedavgm_is_the_recursion(make_problem, play):
    """Of three rounds, with averages that FedAvg gives from the same weights."""
    setup, momentum = make_problem(SIZES), 0.7
    state = FedAvg().init(setup)
    w, v = state.tensors["weights"], {n: torch.zeros_like(t) for n, t in state.tensors["weights"].items()}
    for number in (1, 2, 3):
        average = play(FedAvg(), setup, [number], state=state).state.tensors["weights"]
        v = {n: momentum * v[n] + w[n] - average[n] for n in v}
        w = {n: w[n] - 0.5 * v[n] for n in v}
        state = state.with_tensors(weights=w)
    ours = play(page("fedavgm", momentum=momentum, learning_rate=0.5), setup, [1, 2, 3]).state.tensors["weights"]
    for name in w:
        assert torch.allclose(ours[name], w[name], atol=1e-6)


@pytest.mark.parametrize("kind", ["batched", "sequential"])
def test_fedbabu_trains_the_body_client_by_client_and_keeps_the_head(kind, make_problem, play):
    setup = make_problem(SIZES)
    setup = replace(setup, training=replace(setup.training, engine=kind, batch=100, optimiser=SGD(0.1)))
    found = play(page("fedbabu"), setup, [1, 2]).state.tensors["weights"]
    start = setup.network.init(server_stream(setup.seed, 0, "init"))
    head = {n: t for n, t in start.items() if n.startswith("dense1.")}
    body = {n: t for n, t in start.items() if n not in head}
    for _ in range(2):
        trained = []
        for client in setup.silos.clients:
            rows = open_stack(setup.silos, Stack((client,), 1), "train")
            x, y = torch.from_numpy(rows.x[0]).float(), torch.from_numpy(rows.y[0])
            own = body
            for _ in range(setup.training.epochs):
                leaves = {n: t.clone().requires_grad_() for n, t in own.items()}
                setup.training.objective(setup.network.apply({**leaves, **head}, {}, x, None), y).mean().backward()
                own = {n: (t - 0.1 * t.grad).detach() for n, t in leaves.items()}
            trained.append({n: own[n] * SIZES[client] for n in body})
        body = {n: sum(t[n] for t in trained) / sum(SIZES.values()) for n in body}
    for name, t in body.items():
        assert torch.allclose(found[name], t, atol=1e-6)
    assert head
    assert all(torch.equal(found[name], t) for name, t in head.items())


def test_weights_that_are_fixed_are_the_same_bits_and_have_no_state(make_problem):
    setup = make_problem(SIZES)
    stack = Stack(tuple(SIZES), 3)
    opened = open_stack(setup.silos, stack, "train")
    rows = Rows(*(torch.from_numpy(a) for a in (opened.x, opened.y, opened.rows)))
    drawn = setup.network.init(server_stream(0, 0, "init"))
    weights = {n: w.expand(3, *w.shape) for n, w in drawn.items()}
    streams = fold_in(load_streams(stack, 0, 1, "local_train", "cpu"), 1)
    (some, *_), training = drawn, replace(setup.training, optimiser=Adam(0.1))
    for engine in ("batched", "vmap", "sequential"):
        found = train(setup.network, weights, {}, rows, replace(training, engine=engine), streams, only=[some])
        for name, w in weights.items():
            assert torch.equal(found.weights[name], w) == (name != some)
        assert set(found.optimiser) == {f"mean:{some}", f"square:{some}", "steps"}
    for nothing in ([], ["dense9.weight"], [some, "dense9.weight"]):
        with pytest.raises(ValueError, match="expected names of weights, of which one is trained at least"):
            train(setup.network, weights, {}, rows, training, streams, only=nothing)


@pytest.mark.parametrize(("kind", "strength"), [("batched", 0.0), ("batched", 1.0), ("sequential", 1.5)])
def test_a_class_weighs_as_the_length_of_its_gradient_a_row(kind, strength, make_problem, make_round, play):
    """Strength 0 is FedAvg. Written anew: its objective times a weight of each row's class, from what clients told."""
    setup = make_problem({"lyon": 60, "oslo": 50})
    setup = replace(setup, training=replace(setup.training, engine=kind))
    method, start = page("class_gradients", strength=strength), FedAvg().init(setup)
    step = vars(sys.modules[type(method).__module__])["class_gradients"]
    told = make_round(setup).map_clients(step, FedAvg().model(start, setup), training=setup.training)
    length = sum(m.sums for m in told).norm(dim=1) / sum(m.rows for m in told)
    weight = (length / length.mean()) ** strength
    assert strength == 0 or weight.max() > 1.1 * weight.min()

    @dataclass(frozen=True)
    class Weighing:
        task = "classification"

        def __call__(self, logits, y):
            return setup.training.objective(logits, y) * weight.float()[y]

    weighing = replace(setup, training=replace(setup.training, objective=Weighing()))
    expected = play(FedAvg(), weighing, [1])
    ours = play(method, setup, [1])
    for name, w in expected.state.tensors["weights"].items():
        assert torch.allclose(ours.state.tensors["weights"][name], w, atol=1e-6)
    assert ours.reports[0].metrics["loss/train"] == pytest.approx(expected.reports[0].metrics["loss/train"], abs=1e-5)


def test_the_loss_of_an_ensemble_is_its_members_mean_also_where_a_page_has_put_a_network_around_it(make_problem, play):
    setup = make_problem({"lyon": 60, "oslo": 50})
    setup = replace(setup, network=DeepEnsemble(setup.network, 2))
    ours, fedavg = (play(p, setup, [1]) for p in (page("class_gradients", strength=0.0), FedAvg()))
    assert ours.reports[0].metrics["loss/train"] == pytest.approx(fedavg.reports[0].metrics["loss/train"], abs=1e-6)


def test_class_gradients_are_the_sums_of_softmax_less_one_hot(make_problem, make_round):
    setup = make_problem({"lyon": 60, "oslo": 50, "few": 9})
    method, round = page("class_gradients"), make_round(setup, stack=2)
    state = method.init(setup)
    step = vars(sys.modules[type(method).__module__])["class_gradients"]
    told = round.map_clients(step, method.model(state, setup), training=setup.training)
    rows, sums = sum(m.rows for m in told), sum(m.sums for m in told)
    expected, counts = torch.zeros_like(sums), torch.zeros_like(rows)
    for client in ("lyon", "oslo", "few"):
        opened = open_stack(setup.silos, Stack((client,), 1), "train")
        x, y = torch.from_numpy(opened.x[0]).float(), torch.from_numpy(opened.y[0])
        p = torch.softmax(setup.network.apply(state.tensors["weights"], {}, x, None), -1)
        for c in range(len(sums)):
            if (y == c).sum() >= 10:
                counts[c] += (y == c).sum()
                expected[c] += (p - torch.nn.functional.one_hot(y, len(sums)))[y == c].double().sum(0)
    assert torch.equal(rows, counts)
    assert torch.allclose(sums, expected, atol=1e-5)
    assert round.tally.bytes_up == 4 * 3 * (len(sums) ** 2 + len(sums))
    assert round.tally.bytes_down == 0


def test_kept_state_of_adam_goes_on_where_it_was(make_problem, play):
    """With one client, two rounds of one epoch are two epochs; fresh state is another result; SGD has no state to keep."""
    setup = with_optimiser(make_problem({"lyon": 40}), Adam(0.01))
    setup = replace(setup, training=replace(setup.training, epochs=1, batch=100))
    kept, fresh = (play(p, setup, [1, 2]).state.tensors["weights"] for p in (page("kept_adam"), FedAvg()))
    longer = replace(setup, training=replace(setup.training, epochs=2))
    whole = play(FedAvg(), longer, [1]).state.tensors["weights"]
    for name in whole:
        assert torch.allclose(kept[name], whole[name], atol=1e-6)
    assert not all(torch.allclose(fresh[n], whole[n], atol=1e-4) for n in whole)
    plain = with_optimiser(setup, SGD(0.1))
    ours, theirs = (play(p, plain, [1, 2]).state.tensors["weights"] for p in (page("kept_adam"), FedAvg()))
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)


def test_the_state_that_is_kept_is_weights_only_of_those_that_learn(make_problem, play):
    setup = with_optimiser(make_problem(SIZES), Adam(0.01))
    played = play(page("kept_adam"), setup, [1, 2])
    refs = played.state.private["optimiser"]
    assert set(refs) == set(SIZES)
    weights = setup.network.init(server_stream(0, 0, "init"))
    kept = played.private.load_stack("optimiser", refs, list(SIZES))
    assert len(kept) >= 2 * len(learned(setup.network, weights))
    assert set(played.state.tensors) == {"weights"}  # and the server has none of it
