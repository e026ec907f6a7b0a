"""`siloflow export`: a run's model as a file, which answers as the run's own tasks did."""

import importlib.util
import json

import numpy as np
import pytest
import torch

from flows.project.project import Project
from flows.results.serving.export_model import _WRITERS, CARD, export_model, write_exported
from flows.training.load_finished_run import find_run
from models.networks.exported_network import ExportedModel
from models.networks.mlp import MLP
from models.networks.network_factory import build
from models.prng import server_stream
from silos.errors import UserError
from silos.storage.partition_store import open_client
from tasks.tracking.json_io import write_json

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]  # MLflow's, of type hints

NEEDS_ONNX = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="the extra onnx (onnx, onnxscript, onnxruntime) is missing"
)
CLIENT = "c03"


@pytest.fixture
def ran(play_run, folder):
    """Plays a run of these settings inside the experiment `paper`, and answers with its result."""

    def play(method, *settings, cell=""):
        write_json(folder / "runs" / "paper" / "experiment.json", {"kind": "reproduce", "name": "paper", "about": ""})
        return play_run(method, "threads", 1, *settings, experiment="paper", cell=cell)

    return play


@pytest.fixture
def ask(folder):
    """Exports, with today's params.yaml: nobody repeats what a run was started with."""

    def answer(run, client=None, output=None, format="pt2"):
        return export_model(Project.open([], folder), run, client, format, output)

    return answer


def scored(found, folder):
    """The share of `CLIENT`'s test rows, as the partition has them, on which the file is right."""
    silos = folder / "cache" / "partitions"
    (place,) = [p.parent for p in silos.glob("*/manifest.json")]
    manifest = Project.open([], folder, derived=True).silos.manifest
    x, y = open_client(place, manifest.client(CLIENT), "test")
    program = torch.export.load(str(folder / found["file"])).module()
    probabilities = program(torch.from_numpy(np.array(x)))
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(x)))
    return float((probabilities.argmax(1).numpy() == y).mean())


def reported(result, client=CLIENT):
    (found,) = [row["accuracy"] for row in result["metrics"]["accuracy/by_client"] if row["client"] == client]
    return found


@pytest.mark.parametrize("method", ["fedavg", "local_only", "ifca", "ditto", "conditional"])
def test_the_file_is_right_on_as_many_of_a_clients_test_rows_as_the_run_reported(ran, ask, folder, method):
    result = ran(method, "training.optimiser.learning_rate=0.1", "evaluation.report=best")
    found = ask(result["folder"], CLIENT)
    assert found["file"] == f"{result['folder']}/{CLIENT}.pt2"
    assert scored(found, folder) == pytest.approx(reported(result))
    assert found["compared"]["largest_difference"] <= 1e-5
    assert (found["personal"], found["round"]) == (
        method in ("local_only", "ditto", "conditional"),
        result["reported_round"],
    )
    read = {"kinds": [{"kind": "covariance_xy"}], "length": 640} if method == "conditional" else None
    assert found["statistics"] == read


def test_a_personal_model_is_nobodys_unless_a_client_is_named(ran, ask, folder):
    result = ran("local_only", cell="each")
    with pytest.raises(UserError, match=r"since local_only has a model for each client. Choose one of c00, c01"):
        ask(result["folder"])
    with pytest.raises(UserError, match="client: got c99, expected a client of data/digits"):
        ask(result["folder"], "c99")
    assert not list((folder / result["folder"]).glob("*.pt2"))
    own = {client: ask(result["folder"], client)["file"] for client in (CLIENT, "c04")}
    first, second = (torch.export.load(str(folder / file)).state_dict for file in own.values())
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_private_weights_that_are_gone_are_told_and_the_way_out(ran, ask, folder):
    result = ran("local_only", cell="gone")
    for file in (folder / "private").glob("**/gone-local_only*/weights/*.safetensors"):
        file.unlink()
    with pytest.raises(UserError, match=r"the private section weights of client c03, is missing\. Start the run again"):
        ask(result["folder"], CLIENT)


