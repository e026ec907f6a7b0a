"""A race of `siloflow advise` is a result like others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.results.run_history.clean_runs import leftovers
from flows.results.run_history.compare_results import compare_results
from flows.results.run_history.list_runs import list_runs, load_result
from silos.errors import UserError
from tasks.tracking.json_io import write_json


@pytest.fixture
def race(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "race"
    about = {"kind": "advise", "name": "race", "methods": ["ditto"], "seeds": [0], "minutes": 15.0}
    write_json(folder / "experiment.json", {**about, "data_version": "v"})
    write_json(folder / "setting0-ditto-seed0" / "run.json", {"tag": "t"})
    return folder


def test_an_unfinished_race_is_refused_with_the_command_that_continues_it(race: Path) -> None:
    project: Any = SimpleNamespace(store=SimpleNamespace(runs=race.parent))
    with pytest.raises(UserError, match=r"`siloflow advise ditto --minutes 15 --resume --name race`"):
        load_result(project, "race")


def test_a_finished_race_shows_the_comparison_of_its_proof(race: Path) -> None:
    table = [{"method": "ditto", "accuracy/mean": 0.9}]
    proof = {"table": table, "paired": [], "runs": [], "tuning": [], "failed": [], "task": "classification"}
    write_json(race / "comparison.json", proof)
    (listed,) = list_runs(race.parents[1])["results"]
    assert (listed["state"], listed["headline"]) == ("finished", "ditto 0.900")
    project: Any = SimpleNamespace(store=SimpleNamespace(runs=race.parent))
    assert load_result(project, "race") == (proof, "compare")
    (left,) = [each for each in leftovers(race.parents[1]) if each.kind == "unfinished runs"]
    assert left.paths == (race / "setting0-ditto-seed0",)


@pytest.mark.parametrize(
    ("partitions", "named"),
    [
        ([[], [1, 2]], r"first, on data/ alone and second, on data/ and data seeds 1, 2, expected the same partitions"),
        ([[1, 2], [1, 3]], r"first, on data/ and data seeds 1, 2 and second, on data/ and data seeds 1, 3, expected"),
    ],
)
def test_comparisons_over_other_partitions_are_not_compared(
    partitions: list[list[int]], named: str, tmp_path: Path
) -> None:
    for name, seeds in zip(("first", "second"), partitions, strict=True):
        about = {"kind": "compare", "name": name, "methods": ["fedavg"], "seeds": [0], "data_version": "v"}
        write_json(tmp_path / "runs" / name / "experiment.json", about)
        drawn = [{"data_seed": seed, "data_version": "w", "runs": []} for seed in seeds]
        found = {"experiment": name, "task": "classification", "metric": "accuracy", "higher_is_better": True}
        result = {**found, "table": [], "paired": [], "runs": [], "failed": [], "tuning": [], "partitions": drawn}
        write_json(tmp_path / "runs" / name / "comparison.json", result)
    project: Any = SimpleNamespace(store=SimpleNamespace(runs=tmp_path / "runs"), root=tmp_path)
    with pytest.raises(UserError, match=named):
        compare_results(project, "first", "second")


def test_the_command_that_continues_has_the_settings_of_the_first(race: Path) -> None:
    about = {"kind": "run", "name": "race", "methods": ["ditto"], "seeds": [1], "data_version": "v"}
    write_json(race / "experiment.json", {**about, "overrides": ["training.rounds=20", "plugins=[my own.py]"]})
    project: Any = SimpleNamespace(store=SimpleNamespace(runs=race.parent))
    with pytest.raises(UserError) as error:
        load_result(project, "race")
    command = "siloflow run ditto --seed 1 --set=training.rounds=20 --set='plugins=[my own.py]' --resume"
    assert f"run `{command}` to continue it" in str(error.value)
