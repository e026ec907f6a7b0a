"""What a difference of two methods is scaled and divided by, from outcomes that clients stored."""

from types import SimpleNamespace

import numpy as np
import pytest

from flows.training.paired_runs import (
    check_over,
    prior_shift_by_client,
    scales_of_clients,
    scales_of_headline,
    smallest_that_matters,
    strata_of_pairs,
)
from models.metrics.task_metrics import TASK_METRICS
from silos.client_store import ClientStore
from silos.cohort import Silos, open_common
from silos.data_params import DataParams
from silos.errors import UserError
from silos.storage.partition_store import write
from tasks.evaluate import OUTCOMES
from tasks.execution.task_runner import PlainRunner

ACCURACY, RMSE = TASK_METRICS["classification"], TASK_METRICS["regression"]


def written(tmp_path, source, **arrays):
    """Silos of these rows, of which a quarter are test rows that all silos share."""
    np.savez(tmp_path / "own.npz", **arrays)
    data = {"name": "own", "seed": 0, "source": source, "scheme": [{"kind": "column", "column": "client"}]}
    data |= {"split": {"validation": 0.0, "test": 0.25, "test_rows": "common"}}
    write(tmp_path / "data" / "own", DataParams.model_validate(data), tmp_path)
    return Silos.open(tmp_path / "data" / "own", str(tmp_path))


def test_a_difference_is_scaled_to_the_headline_whose_clients_means_are_pooled():
    """One client's errors are a hundred times the others', so their mean is far from their median."""
    rng = np.random.default_rng(0)
    means = {client: size * rng.uniform(1, 2, (2, 3)) for client, size in {"a": 1.0, "b": 2.0, "c": 100.0}.items()}
    scales = scales_of_headline(RMSE, means)
    differences = np.mean([(of[0] - of[1]) * scales[client] for client, of in means.items()], axis=0)
    headline = np.sqrt(np.mean([*means.values()], axis=0))
    np.testing.assert_allclose(differences, headline[0] - headline[1])
    own = scales_of_clients(RMSE, means)
    for client, of in means.items():
        np.testing.assert_allclose((of[0] - of[1]) * own[client], np.sqrt(of[0]) - np.sqrt(of[1]))
    assert scales_of_headline(ACCURACY, {}) is None


@pytest.mark.parametrize("unit", [None, "patient"])
def test_a_row_that_all_clients_share_has_its_mean_difference_over_all_clients_and_rows_of_a_unit_are_one(
    unit, tmp_path
):
    """Two of three clients are right on every row by the first method alone."""
    clients, count = ("a", "b", "c"), 72
    rows = {"x": np.zeros((count, 2)), "y": np.arange(count) % 2, "client": np.repeat(clients, count // 3)}
    source = {"kind": "npz", "path": "own.npz", "unit": unit}
    silos = written(tmp_path, source, **rows, patient=np.arange(count) // 4)
    common, sides = silos.common("test"), []
    for name, right in (("first", [1, 1, 0]), ("second", [0, 0, 0])):
        store = ClientStore(str(tmp_path / name))
        sides.append(
            [
                (
                    store,
                    store.save(OUTCOMES, clients, {"correct": np.repeat(right, common).reshape(3, common)}, "outcomes"),
                )
            ]
        )
    (stratum,) = strata_of_pairs(PlainRunner(), silos, *sides, ACCURACY)
    assert common >= 12
    assert stratum.rows == (common // 4 if unit else common)
    assert stratum.by_seed[0] / stratum.rows == pytest.approx(2 / 3)
    (of_two,) = strata_of_pairs(PlainRunner(), silos.select(["b", "c"]), *sides, ACCURACY)
    assert of_two.by_seed[0] / of_two.rows == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("settings", "with_rows", "common", "refusal"),
    [
        ({}, 8, 0, None),
        ({}, 7, 0, "got silos with 7 silos, expected at least 8 that take part in training and have test rows"),
        ({}, 1, 0, "got silos with 1 silo, expected at least 8"),
        ({}, 8, 60, "since the silos share their test rows"),
        ({"partitions": 2}, 8, 0, "got silos with comparison.partitions 2, expected rows"),
        ({"partitions": 2, "over": "rows"}, 0, 60, None),
    ],
)
def test_an_interval_for_other_silos_needs_eight_that_have_test_rows_of_their_own(settings, with_rows, common, refusal):
    rows = {f"c{at}": 5 * (at < with_rows) for at in range(12)}
    silos = SimpleNamespace(common=lambda _: common, rows=lambda _: rows)
    comparison = SimpleNamespace(**{"over": "silos", "partitions": 1, **settings})
    project = SimpleNamespace(
        params=SimpleNamespace(comparison=comparison), scored=SimpleNamespace(federated=lambda: silos)
    )
    if refusal is None:
        check_over(project)
    else:
        with pytest.raises(UserError, match=refusal):
            check_over(project)


def test_a_client_of_few_different_rows_has_no_accuracy_at_its_own_class_shares(tmp_path):
    clients = np.repeat(["a", "b", "few"], 40)
    x = np.random.default_rng(0).normal(size=(120, 2))
    x[80:] = x[80]
    silos = written(tmp_path, {"kind": "npz", "path": "own.npz"}, x=x, y=np.arange(120) % 2, client=clients)
    store = ClientStore(str(tmp_path / "run"))
    labels = open_common(silos, "test")[1]
    refs = store.save(
        OUTCOMES, ["a", "b", "few"], {"correct": np.stack([labels == 0, labels >= 0, labels >= 0])}, "outcomes"
    )
    found = prior_shift_by_client(PlainRunner(), silos, (store, refs))
    assert found == {"a": pytest.approx(0.5, abs=0.15), "b": 1.0}


@pytest.mark.parametrize(("chosen", "expected"), [(None, (0.005, 0.02)), (0.0, (0.0, 0.0)), (0.3, (0.3, 0.3))])
def test_the_smallest_difference_that_matters_is_chosen_or_the_metrics_own(chosen, expected):
    for quantity, least in zip((ACCURACY, RMSE), expected, strict=True):
        params = SimpleNamespace(comparison=SimpleNamespace(matters=chosen))
        project = SimpleNamespace(params=params, quantity=quantity)
        assert smallest_that_matters(project, -2.0) == pytest.approx(least)