def test_of_one_model_for_all_no_clients_rows_are_opened(ran, ask, monkeypatch):
    result = ran("fedavg")
    monkeypatch.setattr("flows.results.serving.export_model.open_client", None)
    found = ask(result["folder"])
    assert found["compared"]["whose"] == "random"
    assert found["file"].endswith("fedavg-seed0/model.pt2")


def test_the_card_of_a_table_names_what_each_place_of_a_row_holds_and_how_a_line_of_the_file_becomes_one(
    ran, ask, folder
):
    lines = [f"{'abc'[n % 3]},{n % 7},{'eye' if n % 2 else 'day'},{n % 5 < 2}" for n in range(60)]
    (folder / "visits.csv").write_text("\n".join(["site,age,ward,ill", *lines]) + "\n")
    source = "{kind: table, path: visits.csv, label: ill, client: site}"
    own = ("data.name=visits", f"data.source={source}", "data.scheme=[{kind: column, column: client}]")
    found = ask(ran("fedavg", *own, "training.rounds=1", cell="table")["folder"])
    assert found["features"] == ["age", "ward=day", "ward=eye"]
    assert found["columns"] == [
        {"name": "age", "kind": "number", "missing": "refuse"},
        {"name": "ward", "kind": "text", "values": ["day", "eye"], "missing": False},
    ]
    extra = {CARD: ""}
    program = torch.export.load(str(folder / found["file"]), extra_files=extra).module()
    assert json.loads(extra[CARD])["features"] == found["features"]
    with pytest.raises(RuntimeError, match="dtype mismatch"):
        program(torch.zeros(1, 3, dtype=torch.float64))
    assert program(torch.full((1, 3), torch.nan)).isnan().all(), "a file cannot refuse: docs/cost.md says so"


def test_the_card_says_what_the_file_is(ran, ask, folder):
    found = ask(ran("fedavg")["folder"])
    extra = {CARD: ""}
    torch.export.load(str(folder / found["file"]), extra_files=extra)
    card = json.loads(extra[CARD])
    assert card["classes"] == [str(digit) for digit in range(10)]
    assert (card["dtype"], card["shape"], card["method"]) == ("uint8", [8, 8], "fedavg")


def test_a_run_is_found_by_path_by_name_and_by_the_folder_that_holds_it_alone(folder, ran, tmp_path):
    project = Project.open([], folder)
    place = folder / ran("fedavg")["folder"]
    for said in (f"runs/paper/{place.name}", f"paper/{place.name}", place.name, str(place), f"{place}/"):
        assert find_run(project, said).path == place
    for name in ("first", "second"):
        write_json(folder / "runs" / "two" / name / "run.json", {})
    write_json(folder / "runs" / "alone" / "only" / "run.json", {})
    assert find_run(project, "runs/alone").path == folder / "runs" / "alone" / "only"
    with pytest.raises(UserError, match=r"'two': got a name of 2 runs, expected one: runs/two/first, runs/two/second"):
        find_run(project, "two")
    write_json(tmp_path / "run.json", {})
    for none in ("fedavg-seed7", "..", "", str(tmp_path), "x" * 300):
        with pytest.raises(
            UserError, match=r"runs: got no run .*\. (Give the path|Did you mean)|got a name of \d+ runs"
        ):
            find_run(project, none)


def test_a_run_that_has_not_ended_is_not_exported(ran, ask, folder):
    result = ran("fedavg", cell="stopped")
    (folder / result["folder"] / "result.json").unlink()
    with pytest.raises(UserError, match="stopped-fedavg-seed0: got an unfinished run"):
        ask(result["folder"])


def test_a_run_on_other_data_is_told_with_the_way_back(ran, ask, folder):
    result = ran("fedavg", cell="other")
    known = json.loads((folder / result["folder"] / "run.json").read_text())
    write_json(folder / result["folder"] / "run.json", {**known, "data_version": "0123456789abcdef.dir"})
    with pytest.raises(
        UserError, match=r"expected 0123456789abcdef\.dir, on which it was trained.*data use 0123456789`"
    ):
        ask(result["folder"])


