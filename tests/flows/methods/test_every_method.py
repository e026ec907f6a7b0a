"""What every method must do, whichever it is: found through the registry."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flows.core.plugin_loader import PluginFiles
from flows.methods.base import Method, find_method, method_names, start_method
from models import prng
from models.server_state import ClientStateRefs
from models.training.engine import per_example_metrics
from models.training.optimizers import Adam
from silos.client_store import ClientStore
from silos.cohort import Stack
from silos.errors import MethodError, UserError
from tasks.aggregate import Aggregation
from tasks.evaluate import evaluate
from tasks.execution.load_client_data import load_rows, load_weights
from tasks.tracking.checkpoint import load_state, save_state
from tasks.tracking.result_tables import by_client, summary

CLIENTS = {"oslo": 11, "lyon": 7, "one": 1, "same": 6, "rome": 9}  # one row only; one class only
ROWS = {"one_class": "same"}


EXAMPLES = {path.stem: str(path) for path in (Path(__file__).parents[3] / "docs" / "examples").glob("*.py")}
PLUGINS = PluginFiles(Path()).load(sorted(EXAMPLES.values()))


WITHOUT_CHANCE = {"Trees"}  # nothing is drawn

ONE_FOR_ALL = {"fedbn"}  # clients differ where networks normalise, and the one here does not

SOON = {
    "selective": {"local_rounds": 2},
    "selective_authors": {"local_rounds": 1},
    "flux": {"warm_up": 1},
}  # what comes late in a run comes in a few rounds


@pytest.fixture(params=method_names(PLUGINS))
def page(request) -> Method:
    return find_method(request.param, PLUGINS)(**SOON.get(request.param, {}))


@pytest.fixture
def fitting(make_problem):
    """A problem that the page takes: with common validation rows for one that asks for them."""

    def build(page, clients, seed=0, **silos):
        setup = make_problem(clients, seed=seed, silos=silos)
        try:
            page.init(setup)
        except UserError as error:
            if "no common rows, expected some" not in str(error):
                raise
            setup = make_problem(clients, seed=seed, silos={**silos, "common": ["validation"]})
        return setup

    return build


@pytest.fixture
def setup(page, fitting):
    return fitting(page, CLIENTS, **ROWS)


def test_one_round_runs_and_teaches_something(page, setup, play):
    played = play(page, setup, [1])
    assert played.state.sha256() != page.init(setup).sha256()
    assert played.rounds[0].tally.seconds
    assert all(torch.isfinite(torch.tensor(v)) for v in played.reports[0].metrics.values())
    before, after = (_loss(page, setup, state, played) for state in (page.init(setup), _more(page, played, play)))
    assert after < before


@pytest.mark.slow
def test_the_start_is_the_same_for_a_seed_and_another_for_another(page, setup, fitting):
    assert page.init(setup).sha256() == page.init(setup).sha256()
    if type(page).__name__ in WITHOUT_CHANCE:
        return
    first, second = (page.model(page.init(p), p) for p in (setup, fitting(page, CLIENTS, seed=1, **ROWS)))
    start = [
        {**m.shared, **(m.personal.start if isinstance(m.personal, ClientStateRefs) else m.personal)}
        for m in (first, second)
    ]
    assert not all(torch.equal(start[0][n], start[1][n]) for n in start[0])


@pytest.mark.slow
def test_its_state_survives_a_write_and_a_read(page, setup, play, tmp_path):
    state = play(page, setup, [1]).state
    save_state(tmp_path / "checkpoint", state, 1)
    read, number, _ = load_state(tmp_path / "checkpoint")
    assert (number, read.sha256()) == (1, state.sha256())


def test_a_resumed_run_is_bit_identical(page, setup, play, tmp_path):
    """Four rounds, and two rounds, a new process's view of the folder, two rounds."""
    whole = play(page, setup, [1, 2, 3, 4], private=ClientStore(str(tmp_path / "whole")))
    half = play(page, setup, [1, 2], private=ClientStore(str(tmp_path / "half")))
    save_state(tmp_path / "checkpoint", half.state, 2)
    state, number, _ = load_state(tmp_path / "checkpoint")
    rest = [number + 1, number + 2]
    resumed = play(page, setup, rest, state=state, private=ClientStore(str(tmp_path / "half")))
    assert resumed.state.sha256() == whole.state.sha256()
    assert resumed.reports == whole.reports[2:]


