"""The conditional method: its reductions, who has a model, what stays, and that it learns what one model cannot."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from flows.methods.conditional import Conditional
from flows.methods.fedavg import FedAvg
from flows.methods.fedsgd import FedSGD
from flows.project.project import Project
from flows.training.training_setup import training_setup
from models.metrics.task_metrics import TASK_METRICS
from models.networks.cnn import CNN
from models.networks.mlp import MLP
from models.networks.network_factory import num_parameters
from models.training.objectives import SquaredError
from models.training.optimizers import SGD, Adam
from silos.client_store import ClientStore
from silos.errors import UserError
from tasks.evaluate import evaluate
from tasks.tracking.checkpoint import load_state, save_state
from tasks.tracking.result_tables import by_client, summary

pytestmark = pytest.mark.slow

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}
DOMAINS = {"a": "east", "b": "east", "c": "east", "d": "west", "e": "west"}
FEATURES, CLASSES, LENGTH = 5, 3, 15
RMSE = TASK_METRICS["regression"]
SOURCES = ("local", "zeros", "pooled", "random", "permuted", "client_id", "cluster_id")


@pytest.mark.parametrize(("arm", "reference"), [("fedavg", FedAvg), ("fedsgd", FedSGD)])
def test_with_zeros_it_is_the_reference_that_is_as_large_to_the_bit(arm, reference, make_problem, play):
    absent = {2: ["b", "e"]}
    ours = play(Conditional(source="zeros", arm=arm), make_problem(SIZES), [1, 2, 3], absent=absent)
    large = make_problem(SIZES, network=MLP(FEATURES, (6,), CLASSES, statistics=LENGTH))
    theirs = play(reference(), large, [1, 2, 3], absent=absent)
    for name, w in theirs.state.tensors["weights"].items():
        assert torch.equal(ours.state.tensors["weights"][name], w)
    assert (ours.rounds[0].tally.bytes_up, ours.rounds[0].tally.bytes_down) == (
        theirs.rounds[0].tally.bytes_up,
        theirs.rounds[0].tally.bytes_down,
    )


def test_with_zeros_the_further_inputs_never_move_and_the_others_follow_fedavg(make_problem, play):
    setup, page = make_problem(SIZES), Conditional(source="zeros")
    start = page.init(setup)
    wide = start.tensors["weights"]["dense0.weight"]
    narrow = {**start.tensors["weights"], "dense0.weight": wide[:FEATURES]}
    ours = play(page, setup, [1, 2, 3], state=start).state.tensors["weights"]
    fedavg = FedAvg().init(setup).with_tensors(weights=narrow)
    theirs = play(FedAvg(), setup, [1, 2, 3], state=fedavg).state.tensors["weights"]
    assert torch.equal(ours["dense0.weight"][FEATURES:], wide[FEATURES:])
    torch.testing.assert_close(ours["dense0.weight"][:FEATURES], theirs["dense0.weight"], rtol=0, atol=1e-6)
    for name in ("dense0.bias", "dense1.weight", "dense1.bias"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)


def test_model_statistics_makes_every_other_method_as_large(project):
    setup = training_setup(Project.open(["model.statistics=640"], project, derived=True), 0)
    plain = training_setup(Project.open([], project, derived=True), 0)
    assert setup.network == MLP(64, (8,), 10, statistics=640)
    assert plain.network == MLP(64, (8,), 10)
    weights = (page.init(p).tensors["weights"] for page, p in ((FedAvg(), setup), (Conditional(), plain)))
    assert len({num_parameters(w) for w in weights}) == 1


@pytest.mark.parametrize("form", ["joined", "bilinear", "ensemble"])
def test_gradients_of_clients_make_the_step_of_their_rows_together(form, make_problem, play):
    """FedSGD is the pooled arm in one full batch: the same model, on rows beside their own client's statistics."""
    setup = make_problem(SIZES, epochs=1, batch=100, optimiser=SGD(0.1))
    one, other = (
        play(Conditional(form=form, arm=arm), setup, [1, 2, 3]).state.tensors["weights"] for arm in ("fedsgd", "pooled")
    )
    start = Conditional(form=form).init(setup).tensors["weights"]
    for name, w in other.items():
        torch.testing.assert_close(one[name], w, rtol=0, atol=1e-6)
        assert not torch.equal(w, start[name])


