"""`siloflow partition`, then `siloflow compare`, as typed."""

import getpass
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from models.metrics.client_metrics import CLIENT_METRICS

METHODS, SEEDS, ROUNDS, CLIENTS = ("fedavg", "local_only"), (0, 1), 4, 9
RUNS = [(method, seed) for seed in SEEDS for method in METHODS]
RUN_FIELDS = {
    "method": str,
    "seed": int,
    "data_version": str,
    "rounds": int,
    "resumed_from_round": int,
    "mlflow_run_id": str,
    "seconds": dict,
    "bytes": dict,
    "metrics": dict,
    "weights_sha256": str,
}
PNG = b"\x89PNG\r\n\x1a\n"


def test_stdout_of_partition_is_one_object_and_stderr_is_empty(finished: Any) -> None:
    made = finished.partition.json
    assert finished.partition.out.count("\n") == 1
    assert finished.partition.err == ""
    assert made["clients"] == CLIENTS
    assert sum(made["rows"].values()) == 1797


def test_stdout_is_one_json_object_and_nothing_else(finished: Any) -> None:
    assert finished.compare.out.count("\n") == 1
    assert set(finished.compare.json) >= {"runs", "table", "paired", "failed", "figure", "experiment", "data_version"}


def test_stderr_holds_one_line_a_run_and_no_noise(finished: Any, assert_quiet: Callable[[str], None]) -> None:
    assert_quiet(finished.compare.err)
    lines = finished.compare.lines
    assert len(lines) == len(RUNS)
    for number, (line, (method, seed)) in enumerate(zip(lines, RUNS, strict=True), 1):
        assert re.fullmatch(rf" *{number} of 4  {method}-seed{seed} +accuracy 0\.\d+ +[\d.]+ s", line)


@pytest.mark.parametrize(("method", "seed"), RUNS)
def test_a_run_has_every_promised_field(finished: Any, method: str, seed: int) -> None:
    run = finished.run(method, seed)
    assert {name: type(run[name]) for name in RUN_FIELDS} == RUN_FIELDS
    assert (run["rounds"], run["resumed_from_round"]) == (ROUNDS, 0)
    assert run["data_version"] == finished.partition.json["data_version"]
    assert set(run["seconds"]) == {"total", "per_round", "clients", "orchestration"}
    assert all(seconds > 0 for seconds in run["seconds"].values())
    assert set(run["bytes"]) == {"up", "down"}
    assert re.fullmatch("[0-9a-f]{64}", run["weights_sha256"])
    metrics = run["metrics"]
    assert {"accuracy/mean", "accuracy/sd", "accuracy/worst", "loss/mean", "entropy/mean"} <= set(metrics)
    by_client = [row["accuracy"] for row in metrics["accuracy/by_client"]]
    assert len(by_client) == CLIENTS
    assert metrics["accuracy/mean"] == pytest.approx(sum(by_client) / CLIENTS)
    assert metrics["accuracy/worst"] == min(by_client)


def test_only_methods_that_share_weights_send_them(finished: Any) -> None:
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    down = ROUNDS * CLIENTS * 4 * parameters
    assert finished.run("fedavg", 0)["bytes"]["down"] == down
    assert finished.run("fedavg", 0)["bytes"]["up"] >= down
    assert finished.run("local_only", 0)["bytes"]["down"] == 0


def test_the_comparison_says_which_difference_is_real(finished: Any) -> None:
    (paired,) = finished.compare.json["paired"]
    assert (paired["method"], paired["reference"], paired["seeds"]) == ("local_only", "fedavg", list(SEEDS))
    assert paired["low"] <= paired["difference"] <= paired["high"]
    assert paired["sentence"].startswith("local_only − fedavg ")
    assert {row["method"]: row["model"] for row in finished.compare.json["table"]} == {
        "fedavg": "global",
        "local_only": "personal",
    }


def test_a_paired_difference_is_the_first_methods_mean_accuracy_less_the_references(finished: Any) -> None:
    (paired,) = finished.compare.json["paired"]
    mean = {m: sum(finished.run(m, s)["metrics"]["accuracy/mean"] for s in SEEDS) / len(SEEDS) for m in METHODS}
    expected = mean[paired["method"]] - mean[paired["reference"]]
    assert abs(expected) > 1e-3, "without a difference there is no sign to see"
    assert paired["difference"] == pytest.approx(expected, abs=1e-9)
    if paired["distinguishable"]:
        assert paired["better"] == max(mean, key=mean.__getitem__)