@pytest.mark.sample(2)
def test_optimisers_that_are_kept_go_on_in_a_resumed_run(page, setup, play, tmp_path):
    setup = replace(setup, training=replace(setup.training, optimiser=Adam(0.01), keeps=True))
    whole, half = ({"private": ClientStore(str(tmp_path / name)), "stack": 2} for name in ("whole", "half"))
    try:
        expected = play(page, setup, [1, 2, 3], **whole)
    except UserError as error:
        if "expected plain sgd" not in str(error) and not (
            isinstance(error, MethodError) and "resets its" in str(error)
        ):
            raise
        pytest.skip("a method whose step has no such argument, or takes one optimizer only")
    save_state(tmp_path / "checkpoint", play(page, setup, [1, 2], workers=2, **half).state, 2)
    state, _, _ = load_state(tmp_path / "checkpoint")
    resumed = play(page, setup, [3], state=state, workers=2, **half)
    assert resumed.state.sha256() == expected.state.sha256()
    assert resumed.reports == expected.reports[2:]


@pytest.mark.slow
def test_dealing_does_not_matter(page, setup, play):
    one, more = (play(page, setup, [1, 2], workers=n, stack=2) for n in (1, 2))
    assert one.state.sha256() == more.state.sha256()
    assert one.reports == more.reports
    for name in ("bytes_up", "bytes_down"):
        assert getattr(one.rounds[0].tally, name) == getattr(more.rounds[0].tally, name)


@pytest.mark.slow
def test_both_engines_learn_the_same_to_rounding(page, setup, play, sequential):
    losses = [_loss(page, p, (d := play(page, p, [1])).state, d) for p in (setup, sequential(setup))]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.slow
def test_a_client_with_one_row_or_one_class_does_not_break_it(page, fitting, play):
    for clients in ({"one": 1}, {"same": 6}, {"one": 1, "same": 6}):
        setup = fitting(page, clients, one_class="same", validation=1, test=1)
        played = play(page, setup, [1, 2, 3])
        assert _loss(page, setup, played.state, played) < 10


@pytest.mark.slow
def test_its_model_answers_for_each_client(page, setup, play):
    played = play(page, setup, [1])
    model = page.model(played.state, setup)
    assert set(model.clients) == set(CLIENTS)
    one = any(isinstance(page, find_method(name)) for name in ONE_FOR_ALL)
    assert model.is_personal == (page.tested_model == "personal" and not one)
    for client in CLIENTS:
        stack = Stack((client,), 1)
        weights, context = load_weights(model.select([client]), stack, played.private, "cpu")
        rows = load_rows(setup.silos, stack, "test", "cpu")
        found = per_example_metrics(model.network, weights, context, rows, setup.training.objective)
        assert torch.isfinite(found["loss"]).all()
    scores = played.rounds[0].map_clients(evaluate, model, silos=setup.silos, training=setup.training)
    table = by_client(scores)
    assert set(table) == set(CLIENTS)
    assert set(summary(table, "test")) == set(summary(table, "validation")) != set()


@pytest.mark.slow
def test_clients_that_drop_out_leave_everything_finite(page, setup, play):
    absent = {1: ["oslo", "one"], 2: ["lyon", "same", "rome", "oslo"], 3: []}
    played = play(page, setup, [1, 2, 3], absent=absent)
    for section in played.state.tensors.values():
        assert all(torch.isfinite(t).all() for t in section.values())
    assert _loss(page, setup, played.state, played) < 10
    assert all(torch.isfinite(torch.tensor(v)) for r in played.reports for v in r.metrics.values())


