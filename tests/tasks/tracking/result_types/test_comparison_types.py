"""The types of comparisons, advice and the registry are those of real ones, for settings that add or leave out keys."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from flows.advise import advise
from flows.cli.result_commands import _client_results
from flows.compare import compare
from flows.partition import partition
from flows.predict import predict
from flows.project.project import Project
from flows.results.registry.changed_silos import look
from flows.results.registry.promotion import promote, roll_back
from flows.results.registry.promotion_history import decisions
from flows.results.run_history.clean_runs import clean_runs
from flows.results.run_history.compare_results import compare_results
from flows.results.run_history.comparison_cost import cost_of_result
from flows.results.run_history.list_runs import list_runs
from flows.results.serving.open_model import evaluate_model
from tasks.tracking.result_types.advice_result import Advice, RaceRecord
from tasks.tracking.result_types.comparison_result import ComparisonResult
from tasks.tracking.result_types.earlier_results import (
    Cleaned,
    ComparisonClients,
    ComparisonCost,
    ResultList,
    TwoComparisons,
)
from tasks.tracking.result_types.model_results import ModelScores, Predictions
from tasks.tracking.result_types.project_results import PartitionResult
from tasks.tracking.result_types.registry_records import Decision, History, WatchAnswer
from tests.typed_json import assert_typed

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints

LINES = [
    "data.name=lines",
    "data.source={kind: synthetic, task: linear, clusters: 2, clients_per_cluster: 3, rows: 40, features: 3}",
    "data.scheme=[{kind: column, column: client}]",
    "data.split={validation: 0.2, test: 0}",
    "model.hidden=[]",
    "training.objective={kind: squared_error}",
    "training.optimiser.learning_rate=0.05",
]
HALF = """
from flows.methods import fedavg
from flows.plugins import register_method
from silos.errors import UserError


@register_method("half")
class Half(fedavg.FedAvg):
    def run_round(self, state, round):
        if round.setup.seed == 1 and round.setup.silos.manifest.params["seed"] == 1:
            raise UserError("the loss is no number; lower the learning rate.")
        return super().run_round(state, round)
"""
CASES: dict[str, tuple[list[str], list[int], list[str]]] = {
    "two methods and seeds": (["fedavg", "local_only"], [0, 1], []),
    "one seed, without training alone": (["fedavg", "fedprox"], [0], []),
    "tuned methods": (["fedavg", "local_only"], [0], ["comparison.tune=2"]),
    "partitions, of which one has a failed run": (
        ["fedavg", "half", "local_only"],
        [0, 1],
        ["comparison.partitions=2", "plugins=[half.py]"],
    ),
    "other silos too, and a winner withheld": (
        ["fedavg", "local_only"],
        [0, 1],
        ["comparison.over=silos", "comparison.publish=true", "data.name=nine", "data.scheme=[{kind: equal, clients: 9}]"],
    ),
    "roles": (
        ["fedavg", "local_only"],
        [0],
        ["data.name=roles", "data.scheme=[{kind: equal, clients: 9}, {kind: rotation, angles: [0, 60]}, "
         "{kind: fresh, per_domain: 1}]"],
    ),
    "a regression": (["fedavg", "local_only"], [0, 1], LINES),
    "a regression that diverges": (
        ["fedavg", "local_only"],
        [0, 1],
        [*LINES, "training.optimiser.learning_rate=1.0e+9"],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(prefect, tmp_path_factory, write_params):
    """A project with a comparison `first` of two methods; the current folder."""
    folder, before = tmp_path_factory.mktemp("types") / "typed", Path.cwd()  # names its registered model
    write_params(folder)
    (folder / "half.py").write_text(HALF)
    os.chdir(folder)
    assert_typed(partition(overrides=["training.rounds=1"]), PartitionResult)
    yield folder, compare(["fedavg", "fedprox"], [0], overrides=["training.rounds=1"], name="first")
    os.chdir(before)


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def test_a_comparison_and_what_results_prints_of_it_have_their_types(place):
    folder, found = place
    project = Project.open()
    assert_typed(found, ComparisonResult)
    assert_typed(read(folder / "runs" / "first" / "comparison.json"), ComparisonResult)
    assert_typed(list_runs(folder), ResultList)
    assert_typed(_client_results(project, "first", None), ComparisonClients)
    assert_typed(cost_of_result(project, "first", None, 0.0), ComparisonCost)
    assert_typed(clean_runs(project, lambda _: False), Cleaned)


def test_what_the_types_do_not_say_is_refused_at_every_depth(place):
    found = place[1]
    pair, row = found["paired"][0], found["table"][0]
    for wrong in (
        {**found, "more": 1},
        {key: value for key, value in found.items() if key != "cost"},
        {**found, "paired": [{**pair, "corrected": {**pair["corrected"], "more": 1}}]},
        {**found, "paired": [{**pair, "seeds": ["0"]}]},
        {**found, "over": {**found["over"], "draws": "seeds"}},
        {**found, "table": [{**row, "seconds": [1.0]}]},
        {**found, "runs": [{**found["runs"][0], "more": 1}]},
    ):
        with pytest.raises(ValidationError):
            assert_typed(wrong, ComparisonResult)


def test_decisions_answers_of_watch_and_uses_of_a_model_have_their_types(place):
    folder, _ = place
    project = Project.open()
    promoted = promote(project, None, force=False, with_data=False)
    assert (promoted["decision"], promoted["against"]) == ("promoted", None)
    assert_typed(look(project), WatchAnswer)

    second = compare(["fedavg", "fedprox"], [0], overrides=["training.rounds=2"], name="second")
    assert_typed(second, ComparisonResult)
    assert second["registry"] is not None
    assert all(candidate["against"] for candidate in second["registry"]["candidates"])
    assert_typed(compare_results(project, "first", "second"), TwoComparisons)

    forced = promote(project, "runs/second/fedprox-seed0", force=True, with_data=False)
    withdrawn = roll_back(project, with_data=False)
    for decision in (promoted, forced, withdrawn):
        assert_typed(decision, Decision)
    assert_typed({"decisions": decisions(folder)}, History)
    assert len(decisions(folder)) == 3

    np.savez(folder / "new.npz", x=np.zeros((5, 8, 8), np.uint8))
    predicted = predict("new.npz", "labels.csv")
    assert predicted["rows"] == 5
    assert_typed(predicted, Predictions)
    assert_typed(evaluate_model(project, "champion"), ModelScores)


@pytest.mark.slow
@pytest.mark.parametrize(("methods", "seeds", "settings"), CASES.values(), ids=CASES)
def test_every_comparison_has_its_type(methods, seeds, settings, place):
    asked = ["training.rounds=1", *settings]
    if any(setting.startswith("data.name") for setting in settings):
        partition(overrides=asked)
    found = compare(methods, seeds, overrides=asked)
    assert_typed(found, ComparisonResult)
    assert_typed(read(place[0] / "runs" / found["experiment"] / "comparison.json"), ComparisonResult)
    assert len(found["failed"]) == ("half" in methods)
    assert all("partition" in failure for failure in found["failed"])


@pytest.mark.slow
def test_an_advice_and_its_race_have_their_types(place):
    advice = advise(30, ["local_only"], overrides=["training.rounds=1"], name="advice")
    folder = place[0] / "runs" / "advice"
    for found in (advice, read(folder / "advice.json"), advise(resume=True, overrides=["training.rounds=1"])):
        assert_typed(found, Advice)
    assert_typed(read(folder / "race.json"), RaceRecord)
    assert_typed(read(folder / "comparison.json"), ComparisonResult)
