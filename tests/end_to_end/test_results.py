"""`siloflow results`, as typed: what was run is listed, printed again, held beside another; and an earlier one resumed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

DIAGNOSIS = "diagnose-20260101-000000-0000"
OTHER = ("compare", "fedavg", "--seeds", "1,2", "--set", "training.rounds=2")


@pytest.fixture(scope="module")
def two(finished: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A folder with the finished comparison, a newer one, one that lost a run and its end, as if killed; a diagnosis."""
    folder = finished.folder.copy(tmp_path_factory.mktemp("results") / "project", server)
    for other in (folder.path / "runs").glob("run-*"):  # of tests that ran there before
        shutil.rmtree(other)
    printed = folder.type(*OTHER).out
    names = {"first": finished.compare.json["experiment"], "second": printed.split("experiment")[1].split()[0]}
    names["cut"] = "cut-short"
    shutil.copytree(folder.path / "runs" / names["second"], folder.path / "runs" / "cut-short")
    (folder.path / "runs" / "cut-short" / "comparison.json").unlink()
    (folder.path / "runs" / "cut-short" / "fedavg-seed2" / "result.json").unlink()
    (folder.path / "runs" / DIAGNOSIS).mkdir()
    (folder.path / "runs" / DIAGNOSIS / "experiment.json").write_text(
        json.dumps({"kind": "diagnose", "name": DIAGNOSIS})
    )
    return {"folder": folder, "printed": printed, **names}


def test_the_list_has_every_set_of_runs_with_its_state_and_number(two: dict[str, Any], finished: Any) -> None:
    lines = {line["name"]: line for line in two["folder"].type("results", "--json").json["results"]}
    assert lines.keys() == {two["first"], two["second"], two["cut"]}
    first = lines[two["first"]]
    best = max(finished.compare.json["table"], key=lambda row: row["accuracy/mean"])
    assert first["headline"] == f"{best['method']} {best['accuracy/mean']:.3f}"
    assert first["data_version"] == finished.partition.json["data_version"][:10]
    assert (first["state"], first["what"]) == ("finished", "fedavg, local_only; seeds 0, 1")
    assert lines[two["cut"]]["state"] == "1 of 2 runs"
    assert two["cut"] in two["folder"].type("results").out


def test_a_comparison_is_printed_again_to_the_letter(two: dict[str, Any], finished: Any) -> None:
    folder = two["folder"]
    assert folder.type("results", two["second"]).out == two["printed"]
    assert folder.type("results", f"runs/{two['second']}/").out == two["printed"]  # as a shell completes it
    assert folder.type("results", two["first"][:-2], "--json").json == finished.compare.json


def test_the_clients_of_a_comparison_are_printed_with_what_each_gains(two: dict[str, Any], finished: Any) -> None:
    folder, found = two["folder"], finished.compare.json
    answer = folder.type("results", two["first"], "--clients", "--json").json
    assert answer["clients"] == found["clients"]
    assert answer["gains"] == found["gains"]
    classes = answer["classes"]
    assert sum(classes["rows"].values()) == sum(client["test_rows"] for client in found["clients"])
    for method, recall in classes["recall"].items():
        of_rows = [run["metrics"]["accuracy/over_rows"] for run in found["runs"] if run["method"] == method]
        hit = sum(recall[name] * rows for name, rows in classes["rows"].items()) / sum(classes["rows"].values())
        assert hit == pytest.approx(sum(of_rows) / len(of_rows)), "recall adds up to the accuracy over all rows"
    gains = found["gains"]["methods"]["fedavg"]
    means: dict[str, dict[str, float]] = {"fedavg": {}, "local_only": {}}
    for run in found["runs"]:
        for row in run["metrics"]["accuracy/by_client"]:
            of_method = means[run["method"]]
            of_method[row["client"]] = of_method.get(row["client"], 0) + row["accuracy"] / 2
    for client in found["clients"]:
        name = client["client"]
        assert client["metrics"] == {method: pytest.approx(of[name]) for method, of in means.items()}
        gain = means["fedavg"][name] - means["local_only"][name]
        assert gains["clients"][name]["difference"] == pytest.approx(gain, abs=1e-12)
    (paired,) = found["paired"]
    assert gains["mean"] == pytest.approx(-paired["difference"])
    assert gains["better"] + gains["worse"] <= gains["compared"] == 9
    out = folder.type("results", two["first"], "--clients").out
    assert all(f"\n{client['client']} " in out for client in found["clients"])
    assert gains["sentence"] in " ".join(out.split())
    for row in found["table"]:
        lowest = min(means[row["method"]], key=means[row["method"]].__getitem__)
        assert means[row["method"]][row["worst_client"]] == pytest.approx(means[row["method"]][lowest])
    printed = " ".join(folder.type("results", two["first"]).out.split())
    assert gains["sentence"] in printed
    assert f"{found['table'][0]['accuracy/worst']:.3f} {found['table'][0]['worst_client']}" in printed


