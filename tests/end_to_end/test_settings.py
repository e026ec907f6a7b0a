"""Settings that must not change the weights, and settings that must do what they say."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def records(folder: Path, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The run's journal."""
    return [json.loads(path.read_text()) for path in sorted((folder / run["folder"] / "journal").glob("*.json"))]


def test_one_worker_and_two_give_the_same_weights(unusual: Any) -> None:
    one, two = (
        {run["method"]: run["weights_sha256"] for run in answer.json["runs"]} for answer in (unusual.one, unusual.two)
    )
    assert one == two
    assert len(set(one.values())) == 2


def test_a_run_goes_on_without_the_clients_that_drop_out_and_says_so(
    unusual: Any, assert_quiet: Callable[[str], None]
) -> None:
    for run in unusual.one.json["runs"]:
        dropped = [record["dropped"] for record in records(unusual.folder.path, run)]
        assert run["dropped_out"] == sum(map(len, dropped)) > 0
        assert f"{run['method']}-seed0: clients dropped out {run['dropped_out']} times" in unusual.one.err
    assert_quiet(unusual.one.err)


def test_the_same_seed_loses_the_same_clients_whatever_the_method(unusual: Any) -> None:
    runs = [run for answer in (unusual.one, unusual.two) for run in answer.json["runs"]]
    assert len({run["folder"] for run in runs}) == 4
    lost = {json.dumps([record["dropped"] for record in records(unusual.folder.path, run)]) for run in runs}
    assert len(lost) == 1


def test_the_best_round_is_the_one_that_validation_rows_chose(unusual: Any) -> None:
    for run in unusual.one.json["runs"]:
        journal = {record["round"]: record["metrics"] for record in records(unusual.folder.path, run)}
        scores = {n: (m["validation/accuracy/mean"], -m["validation/loss/mean"]) for n, m in journal.items()}
        best = max(scores, key=scores.__getitem__)
        assert run["reported_round"] == best
        scored = [name for name in journal[best] if re.match(r"(validation/)?(accuracy|loss|entropy)/(?!train)", name)]
        assert len(scored) > 8
        for name in scored:
            assert run["metrics"][name] == pytest.approx(journal[best][name]), name


def test_timings_say_what_a_command_costs(unusual: Any) -> None:
    costs = re.findall(r"^ +[\d.]+ s  (.*)$", unusual.one.err, re.MULTILINE)
    for cost in ("params", "imports", "server start", "of that for ", "in total"):
        assert any(named.startswith(cost) for named in costs), unusual.one.err
