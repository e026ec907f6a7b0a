"""A page whose model is a network of its own: the run is whole, and the logged model is one that loads elsewhere."""

import os

import mlflow
import pytest

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints

PAGE = """
from dataclasses import dataclass, replace
from flows.methods import fedavg
from models.networks.wrapped import Around


@dataclass(frozen=True)
class Scaled(Around):
    def apply(self, weights, context, x, stream):
        return 2 * self.inner.apply(weights, context, x, stream)
{more}

class Page(fedavg.FedAvg):
    def model(self, state, problem):
        model = super().model(state, problem)
        return replace(model, network=Scaled(model.network))
"""
SERVED = """
    @property
    def served(self):
        return self.inner
"""


@pytest.mark.parametrize(("name", "more"), [("alone", ""), ("served", SERVED)])
def test_a_network_of_a_users_page_is_not_logged_unless_it_names_one_that_is_there(name, more, play_run, folder, told):
    (folder / f"{name}.py").write_text(PAGE.format(more=more))
    result = play_run(name, "threads", 1, f"extra_methods.{name}={name}.py", "training.rounds=1")
    assert result["mlflow_run_id"], told.said
    client = mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"])  # other tests may have set another
    experiment = client.get_run(result["mlflow_run_id"]).info.experiment_id
    logged = client.search_logged_models([experiment], filter_string=f"source_run_id = '{result['mlflow_run_id']}'")
    assert [one.status == "READY" for one in logged] == ([True] if more else [])
    sentence = "the model is not logged: its network Scaled is of your own page"
    assert any(sentence in said for said in told.said) == (not more)
