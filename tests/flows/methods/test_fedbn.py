"""FedBN: normalising layers stay with their clients; and what the server measures on common rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.fedbn import FedBN
from flows.methods.local_only import LocalOnly
from flows.methods.shared.own_norms import SECTION
from models.networks.convolution import CNN
from models.networks.dense import MLP
from models.networks.normalised_convolution import NormalisedCNN
from models.networks.residual import Residual
from models.training.norm_statistics import statistics_of
from silos.cohort import Stack
from silos.private import PrivateStore
from tasks.batch_statistics import common_norms
from tasks.recording.round_metrics import by_client
from tasks.running.opening import open_weights
from tasks.scoring.evaluate import evaluate

SIZES = {"oslo": 11, "lyon": 7, "one": 1, "rome": 8}
NETWORK = NormalisedCNN((4, 4), 3, (3, 4), (False, True), (5,), 0.0)
PLAIN = {"mlp": MLP(16, (6,), 3), "cnn": CNN((4, 4), (3,), (5,), 3, 3, True, dropout=0.2)}
FRESH = [{"kind": "fresh", "per_domain": 1}]


def images(client, total):
    """A client's pictures have a brightness of its own, by which its statistics are known."""
    draw = np.random.default_rng(len(client) * 100 + total)
    return draw.normal(ord(client[0]) / 20, 1.0, (total, 4, 4)), draw.integers(0, 3, total)


@pytest.fixture
def make(make_problem):
    def build(network=NETWORK, common=False, **silos):
        rows = {"rows_of": images, **({"common": ["validation"]} if common else {}), **silos}
        return make_problem(SIZES, network=network, silos=rows)

    return build


def own(played, client, page=None):
    """The weights that a client uses, by name."""
    model = (page or played.page).model(played.state, played.problem)
    weights, _ = open_weights(model.select([client]), Stack((client,), 1), played.private, "cpu")
    return {name: w[0] for name, w in weights.items()}


@pytest.mark.parametrize("network", PLAIN.values(), ids=PLAIN)
def test_without_batch_normalisation_it_is_fedavg_to_the_bit(network, make, play):
    """The state, reports, traffic, and the scores of every client."""
    found = []
    for page in (FedAvg(), FedBN()):
        played = play(page, make(network), [1, 2, 3])
        last = played.rounds[-1]
        scores = last.each(evaluate, page.scored_model(played.state, last), training=played.problem.training)
        traffic = (last.tally.bytes_up, last.tally.bytes_down)
        found.append((played.state.sha256(), played.reports, traffic, by_client(scores)))
    assert found[0] == found[1]


@pytest.mark.parametrize("network", [NETWORK, Residual((4, 4), 3, (5,), 0.0, True, (3,))], ids=["cnn_bn", "residual"])
def test_a_round_is_local_training_of_which_all_but_normalising_layers_are_averaged(network, make, play, tmp_path):
    """Against local_only of one round, whose clients start from the same draw."""
    played, alone = (
        play(page, make(network), [1], private=PrivateStore(str(tmp_path / type(page).__name__)))
        for page in (FedBN(), LocalOnly())
    )
    theirs = {client: own(alone, client) for client in SIZES}
    rows = sum(SIZES.values())
    for client in SIZES:
        for name, w in own(played, client).items():
            mean = sum(theirs[c][name].double() * n for c, n in SIZES.items()) / rows
            wanted = theirs[client][name] if name in network.normalising else mean.float()
            torch.testing.assert_close(w, wanted, rtol=0, atol=1e-6, msg=f"{client} {name}")
    assert played.state.tensors["weights"].keys() == theirs["oslo"].keys() - {*network.normalising}


def test_no_normalising_layer_is_sent_and_clients_go_on_from_their_own(make, play):
    played = play(FedBN(), make(), [1, 2])
    learned = sum(w.numel() for w in played.state.tensors["weights"].values())
    assert played.rounds[0].tally.bytes_up == 4 * len(SIZES) * (learned + 2)  # and rows and loss
    assert played.rounds[0].tally.bytes_down == 4 * len(SIZES) * learned
    means = [own(played, client)["norm0.mean"] for client in ("oslo", "lyon", "rome")]
    assert not torch.allclose(means[0], means[1])
    first = play(FedBN(), make(), [1])
    moved = play(FedBN(), make(), [2], state=first.state, absent={2: ["rome"]})
    assert torch.equal(own(first, "rome")["norm0.mean"], own(moved, "rome")["norm0.mean"])
    assert not torch.equal(own(first, "oslo")["norm0.mean"], own(moved, "oslo")["norm0.mean"])


def test_a_fresh_client_measures_its_own_statistics_and_trains_nothing(make, play):
    """With one full batch they are mean and variance of what the first convolution gives on its training rows."""
    problem = make(domains={"oslo": "a", "lyon": "a", "one": "b", "rome": "b"}, roles=FRESH)
    problem = replace(problem, training=replace(problem.training, batch=100))
    federated = replace(problem, silos=problem.silos.federated())
    played = play(FedBN(), federated, [1, 2])
    (fresh, _) = sorted({*problem.silos.clients} - {*federated.silos.clients})
    evaluation = replace(played.rounds[-1], problem=problem, clients=problem.silos.clients)
    before = played.state.sha256()
    model = FedBN().scored_model(played.state, evaluation)
    assert played.state.sha256() == before
    weights, _ = open_weights(model.select([fresh]), Stack((fresh,), 1), played.private, "cpu")
    x, _ = images(fresh, SIZES[fresh] + 7)
    rows = torch.from_numpy(x[: SIZES[fresh]].astype(np.float32))
    seen = torch.nn.functional.conv2d(rows[:, None], weights["conv0.weight"][0], weights["conv0.bias"][0], padding=1)
    torch.testing.assert_close(weights["norm0.mean"][0], seen.mean((0, 2, 3)), rtol=0, atol=1e-5)
    torch.testing.assert_close(weights["norm0.variance"][0], seen.transpose(0, 1).flatten(1).var(1), rtol=0, atol=1e-4)
    for name, w in played.state.tensors["weights"].items():
        assert torch.equal(weights[name][0], w)
    start = problem.network.init(torch.tensor(0))
    for name in {*NETWORK.normalising} - {*statistics_of(NETWORK)}:
        assert torch.equal(weights[name][0], start[name])
    kept = {client: model.personal.refs[client] for client in federated.silos.clients}
    assert kept == dict(played.state.private[SECTION])


def test_common_rows_are_measured_only_where_they_are_nobodys(make, make_round, play):
    problem = make()
    model = FedAvg().model(FedAvg().init(problem), problem)
    round = make_round(problem)
    with pytest.raises(ValueError, match="validation rows are clients' own"):
        round.each(common_norms, model, training=problem.training, seed=0, round=1)