def test_the_baseline_stands_beside_the_methods_and_is_worse_than_both(finished: Any) -> None:
    baseline = finished.compare.json["baseline"]
    assert (baseline["name"], baseline["kind"]) == (f'always "{baseline["answer"]}"', "commonest class")
    assert 0.05 < baseline["metrics"]["accuracy/mean"] < 0.2, "of ten classes that are about equally common"
    assert {one["method"]: one["better"] for one in baseline["paired"]} == {method: method for method in METHODS}
    assert baseline["sentence"] is None
    assert {run["baseline"]["answer"] for run in finished.compare.json["runs"]} == {baseline["answer"]}


def test_the_figure_is_a_picture(finished: Any) -> None:
    figure = finished.folder.path / finished.compare.json["figure"]
    assert figure.read_bytes().startswith(PNG)
    assert figure.with_name("cost.png").read_bytes().startswith(PNG)


def test_the_report_to_hand_on_has_the_sentences_of_the_screen(finished: Any) -> None:
    page = (finished.folder.path / finished.compare.json["report"]).read_text(encoding="utf-8")
    assert all(pair["sentence"] in page for pair in finished.compare.json["paired"])
    assert f"--set training.rounds={ROUNDS}" in page
    assert str(finished.folder.path) not in page


def test_the_cost_of_each_method_is_that_of_its_journal(finished: Any) -> None:
    found = finished.compare.json
    best = max(row["accuracy/mean"] for row in found["table"])
    constant = found["baseline"]["metrics"]["accuracy/mean"]
    for method, cost in found["cost"].items():
        assert cost["target"] == pytest.approx(constant + 0.9 * (best - constant))
        runs = [run for run in found["runs"] if run["method"] == method]
        a_round = sum(sum(run["bytes"].values()) for run in runs) / len(runs) / ROUNDS
        assert cost["rounds"] is None or cost["bytes"] == pytest.approx(cost["rounds"] * a_round)


def test_the_comparison_is_kept_beside_its_runs(finished: Any) -> None:
    found = finished.compare.json
    kept = json.loads((finished.folder.path / "runs" / found["experiment"] / "comparison.json").read_text())
    assert kept == found


def whole_comparison(finished: Any) -> Any:
    """The comparison's own run, above its runs."""
    (whole,) = finished.folder.in_mlflow("tags.kind = 'comparison'")
    return whole


def test_mlflow_has_one_experiment_a_project_with_a_run_of_each_method_and_seed_below_the_comparison(
    finished: Any,
) -> None:
    client, whole = finished.folder.mlflow(), whole_comparison(finished)
    experiment = client.get_experiment(whole.info.experiment_id)
    assert experiment.name == json.loads((finished.folder.path / "runs" / "mlflow.json").read_text())["name"]
    assert whole.info.run_name == finished.compare.json["experiment"]
    runs = finished.folder.in_mlflow(f"tags.`mlflow.parentRunId` = '{whole.info.run_id}'")
    assert {run.info.experiment_id for run in runs} == {experiment.experiment_id}
    assert sorted((r.data.tags["method"], int(r.data.tags["seed"])) for r in runs) == sorted(RUNS)
    assert {r.info.status for r in runs} == {"FINISHED"}
    assert {r.info.run_id for r in runs} == {r["mlflow_run_id"] for r in finished.compare.json["runs"]}
    assert finished.compare.json["paired"][0]["sentence"] in experiment.tags["mlflow.note.content"]


@pytest.mark.parametrize(("method", "seed"), RUNS)
def test_an_mlflow_run_tells_where_it_comes_from(finished: Any, method: str, seed: int) -> None:
    run = finished.run(method, seed)
    kept = finished.folder.mlflow().get_run(run["mlflow_run_id"])
    version = finished.partition.json["data_version"]
    assert kept.data.tags["data_version"] == version
    assert kept.data.tags["git_commit"] == "none"
    assert kept.data.tags["mlflow.user"] == getpass.getuser()
    assert kept.data.tags["mlflow.source.name"].startswith(
        "siloflow compare fedavg local_only --seeds 0,1 --set training."
    )
    assert str(finished.folder.path.parent) not in str(kept.data.tags)
    assert kept.data.tags["weights_sha256"] == run["weights_sha256"]
    assert kept.data.params["training.rounds"] == str(ROUNDS)
    assert kept.data.params["training.optimiser.learning_rate"] == "0.5"
    assert kept.data.params["seed"] == str(seed)
    (given,) = kept.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("digits", version[:36])
    assert kept.data.metrics["accuracy/mean"] == run["metrics"]["accuracy/mean"]


