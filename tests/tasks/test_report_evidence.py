"""Each client takes the model that fits its training rows best."""

from pathlib import Path

import numpy as np
import pytest
import torch

from models.client_model import Model
from models.prng import server_stream
from silos.storage.partition_store import open_client
from tasks.report_evidence import report_evidence

SIZES = {"a": 9, "b": 12, "c": 4, "d": 1, "e": 7}


@pytest.fixture
def setup(make_problem):
    return make_problem(SIZES)


@pytest.fixture
def ask(setup, make_round):
    """The message of every client, joined; `weights`: (sets, models, ...)."""

    def run(weights, **options):
        model = Model(setup.network, shared=weights, clients=setup.silos.clients)
        messages = make_round(setup, **options).map_clients(report_evidence, model, training=setup.training)
        return {
            client: (int(m.rows[at]), m.choice[at].tolist(), m.loss[at].tolist())
            for m in messages
            for at, client in enumerate(m.clients)
        }

    return run


def drawn(setup, sets: int, models: int):
    starts = [setup.network.init(server_stream(s, 0, "init")) for s in range(sets * models)]
    return {n: torch.stack([s[n] for s in starts]).unflatten(0, (sets, models)) for n in starts[0]}


def test_the_choice_is_the_smallest_mean_loss_of_plain_pytorch(setup, ask):
    weights = drawn(setup, 2, 4)
    found = ask(weights)
    assert {rows for rows, _, _ in found.values()} == set(SIZES.values())
    assert len({tuple(choice) for _, choice, _ in found.values()}) > 1
    for client, (_, choice, loss) in found.items():
        entry = setup.silos.manifest.client(client)
        x, y = (torch.from_numpy(a) for a in open_client(Path(setup.silos.folder), entry, "train"))
        for at in range(2):
            losses = []
            for k in range(4):
                w = {n: t[at, k] for n, t in weights.items()}
                hidden = torch.relu(x @ w["dense0.weight"] + w["dense0.bias"])
                logits = hidden @ w["dense1.weight"] + w["dense1.bias"]
                losses.append(float(torch.nn.functional.cross_entropy(logits, y)))
            assert choice[at] == int(np.argmin(losses))
            assert loss[at] == pytest.approx(min(losses), abs=1e-6)


def test_of_equal_models_the_first_is_taken(setup, ask):
    weights = {n: t[:, [1, 1, 0, 0]] for n, t in drawn(setup, 1, 2).items()}
    assert all(choice[0] in (0, 2) for _, choice, _ in ask(weights).values())


def test_a_model_that_is_no_number_is_the_last_choice(setup, ask):
    weights = {n: t.clone() for n, t in drawn(setup, 1, 3).items()}
    for t in weights.values():
        t[0, 0] = torch.nan
    assert all(choice[0] in (1, 2) for _, choice, _ in ask(weights).values())
    for t in weights.values():
        t[:] = torch.nan
    assert all(choice == [0] for _, choice, _ in ask(weights).values())


def test_dealing_does_not_matter(setup, ask):
    weights = drawn(setup, 1, 3)
    assert ask(weights, workers=1, stack=2) == ask(weights, workers=3, stack=2)
