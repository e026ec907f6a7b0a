"""Plugin files: each example of docs/examples/plugins runs in a small project, and is a page short."""

import os
from pathlib import Path

import mlflow
import numpy as np
import pytest

from flows.core.config.load_config import load_params
from flows.project.project import Project
from flows.results.serving.export_model import export_model
from flows.training.run_records.run_folder import RunFolder
from silos.errors import UserError
from silos.storage.partition_store import open_client
from tasks.evaluate import OUTCOMES

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "plugins"
TOKENS = (
    "data.name=tokens",
    "data.source={kind: repeated_tokens, rows: 400}",
    "data.scheme=[{kind: column, column: client}]",
    "training.optimiser={kind: adam, learning_rate: 0.01}",
)


FEW = "{kind: one_class_each, clients: 4}"


def plugins(*names: str) -> str:
    """The override that names these examples, and the method of the tests' project."""
    return f"plugins=[own.py, {', '.join(str(EXAMPLES / f'{name}.py') for name in names)}]"


def test_there_is_an_example_of_every_kind_and_each_is_short():
    texts = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    kinds = ("method", "network", "source", "partitioner", "metric", "figure", "sampler", "callback")
    assert all(any(f"@register_{kind}(" in text for text in texts.values()) for kind in kinds)
    assert max(len(text.splitlines()) for text in texts.values()) < 60


@pytest.mark.slow
def test_a_method_goes_half_of_the_way(play_run):
    half = play_run("half_step", "threads", 1, plugins("half_step"), "training.rounds=1")
    full = play_run("half_step", "threads", 1, plugins("half_step"), "method.half_step.share=1", "training.rounds=1")
    assert full["weights_sha256"] == play_run("fedavg", "threads", 1, "training.rounds=1")["weights_sha256"]
    assert half["weights_sha256"] != full["weights_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vmap", "sequential"])
def test_a_transformer_learns_tokens_of_a_source_and_is_served_and_exported(
    engine, play_run, folder, tmp_path, monkeypatch
):
    settings = [plugins("token_transformer", "repeated_tokens"), *TOKENS, f"engine.kind={engine}"]
    settings += ["model={kind: token_transformer, width: 8, tokens: 16}", "training.epochs=4"]
    result = play_run("fedavg", "threads", 1, *settings)
    assert result["metrics"]["accuracy/mean"] > 0.6
    answers_as_scored(result, settings)
    place = str(tmp_path / "model.pt2")
    monkeypatch.setattr(Project, "silos", Project.open(settings, folder, derived=True).silos)
    exported = export_model(Project.open(settings, folder), result["folder"], None, "pt2", place)
    assert exported["compared"]["largest_difference"] < 1e-5


@pytest.mark.slow
def test_a_network_of_torchvision_trains_with_running_statistics_in_worker_processes(play_run, pools):
    pools("processes")
    settings = [plugins("torchvision_resnet"), "model={kind: torchvision_resnet, blocks: 1}", "training.rounds=1"]
    settings += ["training.optimiser.learning_rate=0.05", "training.batch=64", "evaluation.passes=0"]
    here, there = (play_run("fedavg", kind, 2, *settings) for kind in ("threads", "processes"))
    assert here["weights_sha256"] == there["weights_sha256"]
    answers_as_scored(here, settings)


def test_a_partitioner_deals_by_its_options(folder):
    step = "{kind: one_class_each, clients: 20, share: 0.1}"
    project = Project.open([plugins("one_class_each"), f"data.scheme=[{step}]"], folder, derived=True)
    clients = project.silos.manifest.clients
    assert len(clients) == 20
    for entry in clients:
        _, y = open_client(Path(project.silos.folder), entry, "train")
        assert np.bincount(y).max() / len(y) > 0.7
    with pytest.raises(UserError, match=r"data.scheme\[0\] \(`one_class_each`\): has 4 clients for 10 classes"):
        len(Project.open([plugins("one_class_each"), f"data.scheme=[{FEW}]"], folder, True).silos.clients)


def test_a_metric_is_reported_for_every_client_and_their_mean(play_run, folder):
    settings = [plugins("margin"), "evaluation.metrics=[{kind: margin}]", "training.rounds=1"]
    result = play_run("local_only", "threads", 1, *settings)
    assert -1 < result["metrics"]["margin/mean"] < 1
    assert "validation/margin/mean" in result["metrics"]
    assert "test/margin" in (folder / result["folder"] / "clients.csv").read_text().splitlines()[0]
    assert result["weights_sha256"] == play_run("local_only", "threads", 1, "training.rounds=1")["weights_sha256"]


@pytest.mark.slow
def test_a_metric_of_a_client_is_chosen_and_is_the_mean_of_its_row_values(play_run, folder):
    settings = [plugins("detection"), "evaluation.metrics=[{kind: detection, code: 3}]", "training.rounds=1"]
    result = play_run("fedavg", "threads", 1, *settings, "evaluation.metric=detection")
    assert (result["metric"], result["higher_is_better"]) == ("detection", True)
    project = Project.open([*settings, "evaluation.metric=detection"], folder, derived=True)
    kept = RunFolder(folder / result["folder"]).outcome_hashes()
    store, recalls = project.store.private(folder / result["folder"]), []
    for row in result["metrics"]["detection/by_client"]:
        _, y = open_client(Path(project.silos.folder), project.silos.manifest.client(row["client"]), "test")
        outcomes = store.load(OUTCOMES, kept, row["client"])
        assert ("detection" in outcomes) == (3 in y) == (row["detection"] is not None)
        if 3 in y:
            recalls.append(outcomes["correct"][: len(y)][y == 3].mean())
            assert recalls[-1] == pytest.approx(row["detection"]) == outcomes["detection"][: len(y)].mean()
    assert result["metrics"]["detection/mean"] == pytest.approx(np.mean(recalls))
    assert result["metrics"]["detection/undefined"] == 6 - len(recalls)