def test_without_training_alone_it_is_said_how_to_see_who_gains(two: dict[str, Any]) -> None:
    sentence = "Training alone was not compared: add local_only to see which clients gain."
    assert sentence in " ".join(two["printed"].split())
    out = two["folder"].type("results", two["second"], "--clients").out
    assert sentence in " ".join(out.split())
    assert "\nc00 " in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "got no name, expected the name of one comparison. `siloflow results` lists them."),
        (["compare", "cut"], "got two names, expected the name of one comparison. `siloflow results` lists them."),
        (["{first}/fedavg-seed0"], "got {first}/fedavg-seed0, a run, expected a comparison. Name a comparison."),
    ],
)
def test_clients_are_those_of_one_comparison(two: dict[str, Any], words: list[str], said: str) -> None:
    err = two["folder"].type("results", *[word.format(**two) for word in words], "--clients", code=2).err
    assert err == f"error: results --clients: {said.format(**two)}\n"


def test_a_run_of_a_comparison_is_printed_again(two: dict[str, Any], finished: Any) -> None:
    answer = two["folder"].type("results", f"{two['first']}/fedavg-seed0", "--json")
    assert answer.json["weights_sha256"] == finished.run("fedavg", 0)["weights_sha256"]


def test_two_comparisons_stand_beside_each_other_on_the_seeds_that_both_have(
    two: dict[str, Any], finished: Any
) -> None:
    folder = two["folder"]
    answer = folder.type("results", two["first"], two["second"], "--json").json
    (paired,) = answer["paired"]
    assert (paired["method"], paired["seeds"]) == ("fedavg", [1])
    second = json.loads((folder.path / "runs" / two["second"] / "fedavg-seed1" / "result.json").read_text())
    gain = second["metrics"]["accuracy/mean"] - finished.run("fedavg", 1)["metrics"]["accuracy/mean"]
    assert paired["difference"] == pytest.approx(gain, abs=1e-9)
    assert answer["params"] == [{"difference": "training.rounds: 4 → 2", "methods": ["fedavg"]}]
    assert answer["only"] == [["local_only"], []]
    assert "training.rounds: 4 → 2" in folder.type("results", two["first"], two["second"]).out


@pytest.mark.slow
def test_where_one_scored_fewer_clients_the_difference_is_of_those_that_both_scored_and_says_so(
    two: dict[str, Any], finished: Any, tmp_path: Path
) -> None:
    folder = two["folder"].copy(tmp_path / "project", two["folder"].server)
    folder.type(
        "compare",
        "fedavg",
        "--seeds",
        "1",
        "--name",
        "some",
        "--set",
        "training.rounds=4",
        "--set",
        "evaluation.clients=2",
    )
    (paired,) = folder.type("results", two["first"], "some", "--json").json["paired"]
    assert (paired["difference"], paired["low"], paired["high"]) == (0, 0, 0)  # the same weights, on the same rows
    assert paired["sentence"].endswith("; only of the 2 clients that both scored")


@pytest.mark.slow
def test_on_other_rows_it_is_said_why_there_is_no_difference(two: dict[str, Any], tmp_path: Path) -> None:
    folder = two["folder"].copy(tmp_path / "project", two["folder"].server)
    folder.type("partition", "--set", "data.seed=3")
    out = folder.type("results", two["first"], two["second"], "--set", "data.seed=3").out
    assert "fedavg: no interval, since data/ has another version now; `siloflow data use" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["cut-short"],
            "cut-short: got an unfinished result (1 of 2 runs), expected a finished one. To get it, run "
            "`siloflow compare fedavg --seeds 1,2 --reference fedavg --set=training.rounds=2 --resume --name cut-short`",
        ),
        ([DIAGNOSIS], f"runs/: got no run or comparison '{DIAGNOSIS}'"),
        (["cut-shrot"], "runs/: got no run or comparison 'cut-shrot'. Did you mean cut-short?"),
        (["compare"], "'compare': got a name that fits 2 results, expected one: compare-"),
    ],
)
def test_what_is_not_there_or_not_finished_is_said_with_the_way_on(
    two: dict[str, Any], words: list[str], said: str
) -> None:
    err = two["folder"].type("results", *words, code=2).err
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_an_earlier_comparison_is_resumed_by_its_name(two: dict[str, Any], tmp_path: Path) -> None:
    folder = two["folder"].copy(tmp_path / "project", two["folder"].server)
    wrong = folder.type("compare", "--resume", "--name", "cut-shrot", code=2).err
    assert wrong == "error: runs/: got no comparison 'cut-shrot'. Did you mean cut-short?\n"
    again = folder.type(*OTHER, "--resume", "--name", "cut", "--json").json
    assert again["experiment"] == "cut-short"
    kept = json.loads((folder.path / "runs" / two["second"] / "comparison.json").read_text())
    assert [run["weights_sha256"] for run in again["runs"]] == [run["weights_sha256"] for run in kept["runs"]]