@pytest.mark.parametrize(("method", "seed"), RUNS)
def test_every_metric_has_each_round_as_a_step_once(finished: Any, method: str, seed: int) -> None:
    client, number = finished.folder.mlflow(), finished.run(method, seed)["mlflow_run_id"]
    names = {name for name in client.get_run(number).data.metrics if not name.startswith("system/")}
    assert {"accuracy/mean", "accuracy/worst", "loss/train", "entropy/mean", "bytes/up"} <= names
    for name in names:
        once = "uncertainty/" in name or name.partition("/")[0] in CLIENT_METRICS  # of the reported round
        expected = [ROUNDS] if once else list(range(1, ROUNDS + 1))
        assert [m.step for m in client.get_metric_history(number, name)] == expected, name


@pytest.mark.parametrize("method", METHODS)
def test_the_table_of_clients_has_a_row_for_each_client_and_round(finished: Any, method: str, tmp_path: Path) -> None:
    number = finished.run(method, 0)["mlflow_run_id"]
    table = finished.folder.mlflow().download_artifacts(number, "clients.csv", str(tmp_path))
    header, *rows = [line.split(",") for line in Path(table).read_text(encoding="utf-8").splitlines()]
    assert header[:2] == ["round", "client"]
    assert [tuple(row[:2]) for row in rows] == [
        (str(round), f"c{client:02d}") for round in range(1, ROUNDS + 1) for client in range(CLIENTS)
    ]


def test_the_comparison_is_a_run_of_its_own_with_figure_and_tables_and_comes_last(
    finished: Any, tmp_path: Path
) -> None:
    client, found = finished.folder.mlflow(), finished.compare.json
    for order in ("metrics.`accuracy/mean` DESC", "metrics.`accuracy/mean` ASC"):
        *others, last = finished.folder.in_mlflow(order_by=[order])
        assert (len(others), last.info.run_name, last.info.status) == (len(RUNS), found["experiment"], "FINISHED")
    assert found["paired"][0]["sentence"] in last.data.tags["mlflow.note.content"]
    names = {file.path for file in client.list_artifacts(last.info.run_id)}
    assert names == {"comparison.png", "cost.png", "report.html", "comparison.json", "table.json", "runs.json"}
    table, runs = (
        json.loads(Path(client.download_artifacts(last.info.run_id, name, str(tmp_path))).read_text(encoding="utf-8"))
        for name in ("table.json", "runs.json")
    )
    rows = [["fedavg", "global"], ["local_only", "personal"], [found["baseline"]["name"], "constant"]]
    assert [row[:2] for row in table["data"]] == rows
    at = runs["columns"].index("weights_sha256")
    assert {(row[0], row[1]): row[at] for row in runs["data"]} == {
        (run["method"], run["seed"]): run["weights_sha256"] for run in found["runs"]
    }


def test_the_run_of_the_comparison_has_each_methods_metric_and_the_differences(finished: Any) -> None:
    whole, found = whole_comparison(finished), finished.compare.json
    best, (pair,) = max(found["table"], key=lambda row: row["accuracy/mean"]), found["paired"]
    assert whole.data.tags["best method"] == best["method"]
    assert whole.data.metrics == pytest.approx(
        {
            "best/accuracy/mean": best["accuracy/mean"],
            **{f"accuracy/mean/{row['method']}": row["accuracy/mean"] for row in found["table"]},
            **{f"accuracy/mean/sd/{row['method']}": row["accuracy/mean/sd"] for row in found["table"]},
            "difference/local_only": pair["difference"],
            "difference/local_only/low": pair["low"],
            "difference/local_only/high": pair["high"],
        }
    )


def test_task_runs_of_the_comparison_say_what_they_compare(finished: Any) -> None:
    names = {name for (name,) in finished.folder.in_prefect("select name from task_run")}
    assert {"local_only against fedavg: pair_outcomes", *(f"ensemble of {m}: ensemble_check" for m in METHODS)} <= names
    assert not [name for name in names if re.match("pair-|ensemble_check-", name)]