@pytest.mark.parametrize("arm", ["fedavg", "fedsgd", "pooled"])
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_and_arm_trains_with_whoever_is_there_and_answers_for_all(
    source, arm, make_problem, play, make_round
):
    """One client of five in the second round, none of its law but itself in the third."""
    roles = [{"kind": "fresh", "per_domain": 1}]
    everybody = make_problem(
        {**SIZES, "f": 6, "g": 7}, silos={"domains": {**DOMAINS, "f": "east", "g": "west"}, "roles": roles}
    )
    setup = replace(everybody, silos=everybody.silos.federated())
    absent = {
        2: setup.silos.clients[1:],
        3: [c for c in setup.silos.clients if everybody.silos.domain(c) == "east"],
    }
    page = Conditional(source=source, arm=arm)
    played = play(page, setup, [1, 2, 3], absent=absent)
    before = played.state.sha256()
    round = make_round(everybody, 3, private=played.private)
    model = page.scored_model(played.state, round)
    assert played.state.sha256() == before
    scores = round.map_clients(evaluate, model, silos=everybody.silos, training=setup.training)
    table = by_client(scores)
    assert set(table) == set(everybody.silos.clients)
    assert summary(table, "test")["loss/mean"] < 10


def test_a_resumed_run_reads_the_same_statistics_to_the_bit(make_problem, play, tmp_path):
    """Clients that first take part before and after the break, in an optimiser's arm."""
    setup = make_problem(SIZES, optimiser=Adam(0.01))
    absent = {1: ["b", "c"], 2: ["b"], 3: ["a"]}
    for page in (Conditional(form="ensemble"), Conditional(arm="fedsgd"), Conditional(source="permuted")):
        name = f"{page.form}-{page.arm}-{page.source}"
        whole = play(page, setup, [1, 2, 3, 4], absent=absent, private=ClientStore(str(tmp_path / name / "whole")))
        store = ClientStore(str(tmp_path / name / "half"))
        save_state(tmp_path / "checkpoint", play(page, setup, [1, 2], absent=absent, private=store).state, 2)
        state, _, _ = load_state(tmp_path / "checkpoint")
        rest = play(page, setup, [3, 4], state=state, absent=absent, private=ClientStore(store.folder))
        assert rest.state.sha256() == whole.state.sha256()
        assert rest.reports == whole.reports[2:]


def test_statistics_are_computed_when_a_client_first_takes_part_and_never_again(make_problem, play):
    setup = make_problem(SIZES)
    first = play(Conditional(), setup, [1], absent={1: ["b"]})
    assert set(first.state.private["statistics"]) == set(SIZES) - {"b"}
    second = play(Conditional(), setup, [2], state=first.state)
    assert "client_stats" in second.rounds[0].tally.seconds
    third = play(Conditional(), setup, [3], state=second.state)
    assert "client_stats" not in third.rounds[0].tally.seconds
    refs = third.state.private["statistics"]
    assert {c: refs[c] for c in first.state.private["statistics"]} == first.state.private["statistics"]


def test_a_fresh_client_reads_its_own_statistics_and_trains_nothing(make_problem, play, make_round):
    everybody = make_problem(SIZES, silos={"domains": DOMAINS, "roles": [{"kind": "fresh", "per_domain": 1}]})
    fresh = [c for c in SIZES if everybody.silos.role(c) == "fresh"]
    setup = replace(everybody, silos=everybody.silos.federated())
    page = Conditional()
    played = play(page, setup, [1, 2])
    model = page.scored_model(played.state, make_round(everybody, 2, private=played.private))
    assert set(fresh) & set(played.state.private["statistics"]) == set()
    vectors = {c: played.private.load("statistics", model.context.refs, c)["statistics"].tobytes() for c in SIZES}
    assert len(set(vectors.values())) == len(SIZES)
    for name, w in played.state.tensors["weights"].items():
        assert torch.equal(model.shared[name], w)


