"""Several models' mean prediction, against a sum by hand; each member brings its own private weights."""

import numpy as np
import pytest
import torch

from models.client_model import Model
from models.prng import server_stream
from models.server_state import ClientStateRefs
from silos.client_store import ClientStore
from silos.cohort import Stack
from tasks.evaluate import ensemble_check
from tasks.execution.load_client_data import load_rows

CLIENTS = {"oslo": 9, "lyon": 7, "one": 1}


@pytest.fixture
def members(make_problem, tmp_path):
    setup = make_problem(CLIENTS)
    found = []
    for number in range(3):
        weights = setup.network.init(server_stream(number, 0, "init"))
        store = ClientStore(str(tmp_path / f"member{number}"))
        if number < 2:
            model = Model(setup.network, shared={n: 4 * w for n, w in weights.items()}, clients=setup.silos.clients)
        else:
            own = {n: np.stack([(4 + i) * w.numpy() for i in range(3)]) for n, w in weights.items()}
            refs = store.save("weights", list(setup.silos.clients), own)
            model = Model(setup.network, {}, ClientStateRefs("weights", refs, weights), clients=setup.silos.clients)
        found.append((model, store))
    return setup, found


def test_the_ensembles_numbers_are_those_of_the_mean_of_the_members_probabilities(members, make_round):
    setup, found = members
    told = make_round(setup).map_clients(ensemble_check, found[0][0], training=setup.training, members=found)
    numbers = {c: {n: float(v[i]) for n, v in m.numbers.items()} for m in told for i, c in enumerate(m.clients)}
    for at, client in enumerate(setup.silos.clients):
        rows = load_rows(setup.silos, Stack((client,), 1), "test", "cpu")
        each = []
        for number, (model, store) in enumerate(found):
            weights = model.shared or {
                n: torch.from_numpy(w) for n, w in store.load("weights", model.personal.refs, client).items()
            }
            assert (number == 2) == (not model.shared)
            each.append(torch.softmax(setup.network.apply(weights, {}, rows.x[0], None).double(), -1))
        p = sum(each) / 3
        assert numbers[client]["accuracy"] == float((p.argmax(-1) == rows.y[0]).double().mean())
        assert numbers[client]["entropy"] == pytest.approx(float(torch.special.entr(p).sum(-1).mean()), abs=1e-6)
        disagree = torch.special.entr(p).sum(-1) - sum(torch.special.entr(q).sum(-1) for q in each) / 3
        assert numbers[client]["mutual_information"] == pytest.approx(float(disagree.mean()), abs=1e-6)
        assert numbers[client]["mutual_information"] > 1e-3, at
