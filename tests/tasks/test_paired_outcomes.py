"""Paired sums against the outcomes themselves, wherever they are added up."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.training.paired_runs import client_strata, compare_pairs, means_by_client, scales_of_clients
from models.metrics.client_metrics import CLIENT_METRICS
from models.metrics.paired_difference import ACCURACY, Stratum, difference, difference_record
from models.metrics.task_metrics import TASK_METRICS
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, make_stacks
from silos.errors import UserError
from silos.storage.partition_store import open_client
from tasks.evaluate import OUTCOMES
from tasks.execution.task_runner import PlainRunner
from tasks.paired_outcomes import pair_outcomes

TEST = 6


@pytest.fixture
def kept(write_silos, tmp_path):
    """Three seeds of two methods whose clients kept random outcomes, padded as in a stack."""
    silos = write_silos({"a": 5, "b": 9, "c": 4}, test=TEST)
    rng, tables, runs = np.random.default_rng(0), {}, {}
    for method in ("first", "second"):
        for seed in range(3):
            right = rng.integers(0, 2, (3, TEST + 3)).astype(np.uint8)
            right[:, TEST:] = 9  # padding must not be read
            store = ClientStore(str(tmp_path / f"{method}{seed}"))
            refs = store.save(OUTCOMES, ["b", "a", "c"], {"correct": right}, "outcomes")
            runs.setdefault(method, []).append((store, refs))
            for at, client in enumerate(["b", "a", "c"]):
                tables.setdefault((method, client), []).append(right[at, :TEST].astype(float))
    return silos, runs, {k: np.array(v) for k, v in tables.items()}


def own_labels(silos, client):
    return open_client(Path(silos.folder), silos.manifest.client(client), "test")[1]


def strata(silos, first, second, classes=None, size=2) -> dict[str, Stratum]:
    found = {}
    for m in pair_outcomes.fn(Cohort(silos, make_stacks(silos, size)), first, second, classes):
        for at, client in enumerate(m.clients):
            by_seed = tuple(m.by_seed[at].tolist())
            found[client] = Stratum(int(m.rows[at]), by_seed, float(m.mean_squares[at]), float(m.squares[at]))
    return found


def test_sums_are_those_of_the_differences_row_by_row(kept):
    silos, runs, tables = kept
    found = strata(silos, runs["first"], runs["second"])
    assert set(found) == {"a", "b", "c"}
    for client, sums in found.items():
        d = tables["first", client] - tables["second", client]
        assert sums.rows == TEST
        assert sums.by_seed == tuple(d.sum(1))
        assert sums.mean_squares == pytest.approx((d.mean(0) ** 2).sum())
        assert sums.squares == (d**2).sum()


def test_a_method_and_itself_do_not_differ(kept):
    silos, runs, _ = kept
    found = difference(list(strata(silos, runs["first"], runs["first"]).values()))
    assert (found.low, found.high) == (0, 0)


def test_the_mean_difference_is_the_difference_of_mean_accuracies(kept):
    silos, runs, tables = kept
    means = {m: np.mean([tables[m, c].mean() for c in "abc"]) for m in ("first", "second")}
    found = difference(list(strata(silos, runs["first"], runs["second"]).values()))
    assert found.mean == pytest.approx(means["first"] - means["second"])


def test_a_client_without_test_rows_is_left_out(write_silos):
    assert strata(write_silos({"a": 5}, test=0), [], []) == {}


def test_on_some_classes_only_their_rows_count(kept):
    silos, runs, tables = kept
    found = strata(silos, runs["first"], runs["second"], ["0", "2"])
    for client, sums in found.items():
        chosen = np.isin(own_labels(silos, client), [0, 2])
        d = (tables["first", client] - tables["second", client])[:, chosen]
        assert 0 < sums.rows == chosen.sum() < TEST
        assert sums.by_seed == tuple(d.sum(1))


def test_rows_that_were_changed_under_the_comparison_are_not_looked_at(kept):
    silos, runs, _ = kept
    file = Path(silos.folder) / silos.manifest.client("b").file
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="differs from data version"):
        strata(silos, runs["first"], runs["second"], ["0"])


@pytest.mark.parametrize("classes", [None, ["1"]])
def test_the_method_that_is_right_where_the_other_is_wrong_is_the_better_by_that_share_of_rows(
    classes, write_silos, tmp_path
):
    """In every seed the first is right on all rows but each client's first, the second on none; then the other way round."""
    silos = write_silos({"a": 5, "b": 9}, test=40)
    runs = {}
    for method, right in (("first", [0] + [1] * 39), ("second", [0] * 40)):
        store = ClientStore(str(tmp_path / method))
        runs[method] = [
            (store, store.save(OUTCOMES, ["a", "b"], {"correct": np.array([right] * 2, np.uint8)}, "outcomes"))
        ] * 2
    for method, other, sign in (("first", "second", 1), ("second", "first", -1)):
        found = difference(list(strata(silos, runs[method], runs[other], classes).values()))
        chosen = [own_labels(silos, c) == 1 if classes else np.ones(40, bool) for c in ("a", "b")]
        share = np.mean([1 - of[0] / of.sum() for of in chosen])
        assert found.mean == pytest.approx(sign * share)
        said = difference_record(method, other, found, ACCURACY)
        assert (said["better"], said["difference"]) == ("first", found.mean)
        assert said["sentence"].startswith(f"{method} − {other} {'+' if sign > 0 else '−'}")