@pytest.mark.parametrize("form", ["joined", "ensemble"])
def test_neither_state_nor_report_holds_a_statistic(form, make_problem, play, tmp_path):
    """The state as it is on disk; of a client's numbers only the norm is told."""
    played = play(Conditional(form=form), make_problem(SIZES), [1, 2])
    save_state(tmp_path / "checkpoint", played.state, 2)
    reports = json.dumps([[dict(r.metrics), {k: dict(v) for k, v in r.client_metrics.items()}] for r in played.reports])
    written = (tmp_path / "checkpoint").read_bytes() + reports.encode()
    refs = played.state.private["statistics"]
    for client in SIZES:
        vector = played.private.load("statistics", refs, client)["statistics"]
        telling = [v for v in vector if len(repr(v.item())) > 12]
        assert len(telling) > 4 or client == "d"  # its one row has no covariance
        assert not [v for v in telling if v.tobytes() in written or repr(v.item())[:10].encode() in written]
        norm = played.state.numbers["statistics"]["norms"][client]
        assert norm == pytest.approx(np.linalg.norm(vector), rel=1e-6)
        assert repr(norm).encode() in written  # the search does find what is there


def test_every_round_tells_of_how_many_clients_the_rows_are_too_few(make_problem, play):
    played = play(Conditional(), make_problem(SIZES), [1, 2], absent={1: ["d"]})
    assert [r.metrics["clients/undetermined"] for r in played.reports] == [0, 1]
    with pytest.raises(
        UserError, match=r"client d of .* has 1 training row, expected 2 for the statistic covariance_xy\. "
    ):
        play(Conditional(few_rows="refuse"), make_problem(SIZES), [1])


def coins(client, rows):
    """Inputs that no direction stands out of, and of clients from "east" one that does."""
    rng = np.random.default_rng(list(client.encode()))
    x = rng.normal(size=(rows, 5))
    x[:, 0] *= 8 if DOMAINS.get(client) == "east" else 1
    return x, rng.integers(0, 3, rows)


@pytest.mark.parametrize(
    ("sign", "instead"),
    [
        ("ones", r"set sign: free and components: 4 in method\.conditional\.statistics\.$"),
        ("free", r"try more components, or another statistic, in method\.conditional\.statistics\.$"),
    ],
)
def test_a_run_says_once_of_how_many_clients_loadings_are_noise_and_what_to_set_instead(
    sign, instead, make_problem, play
):
    setup = make_problem(dict.fromkeys("defghi", 40), silos={"rows_of": coins})
    page = Conditional(statistics=[{"kind": "loadings", "sign": sign}])
    played = play(page, setup, [1, 2, 3], absent={1: "efghi"})
    counts = [report.metrics["clients/unsteady"] for report in played.reports]
    said = [sentence for report in played.reports for sentence in report.messages]
    assert counts[1] == counts[2] >= 2
    assert len(said) == 1
    assert re.match(
        rf"\d of \d clients have different loadings in the two halves of their training rows.*; {instead}", said[0]
    )
    control = play(replace_source(page, "random"), setup, [1, 2])
    assert control.reports[-1].metrics["clients/unsteady"] == counts[1]
    assert not [sentence for report in control.reports for sentence in report.messages]


def replace_source(page, source):
    return page.model_copy(update={"source": source})


def test_where_halves_agree_or_are_too_small_to_compare_nothing_is_said(make_problem, play):
    steady = make_problem({"a": 60, "b": 50, "c": 60}, silos={"rows_of": coins})
    few = make_problem(dict.fromkeys("defg", 19), silos={"rows_of": coins, "name": "few"})
    for setup in (steady, few):
        (report,) = play(Conditional(statistics=[{"kind": "loadings"}]), setup, [1]).reports
        assert report.metrics["clients/unsteady"] == 0
        assert not report.messages


def test_statistics_of_which_no_halves_are_compared_are_never_unsteady(make_problem, play):
    (report,) = play(Conditional(), make_problem(dict.fromkeys("defg", 40), silos={"rows_of": coins}), [1]).reports
    assert report.metrics["clients/unsteady"] == 0
    assert not report.messages


