"""A race of `siloflow advise` is a result like others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.history.clean_runs import leftovers
from flows.history.list_runs import list_runs, load_result
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
    project: Any = SimpleNamespace(runs=race.parent)
    with pytest.raises(UserError, match=r"`siloflow advise ditto --minutes 15 --resume --name race`"):
        load_result(project, "race")


def test_a_finished_race_shows_the_comparison_of_its_proof(race: Path) -> None:
    table = [{"method": "ditto", "accuracy/mean": 0.9}]
    proof = {"table": table, "paired": [], "runs": [], "tuning": [], "failed": [], "task": "classification"}
    write_json(race / "comparison.json", proof)
    (listed,) = list_runs(race.parents[1])["results"]
    assert (listed["state"], listed["headline"]) == ("finished", "ditto 0.900")
    project: Any = SimpleNamespace(runs=race.parent)
    assert load_result(project, "race") == (proof, "compare")
    (left,) = [each for each in leftovers(race.parents[1]) if each.kind == "unfinished runs"]
    assert left.paths == (race / "setting0-ditto-seed0",)
