"""Settings that must not change the weights, and settings that must do what they say."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SMALL = ("--set", "training.rounds=6", "--json")


def records(folder: Path, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The run's journal."""
    return [json.loads(path.read_text()) for path in sorted((folder / run["folder"] / "journal").glob("*.json"))]


@pytest.fixture(scope="module")
def lossy(finished: Any) -> list[Any]:
    """Twice the same run with clients that drop out, of which the best round is reported."""
    typed = ("run", "fedavg", *SMALL, "--set", "clients.dropout=0.2", "--set", "evaluation.report=best")
    return [finished.folder.type(*typed) for _ in range(2)]


def test_one_worker_and_two_give_the_same_weights(finished: Any) -> None:
    typed = ("compare", "fedavg", "local_only", "--seeds", "0", "--set", "training.rounds=3", "--json")
    found = [
        finished.folder.type(*typed, "--set", "engine.stack=2", "--set", f"runner.workers={workers}").json["runs"]
        for workers in (1, 2)
    ]
    one, two = ({run["method"]: run["weights_sha256"] for run in runs} for runs in found)
    assert one == two
    assert len(set(one.values())) == 2


def test_a_run_goes_on_without_the_clients_that_drop_out_and_says_so(
    finished: Any, lossy: list[Any], assert_quiet: Callable[[str], None]
) -> None:
    run = lossy[0].json
    dropped = [record["dropped"] for record in records(finished.folder.path, run)]
    assert run["dropped_out"] == sum(map(len, dropped)) > 0
    assert f"dropped out {run['dropped_out']} times, the rounds went on" in lossy[0].err
    assert_quiet(lossy[0].err)


def test_the_same_seed_loses_the_same_clients_and_gives_the_same_weights(finished: Any, lossy: list[Any]) -> None:
    one, two = (answer.json for answer in lossy)
    assert one["folder"] != two["folder"]
    assert one["weights_sha256"] == two["weights_sha256"]
    assert one["metrics"] == two["metrics"]
    kept = [[record["dropped"] for record in records(finished.folder.path, run)] for run in (one, two)]
    assert kept[0] == kept[1]


def test_the_best_round_is_the_one_that_validation_rows_chose(finished: Any, lossy: list[Any]) -> None:
    run = lossy[0].json
    journal = {record["round"]: record["metrics"] for record in records(finished.folder.path, run)}
    best = max(journal, key=lambda round: (journal[round]["validation/accuracy/mean"], -round))
    assert run["reported_round"] == best
    for name, value in journal[best].items():
        if re.match(r"(validation/)?(accuracy|loss|entropy)/(?!train)", name):
            assert run["metrics"][name] == pytest.approx(value), name