@pytest.mark.parametrize("classes", [None, ["0", "2"]])
def test_a_comparison_is_to_the_bit_that_of_the_clients_in_the_order_of_listing_however_they_are_dealt(classes, kept):
    silos, runs, _ = kept
    found = strata(silos, runs["first"], runs["second"], classes)
    listed = difference([found[client] for client in silos.clients])
    for workers in (1, 2, 3):
        assert (
            compare_pairs(PlainRunner(workers), silos, *runs.values(), TASK_METRICS["classification"], classes)
            == listed
        )


def test_a_cohort_is_told_of_nobody_elses_outcomes(kept):
    silos, runs, _ = kept
    seen = []

    class Looking(PlainRunner):
        def map_cohorts(self, task, calls):
            seen.extend((cohort.clients, refs) for (cohort, *sides), _ in calls for side in sides for _, refs in side)
            return super().map_cohorts(task, calls)

    compare_pairs(Looking(2), silos.select(["a", "b"]), *runs.values(), TASK_METRICS["classification"])
    assert len(seen) == 6
    assert all(set(refs) == {*clients} for clients, refs in seen)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_on_common_rows_a_rows_difference_is_its_mean_over_clients(task, tmp_path):
    """As many clients as make two stacks; outcomes of a regression are added in another order than here."""
    clients, silos = [f"c{i:02d}" for i in range(40)], _common_silos(tmp_path, task)
    rng, rows, name = np.random.default_rng(0), silos.common("test"), TASK_METRICS[task].outcome
    draw = (
        (lambda: rng.integers(0, 2, (40, rows)).astype(np.uint8))
        if task == "classification"
        else (lambda: rng.exponential(size=(40, rows)).astype(np.float32))
    )
    tables = [[draw() for _ in range(2)] for _ in range(2)]
    sides = []
    for side, of_side in enumerate(tables):
        stores = [ClientStore(str(tmp_path / f"{side}{seed}")) for seed in range(2)]
        sides.append(
            [(s, s.save(OUTCOMES, clients, {name: t}, "outcomes")) for s, t in zip(stores, of_side, strict=True)]
        )
    d = np.stack([a.astype(float) - b.astype(float) for a, b in zip(*tables, strict=True)]).mean(1)
    quantity = TASK_METRICS[task]
    if task == "regression":  # to units of rmse
        d /= sum(np.sqrt([[table.astype(float).mean()] for table in of_side]) for of_side in tables)
    expected = difference([Stratum.from_differences(d)], bound=quantity.bound, pooled_variance=quantity.alike)
    found = [compare_pairs(PlainRunner(workers), silos, *sides, quantity) for workers in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    for name in ("mean", "low", "high"):
        assert getattr(found[0], name) == pytest.approx(getattr(expected, name), rel=1e-12)
    assert (found[0] == expected) or task == "regression"


def test_on_common_rows_each_client_also_has_a_difference_of_its_own(tmp_path):
    silos = _common_silos(tmp_path, "classification")
    rng, rows, clients = np.random.default_rng(0), silos.common("test"), list(silos.clients)
    tables = rng.integers(0, 2, (2, 3, 40, rows)).astype(np.uint8)
    stores = [[ClientStore(str(tmp_path / f"{side}{seed}")) for seed in range(3)] for side in range(2)]
    sides = [
        [
            (store, store.save(OUTCOMES, clients, {"correct": table}, "outcomes"))
            for store, table in zip(*side, strict=True)
        ]
        for side in zip(stores, tables, strict=True)
    ]
    found = client_strata(PlainRunner(2), silos, *sides, TASK_METRICS["classification"])
    d = tables[0].astype(float) - tables[1]
    assert list(found) == clients
    assert rows >= 40
    for at, client in enumerate(clients):
        assert replace(found[client], by_seed=tuple(found[client].by_seed)) == Stratum.from_differences(d[:, at])


def test_a_single_row_of_a_class_decides_no_difference_in_a_metric_by_class(tmp_path):
    """It shows no spread, so two equal methods would differ for certain wherever they differ on this row."""
    from silos.data_params import DataParams
    from silos.storage.partition_store import write

    labels = {"one": [0] * 29 + [1], "few": [0] * 26 + [1] * 4, "many": [0] * 15 + [1] * 15}
    client, y = np.repeat(list(labels), 40), np.concatenate([[0, 1] * 5 + of_client for of_client in labels.values()])
    split = np.tile(["train"] * 10 + ["test"] * 30, 3)
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(0).normal(size=(120, 4)), y=y, client=client, split=split)
    data = {"name": "own", "seed": 0, "source": {"kind": "npz", "path": "own.npz"}}
    data |= {"scheme": [{"kind": "column", "column": "client"}], "split": {"validation": 0.0, "test": 0.0}}
    write(tmp_path / "data" / "own", DataParams.model_validate(data), tmp_path)
    silos = Silos.open(tmp_path / "data" / "own", "by_class")
    metric, rng = CLIENT_METRICS["balanced_accuracy"], np.random.default_rng(1)
    sides = []
    for side in range(2):
        store = ClientStore(str(tmp_path / f"side{side}"))
        refs = store.save(OUTCOMES, list(labels), {metric.outcome: rng.normal(size=(3, 30))}, "outcomes")
        sides.append([(store, refs)])
    assert set(client_strata(PlainRunner(), silos, *sides, metric)) == {"few", "many"}
    assert list(client_strata(PlainRunner(), silos, *sides, metric, least_of_class=10)) == ["many"]