def test_a_metric_that_cannot_be_chosen_is_refused(folder):
    with pytest.raises(UserError, match="got margin, a function of one row, expected a class of ClientMetric"):
        load_params(folder, [plugins("margin"), "evaluation={metric: margin, metrics: [{kind: margin}]}"])
    listed = (
        r"evaluation\.metric: got detection, expected a metric of evaluation\.metrics\. Add \{kind: detection\} there"
    )
    with pytest.raises(UserError, match=listed):
        load_params(folder, [plugins("detection"), "evaluation.metric=detection"])
    with pytest.raises(
        UserError, match="got detection, a metric of a classification, expected metrics of a regression"
    ):
        load_params(
            folder,
            [
                plugins("detection"),
                "evaluation.metrics=[{kind: detection}]",
                "training.objective={kind: squared_error}",
            ],
        )


def test_a_figure_is_drawn_and_goes_to_mlflow(play_run, folder):
    settings = [plugins("client_bars"), "figures=[{kind: client_bars, width: 6}, {kind: groups}]", "training.rounds=1"]
    result = play_run("fedavg", "threads", 1, *settings)
    assert (folder / result["folder"] / "client_bars.png").stat().st_size > 1000
    client = mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    assert "client_bars.png" in {one.path for one in client.list_artifacts(result["mlflow_run_id"])}


def test_a_sampler_takes_clients_in_turns(play_run, folder):
    settings = [plugins("in_turns"), "clients={fraction: 0.34, sampling: {kind: in_turns, first: 1}}"]
    result = play_run("fedavg", "threads", 1, *settings)
    lines = [line.split(",") for line in (folder / result["folder"] / "clients.csv").read_text().splitlines()]
    place = {name: at for at, name in enumerate(lines[0])}
    trained = {(row[place["round"]], row[place["client"]]) for row in lines[1:] if row[place["train_loss"]]}
    assert trained == {("1", "c01"), ("1", "c02"), ("2", "c03"), ("2", "c04"), ("3", "c05"), ("3", "c00")}


def test_a_callback_writes_the_rounds_that_are_on_disk(play_run, folder):
    chosen = (plugins("round_log"), "callbacks=[{kind: round_log, every: 2}]", "training.rounds=3")
    result = play_run("fedavg", "threads", 1, *chosen)
    (line,) = (folder / result["folder"] / "rounds.log").read_text(encoding="utf-8").splitlines()
    assert line.startswith("round 2: ")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "data.source={kind: repeated_token}",
            "data.source.kind: got 'repeated_token'. Did you mean repeated_tokens?",
        ),
        ("data.source={kind: repeated_tokens, row: 3}", "data.source.row: got an unknown key. Did you mean rows?"),
        ("data.source={kind: repeated_tokens, rows: 0}", "data.source.rows: got 0, expected at least 1."),
        ("data.scheme=[{kind: one_class_each}]", "data.scheme.0.clients: got nothing, expected a value. Add the key."),
        ("model={kind: token_transformer, width: x}", "model.width: got 'x', expected a whole number."),
        ("clients.sampling={kind: in_turn}", "clients.sampling.kind: got 'in_turn'. Did you mean in_turns?"),
        ("evaluation.metrics=[{kind: magin}]", "evaluation.metrics.0.kind: got 'magin'. Did you mean margin?"),
        ("figures=[{kind: client_bar}]", "figures.0.kind: got 'client_bar'. Did you mean client_bars?"),
        ("callbacks=[{kind: round_log, every: 0}]", "callbacks.0.every: got 0, expected at least 1."),
        (
            "extra_methods.mine=mine.py",
            "extra_methods: got an unknown key, expected plugins. Name the Python file under plugins",
        ),
    ],
)
def test_options_and_kinds_are_checked_with_the_usual_messages(override, said, folder):
    names = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    with pytest.raises(UserError) as told:
        load_params(folder, [plugins(*names), override])
    assert str(told.value).startswith(f"params.yaml: {said}")


def test_without_plugins_their_sections_are_empty(folder):
    with pytest.raises(
        UserError, match=r"evaluation\.metrics: got .*margin.*, expected \[\]\. Name a file that registers"
    ):
        load_params(folder, ["evaluation.metrics=[{kind: margin}]"])


def answers_as_scored(result, settings) -> None:
    """The logged model gives the accuracy of every client that the run reports."""
    client = mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    run = client.get_run(result["mlflow_run_id"])
    (logged,) = client.search_logged_models(
        [run.info.experiment_id], filter_string=f"source_run_id = '{result['mlflow_run_id']}'"
    )
    model, silos = mlflow.pyfunc.load_model(logged.artifact_location), Project.open(settings, derived=True).silos
    for row in result["metrics"]["accuracy/by_client"]:
        x, y = open_client(Path(silos.folder), silos.manifest.client(row["client"]), "test")
        right = [
            silos.manifest.classes[code] == label for code, label in zip(y, model.predict(x)["label"], strict=True)
        ]
        assert sum(right) / len(right) == pytest.approx(row["accuracy"])
