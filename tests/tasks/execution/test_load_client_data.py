"""What a task opens on the client's side."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from models.client_model import Model
from models.networks.mlp import MLP
from models.networks.wrappers.domain_generalisation import GradientMatching
from models.prng import server_stream
from models.server_state import ClientStateRefs
from silos.client_store import ClientStore
from silos.cohort import Silos, Stack
from silos.data_params import DataParams
from silos.privacy.owner_file import OWNER_FILE
from silos.storage.partition_store import write
from tasks.evaluate import ensemble_check, evaluate
from tasks.execution.load_client_data import load_rows, load_weights, may_report, reportable_classes
from tasks.gradients import head_gradient
from tasks.local_train import local_train
from tasks.paired_outcomes import prior_shift_accuracies
from tasks.report_evidence import report_evidence
from tasks.uncertainty_check import uncertainty_check

NETWORK = MLP(5, (), 2)
SHARED = NETWORK.init(server_stream(0, 0, "init"))


@pytest.fixture
def store(tmp_path):
    return ClientStore(str(tmp_path / "own"))


def test_dummies_repeat_the_first_client(store):
    model = Model(NETWORK, SHARED, {"head": torch.tensor([[1.0], [2.0], [3.0]])}, clients=("a", "b", "c"))
    weights, context = load_weights(model, Stack(("b", "c"), 4), store, "cpu")
    assert weights["head"].ravel().tolist() == [2, 3, 2, 2]
    assert weights["dense0.weight"].shape == (4, 5, 2)
    assert context == {}
    assert list(weights) == sorted(weights)


def test_clients_have_what_they_stored_and_others_the_start(store):
    refs = store.save("heads", ["a", "c"], {"head": np.array([[1.0], [3.0]], np.float32)})
    model = Model(
        NETWORK, SHARED, ClientStateRefs("heads", refs, {"head": torch.tensor([7.0])}), clients=("a", "b", "c")
    )
    for clients, expected in ((("a", "b", "c"), [1, 7, 3]), (("c", "a"), [3, 1]), (("b",), [7])):
        weights, _ = load_weights(model, Stack(clients, len(clients)), store, "cpu")
        assert weights["head"].ravel().tolist() == expected


def test_a_task_reads_no_other_clients_private_file(store, tmp_path):
    refs = {
        **store.save("heads", ["a"], {"head": np.ones((1, 1), np.float32)}),
        **store.save("heads", ["b"], {"head": np.zeros((1, 1), np.float32)}),
    }
    (tmp_path / "own" / "heads" / f"{refs['b'].split('/')[0]}.safetensors").unlink()
    model = Model(NETWORK, SHARED, ClientStateRefs("heads", refs), clients=("a", "b"))
    weights, _ = load_weights(model, Stack(("a",), 1), store, "cpu")
    assert weights["head"].ravel().tolist() == [1]


def test_private_context_is_opened_and_is_not_a_weight(store):
    refs = store.save("words", ["a"], {"word": np.array([[4, 2]])}, "statistics")
    model = Model(NETWORK, SHARED, context=ClientStateRefs("words", refs), clients=("a",))
    weights, context = load_weights(model, Stack(("a",), 2), store, "cpu")
    assert context["word"].tolist() == [[4, 2], [4, 2]]
    assert "word" not in weights


TRAINED = {"seed": 0, "round": 1}
TOLD = {
    "local_train": (local_train, {**TRAINED, "each": True}),
    "evaluate": (evaluate, {}),
    "uncertainty_check": (uncertainty_check, {**TRAINED, "passes": 2}),
    "ensemble_check": (ensemble_check, {}),
    "head_gradient": (head_gradient, {}),
    "regroup": (report_evidence, {}),
}


@pytest.mark.parametrize("name", TOLD)
def test_no_dummy_is_in_a_message(name, make_problem, make_round):
    """Three clients in stacks of two: what is told of clients is told of those, and what is summed is theirs."""
    task, options = TOLD[name]
    rows = {"a": 7, "b": 5, "c": 6}
    setup = make_problem(rows)
    model = Model(setup.network, setup.network.init(server_stream(0, 0, "init")), clients=tuple(rows))
    if name == "ensemble_check":
        options = {"members": [(model, make_round(setup).private)] * 2}
    if name == "regroup":
        model = Model(setup.network, {n: w[None, None] for n, w in model.shared.items()}, clients=tuple(rows))
    if name == "head_gradient":
        model = Model(GradientMatching(setup.network, 0.1), model.shared, clients=tuple(rows))
    found = {}
    for stack in (1, 2):
        found[stack] = make_round(setup, stack=stack).map_clients(task, model, training=setup.training, **options)
    for message in found[2]:
        numbers = [getattr(message, field.name) for field in fields(message) if field.name != "sums"]
        numbers += [t for of in numbers if isinstance(of, dict) for t in of.values()]
        for tensor in (t for t in numbers if isinstance(t, torch.Tensor)):
            assert len(tensor) == len(message.clients)
    if name in ("local_train", "head_gradient"):
        for at in model.shared if name == "local_train" else found[1][0].sums:
            one, two = (sum(m.sums[at] for m in found[stack]) for stack in (1, 2))
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_what_stands_for_fewer_rows_than_a_silos_own_policy_requires_does_not_leave(make_problem, make_round, tmp_path):
    """Of two alike clients, one requires one row more than it has, of each split."""
    setup = make_problem({"a": 20, "b": 20}, silos={"validation": 20, "test": 20})
    round, clients = make_round(setup, validate=True), setup.silos.clients
    stack, labels = Stack(clients, 2), np.arange(20) % 2
    model = Model(setup.network, setup.network.init(server_stream(0, 0, "init")), clients=clients)
    matched = Model(GradientMatching(setup.network, 0.1), model.shared, clients=clients)
    for least, reporting in ((20, clients), (21, clients[:1])):
        Path(round.private.folder).mkdir(parents=True, exist_ok=True)
        (Path(round.private.folder) / OWNER_FILE).write_text(f"silos: {{b: {{least_rows: {least}}}}}\n")
        (gradients,) = round.map_clients(head_gradient, matched, training=setup.training)
        (update,) = round.train(local_train, model)
        found = {
            "validation losses": [client for client in clients if np.isfinite(update.validation[client]).all()],
            "gradients": [c for c, rows in zip(clients, gradients.rows.tolist(), strict=True) if rows],
            "priors": np.array(clients)[
                prior_shift_accuracies(setup.silos, stack, [labels > -1] * 2, labels, round.private).isfinite().numpy()
            ].tolist(),
        }
        assert [*found.values()] == [list(reporting)] * 3


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([40, 12, 0], [0, 1]),
        ([40, 12, 10], [0, 1, 2]),
        ([40, 12, 9], [0]),  # the nine of class 2 would follow from numbers of all rows
        ([12, 40, 9], [1]),
        ([40, 9, 9], [0]),  # 18 rows together
        ([40, 9, 0], []),
    ],
)
def test_the_smallest_class_is_left_out_too_where_the_rows_of_the_others_would_follow(sizes, expected, make_problem):
    silos, labels = make_problem({"a": 10}).silos, np.repeat(np.arange(3), sizes)
    x = torch.arange(2.0 * len(labels)).view(-1, 2)
    assert sorted(reportable_classes(silos, "a", "train", x, labels, 3, 10)) == expected
    copies = torch.cat([x, x])  # are no further rows
    assert sorted(reportable_classes(silos, "a", "train", copies, np.tile(labels, 2), 3, 10)) == expected


@pytest.mark.parametrize("units", [9, 10])
def test_a_client_reports_from_ten_units_on(tmp_path, store, units):
    rng = np.random.default_rng(0)
    unit = np.repeat(np.arange(units), 8)
    arrays = {"x": rng.normal(size=(len(unit), 2)), "y": unit % 2, "who": unit, "client": np.zeros(len(unit), int)}
    np.savez(tmp_path / "own.npz", **arrays)
    for source, expected in (({"unit": "who"}, units == 10), ({}, True)):
        data = DataParams.model_validate(
            {
                **{"name": "own", "seed": 0, "split": {"validation": 0, "test": 0}},
                "source": {"kind": "npz", "path": "own.npz", **source},
                "scheme": [{"kind": "column", "column": "client"}],
            }
        )
        write(tmp_path / "own", data, tmp_path)
        silos, stack = Silos.open(tmp_path / "own", f"{units}{len(source)}"), Stack(("0",), 2)
        rows = load_rows(silos, stack, "train", "cpu")
        assert may_report(silos, stack, "train", rows, store).tolist() == [expected, False]
