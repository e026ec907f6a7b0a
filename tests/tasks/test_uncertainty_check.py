"""What clients tell of their doubt: against the passes by hand, and drawn anew whenever it must be."""

from itertools import combinations

import pytest
import torch

from models.client_model import Model
from models.metrics.uncertainty import average_passes
from models.networks.mlp import MLP
from models.prng import client_streams, fold_in, server_stream
from silos.cohort import Stack
from tasks.execution.load_client_data import load_rows
from tasks.uncertainty_check import uncertainty_check

CLIENTS = {"oslo": 9, "lyon": 7, "one": 1, "rome": 300}


@pytest.fixture
def ask(make_problem, make_round):
    """Each client's numbers."""
    setup = make_problem(CLIENTS, network=MLP(5, (30,), 3, dropout=0.5))
    weights = {n: 4 * w for n, w in setup.network.init(server_stream(0, 0, "init")).items()}
    model = Model(setup.network, weights, clients=setup.silos.clients)

    def numbers(seed=0, number=1, passes=2, split="train", **options):
        asked = {"training": setup.training, "seed": seed, "round": number, "passes": passes, "split": split}
        told = make_round(setup, **options).map_clients(uncertainty_check, model, **asked)
        return {c: {n: float(v[at]) for n, v in m.numbers.items()} for m in told for at, c in enumerate(m.clients)}

    return setup, weights, numbers


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_numbers_are_those_of_plain_passes_over_the_clients_rows_of_that_split(split, ask):
    setup, weights, numbers = ask
    found = numbers(seed=3, number=5, passes=4, split=split)
    for client, stream in zip(CLIENTS, client_streams(3, list(CLIENTS), 5, "uncertainty_check"), strict=True):
        rows = load_rows(setup.silos, Stack((client,), 1), split, "cpu")
        p = []
        for number, x in enumerate(rows.x[0].split(256)):
            own = [setup.network.apply(weights, {}, x, fold_in(fold_in(stream, number), t)) for t in range(4)]
            p.append(average_passes([logits[None] for logits in own]).p[0])
        p = torch.cat(p)
        entropy = torch.special.entr(p).sum(-1).mean()
        assert found[client]["entropy"] == pytest.approx(float(entropy), abs=1e-6)
        assert found[client]["accuracy"] == float((p.argmax(-1) == rows.y[0]).double().mean())


def test_another_seed_and_another_round_have_other_masks_and_the_same_have_the_same(ask):
    *_, numbers = ask
    found = [numbers(seed, number) for seed, number in ((0, 1), (0, 2), (1, 1))]
    assert found[0] == numbers(0, 1)
    for client in CLIENTS:
        entropies = [of[client]["entropy"] for of in found]
        assert not any(abs(one - other) < 1e-9 for one, other in combinations(entropies, 2)), client


def test_without_passes_nothing_is_drawn(ask):
    *_, numbers = ask
    assert numbers(0, 1, passes=0) == numbers(1, 2, passes=0)


@pytest.mark.parametrize("stack", [1, 3])
def test_how_clients_are_stacked_changes_their_numbers_by_rounding_only(stack, ask):
    *_, numbers = ask
    one, other = numbers(), numbers(stack=stack, workers=2)
    for client in CLIENTS:
        assert other[client] == pytest.approx(one[client], abs=1e-6)