def _common_silos(tmp_path, task) -> Silos:
    """Forty clients, and test rows that nobody owns."""
    from silos.data_params import DataParams
    from silos.storage.partition_store import write

    rng, count = np.random.default_rng(1), 240
    y = rng.normal(size=count) if task == "regression" else np.arange(count) % 3
    client = np.repeat([f"c{i:02d}" for i in range(40)], 6)
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(count, 4)).astype(np.float32), y=y, client=client)
    data = {"name": "own", "seed": 0, "source": {"kind": "npz", "path": "own.npz", "task": task}}
    data |= {"scheme": [{"kind": "column", "column": "client"}]}
    data |= {"split": {"validation": 0.0, "test": 0.25, "test_rows": "common"}}
    write(tmp_path / "data" / "own", DataParams.model_validate(data), tmp_path)
    return Silos.open(tmp_path / "data" / "own", task)


@pytest.fixture
def errors(write_silos, tmp_path):
    """Two methods' squared errors of three clients in three seeds, which differ much: (methods, seeds, clients, rows)."""
    silos, rng = write_silos({"a": 5, "b": 9, "c": 4}, test=TEST), np.random.default_rng(1)
    tables = rng.exponential(size=(2, 3, 3, TEST)) * rng.uniform(1, 9, (2, 3, 1, 1))
    sides = [[ClientStore(str(tmp_path / f"{side}{seed}")) for seed in range(3)] for side in range(2)]
    runs = [
        [
            (store, store.save(OUTCOMES, ["a", "b", "c"], {"squared_error": table}, "outcomes"))
            for store, table in zip(*of, strict=True)
        ]
        for of in zip(sides, tables, strict=True)
    ]
    return silos, runs, tables


RMSE = TASK_METRICS["regression"]


def test_a_difference_of_rmse_is_that_of_the_numbers_in_the_table(errors):
    silos, runs, tables = errors
    table = np.sqrt(tables.mean(3).mean(2)).mean(1)  # pooled over clients, then the mean over seeds
    found = compare_pairs(PlainRunner(), silos, *runs, RMSE)
    assert found.mean == pytest.approx(table[0] - table[1])


def test_a_clients_difference_of_rmse_is_that_of_its_own_rmse(errors):
    silos, runs, tables = errors
    own = np.sqrt(tables.mean(3)).mean(1)
    scales = scales_of_clients(RMSE, means_by_client(PlainRunner(), silos, *runs, RMSE))
    found = client_strata(PlainRunner(), silos, *runs, RMSE, scales=scales)
    for at, client in enumerate("abc"):
        assert difference([found[client]]).mean == pytest.approx(own[0, at] - own[1, at])


def test_a_difference_of_rmse_is_unknown_if_a_run_diverged_and_zero_if_both_are_right(errors):
    silos, runs, _ = errors
    store, _ = runs[0][1]
    runs[0][1] = (
        store,
        store.save(OUTCOMES, ["a", "b", "c"], {"squared_error": np.full((3, TEST), np.inf)}, "outcomes"),
    )
    assert np.isnan(compare_pairs(PlainRunner(), silos, *runs, RMSE).mean)
    right = (store, store.save(OUTCOMES, ["a", "b", "c"], {"squared_error": np.zeros((3, TEST))}, "outcomes"))
    assert compare_pairs(PlainRunner(), silos, [right], [right], RMSE).mean == 0.0