@pytest.mark.slow
def test_clients_that_leave_are_called_no_more_are_scored_still_and_change_nothing_where_the_page_says_nothing(
    page, setup, play, tmp_path
):
    """A page without `leave` ends where it would had they dropped out of every round since."""
    gone, private = ["oslo", "same"], [ClientStore(str(tmp_path / name)) for name in ("left", "absent")]
    left = play(page, setup, [1, 2, 3], leave={2: gone}, private=private[0])
    assert all({*gone} & {*round.clients} == set() for round in left.rounds[1:])
    for section in left.state.tensors.values():
        assert all(torch.isfinite(t).all() for t in section.values())
    assert _loss(page, setup, left.state, left) < 10
    if type(page).leave is Method.leave:
        absent = play(page, setup, [1, 2, 3], absent={2: gone, 3: gone}, private=private[1])
        assert left.state.sha256() == absent.state.sha256()
        assert left.reports == absent.reports


@pytest.mark.slow
def test_a_client_that_never_took_part_still_has_a_model(page, setup, play):
    played = play(page, setup, [1], absent={1: ["oslo"]})
    assert _loss(page, setup, played.state, played) < 10


@pytest.mark.slow
def test_a_round_changes_neither_the_state_nor_the_silos_it_was_given(page, setup, play):
    state = play(page, setup, [1]).state
    before = state.sha256()
    play(page, setup, [2], state=state)
    assert state.sha256() == before


OWN_STEPS = {"FedBABU"}  # a plugin whose step sends sums only


@pytest.mark.slow
def test_it_averages_robustly_or_says_that_it_cannot(page, setup, play):
    """Methods that do not average, such as local_only and pooled, are the same with it."""
    robust = replace(setup, aggregation=Aggregation(clip=0.01))
    if not page.takes_aggregation:
        with pytest.raises(UserError, match=r"aggregation: got clip: 0\.01, expected clip: null and rule: mean, since"):
            start_method(page, robust)
        return
    if type(page).__name__ in OWN_STEPS:
        with pytest.raises(UserError, match="of this method takes no argument `each`"):
            play(page, robust, [1])
        return
    ours, plain = (play(page, one, [1, 2]) for one in (robust, setup))
    sections = zip(ours.state.tensors.items(), plain.state.tensors.values(), strict=True)
    moved = {n: not torch.equal(w, b[n]) for (_, a), b in sections for n, w in a.items()}
    name = type(page).__name__
    assert any(moved.values()) == (name not in ("LocalOnly", "Pooled")), name
    for round, other in zip(ours.rounds, plain.rounds, strict=True):
        assert (round.tally.bytes_up, round.tally.bytes_down) == (other.tally.bytes_up, other.tally.bytes_down)


