"""FedBN: normalising layers stay with their clients; and what the server measures on common rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.fedbn import FedBN
from flows.methods.local_only import LocalOnly
from flows.methods.serverbn import ServerBN, with_common_statistics
from models.networks.cnn import CNN, BatchNormCNN
from models.networks.mlp import MLP
from models.networks.resnet_vgg import Residual
from models.training.engine import normalisation_statistics
from silos.client_store import ClientStore
from silos.cohort import Stack, open_common
from silos.errors import UserError
from tasks.evaluate import evaluate
from tasks.execution.load_client_data import load_weights
from tasks.personal_layers import common_batchnorm_statistics
from tasks.tracking.checkpoint import load_state, save_state
from tasks.tracking.result_tables import by_client

SIZES = {"oslo": 11, "lyon": 7, "one": 1, "rome": 8}
NETWORK = BatchNormCNN((4, 4), 3, (3, 4), (False, True), (5,), 0.0)
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
    model = (page or played.page).model(played.state, played.setup)
    weights, _ = load_weights(model.select([client]), Stack((client,), 1), played.private, "cpu")
    return {name: w[0] for name, w in weights.items()}


STATISTICS = FedBN(keep="statistics")
KEPT = {FedBN(): lambda network: network.normalising, STATISTICS: normalisation_statistics}


@pytest.mark.slow
@pytest.mark.parametrize("other", [FedBN(), STATISTICS, ServerBN()], ids=str)
@pytest.mark.parametrize("network", PLAIN.values(), ids=PLAIN)
def test_without_batch_normalisation_it_is_fedavg_to_the_bit(network, other, make, play):
    """The state, reports, traffic, and the scores of every client."""
    found = []
    for page in (FedAvg(), other):
        played = play(page, make(network), [1, 2, 3])
        last = played.rounds[-1]
        scores = last.map_clients(evaluate, page.scored_model(played.state, last), training=played.setup.training)
        traffic = (last.tally.bytes_up, last.tally.bytes_down)
        found.append((played.state.sha256(), played.reports, traffic, by_client(scores)))
    assert found[0] == found[1]


@pytest.mark.parametrize("network", [NETWORK, Residual((4, 4), 3, (5,), 0.0, True, (3,))], ids=["cnn_bn", "residual"])
@pytest.mark.parametrize("page", KEPT, ids=str)
def test_a_round_is_local_training_of_which_all_but_what_is_kept_is_averaged(page, network, make, play, tmp_path):
    """Against local_only of one round, whose clients start from the same draw."""
    played, alone = (
        play(one, make(network), [1], private=ClientStore(str(tmp_path / type(one).__name__)))
        for one in (page, LocalOnly())
    )
    kept = {*KEPT[page](network)}
    theirs = {client: own(alone, client) for client in SIZES}
    rows = sum(SIZES.values())
    for client in SIZES:
        for name, w in own(played, client).items():
            mean = sum(theirs[c][name].double() * n for c, n in SIZES.items()) / rows
            wanted = theirs[client][name] if name in kept else mean.float()
            torch.testing.assert_close(w, wanted, rtol=0, atol=1e-6, msg=f"{client} {name}")
    assert played.state.tensors["weights"].keys() == theirs["oslo"].keys() - kept


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


@pytest.mark.parametrize("page", KEPT, ids=str)
def test_a_fresh_client_measures_its_own_statistics_and_trains_nothing(page, make, play):
    """With one full batch they are mean and variance of what the first convolution gives on its training rows."""
    setup = make(domains={"oslo": "a", "lyon": "a", "one": "b", "rome": "b"}, roles=FRESH)
    setup = replace(setup, training=replace(setup.training, batch=100))
    federated = replace(setup, silos=setup.silos.federated())
    played = play(page, federated, [1, 2])
    (fresh, _) = sorted({*setup.silos.clients} - {*federated.silos.clients})
    evaluation = replace(played.rounds[-1], setup=setup, clients=setup.silos.clients)
    before = played.state.sha256()
    model = page.scored_model(played.state, evaluation)
    assert played.state.sha256() == before
    weights, _ = load_weights(model.select([fresh]), Stack((fresh,), 1), played.private, "cpu")
    x, _ = images(fresh, SIZES[fresh] + 7)
    rows = torch.from_numpy(x[: SIZES[fresh]].astype(np.float32))
    seen = torch.nn.functional.conv2d(rows[:, None], weights["conv0.weight"][0], weights["conv0.bias"][0], padding=1)
    torch.testing.assert_close(weights["norm0.mean"][0], seen.mean((0, 2, 3)), rtol=0, atol=1e-5)
    torch.testing.assert_close(weights["norm0.variance"][0], seen.transpose(0, 1).flatten(1).var(1), rtol=0, atol=1e-4)
    for name, w in played.state.tensors["weights"].items():
        assert torch.equal(weights[name][0], w)
    start = setup.network.init(torch.tensor(0))
    for name in {*NETWORK.normalising} - {*normalisation_statistics(NETWORK)} - {*played.state.tensors["weights"]}:
        assert torch.equal(weights[name][0], start[name])
    kept = {client: model.personal.refs[client] for client in federated.silos.clients}
    assert kept == dict(played.state.private[FedBN.section])


def test_with_statistics_of_their_own_clients_differ_in_them_alone(make, play):
    played = play(STATISTICS, make(), [1, 2])
    oslo, rome = own(played, "oslo"), own(played, "rome")
    assert {name for name in oslo if not torch.equal(oslo[name], rome[name])} == {*normalisation_statistics(NETWORK)}


def test_the_server_measures_the_averaged_network_on_common_rows(make, play):
    """One round: all that is learned is FedAvg's, statistics are of the validation rows of all, whoever reads them."""
    setup = make(common=True)
    setup = replace(setup, training=replace(setup.training, batch=100))
    found, usual = (play(page, setup, [1]) for page in (ServerBN(), FedAvg()))
    weights, averaged = found.state.tensors["weights"], usual.state.tensors["weights"]
    assert {name for name in weights if not torch.equal(weights[name], averaged[name])} == {
        *normalisation_statistics(NETWORK)
    }
    assert found.rounds[0].tally.bytes_up == usual.rounds[0].tally.bytes_up
    assert not found.page.model(found.state, setup).is_personal
    x = torch.from_numpy(open_common(setup.silos, "validation")[0])
    seen = torch.nn.functional.conv2d(x[:, None], weights["conv0.weight"], weights["conv0.bias"], padding=1)
    torch.testing.assert_close(weights["norm0.mean"], seen.mean((0, 2, 3)), rtol=0, atol=1e-5)
    torch.testing.assert_close(weights["norm0.variance"], seen.transpose(0, 1).flatten(1).var(1), rtol=0, atol=1e-4)
    first = with_common_statistics(averaged, replace(found.rounds[0], clients=("rome",)))
    assert all(torch.equal(first[name], weights[name]) for name in weights)