def test_a_place_that_takes_no_file_is_told(ran, ask, folder, tmp_path):
    run = ran("fedavg")["folder"]
    with pytest.raises(UserError, match="which exists and is not a file, expected a file"):
        ask(run, output=str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--output: cannot write .*file: a file has the name of the needed folder"):
        ask(run, output=str(tmp_path / "file" / "model.pt2"))
    with pytest.raises(UserError, match=r"--output: cannot write .*x: .*[Nn]ame too long|its name is too long"):
        ask(run, output="x" * 300)


@pytest.fixture
def network():
    return MLP(64, (6,), 3)


def model_of(network, scale=1.0):
    weights = network.init(server_stream(0, 0, "init"))
    return ExportedModel(network, {n: w * scale for n, w in weights.items()}, {}, 3)


ROWS = torch.rand(9, 8, 8, generator=torch.Generator().manual_seed(0))


def test_a_file_that_answers_otherwise_is_not_left(network, tmp_path, monkeypatch):
    way = _WRITERS["pt2"]
    wrong = way._replace(open=lambda content: lambda rows: way.open(content)(rows) + 2e-5)
    monkeypatch.setitem(_WRITERS, "pt2", wrong)
    (tmp_path / "kept.pt2").write_text("before")
    for name in ("new.pt2", "kept.pt2"):
        with pytest.raises(
            UserError, match=r"got a difference of 2e-05 from the original model, expected at most 1e-05; no file"
        ):
            write_exported(tmp_path / name, "pt2", model_of(network), ROWS, {})
    assert [p.name for p in tmp_path.iterdir()] == ["kept.pt2"]
    assert (tmp_path / "kept.pt2").read_text() == "before"


def test_a_model_that_diverged_is_not_exported(network, tmp_path):
    with pytest.raises(UserError, match="got a difference of nan"):
        write_exported(tmp_path / "m.pt2", "pt2", model_of(network, float("nan")), ROWS, {})
    assert not list(tmp_path.iterdir())


def test_pixels_are_scaled_inside(network):
    model = model_of(network)
    pixels = (255 * ROWS).to(torch.uint8)
    assert torch.equal(model(pixels), model(torch.from_numpy(pixels.numpy() / np.float32(255))))


def test_names_that_would_be_one_stay_apart(network):
    @answering
    def sums(weights, context, x):
        return weights["a.b"] + 10 * weights["a_b"] + 100 * context["a.b"] + 0 * x

    one = torch.ones(2, 3)
    model = ExportedModel(sums, {"a.b": one, "a_b": 2 * one}, {"a.b": 3 * one}, classes=0)
    assert torch.equal(model(0 * one), torch.full((2,), 321.0))


def answering(function):
    class Own:
        def apply(self, weights, context, x, stream):
            return function(weights, context, x)

    return Own()


def test_what_is_missing_for_onnx_is_told_with_the_command_that_installs_it(ran, ask, monkeypatch):
    run = ran("fedavg")["folder"]
    monkeypatch.setattr("flows.results.serving.export_model.find_spec", lambda package: package != "onnxscript")
    with pytest.raises(
        UserError, match=r"which needs onnxscript, expected .*`pip install -c constraints\.txt -e '\.\[onnx\]'`"
    ):
        ask(run, format="onnx")


@NEEDS_ONNX
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("mlp", {"hidden": (6,)}),
        ("cnn", {"channels": (3, 4), "hidden": (6,), "kernel": 3, "padding": True, "channel_dropout": 0.5}),
        ("cnn_bn", {"channels": (3, 4), "pooled": (False, True), "hidden": (6,)}),
        ("residual", {"hidden": (6,), "widths": (4, 8)}),
    ],
    ids=["mlp", "cnn", "cnn_bn", "residual"],
)
def test_an_onnx_file_answers_any_number_of_rows_as_ours(kind, options, tmp_path):
    import onnxruntime

    network = build(kind, (8, 8), 3, options)
    model, pixels = model_of(network), (255 * ROWS).to(torch.uint8)
    difference = write_exported(tmp_path / "m.onnx", "onnx", model, pixels, {"classes": ["a", "b", "c"]})
    assert difference <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map[CARD]) == {"classes": ["a", "b", "c"]}
    for count in (1, 4, 9):
        (found,) = session.run(["probabilities"], {"rows": pixels[:count].numpy()})
        np.testing.assert_allclose(found, model(pixels[:count]).numpy(), atol=1e-5)
