"""Who gains: a client's p-value against sums over its own table, the family's error in simulations, and the sentences."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from flows.experiments.comparison import client_gains
from flows.experiments.comparison.client_gains import (
    Measured,
    class_records,
    client_records,
    describe_classes,
    gain_sentences,
    gains_of_methods,
    gains_over_training_alone,
    left_out_sentences,
    worst_client,
)
from flows.experiments.comparison.comparison_text import (
    clients_of_role,
    clients_table,
    confusion_sentences,
    gains_table,
    interesting_clients,
    recall_table,
)
from models.metrics.paired_difference import Stratum, difference
from models.metrics.task_metrics import TASK_METRICS
from silos.client_store import ClientStore
from silos.cohort import open_common
from tasks.evaluate import OUTCOMES
from tasks.tracking.json_io import write_json

ACCURACY, RMSE = TASK_METRICS["classification"], TASK_METRICS["regression"]


def strata(tables):
    return {client: Stratum.from_differences(d) for client, d in tables.items()}


def gains(tables, quantity=ACCURACY, metrics=None):
    alone = dict.fromkeys(tables, 0.5)
    metrics = metrics or (alone, {c: 0.5 + float(d.mean()) for c, d in tables.items() if np.isfinite(d).all()})
    return gains_of_methods({"fedavg": Measured(strata(tables), metrics)}, quantity)["fedavg"]


def p_by_mean_squares(d):
    """Of a two-way layout with one observation a cell, from the table itself: (seeds, rows)."""
    seeds, rows = d.shape
    by_row, by_seed, mean = d.mean(0), d.mean(1), d.mean()
    of_rows = ((by_row - mean) ** 2).sum() / (rows - 1) / rows
    of_seeds = ((by_seed - mean) ** 2).sum() / (seeds - 1) / seeds if seeds > 1 else 0.0
    left = d - by_row[None] - by_seed[:, None] + mean
    both = (left**2).sum() / (rows - 1) / (seeds - 1) / seeds / rows if seeds > 1 else 0.0
    variance = max(of_rows + of_seeds - both, of_rows, of_seeds)
    freedom = variance**2 / (of_rows**2 / (rows - 1) + (of_seeds**2 / (seeds - 1) if seeds > 1 else 0))
    return 2 * stats.t.sf(abs(mean) / variance**0.5, freedom)


@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_a_clients_p_value_is_that_of_its_own_table_and_holm_is_by_hand(seeds):
    rng = np.random.default_rng(seeds)
    tables = {f"c{i}": np.sign(rng.normal(shift, 1, (seeds, 40)).round()) for i, shift in enumerate((0, 1, -1.5, 0.3))}
    found = gains(tables)["clients"]
    p = {client: p_by_mean_squares(d) for client, d in tables.items()}
    ordered = sorted(p, key=p.get)
    expected = np.maximum.accumulate([min((4 - i) * p[client], 1) for i, client in enumerate(ordered)])
    for client, corrected in zip(ordered, expected, strict=True):
        assert found[client]["p"] == pytest.approx(p[client], rel=1e-9)
        assert found[client]["p_holm"] == pytest.approx(corrected, rel=1e-9)
        assert found[client]["difference"] == pytest.approx(tables[client].mean())


def test_who_certainly_loses_is_decided_after_holms_correction_over_clients():
    lost = {"sure": 20, "a": 5, "b": 5, "c": 5}  # of 40 rows
    found = gains({client: -(np.arange(40) < rows)[None].astype(float) for client, rows in lost.items()})
    assert (found["worse"], found["certain_worse"]) == (4, ["sure"])
    assert found["clients"]["a"]["p"] < 0.05 < found["clients"]["a"]["p_holm"]


@pytest.mark.parametrize(("quantity", "sign"), [(ACCURACY, 1), (RMSE, -1)])
def test_winners_and_losers_are_counted_and_named_in_the_direction_of_the_metric(quantity, sign):
    rng = np.random.default_rng(0)
    shifts = {"up": 0.5, "down": -0.5, "same": 0.0}
    tables = {client: sign * (shift + rng.normal(0, 0.1, (3, 60))) for client, shift in shifts.items()}
    tables["same"][:] = 0
    found = gains(tables, quantity)
    assert (found["better"], found["worse"], found["compared"]) == (1, 1, 3)
    assert (found["certain_better"], found["certain_worse"]) == (["up"], ["down"])
    assert found["mean"] == pytest.approx(sign * np.mean([d.mean() for d in tables.values()]))
    assert found["low"] < found["mean"] < found["high"]
    assert found["sentence"].endswith("; 1 of 3 clients loses, down certainly.")


def test_sentences():
    rng = np.random.default_rng(0)
    up = {f"c{i}": 0.2 + rng.normal(0, 0.1, (3, 60)) for i in range(9)}
    text = f"{100 * np.mean([d.mean() for d in up.values()]):.1f}"
    assert gains(up)["sentence"] == (
        f"fedavg gains {text} points on average over training alone; none of 9 clients loses."
    )
    assert gains({c: -d for c, d in up.items()})["sentence"].startswith(
        f"fedavg loses {text} points on average against training alone; 9 of 9 clients lose, c0, c1, c2 and 6 more cer"
    )
    noise = {f"c{i}": 0.01 * (-1) ** i + rng.normal(0, 1, (3, 60)) for i in range(2)}
    assert ", not distinguishable from none; " in gains(noise)["sentence"]
    assert "none certainly." in gains(noise)["sentence"]
    assert gains({"a": np.zeros((3, 20))})["sentence"] == (
        "fedavg neither gains nor loses on average against training alone; none of 1 clients loses."
    )
    error = gains({c: -d for c, d in up.items()}, RMSE)["sentence"]
    assert error.startswith("fedavg gains on average over training alone (−0.")
    assert " in rmse); none of 9 clients loses" in error
    broken = gains({"a": np.full((1, 20), math.nan), "b": np.ones((1, 20))}, RMSE)
    assert broken["sentence"] == (
        "fedavg has no mean gain over training alone, since predictions of one of them are not finite."
    )
    assert broken["clients"]["a"] == dict.fromkeys(("difference", "low", "high", "p", "p_holm"))
    assert (broken["better"], broken["worse"], broken["compared"]) == (0, 1, 1)


def test_a_gain_is_certain_after_holms_correction_over_methods():
    rng, plain = np.random.default_rng(2), {}
    for name, shift in (("fedavg", 0.2), ("ditto", 0.0), ("ifca", 0.0)):
        tables = {f"c{i}": np.sign(rng.normal(shift, 1, (3, 40)).round()) for i in range(3)}
        plain[name] = Measured(strata(tables), ({}, {}))
    alone = gains_of_methods({"fedavg": plain["fedavg"]}, ACCURACY)["fedavg"]
    of_three = gains_of_methods(plain, ACCURACY)["fedavg"]
    assert alone["distinguishable"]
    assert "not distinguishable" not in alone["sentence"]
    assert of_three["mean"] == alone["mean"]
    assert not of_three["distinguishable"]
    assert "not distinguishable" in of_three["sentence"]
    assert of_three["clients"] == alone["clients"]


def test_a_client_with_fewer_than_ten_test_rows_has_a_difference_and_no_certainty():
    found = gains({"few": -np.ones((3, 9)), "ten": -np.ones((3, 10))})
    assert found["clients"]["few"] == {"difference": -1.0, "low": None, "high": None, "p": None, "p_holm": None}
    assert (found["worse"], found["certain_worse"], found["untested"]) == (2, ["ten"], ["few"])
    assert found["sentence"].endswith("2 of 2 clients lose, ten certainly (1 of 2 has too few test rows to tell).")
    assert found["clients"]["ten"]["p_holm"] == pytest.approx(stats.binomtest(0, 10).pvalue)


def test_what_rounding_leaves_of_a_difference_is_no_gain_and_no_loss():
    tables = {"up": np.full((1, 12), 1e-13), "down": np.full((1, 12), -1e-13), "lost": np.full((1, 12), -1e-3)}
    found = gains(tables)
    assert (found["better"], found["worse"], found["certain_worse"]) == (0, 1, ["lost"])
    of_errors = gains(tables, RMSE)  # of no known size
    assert (of_errors["better"], of_errors["worse"]) == (2, 1)


@pytest.mark.parametrize(
    ("scored", "sentences"),
    [
        ("a", []),
        ("ab", ["b has no difference, since one class has a single row among its test rows."]),
        ("abc", ["b, c have no difference, since one class has a single row among their test rows."]),
    ],
)
def test_a_client_that_has_a_metric_and_no_difference_is_named(scored, sentences):
    found = gains({"a": np.ones((1, 20))}, metrics=(dict.fromkeys("abcd", 0.5), dict.fromkeys(scored, 0.6)))
    assert found["left_out"] == [client for client in scored if client != "a"]
    assert left_out_sentences({"fedavg": found, "fedprox": found}) == sentences


@pytest.mark.parametrize(("quantity", "order"), [(ACCURACY, 1), (RMSE, -1)])
def test_the_worst_tenth_and_the_worst_client_are_those_of_each_method(quantity, order):
    clients = [f"c{i:02d}" for i in range(20)]
    alone = {client: 0.3 + 0.01 * i for i, client in enumerate(clients[::order])}
    method = {client: 0.9 - 0.02 * i for i, client in enumerate(clients[::order])}
    found = gains({client: np.zeros((1, 12)) for client in clients}, quantity, (alone, method))
    worst_alone, worst = (sorted(values.values(), reverse=order < 0) for values in (alone, method))
    assert found["spread"]["alone"]["worst_tenth"] == pytest.approx(np.mean(worst_alone[:2]))
    assert found["worst_tenth"] == pytest.approx(order * (np.mean(worst[:2]) - np.mean(worst_alone[:2])))
    assert method[found["worst_client"]] == found["spread"]["method"]["worst"] == worst[0]
    assert found["spread"]["alone"]["worst"] == worst_alone[0]
    assert found["spread"]["method"]["sd"] == pytest.approx(np.std(list(method.values()), ddof=1))


@pytest.mark.parametrize(("count", "tenth"), [(10, 1), (11, 2), (19, 2), (21, 3), (1, 1)])
def test_the_worst_tenth_is_rounded_up_to_whole_clients(count, tenth):
    values = {f"c{i:02d}": 0.01 * i**2 for i in range(count)}
    found = gains({client: np.zeros((1, 12)) for client in values}, ACCURACY, (values, values))
    assert found["spread"]["alone"]["worst_tenth"] == pytest.approx(np.mean([0.01 * i**2 for i in range(tenth)]))


def test_the_sentences_are_on_the_reference_and_on_the_method_that_gains_most():
    methods = {m: {"mean": mean, "sentence": m} for m, mean in {"a": 0.1, "b": 0.3, "c": None, "d": -0.2}.items()}
    assert gain_sentences(methods, "d") == ["d", "b"]
    assert gain_sentences(methods, "b") == ["b"]
    assert gain_sentences(methods, "local_only") == ["b"]


@pytest.mark.parametrize(("least", "shown"), [(10, {"no": 0.12}), (12, {"no": 0.12}), (13, {})])
def test_what_a_rare_class_is_taken_for_is_shown_as_the_strictest_owner_allows(least, shown, tmp_path, monkeypatch):
    counts = np.array([[700, 20, 0], [12, 80, 8]])
    monkeypatch.setattr(client_gains, "project_workers", lambda _: nullcontext())
    monkeypatch.setattr(client_gains, "predictions_by_class", lambda *_: [counts])
    (tmp_path / "owner.yaml").write_text(f"silos: {{b: {{least_rows: {least}}}}}\n")
    silos = SimpleNamespace(
        clients=tuple("abc"),
        common=lambda _: 0,
        federated=lambda: silos,
        manifest=SimpleNamespace(task="classification", classes=["no", "rare"]),
    )
    store = SimpleNamespace(private=lambda _: None)
    project = SimpleNamespace(root=tmp_path, scored=silos, silos=silos, store=store, ledgers=ClientStore(str(tmp_path)))
    write_json(tmp_path / "run" / "outcomes.json", {})
    found = class_records(project, {("fedavg", 0): {"folder": "run"}})
    assert found["confusion"] == {"fedavg": {"rare": shown}}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Prefect, since no flow runs
@pytest.mark.parametrize("common", [True, False])
def test_rows_of_a_class_are_counted_once_for_all_seeds_and_for_all_clients_that_share_them(
    common, write_silos, tmp_path, prefect
):
    silos = write_silos(dict.fromkeys("ab", 15), validation=0, test=24, common=["test"] if common else [])
    store = ClientStore(str(tmp_path / "private" / "run"))
    own = {"correct": np.ones((2, 48 if common else 24), np.uint8)}
    own["predicted"] = np.ones(own["correct"].shape, np.int64)
    write_json(tmp_path / "runs" / "run" / "outcomes.json", store.save(OUTCOMES, ["a", "b"], own, "outcomes"))
    project = SimpleNamespace(
        root=tmp_path,
        scored=silos,
        silos=silos,
        store=SimpleNamespace(private=lambda _: store),
        ledgers=ClientStore(str(tmp_path / "private")),
        params=SimpleNamespace(runner=SimpleNamespace(kind="threads", workers=1, address=None)),
    )
    runs = [("fedavg", 0), ("fedavg", 1), ("ditto", 0)]
    found = class_records(project, {run: {"folder": "runs/run"} for run in runs})
    assert found["recall"]["fedavg"] == found["recall"]["ditto"]
    counts = np.bincount(open_common(silos, "test")[1]) if common else None
    rows = silos.common("test") if common else 48
    assert sum(found["rows"].values()) == rows
    assert counts is None or [*found["rows"].values()] == counts.tolist()


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Prefect, since no flow runs
@pytest.mark.parametrize("common", [True, False])
def test_the_mean_gain_on_rows_that_all_clients_share_has_the_interval_of_single_rows(
    common, write_silos, tmp_path, prefect
):
    """Each client's differences are the others', which on rows of their own are further draws."""
    silos = write_silos(dict.fromkeys("abc", 15), validation=0, test=24, common=["test"] if common else [])
    rows, rng, runs = silos.common("test") or 24, np.random.default_rng(0), {}
    stores, right = {}, rng.integers(0, 2, (2, rows)).astype(np.uint8)
    for method, of_method in zip(("local_only", "fedavg"), right, strict=True):
        folder = tmp_path / "runs" / method
        stores[folder] = ClientStore(str(tmp_path / "private" / method))
        refs = stores[folder].save(OUTCOMES, list("abc"), {"correct": np.tile(of_method, (3, 1))}, "outcomes")
        write_json(folder / "outcomes.json", refs)
        scores = [{"client": client, "accuracy": float(of_method.mean())} for client in "abc"]
        runs[method, 0] = {"folder": f"runs/{method}", "metrics": {"accuracy/by_client": scores}}
    project = SimpleNamespace(
        root=tmp_path,
        scored=SimpleNamespace(federated=lambda: silos),
        quantity=ACCURACY,
        store=SimpleNamespace(private=stores.get),
        params=SimpleNamespace(runner=SimpleNamespace(kind="threads", workers=1, address=None)),
    )
    found = gains_over_training_alone(project, ["local_only", "fedavg"], "fedavg", [0], runs)["methods"]["fedavg"]
    d = (right[1].astype(float) - right[0])[None]
    expected = difference([Stratum.from_differences(d)] * (1 if common else 3))
    assert [found[name] for name in ("mean", "low", "high")] == [expected.mean, expected.low, expected.high]
    assert found["compared"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("rows", [30, 120])
def test_where_methods_are_equal_a_client_certainly_loses_in_at_most_five_of_a_hundred_comparisons(seeds, rows):
    """Both are right where a normal score is positive; scores share the row, and differ in method, seed and noise."""
    rng, families, found = np.random.default_rng(0), 400, 0
    for _ in range(families):
        tables = {}
        for client in range(9):
            row, own = rng.normal(size=rows), 0.5 * rng.normal(size=rows)
            noise = rng.normal(0, 0.5, (2, seeds, rows))
            right = [0.9 + row + sign * own + of_method > 0 for sign, of_method in zip((1, -1), noise, strict=True)]
            tables[f"c{client}"] = right[0].astype(float) - right[1]
        found += bool(gains(tables)["certain_worse"])
    assert found / families <= 0.05


def test_clients_are_listed_with_means_over_seeds_and_the_worst_federated_one_is_named(write_silos):
    silos = write_silos({"a": 5, "b": 9}, test=6)
    values = {("fedavg", 0): (0.5, 0.9), ("fedavg", 1): (0.7, None), ("pooled", 0): (0.9, 0.2)}
    runs = {
        key: {"metrics": {"accuracy/by_client": [{"client": c, "accuracy": v} for c, v in zip("ab", of, strict=True)]}}
        for key, of in values.items()
    }
    records = client_records(silos, runs, ACCURACY)
    assert [(r["client"], r["role"], r["rows"], r["test_rows"]) for r in records] == [
        ("a", "federated", 5, 6),
        ("b", "federated", 9, 6),
    ]
    assert records[0]["metrics"] == {"fedavg": pytest.approx(0.6), "pooled": 0.9}
    assert records[1]["metrics"] == {"fedavg": 0.9, "pooled": 0.2}
    assert [worst_client(records, method, ACCURACY) for method in ("fedavg", "pooled", "gone")] == ["a", "b", None]
    assert worst_client(records, "fedavg", RMSE) == "b"
    others = [*records, {**records[0], "client": "new", "role": "unseen", "metrics": {"fedavg": 0.1}}]
    assert worst_client(others, "fedavg", ACCURACY) == "a"


def listed(clients, role="federated"):
    return [
        {"client": c, "role": role, "rows": 1200, "test_rows": 50, "domain": "", "metrics": {"fedavg": 0.5}}
        for c in clients
    ]


def test_the_table_shows_certain_clients_first_of_many_and_marks_them():
    rng = np.random.default_rng(0)
    tables = {f"c{i:02d}": rng.normal(0.02 * i, 5, (3, 50)) for i in range(30)}
    tables["c07"] = -0.01 + rng.normal(0, 0.001, (3, 50))  # the smallest difference, and certain
    method = gains(tables, RMSE)
    found = {"against": "local_only", "level": 0.05, "methods": {"fedavg": method}}
    assert method["certain_better"] == ["c07"]
    chosen = interesting_clients(listed(tables), found, 15)
    largest = sorted(tables, key=lambda c: -abs(tables[c].mean()))[:14]
    assert [c["client"] for c in chosen] == sorted(["c07", *largest])
    assert interesting_clients(listed(tables), found, 30) == listed(tables)
    rows = {row[0]: row for row in clients_table(chosen, ["fedavg", "pooled"], found, ACCURACY)}
    assert rows["client"] == ["client", "rows", "test", "fedavg", "pooled"]
    assert rows["c07"] == ["c07", "1,200", "50", "0.500 −1.0*", "-"]
    assert sum(row[3].endswith("*") for row in rows.values()) == 1


def test_roles_are_apart_and_methods_are_below_training_alone():
    by_role = clients_of_role([*listed(["x"], "unseen"), *listed(["a", "b"])])
    assert {role: [c["client"] for c in of_role] for role, of_role in by_role.items()} == {
        "federated": ["a", "b"],
        "unseen": ["x"],
    }
    found = gains(
        {"up": np.ones((2, 20)), "b": np.zeros((2, 20))}, metrics=({"up": 0.5, "b": 0.9}, {"up": 1, "b": 0.9})
    )
    titles, alone, fedavg = gains_table(["fedavg"], {"against": "local_only", "methods": {"fedavg": found}}, ACCURACY)
    assert titles[0] == "method"
    assert alone == ["local_only", "", "", "0.500", "0.500 up", "0.283"]
    assert fedavg == ["fedavg", "1, 1 certainly", "0", "0.900", "0.900 b", "0.071"]


def test_a_class_is_rare_below_a_fifth_of_the_test_rows():
    counts = np.zeros((4, 5), int)
    counts[np.arange(4), np.arange(4)] = (400, 201, 200, 199)
    assert describe_classes(["a", "b", "c", "d"], {"fedavg": counts}, 10)["rare"] == {"d": 0.199}


def test_rows_without_a_finite_prediction_count_as_rows_of_their_class():
    counts = np.array([[900, 0, 0], [30, 50, 20]])  # the last column: no finite prediction
    found = describe_classes(["no", "rare"], {"fedavg": counts}, 10)
    assert found["recall"]["fedavg"]["rare"] == 0.5
    assert found["confusion"]["fedavg"]["rare"] == {"no": 0.3}


def test_recall_and_confusion_are_shares_of_a_class_and_counts_below_ten_rows_are_left_out():
    counts = {
        "fedavg": np.array([[700, 20, 0, 0], [12, 80, 8, 0], [0, 0, 9, 0]]),  # the last column: no finite prediction
        "pooled": np.array([[720, 0, 0, 0], [0, 90, 0, 10], [0, 0, 9, 0]]),
    }
    found = describe_classes(["no", "rare", "rarest"], counts, 10)
    assert found == {
        "rows": {"no": 720, "rare": 100},
        "recall": {"fedavg": {"no": 700 / 720, "rare": 0.8}, "pooled": {"no": 1.0, "rare": 0.9}},
        "rare": {"rare": 100 / 829},
        "confusion": {"fedavg": {"rare": {"no": 0.12}}, "pooled": {"rare": {}}},
    }
    assert describe_classes(["no", "rare", "rarest"], counts, 12) == found
    stricter = describe_classes(["no", "rare", "rarest"], counts, 13)  # the least rows of some client's policy
    assert stricter == {**found, "confusion": {"fedavg": {"rare": {}}, "pooled": {"rare": {}}}}
    assert recall_table(["pooled", "fedavg"], found, 1) == [
        ["recall of class", "test", "pooled", "fedavg"],
        ["rare", "100", "0.900", "0.800"],
    ]
    assert confusion_sentences("fedavg", found, 5) == [
        "fedavg finds 80 % of the rows of rare (12 % of all) and takes 12 % for no."
    ]
    assert confusion_sentences("pooled", found, 5) == ["pooled finds 90 % of the rows of rare (12 % of all)."]
    assert confusion_sentences("gone", found, 5) == []
