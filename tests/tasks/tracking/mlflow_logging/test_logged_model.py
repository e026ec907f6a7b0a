"""What a logged model consists of: few files, pinned packages, named columns, tags, and the same bytes of code."""

import json
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.utils import requirements_utils

from models.networks.mlp import MLP
from models.networks.network_factory import to_json
from models.prng import server_stream
from tasks.tracking.mlflow_logging.connection import connect
from tasks.tracking.mlflow_logging.logged_model import archived_code, load_logged, log_once

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints
COLUMNS = [
    {"name": "age", "kind": "number", "missing": -1.0},
    {"name": "smokes", "kind": "boolean", "missing": "refuse"},
    {"name": "ward", "kind": "text", "values": ["eye", "heart"], "missing": True},
    {"name": "code", "kind": "text", "values": ["07", "7"], "missing": False},
]


@pytest.fixture(scope="module")
def store(tmp_path_factory, databases):
    """A store with an experiment, and what logs a model there: its logged model and its folder."""
    folder = tmp_path_factory.mktemp("logged")
    uri = f"sqlite:///{folder}/mlflow.db"
    (folder / "mlflow.db").write_bytes((databases / "mlflow.db").read_bytes())
    client = connect(uri)
    experiment = client.create_experiment("here", artifact_location=(folder / "artifacts").as_uri())

    def log(**card):
        run = client.create_run(experiment, tags={"method": "fedavg", "data_version": "d1", "seed": "0"})
        network = MLP(card["shape"][0], (), 2)
        held = {"method": "FedAvg", "network": to_json(network), "task": "classification", "classes": ["no", "yes"]}
        held |= {"dtype": "float32", "columns": None, "personal": False, "clients": [], "context": []}
        held |= {"inputs": None, "targets": None, "statistics": None} | card
        model = {"uri": uri, "name": "fedavg-seed0", "card": held, "shared": network.init(server_stream(0, 0, "init"))}
        made = log_once(client, run.info.run_id, {**model, "personal": {}, "tags": {"weights_sha256": "ab"}})
        logged = client.get_logged_model(made)
        return logged, Path(logged.artifact_location.removeprefix("file://"))

    return log


def test_it_is_few_files_whose_packages_are_pinned_with_tags(store):
    logged, folder = store(shape=[3])
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"MLmodel", "requirements.txt", "served.py", "artifacts/code.zip", "artifacts/weights.safetensors"} <= files
    assert len(files) <= 10
    pinned = dict(line.split("==") for line in (folder / "requirements.txt").read_text().splitlines())
    names = ("mlflow", "torch", "numpy", "pandas", "safetensors")
    assert pinned == {name: version(name).split("+")[0] for name in names}
    assert {"method": "fedavg", "data_version": "d1", "weights_sha256": "ab"}.items() <= logged.tags.items()
    assert "seed" not in logged.tags


def test_mlflow_lists_the_installed_packages_neither_to_log_a_model_nor_to_load_it(store, monkeypatch):
    monkeypatch.setattr(requirements_utils, "_MODULES_TO_PACKAGES", None)  # as in a new process
    folder = store(shape=[3])[1]
    load_logged(f"sqlite:///{folder}/mlflow.db", str(folder))
    assert requirements_utils._MODULES_TO_PACKAGES is None
    check = requirements_utils._check_requirement_satisfied  # works as before for the user's models
    assert check("numpy==0.1").requirement == "numpy==0.1"


def test_the_archive_is_all_of_models_and_the_same_bytes_for_the_same_code(store):
    first = store(shape=[3])[1] / "artifacts" / "code.zip"
    archived_code.cache_clear()
    assert first.read_bytes() == (store(shape=[3])[1] / "artifacts" / "code.zip").read_bytes()
    source = Path(__file__).parents[4] / "models"
    with ZipFile(first) as archive:
        (package,) = {name.split("/")[0] for name in archive.namelist()}
        assert package.startswith("siloflow_models_")
        held = {name.removeprefix(f"{package}/"): archive.read(name) for name in archive.namelist()}
    assert held == {p.relative_to(source).as_posix(): p.read_bytes() for p in source.rglob("*.py")}


def test_a_table_has_its_columns_with_names_and_types_and_other_rows_have_a_shape(store):
    _, folder = store(shape=[7], columns=COLUMNS)
    model = mlflow.pyfunc.load_model(str(folder))
    inputs = model.metadata.signature.inputs
    kinds = {column["name"]: (column["type"], column["required"]) for column in inputs.to_dict()}
    # MLflow casts JSON to a type without a word: null to false, and 7 to a text
    assert kinds == {"age": ("double", True), "smokes": ("any", True), "ward": ("string", True), "code": ("any", True)}
    assert [c.name for c in model.metadata.signature.params] == ["client", "statistics", "made_as"]
    example = json.loads((folder / "input_example.json").read_text())
    assert example == {"columns": ["age", "smokes", "ward", "code"], "data": [[0.0, False, "eye", "07"]]}
    rows = pd.DataFrame({"age": [1.5, None], "smokes": [True, False], "ward": ["eye", None], "code": [7, 7]})
    answers = model.predict(rows)
    assert model.predict(rows[["code", "ward", "smokes", "age"]]).equals(answers)
    assert np.isfinite(answers.select_dtypes("number").to_numpy()).all()
    tensor = mlflow.pyfunc.load_model(str(store(shape=[3])[1])).metadata.signature.inputs
    assert tensor.to_dict() == [{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": (-1, 3)}}]
