"""A page whose model is a network of its own: the run is whole, and the logged model is one that loads elsewhere."""

import os
from pathlib import Path
from typing import Any

import mlflow
import pytest

from flows.project.project import Project
from silos.storage.partition_store import open_client

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints

PAGE = """
from dataclasses import dataclass, replace
from flows.methods import fedavg
from flows.plugins import register_method
from models.networks.wrapper import NetworkWrapper


@dataclass(frozen=True)
class Shrinking(NetworkWrapper):
    def cost(self, weights, context, batch, objective):
        cost, buffers = self.inner.cost(weights, context, batch, objective)
        return cost + sum((w**2).sum() for w in weights.values()), buffers
{more}

@register_method("{name}")
class Page(fedavg.FedAvg):
    def model(self, state, setup):
        model = super().model(state, setup)
        return replace(model, network=Shrinking(model.network))
"""
SERVED = """
    @property
    def served(self):
        return self.inner
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), [("alone", ""), ("served", SERVED)])
def test_a_network_of_a_users_page_is_not_logged_unless_it_names_one_that_answers_as_it_does(
    name, more, play_run, folder, told
):
    (folder / f"{name}.py").write_text(PAGE.format(more=more, name=name))
    result = play_run(name, "threads", 1, f"plugins=[own.py, {name}.py]", "training.rounds=1")
    assert result["mlflow_run_id"], told.said
    client = mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"])  # other tests may have set another
    experiment = client.get_run(result["mlflow_run_id"]).info.experiment_id
    logged = client.search_logged_models([experiment], filter_string=f"source_run_id = '{result['mlflow_run_id']}'")
    assert [one.status == "READY" for one in logged] == ([True] if more else [])
    sentence = "the model is not logged: its network Shrinking is defined in a plugin file"
    assert any(sentence in said for said in told.said) == (not more)
    for one in logged:
        answers_as_the_run_was_scored(mlflow.pyfunc.load_model(one.artifact_location), result)


def answers_as_the_run_was_scored(model: Any, result: dict[str, Any]) -> None:
    """Every client's accuracy, and the mean entropy of its test rows."""
    silos = Project.open(derived=True).silos
    for row in result["metrics"]["accuracy/by_client"]:
        x, y = open_client(Path(silos.folder), silos.manifest.client(row["client"]), "test")
        answer = model.predict(x)
        right = [silos.manifest.classes[code] == label for code, label in zip(y, answer["label"], strict=True)]
        assert sum(right) / len(right) == row["accuracy"]
        assert answer["entropy"].mean() == pytest.approx(result["doubts"][row["client"]]["entropy"], abs=1e-5)