@pytest.mark.parametrize("page", [*KEPT, ServerBN()], ids=str)
def test_where_batches_normalise_neither_dealing_nor_a_resumed_run_changes_a_bit(page, make, play, tmp_path):
    setup = make(common=True)
    found = []
    for workers in (1, 3):
        store = ClientStore(str(tmp_path / f"{workers}"))
        half = play(page, setup, [1, 2], workers=workers, private=store)
        save_state(tmp_path / "checkpoint", half.state, 2)
        state, _, _ = load_state(tmp_path / "checkpoint")
        found.append(play(page, setup, [3, 4], state=state, workers=workers, private=store))
    whole = play(page, setup, [1, 2, 3, 4])
    assert {played.state.sha256() for played in found} == {whole.state.sha256()}
    last = whole.rounds[-1]
    scores = last.map_clients(evaluate, page.scored_model(whole.state, last), training=setup.training)
    assert all(np.isfinite(m.sums["loss"]).all() for m in scores)


def test_a_server_without_common_rows_is_refused(make):
    with pytest.raises(UserError, match=r"data\.split\.validation_rows: got no common rows, expected some, on which"):
        ServerBN().init(make())


def test_common_rows_are_measured_only_where_they_are_nobodys(make, make_round, play):
    setup = make()
    model = FedAvg().model(FedAvg().init(setup), setup)
    round = make_round(setup)
    with pytest.raises(ValueError, match="common_batchnorm_statistics: got validation rows of clients, expected"):
        round.map_clients(common_batchnorm_statistics, model, training=setup.training, seed=0, round=1)
