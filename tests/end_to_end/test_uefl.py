"""UEFL as typed: what a run says and tells MLflow, the served model, and tables whose data are or are not there."""

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from models.served_model import ServedModel
from silos.storage.manifest import read_manifest
from silos.storage.partition_store import open_client

pytestmark = pytest.mark.slow

MODEL = ("--set", "model={kind: mlp, hidden: [16], dropout: 0.2}", "--set", "training.epochs=1")
STAGES = "{arm: paper, words: 8, first_rounds: 1, more_rounds: 1, tolerance: -1, stages: 3}"
TINY = ("--set", "model={kind: cnn, channels: [4, 4], kernel: 3, hidden: [8], dropout: 0.1}")
QUICK = ("--set", "training.rounds=2", "--set", "training.epochs=1", "--set", "training.optimiser.learning_rate=0.01")


@pytest.fixture(scope="module")
def ran(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = partitioned[0].copy(tmp_path_factory.mktemp("uefl") / "project", server)
    kept = ("--set", "tracking.personal_models=true")
    return folder, folder.type("run", "uefl", *MODEL, *kept, "--set", f"method.uefl={STAGES}", "--json")


def test_a_run_says_who_got_words_and_why_and_that_a_codebook_has_collapsed(ran, assert_quiet):
    _, answer = ran
    assert_quiet(answer.err)
    first, *_ = [line for line in answer.err.splitlines() if "round 1" in line]
    assert "9 get 8 codewords: c0" in first
    assert "limit 0.000" in first
    assert "round 3" in answer.err
    assert "the last stage has ended" in answer.err
    assert answer.json["ended_by"] == "stages"


def test_mlflow_has_every_stage_and_the_final_uncertainty(ran):
    folder, answer = ran
    client, run = folder.mlflow(), answer.json["mlflow_run_id"]
    steps = {
        name: [m.step for m in client.get_metric_history(run, name)] for name in ("check/entropy", "check/perplexity")
    }
    assert steps == {"check/entropy": [1, 2, 3], "check/perplexity": [1, 2, 3]}
    metrics = client.get_run(run).data.metrics
    for name in ("entropy", "mutual_information", "accuracy", "nll", "brier", "ece", "perplexity", "words_used"):
        assert metrics[f"uncertainty/{name}"] == pytest.approx(answer.json["metrics"][f"uncertainty/{name}"])
    assert metrics["clients/extended"] == 0
    assert {"domain/rot0/accuracy/mean", "domain/rot120/uncertainty/entropy"} <= metrics.keys()


@pytest.fixture(scope="module")
def ensembled(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same with two members, without passes: the ensemble decides."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("ensembled") / "project", server)
    kept = ("--set", "tracking.personal_models=true", "--set", "model.members=2", "--set", "evaluation.passes=0")
    stages = STAGES.replace("stages: 3", "stages: 2, passes: 0")
    return folder, folder.type("run", "uefl", *MODEL, *kept, "--set", f"method.uefl={stages}", "--json")


def test_an_ensemble_decides_and_the_final_doubts_are_its_own(ensembled, assert_quiet):
    folder, answer = ensembled
    assert_quiet(answer.err)
    assert (folder.path / answer.json["folder"] / "codebook.png").is_file()
    assert "9 get 8 codewords in each member: c0" in answer.err
    metrics = answer.json["metrics"]
    assert metrics["uncertainty/accuracy"] == pytest.approx(metrics["accuracy/mean"], abs=1e-9)
    assert metrics["uncertainty/mutual_information"] > 0
    assert metrics["uncertainty/words_used"] <= 16


@pytest.mark.parametrize("which", ["ran", "ensembled"])
def test_the_served_model_reads_a_clients_own_words(which, request):
    folder, answer = request.getfixturevalue(which)
    client = folder.mlflow()
    (logged,) = client.search_logged_models([client.get_run(answer.json["mlflow_run_id"]).info.experiment_id])
    (weights,) = Path(logged.artifact_location.removeprefix("file://")).rglob("weights.safetensors")
    with safe_open(weights, framework="pt") as file:
        card = json.loads(file.metadata()["card"])
    model = ServedModel(card, load_file(weights))
    for row in answer.json["metrics"]["accuracy/by_client"][:3]:
        x, y = open_client(folder.path / "data" / "digits", _entry(folder, row["client"]), "test")
        said = model.predict(x, {"client": row["client"]})["label"].astype(int).to_numpy()
        assert (said == y).mean() == pytest.approx(row["accuracy"])


def _entry(folder: Any, client: str) -> Any:
    return read_manifest(folder.path / "data" / "digits").client(client)


def test_pictures_show_stages_and_where_features_and_words_lie(ran):
    folder, answer = ran
    client = folder.mlflow()
    names = {file.path for file in client.list_artifacts(answer.json["mlflow_run_id"])}
    assert {"stages.png", "codebook.png"} <= names
    for name in ("stages.png", "codebook.png"):
        assert (folder.path / answer.json["folder"] / name).read_bytes().startswith(b"\x89PNG")


def test_a_table_whose_data_are_not_there_says_which_files_to_put_where(partitioned, server, tmp_path):
    folder = partitioned[0].copy(tmp_path / "project", server)
    source = "data.source={kind: fashion_mnist, download: false}"
    answer = folder.type("reproduce", "uefl", "--table", "1-fmnist", "--set", source, code=2)
    assert "train-images-idx3-ubyte" in answer.err
    assert "downloads" in answer.err


def test_a_table_runs_on_small_files_in_the_format(partitioned, server, tmp_path):
    folder = partitioned[0].copy(tmp_path / "project", server)
    place = folder.path / "downloads" / "FashionMNIST" / "raw"
    place.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, rows in (("train", 360), ("t10k", 20)):
        x, y = draw.integers(0, 256, (rows, 28, 28), np.uint8), (np.arange(rows) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", x), ("labels-idx1", y)):
            head = struct.pack(">HBB", 0, 8, array.ndim) + b"".join(struct.pack(">I", n) for n in array.shape)
            (place / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    source = "data.source={kind: fashion_mnist, download: false, rows: {train: 360, test: 0}}"
    options = "method.uefl={arm: paper, words: 4, first_rounds: 1, more_rounds: 1, until: budget}"
    asked = ("--set", source, *TINY, *QUICK, "--set", options)
    found = folder.type("reproduce", "uefl", "--table", "1-fmnist", *asked, "--json").json
    assert [row["cell"] for row in found["rows"]] == ["fedavg", "distrans", "paper", "ours"]
    assert [row["published"] for row in found["rows"]] == [0.803, 0.707, 0.85, None]
    assert found["also"]["entropy, nats"]["paper"]["published"] == 0.167
    assert 0 < found["also"]["entropy, nats"]["paper"]["ours"] <= np.log(10)
