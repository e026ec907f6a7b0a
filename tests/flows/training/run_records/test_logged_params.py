"""The parameters that MLflow gets of a run."""

from pathlib import Path
from typing import Any

import pytest

from flows.methods.method_settings import method_of
from flows.project.project import Project
from flows.project.run_sets import new_experiment
from flows.training.run_records.mlflow_run_metadata import run_spec
from flows.training.run_records.run_folder import RunFolder


@pytest.fixture
def params_of(project: Path) -> Any:
    """Returns the parameters of a run of a method, in a set of runs of these methods."""
    opened = Project.open(root=project)

    def ticket_of(kind: str, methods: list[str], method: str) -> dict[str, Any]:
        about = {"methods": methods, "data_version": "v"}
        folder = RunFolder(opened.store.runs / new_experiment(opened, kind, about) / f"{method}-seed0")
        page = method_of(opened.params, method)
        identity = {"method": method, "seed": 0, "tag": "t", "data_version": "v"}
        identity["params"] = {"training": {"rounds": 3}, "method": page.model_dump(mode="json")}
        return dict(run_spec(opened, page, identity, folder).params)

    return ticket_of


def test_in_a_comparison_options_of_the_other_methods_are_a_text(params_of: Any) -> None:
    """MLflow's page of parallel coordinates draws a missing number at the largest one plus 0.01, and a text by itself."""
    methods = ["fedavg", "fedprox", "ifca"]
    assert params_of("compare", methods, "fedavg")["method.fedprox.proximal"] == "not used"
    fedprox = params_of("compare", methods, "fedprox")
    assert fedprox["method.fedprox.proximal"] == 0.01
    assert fedprox["method.ifca.clusters"] == "not used"


def test_a_single_run_has_its_own_options_alone(params_of: Any) -> None:
    assert {name for name in params_of("run", ["fedprox"], "fedprox") if name.startswith("method.")} == {
        "method.fedprox.proximal"
    }