def test_the_traffic_is_fedavgs_of_a_network_of_that_size(make_problem, play):
    number = (FEATURES + LENGTH) * 6 + 6 + 6 * CLASSES + CLASSES
    tally = play(Conditional(), make_problem(SIZES), [1]).rounds[0].tally
    assert (tally.bytes_up, tally.bytes_down) == (5 * 4 * (number + 2), 5 * 4 * number)


def test_loadings_are_pictures_beside_the_image(make_problem, play):
    def images(client, rows):
        rng = np.random.default_rng(list(client.encode()))
        return rng.normal(size=(rows, 8, 8)), np.arange(rows) % 3

    setup = make_problem(SIZES, network=CNN((8, 8), (2,), (4,), 3, kernel=3), silos={"rows_of": images})
    page = Conditional(form="planes", statistics=[{"kind": "loadings", "components": 2, "sign": "ones"}])
    played = play(page, setup, [1, 2])
    assert played.state.tensors["weights"]["conv0.weight"].shape == (2, 3, 3, 3)
    signed = [{"kind": "loadings", "sign": "ones"}]
    for wrong in (
        {"statistics": [{"kind": "mean"}]},
        {"statistics": [{"kind": "loadings"}]},  # a sketch, and no picture
        {"statistics": signed, "source": "client_id"},
    ):
        with pytest.raises(
            UserError,
            match=r"method\.conditional\.form: got planes, expected joined\. Planes need a cnn on images",
        ):
            Conditional(form="planes", **wrong).init(setup)


@pytest.mark.parametrize(
    ("statistics", "said"),
    [
        ([{"kind": "covarianc"}], r"statistic: got 'covarianc', expected a known kind\. Did you mean covariance"),
        ([{"kind": "mean", "log": True}], "mean: got the option 'log', expected no options"),
        ([], "got no statistic, expected at least one"),
    ],
)
def test_statistics_that_cannot_be_are_refused(statistics, said):
    with pytest.raises(ValidationError, match=said):
        Conditional(statistics=statistics)


CLUSTERS, COEFFICIENTS = 2, ((6.0, -3.0, 2.0), (-4.0, 5.0, 1.0))


def lines(client, rows):
    """y = x . theta + noise of standard deviation 0.1, theta the law of the client's cluster."""
    rng = np.random.default_rng(list(client.encode()))
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    return x, x @ np.array(COEFFICIENTS[int(client[1:]) % CLUSTERS]) + 0.1 * rng.normal(size=rows)


@pytest.mark.parametrize("arm", ["pooled", "fedavg"])
def test_the_ensemble_learns_two_laws_that_one_model_cannot_and_knows_fresh_clients(
    arm, make_problem, play, make_round
):
    """One linear model cannot do better than half the distance of the laws, 6.4."""
    sizes = {f"c{number}": 40 for number in range(8)}
    domains = {client: str(int(client[1:]) % CLUSTERS) for client in sizes}
    silos = {
        "rows_of": lines,
        "task": "regression",
        "test": 40,
        "domains": domains,
        "roles": [{"kind": "fresh", "per_domain": 1}],
    }
    settings = {"objective": SquaredError(), "optimiser": Adam(0.05), "epochs": 5, "batch": 20}
    everybody = make_problem(sizes, network=MLP(3, (), 1), silos=silos, **settings)
    setup = replace(everybody, silos=everybody.silos.federated())
    rmse = {}
    for page in (FedAvg(), Conditional(form="ensemble", experts=4, arm=arm)):
        played = play(page, setup, range(1, 31), stack=8)
        round = make_round(everybody, 30, private=played.private)
        model = page.scored_model(played.state, round)
        table = by_client(round.map_clients(evaluate, model, silos=everybody.silos, training=setup.training), RMSE)
        for role in ("federated", "fresh"):
            rows = {c: row for c, row in table.items() if everybody.silos.role(c) == role}
            rmse[type(page), role] = summary(rows, "test", RMSE)["rmse/pooled"]
    assert rmse[FedAvg, "federated"] > 5
    assert rmse[Conditional, "federated"] < 0.3
    assert rmse[Conditional, "fresh"] < 0.5