WORDS = {"arm": "paper", "words": 3, "first_rounds": 1, "more_rounds": 1, "tolerance": -1.0}
VARIANTS = [
    ("selective", {"local_rounds": 1, "regroup_every": 1, "start": "mean"}),
    ("uefl", {**WORDS, "passes": 2}),
    ("uefl", {**WORDS, "fill": "random"}),
    ("uefl", {**WORDS, "extend": "random"}),
    ("uefl", {**WORDS, "start": "centres", "extend": "shared"}),
    ("uefl_authors", {name: value for name, value in WORDS.items() if name != "arm"}),
    ("vq_oracle", {"warm_up": 0, "words": 3}),
    ("ifca", {"restarts": 2}),
    *(("conditional", {"source": source}) for source in ("random", "permuted", "pooled")),
    *(("conditional", {"arm": arm}) for arm in ("fedsgd", "pooled")),
    (  # of so few rows the usual kl_weight of visits in turn is too steep for SGD: docs/methods/virtual.md
        "virtual",
        {
            "visits": "sequential",
            "refinements": 2,
            "kl_weight": 1e-4,
            "site": "clipped",
            "noise": "flipout",
            "bias": "gaussian",
        },
    ),
    (
        "virtual",
        {"site": "free", "noise": "naive", "upload": 0.3, "answers": ["own_refreshed", "own_called", "server"]},
    ),
    *(("virtual", {"columns": lateral, "answers": ["own"]}) for lateral in ("beside", "within")),
]
DRAWING = [*((name, SOON.get(name, {})) for name in method_names()), *VARIANTS]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), DRAWING)
def test_all_that_it_draws_has_the_runs_seed_and_the_round_in_its_name(name, options, fitting, play, monkeypatch):
    """Starts are of round 0, and so are controls, which must not change with the round.

    What starts once more in round 5, as phase 2 of `selective`, counts rounds from there.
    """
    page, drawn, named = find_method(name)(**options), [], prng._hash_name

    def hear(seed, client, round, purpose):
        drawn.append((seed, client, round, purpose))
        return named(seed, client, round, purpose)

    monkeypatch.setattr(prng, "_hash_name", hear)
    setup = fitting(page, CLIENTS, seed=7, **ROWS)
    setup = replace(setup, network=replace(setup.network, dropout=0.2))
    state = play(page, setup, [5]).state
    page.scored_model(state, play(page, setup, [6], state=state).rounds[0])
    assert {seed for seed, *_ in drawn} == (set() if type(page).__name__ in WITHOUT_CHANCE else {7})
    always = {purpose for *_, round, purpose in drawn if round == 0}
    assert all(purpose.startswith("init") or purpose.endswith("statistics") for purpose in always)
    later = {(round, purpose) for *_, round, purpose in drawn if purpose not in always}
    assert {round for round, _ in later} <= ({5, 1} if options == SOON["selective"] else {5, 6})
    assert later or "fedsgd" in (name, options.get("arm")) or name == "trees", "one gradient of all rows needs no order"


EVERYTHING = [*DRAWING, *((name, {}) for name in EXAMPLES)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), EVERYTHING)
def test_every_client_that_trains_can_tell_its_validation_loss_and_trains_as_if_it_did_not(
    name, options, fitting, play
):
    """But for methods whose clients send gradients or trees, and a page of the docs whose step has no such argument."""
    page = find_method(name, PLUGINS)(**options)
    setup = fitting(page, CLIENTS, validation=12, **ROWS)
    if name == "fedbabu":
        with pytest.raises(MethodError, match=r"clients\.sampling\.kind: got improving, expected uniform or by_size"):
            play(page, setup, [1], validate=True)
        return
    asked, plain = (play(page, setup, [1, 2], absent={2: ["oslo"]}, validate=asks) for asks in (True, False))
    assert asked.state.sha256() == plain.state.sha256()
    for round in asked.rounds:
        assert set(round.validation) == (
            set() if {"fedsgd", "trees"} & {name, options.get("arm")} else set(round.clients)
        )
        assert all(math.isfinite(loss) for pair in round.validation.values() for loss in pair)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), EVERYTHING)
def test_the_sequential_engine_runs_functions_of_one_client_only(
    name, options, fitting, play, sequential, without_stacks
):
    page = find_method(name, PLUGINS)(**options)
    setup = sequential(fitting(page, CLIENTS, **ROWS))
    played = play(page, setup, [1, 2])
    round = played.rounds[-1]
    round.map_clients(evaluate, page.scored_model(played.state, round), training=setup.training)


@pytest.mark.parametrize("page", ["fedavg", "uefl"], indirect=True)
def test_the_batched_engine_runs_forms_for_a_stack(page, setup, play, without_stacks):
    with pytest.raises(AssertionError, match="is for a stack"):
        play(page, setup, [1])


def _more(page, played, play):
    return play(page, played.setup, range(2, 8), state=played.state).state


def _loss(page, setup, state, played) -> float:
    model = page.model(state, setup)
    round = played.rounds[0]
    scores = round.map_clients(evaluate, model, silos=setup.silos, training=setup.training, splits=("train",))
    loss = summary(by_client(scores), "train")["loss/mean"]
    assert loss == loss
    return loss
