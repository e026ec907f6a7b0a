"""A network of one's own with the parts of one client takes words, and methods build on its last layer."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from flows.core.plugin_loader import PluginFiles
from flows.methods.base import find_method
from models.networks.cnn import CNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP, dense_weights, drop
from models.networks.network import Network
from models.networks.network_abilities import LinearHead
from models.prng import fold_in
from models.training.optimizers import Adam
from silos.client_store import ClientStore
from silos.errors import UserError
from tasks.codebooks import projection
from tasks.evaluate import evaluate
from tasks.tracking.result_tables import by_client

pytestmark = pytest.mark.slow

PAGES = {path.stem: str(path) for path in (Path(__file__).parents[3] / "docs" / "examples").glob("*.py")}
PLUGINS = PluginFiles(Path()).load(sorted(PAGES.values()))
SIZES = {"oslo": 24, "lyon": 17, "rome": 12, "bonn": 11}
DOMAINS = {"oslo": "north", "lyon": "south", "rome": "south", "bonn": "north"}
CENTRES = {"start": "centres", "warm_up": 1, "words": 3}
METHODS = {
    "uefl": {"arm": "paper", **CENTRES, "first_rounds": 1, "tolerance": -1.0, "passes": 3},
    "uefl_authors": {"words": 3, "first_rounds": 1, "more_rounds": 1, "tolerance": -1.0},
    "vq_oracle": CENTRES,
    "fediir": {"penalty": 0.5},
    "fedsr": {"norm_weight": 0.1, "conditional_weight": 0.1},
    "distrans": {},
    "fedrep": {"head_epochs": 1},
    "fedper": {},
    "fedbabu": {},
}


@dataclass(frozen=True)
class Own(LinearHead, Network):
    """MLP(5, (6,), 3, dropout), written for one client: a stack would not pass."""

    dropout: float = 0.2
    max_width = 6
    encoded = (6, 1)
    last = 1

    def init(self, stream):
        return dense_weights(fold_in(stream, 0), 0, 5, 6) | dense_weights(fold_in(stream, 1), 1, 6, 3)

    def encode(self, weights, context, x, used=None):
        assert x.dim() == 2
        return torch.relu(x @ weights["dense0.weight"] + weights["dense0.bias"]).unsqueeze(-1), {}

    def pre_head(self, weights, context, z):
        assert z.dim() == 3
        return z.squeeze(-1)

    def represent(self, weights, embedding, stream):
        assert embedding.dim() == 2
        return drop(embedding, self.dropout, stream, 1)

    def to_logits(self, scores, stream):
        assert scores.dim() == 2
        return scores

    def apply_head(self, weights, embedding, stream):
        read = self.represent(weights, embedding, stream)
        return self.to_logits(read @ weights["dense1.weight"] + weights["dense1.bias"], stream)


OWN, THEIRS = Own(), MLP(5, (6,), 3, 0.2)


@pytest.fixture
def make(make_problem):
    silos = {"validation": 5, "domains": DOMAINS}
    return lambda network, engine: make_problem(
        SIZES, network=network, optimiser=Adam(0.01), silos=silos, engine=engine
    )


ENGINES = pytest.mark.parametrize("engine", ["vmap", "sequential"])


@ENGINES
@pytest.mark.parametrize("name", METHODS)
def test_it_learns_what_the_same_layers_of_ours_learn_to_the_bit(name, engine, make, play, tmp_path, without_stacks):
    """Two rounds: with words from k-means, doubts and, of UEFL, words of a client's own; then it is scored."""
    page, found = find_method(name, PLUGINS)(**METHODS[name]), []
    for network in (OWN, THEIRS):
        private = ClientStore(str(tmp_path / type(network).__name__))
        played = play(page, make(network, engine), [1, 2], private=private)
        scores = played.rounds[-1].map_clients(
            evaluate, page.model(played.state, played.setup), training=played.setup.training
        )
        found.append((played.state.sha256(), played.reports, by_client(scores)))
    assert found[0] == found[1]
    assert set(found[0][2]) == set(SIZES)


@ENGINES
def test_uefl_gives_words_to_its_clients_and_shows_them_of_ours_and_of_an_ensemble_too(
    engine, make, play, without_stacks
):
    page = find_method("uefl")(**METHODS["uefl"])
    for network, prefixes in ((OWN, [""]), (THEIRS, [""]), (DeepEnsemble(OWN, 2), ["0/", "1/"])):
        played = play(page, make(network, engine), [1, 2])
        held = played.state.numbers["words"]
        assert held == {prefix + client: 3 for prefix in prefixes for client in SIZES}
        assert played.reports[1].metrics["check/perplexity"] > 1
        shown = played.rounds[-1].map_clients(
            projection,
            page.model(played.state, played.setup),
            training=played.setup.training,
            axes=torch.eye(6)[:, :2],
            seed=0,
        )
        assert [len(words) for message in shown for words in message.words] == [3] * len(SIZES)


def test_a_network_without_parts_is_refused_by_name(make):
    for name, what in (("uefl", "features that codewords could replace"), ("fediir", "last dense layer to build on")):
        with pytest.raises(UserError, match=f"model.kind: got Whole, which has no {what}"):
            find_method(name)().init(make(Whole(), "sequential"))


@pytest.mark.parametrize("name", METHODS)
def test_a_cnn_that_drops_channels_is_refused_where_a_method_takes_networks_apart(name, make_problem):
    network = CNN((8, 8), (3,), (6,), 3, kernel=3, channel_dropout=0.5)
    with pytest.raises(UserError, match=r"model\.channel_dropout: got 0\.5, .* has no .*\. Set it to 0\.$"):
        find_method(name, PLUGINS)(**METHODS[name]).init(make_problem(SIZES, network=network))


@dataclass(frozen=True)
class Whole(Network):
    """In one piece."""

    dropout: float = 0.0
    max_width = 5

    def init(self, stream):
        return {"w": torch.zeros(5, 3)}

    def apply(self, weights, context, x, stream):
        return x @ weights["w"]
