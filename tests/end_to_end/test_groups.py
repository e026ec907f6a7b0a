"""Methods with several models, on data with fresh and unseen clients: who is scored, and what is logged for them."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

pytestmark = pytest.mark.slow

DATA = [
    "--set",
    "data.scheme=[{kind: equal, clients: 9}, {kind: rotation, angles: [0, 90, 180]}, "
    "{kind: fresh, per_domain: 1}, {kind: hold_out, domains: [rot180]}]",
]
SETTINGS = ["--set", "training.rounds=4", "--set", "model.hidden=[16]", "--set", "method.cfl.mean_below=100"]


@pytest.fixture(scope="module")
def compared(finished: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder, and its comparison."""
    folder = finished.folder.copy(tmp_path_factory.mktemp("groups") / "folder", server)
    folder.type("partition", *DATA)
    return folder, folder.type(
        "compare", "fedavg", "ifca", "cfl", "ditto", "cluster_oracle", "--seeds", "0", "--json", *DATA, *SETTINGS
    ).json


def test_fresh_and_unseen_clients_are_scored_where_the_method_has_a_model_for_them(compared: Any) -> None:
    _, comparison = compared
    found = {
        r["method"]: {role for role in ("fresh", "unseen") if f"{role}/accuracy/mean" in r["metrics"]}
        for r in comparison["runs"]
    }
    both = {"fresh", "unseen"}
    assert found == {"fedavg": both, "ifca": both, "cfl": both, "ditto": both, "cluster_oracle": {"fresh"}}


def test_what_fresh_clients_send_to_be_scored_is_no_traffic_of_training(compared: Any) -> None:
    _, comparison = compared
    up = {r["method"]: r["bytes"]["up"] for r in comparison["runs"]}
    assert up["cfl"] == up["fedavg"] == up["cluster_oracle"]
    down = {r["method"]: r["bytes"]["down"] for r in comparison["runs"]}
    assert down["ifca"] == 3 * down["fedavg"] == 3 * down["cfl"]


@pytest.mark.parametrize("method", ["ifca", "cfl"])
def test_the_logged_model_has_the_weights_that_every_scored_client_was_scored_with(method: str, compared: Any) -> None:
    """Also the fresh and the unseen, who chose them by their training rows."""
    folder, comparison = compared
    (run,) = [r for r in comparison["runs"] if r["method"] == method]
    (logged,) = [
        m
        for m in folder.mlflow().search_logged_models(
            [folder.mlflow().get_run(run["mlflow_run_id"]).info.experiment_id]
        )
        if m.source_run_id == run["mlflow_run_id"]
    ]
    (weights,) = Path(logged.artifact_location.removeprefix("file://")).rglob("weights.safetensors")
    with safe_open(weights, framework="np") as file:
        card = json.loads(file.metadata()["card"])
        bias = file.get_tensor("personal/dense1.bias")
    assert card["clients"] == [row["client"] for row in run["metrics"]["accuracy/by_client"]]
    assert len(bias) == 9
    with safe_open(folder.path / run["folder"] / "checkpoint.safetensors", framework="np") as file:
        models = file.get_tensor("weights/dense1.bias").reshape(-1, bias.shape[1])
        numbers = json.loads(file.metadata()["state"])["numbers"]
    assert {tuple(b) for b in bias.tolist()} <= {tuple(m) for m in models.tolist()}
    assert len({tuple(b) for b in bias.tolist()}) > 1
    if method == "cfl":
        inner = set(numbers["parent"]) - {None}
        assert not {tuple(models[node].tolist()) for node in inner} & {tuple(b) for b in bias.tolist()}