def test_every_run_in_mlflow_names_its_flow_run_in_prefect(finished: Any) -> None:
    found, runs = finished.compare.json, finished.folder.in_mlflow()
    with closing(sqlite3.connect(finished.folder.path / ".prefect" / "prefect.db")) as database:
        flows = {str(UUID(number)): name for number, name in database.execute("select id, name from flow_run")}
    assert len(runs) == len(RUNS) + 1
    for run in runs:
        there = flows[run.data.tags["prefect.flow_run_id"]]
        assert there == run.data.tags["prefect.flow_run"]
        of_all = run.data.tags["kind"] == "comparison"
        assert there.startswith("compare " if of_all else "run ")
        assert there.endswith(found["experiment"].rpartition("-")[2] if of_all else run.info.run_name)
        page = f"http://127.0.0.1:4200/runs/flow-run/{run.data.tags['prefect.flow_run_id']})"
        assert page in run.data.tags["mlflow.note.content"]


def test_the_models_of_a_comparison_have_its_runs_names_and_last_numbers(finished: Any) -> None:
    client = finished.folder.mlflow()
    number = whole_comparison(finished).info.experiment_id
    models = {model.name: model for model in client.search_logged_models([number])}
    assert set(models) == {"fedavg-seed0", "fedavg-seed1"}, "private weights are not logged"
    for seed in SEEDS:
        run = finished.run("fedavg", seed)
        told = {m.key: (m.step, m.value, m.dataset_name) for m in models[f"fedavg-seed{seed}"].metrics}
        for name in ("accuracy/mean", "accuracy/worst", "loss/mean", "uncertainty/entropy"):
            assert told[name] == (ROUNDS, run["metrics"][name], "digits")
        assert "bytes/up" not in told, "of a round, and not of the model"


@pytest.mark.slow
def test_a_comparison_that_is_told_again_is_in_mlflow_once(finished: Any, server: str, tmp_path: Path) -> None:
    folder = finished.folder.copy(tmp_path / "again", server)
    before = _in_mlflow(folder)
    again = folder.type("compare", *METHODS, "--seeds", "0,1", "--set", "training.rounds=4", "--resume", "--json")
    assert again.json["experiment"] == finished.compare.json["experiment"]
    assert _in_mlflow(folder) == before


def _in_mlflow(folder: Any) -> dict[str, tuple[Any, ...]]:
    client, runs = folder.mlflow(), folder.in_mlflow()
    models = [
        (model.source_run_id, model.model_id, len(model.metrics))
        for model in client.search_logged_models([runs[0].info.experiment_id])
    ]
    return {
        run.info.run_id: (
            run.info.run_name,
            run.info.status,
            [file.path for file in client.list_artifacts(run.info.run_id)],
            len(run.inputs.dataset_inputs),
            [model for model in models if model[0] == run.info.run_id],
        )
        for run in runs
    }


def test_prefect_has_every_flow_and_every_task_as_completed(finished: Any) -> None:
    database = sqlite3.connect(finished.folder.path / ".prefect" / "prefect.db")
    flows = "from flow_run join flow on flow.id = flow_run.flow_id where flow.name in ('compare', 'run')"
    assert database.execute(f"select distinct flow_run.state_type {flows}").fetchall() == [("COMPLETED",)]
    counted = database.execute(
        "select flow_run.name, task_run.state_type, count(*) from task_run join flow_run "
        "on flow_run.id = task_run.flow_run_id where flow_run.name like '%-seed%' group by flow_run.id, 2"
    ).fetchall()
    database.close()
    # a round trains, averages and scores; the reported model is scored once more and asked how unsure it is; private
    # weights are not averaged
    expected = {f"run {method}-seed{seed}": (3 if method == "fedavg" else 2) * ROUNDS + 2 for method, seed in RUNS}
    assert set(counted) == {(name, "COMPLETED", tasks) for name, tasks in expected.items()}


def test_all_seeds_of_a_method_are_told_as_one_ensemble(finished):
    ensembles = {line["method"]: line for line in finished.compare.json["ensembles"]}
    runs = finished.compare.json["runs"]
    assert ensembles.keys() == {run["method"] for run in runs}
    for method, line in ensembles.items():
        alone = [run["metrics"]["uncertainty/nll"] for run in runs if run["method"] == method]
        assert line["seeds"] == sorted({run["seed"] for run in runs})
        assert line["nll"] <= sum(alone) / len(alone), "the mean prediction is never worse than the mean (Jensen)"
        assert line["mutual_information"] > 0
