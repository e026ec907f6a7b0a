"""A run whose rows are scaled by what its clients agreed on is the run on rows that were scaled beforehand."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.project.project import Project
from flows.results.serving.client_statistics import client_statistics
from flows.results.serving.export_model import export_model
from flows.training.fit_standardizer import fit_standardizer, load_standardizer
from flows.training.load_finished_run import finished_run
from flows.training.training_setup import training_setup
from silos import cohort
from silos.errors import UserError
from silos.privacy.ledger import Ledger
from silos.privacy.owner_file import policy_file
from silos.standardizer import Standardization, Standardizer
from tasks.client_stats import STATISTICS
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.json_io import write_json

CLIENTS, ROWS, FEATURES = ("north", "south", "east"), 40, 4
BOTH = ["model.inputs=standardise", "model.targets=standardise"]
STATS = ["method.conditional.statistics=[{kind: mean}, {kind: variance}]"]


def save(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    split = np.tile(np.repeat(["train", "validation", "test"], [24, 6, 10]), len(CLIENTS))
    client = np.repeat(CLIENTS, ROWS)
    np.savez(path, x=x, y=y, client=client, domain=client, split=split)


def settings(file: str, task: str) -> list[str]:
    objective = "squared_error" if task == "regression" else "cross_entropy"
    return [
        f"data.name={file}",
        f"data.source={{kind: npz, path: {file}.npz, task: {task}}}",
        "data.scheme=[{kind: column, column: client}]",
        f"training.objective={{kind: {objective}}}",
        "training.optimiser.learning_rate=0.05",
    ]


@pytest.fixture(scope="module")
def raw(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Rows of columns in units of their own, by task; they lie beside params.yaml."""
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(120, FEATURES)) * [300, 1, 0.01, 5] + [700, 3, 0, -40]).astype(np.float32)
    z = (x - x.mean(0)) / x.std(0)
    rows = {
        "classification": (x, (z[:, 0] + z[:, 1] > 0).astype(int)),
        "regression": (x, 150 + 80 * z[:, 0] - 30 * z[:, 3]),
    }
    for task, arrays in rows.items():
        save(folder / f"raw_{task}.npz", *arrays)
    return rows


@pytest.fixture
def ran(play_run, folder):
    """A run inside the experiment `paper`, whose data can be found again in the cache of partitions."""

    def play(method, asked, cell):
        write_json(folder / "runs" / "paper" / "experiment.json", {"kind": "reproduce", "name": "paper", "about": ""})
        return play_run(method, "threads", 1, *asked, experiment="paper", cell=cell)

    return play


def agreed_of(folder: Path, result: dict) -> dict:
    return json.loads((folder / result["folder"] / "scaling.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "method"),
    [
        ("classification", "conditional"),
        *(("regression", method) for method in ("fedavg", "pooled", "virtual")),
    ],
)
def test_every_weight_is_that_of_rows_scaled_beforehand_to_the_bit(task, method, folder, play_run, raw):
    x, y = raw[task]
    asked = BOTH if task == "regression" else BOTH[:1]
    run = play_run(method, "threads", 1, *settings(f"raw_{task}", task), *asked, *STATS)
    held = agreed_of(folder, run)
    scaled = (
        Standardizer(**held["inputs"]).transform(x),
        Standardizer(**held["targets"]).transform(y.astype(np.float32)) if held["targets"] else y,
    )
    save(folder / f"scaled_{task}.npz", *scaled)
    beforehand = play_run(method, "threads", 1, *settings(f"scaled_{task}", task), *STATS)
    assert run["weights_sha256"] == beforehand["weights_sha256"]
    assert run["metrics"]["loss/mean"] == beforehand["metrics"]["loss/mean"]
    if task == "regression":
        unit = held["targets"]["scale"][0]
        for name in ("rmse/pooled", "rmse/worst", "validation/rmse/pooled"):
            assert run["metrics"][name] == pytest.approx(unit * beforehand["metrics"][name], rel=1e-5)
    else:
        assert run["metrics"]["accuracy/by_client"] == beforehand["metrics"]["accuracy/by_client"]
    assert not (folder / beforehand["folder"] / "scaling.json").exists()


@pytest.mark.slow
def test_the_numbers_are_those_of_training_rows_and_the_same_wherever_tasks_run(folder, play_run, pools, raw):
    pools("processes")
    asked = [*settings("raw_regression", "regression"), *BOTH]
    runs = [play_run("fedavg", kind, workers, *asked) for kind, workers in (("threads", 1), ("processes", 2))]
    runs.append(play_run("fedavg", "threads", 1, *asked, "engine.stack=1"))
    train = np.arange(120) % ROWS < 24
    whole = np.column_stack([raw["regression"][0], raw["regression"][1].astype(np.float32)])[train].astype(np.float64)
    for run in runs:
        held = agreed_of(folder, run)
        assert held == agreed_of(folder, runs[0])
        np.testing.assert_allclose(held["inputs"]["mean"] + held["targets"]["mean"], whole.mean(0), rtol=1e-12)
        np.testing.assert_allclose(held["inputs"]["scale"] + held["targets"]["scale"], whole.std(0), rtol=1e-12)
    assert len({run["weights_sha256"] for run in runs[:2]}) == 1


@pytest.mark.slow
def test_bytes_are_counted_in_the_first_round(folder, play_run, raw):
    run = play_run("fedavg", "threads", 1, *settings("raw_classification", "classification"), BOTH[0])
    plain = play_run("fedavg", "threads", 1, *settings("raw_classification", "classification"))
    each = len(CLIENTS) * FEATURES * 8
    assert run["bytes"]["up"] == plain["bytes"]["up"] + 3 * each  # count, sum and squares
    assert run["bytes"]["down"] == plain["bytes"]["down"] + 2 * each  # mean and scale
    rounds = [json.loads((folder / run["folder"] / "journal" / f"00000{n}.json").read_text()) for n in (1, 2)]
    assert rounds[0]["metrics"]["bytes/up"] - rounds[1]["metrics"]["bytes/up"] == 3 * each


@pytest.mark.slow
def test_who_comes_later_tells_nothing_of_it_and_is_sent_it(folder, play_run, raw):
    asked = [*settings("raw_classification", "classification"), BOTH[0], "clients.join={east: 2, south: 3}"]
    run = play_run("fedavg", "threads", 1, *asked)
    assert agreed_of(folder, run)["bytes"] == [1 * 3 * FEATURES * 8, len(CLIENTS) * 2 * FEATURES * 8]


@pytest.mark.slow
def test_what_the_newest_run_has_agreed_on_is_taken(folder, ran, raw):
    """Whatever the runs' names; of both orders of time."""
    asked = [*settings("raw_classification", "classification"), BOTH[0], "clients.join={north: 2}"]
    places = [folder / ran("fedavg", asked, f"newest-{name}")["folder"] / "scaling.json" for name in "ab"]
    project = Project.open(asked, folder, derived=True)
    for number, place in enumerate(places):
        write_json(place, {**json.loads(place.read_text()), "bytes": [number, number]})
    for newest in (0, 1, 0):
        for number, place in enumerate(places):
            os.utime(place, (1e9 + (number == newest),) * 2)
        assert load_standardizer(project).bytes_up == newest


@pytest.mark.slow
def test_who_comes_later_or_is_held_out_does_not_tell(folder, play_run, raw):
    x, train = raw["classification"][0].astype(np.float64), np.arange(120) % ROWS < 24
    asked = [*settings("raw_classification", "classification"), BOTH[0]]
    later = play_run("fedavg", "threads", 1, *asked, "clients.join={east: 2}")
    scheme = "data.scheme=[{kind: column, column: client}, {kind: hold_out, domains: [east]}]"
    held_out = play_run("fedavg", "threads", 1, *asked, scheme)
    told = x[train & (np.arange(120) < 2 * ROWS)]
    for run in (later, held_out):
        np.testing.assert_allclose(agreed_of(folder, run)["inputs"]["mean"], told.mean(0), rtol=1e-12)


def let_the_owner_look(project):
    """Statistics of a version are reported once, except to the owner."""
    owner = policy_file(Path(project.ledgers.folder))
    owner.parent.mkdir(parents=True, exist_ok=True)
    owner.write_text("owners_view: true\n")


@pytest.mark.slow
def test_a_served_conditional_model_is_given_statistics_of_scaled_rows(folder, ran, raw):
    asked = [*settings("raw_classification", "classification"), BOTH[0], *STATS]
    run = ran("conditional", asked, "told")
    found = finished_run(Project.open(asked, folder), run["folder"])
    refs = found.model.context.refs
    kept = found.round.private.load(STATISTICS, refs, "south")[STATISTICS]
    project = Project.open(asked, folder, derived=True)
    let_the_owner_look(project)
    assert client_statistics(project, "south", "conditional")["statistics"] == kept.tolist()


@pytest.mark.slow
def test_statistics_open_no_other_clients_rows_where_a_run_has_agreed_and_else_ask_as_a_run_does(
    folder, ran, raw, monkeypatch
):
    asked = [*settings("raw_classification", "classification"), "clients.join={east: 2}", BOTH[0], *STATS]
    project = Project.open(asked, folder, derived=True)
    let_the_owner_look(project)
    opened = []
    look = cohort.open_client
    monkeypatch.setattr(cohort, "open_client", lambda *args: opened.append(args[1].name) or look(*args))
    cohort.forget_stacks()
    before = client_statistics(project, "south", "conditional")
    assert {*opened} == {"north", "south"}
    assert [len(Ledger(project.ledgers.folder, name).entries()) for name in ("north", "south")] == [1, 1]
    ran("conditional", asked, "joined")
    opened.clear()
    cohort.forget_stacks()
    assert client_statistics(project, "south", "conditional") == before
    assert {*opened} == {"south"}


CHANGES = {
    "no join": lambda params: params["clients"].pop("join"),
    "no model": lambda params: params.pop("model"),
    "a list": lambda params: params.update(clients=["north", "south"]),
    "a word": lambda params: params["clients"].update(join={"north": "later"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_run_of_another_version_is_named_and_left_aside(change, folder, ran, raw):
    name = "aside_" + change.replace(" ", "_")
    save(folder / f"{name}.npz", *raw["classification"])
    asked = [*settings(name, "classification"), BOTH[0], *STATS]
    run = ran("conditional", asked, name)
    project = Project.open(asked, folder, derived=True)
    usual = client_statistics(project, "south", "conditional")
    place = folder / run["folder"] / "run.json"
    known = json.loads(place.read_text())
    other = json.loads(place.read_text())
    CHANGES[change](other["params"])
    write_json(place, other)
    try:
        found = client_statistics(project, "south", "conditional")
    finally:
        write_json(place, known)
    assert found["statistics"] == usual["statistics"]
    (note,) = [note for note in found["notes"] if note not in usual["notes"]]
    assert note.startswith(f"{run['folder']} has params of another version of siloflow, so it is unknown")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("format", ["pt2", "onnx"])
def test_an_exported_model_answers_raw_rows_as_was_scored(format, task, folder, ran, raw):
    if format == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
    asked = [*settings(f"raw_{task}", task), *(BOTH if task == "regression" else BOTH[:1])]
    run = ran("fedavg", asked, f"{format}-{task}")
    found = export_model(Project.open(asked, folder), run["folder"], "south", format, str(folder / f"{task}.{format}"))
    assert found["inputs"] == agreed_of(folder, run)["inputs"]
    rows, truth = (a[ROWS + 30 : 2 * ROWS] for a in raw[task])
    if format == "pt2":
        answers = torch.export.load(str(folder / f"{task}.pt2")).module()(torch.from_numpy(rows)).numpy()
    else:
        (answers,) = onnxruntime.InferenceSession(str(folder / f"{task}.onnx")).run(None, {"rows": rows})
    name = "rmse" if task == "regression" else "accuracy"
    (scored,) = [row[name] for row in run["metrics"][f"{name}/by_client"] if row["client"] == "south"]
    found = np.sqrt(np.mean((answers - truth) ** 2)) if task == "regression" else np.mean(answers.argmax(1) == truth)
    assert found == pytest.approx(scored, rel=1e-4)


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        (["model.inputs=standardise"], "since data/digits has pixels, which are always divided by 255. Set it to none"),
        (
            ["model.targets=standardise"],
            "since data/digits is a classification, whose labels are not numbers. Set it to none",
        ),
    ],
)
def test_what_cannot_be_scaled_is_refused(asked, match, folder):
    with pytest.raises(UserError, match=match):
        training_setup(Project.open(asked, folder, derived=True), 0)


def test_where_nobody_may_tell_the_run_ends_with_one_sentence(folder, play_run):
    rng = np.random.default_rng(0)
    np.savez(
        folder / "tiny.npz",
        x=rng.normal(size=(27, 2)),
        y=np.arange(27) % 2,
        client=np.repeat(CLIENTS, 9),
        split=["train"] * 27,
    )
    with pytest.raises(
        UserError, match=r"model\.inputs or model\.targets: got standardise, expected none, since no client of"
    ):
        play_run("fedavg", "threads", 1, *settings("tiny", "classification"), BOTH[0])


@pytest.mark.slow
def test_numbers_that_were_changed_on_disk_are_told(folder, ran, raw):
    asked = [*settings("raw_classification", "classification"), BOTH[0]]
    run = ran("fedavg", asked, "damaged")
    place = folder / run["folder"] / "scaling.json"
    place.write_text("{}")
    with pytest.raises(UserError, match=r"scaling\.json is damaged \(got no inputs, expected it\)"):
        export_model(Project.open(asked, folder), run["folder"], None, "pt2", None)
    place.unlink()
    with pytest.raises(UserError, match=r"scaling\.json is missing"):
        export_model(Project.open(asked, folder), run["folder"], None, "pt2", None)


@pytest.mark.parametrize(
    ("changed", "is_taken"),
    [
        ({}, True),
        ({"version": "another"}, False),
        ({"leave": {"east": 1}}, False),  # its clients of round 1 are others
        ({"leave": {"east": 2}}, True),
        ({"join": {"east": 2}}, False),
        ({"inputs": "none"}, False),
    ],
)
def test_only_what_a_run_on_the_same_rows_with_the_same_first_clients_agreed_on_is_taken(
    changed, is_taken, folder, raw
):
    project = Project.open([*settings("raw_classification", "classification"), BOTH[0]], folder, derived=True)
    params = project.params.model_dump(mode="json")
    params["clients"] |= {key: changed[key] for key in ("leave", "join") if key in changed}
    params["model"] |= {key: changed[key] for key in ("inputs",) if key in changed}
    place = folder / "runs" / "planted" / "fedavg-seed0"
    write_json(place.parent / "experiment.json", {"kind": "reproduce", "name": "planted", "about": ""})
    write_json(place / "run.json", {"data_version": changed.get("version", project.silos.version), "params": params})
    saved = Standardizer((0.0,) * FEATURES, (1.0,) * FEATURES)
    scaling = Standardization(inputs=saved).as_json()
    write_json(place / "scaling.json", {**scaling, "bytes": [7, 7], "notes": []})
    os.utime(place / "scaling.json", (2e9, 2e9))  # newer than those of other tests
    try:
        assert (load_standardizer(project).bytes_up == 7) is is_taken
    finally:
        shutil.rmtree(place.parent)


@pytest.mark.parametrize(
    ("clients", "asked"),
    [("{}", 3), ("{leave: {east: 1}}", 2), ("{leave: {east: 2}}", 3), ("{join: {east: 2, south: 3}}", 1)],
)
def test_only_clients_of_the_first_round_are_asked(clients, asked, folder, raw):
    project = Project.open(
        [*settings("raw_classification", "classification"), BOTH[0], f"clients={clients}"], folder, derived=True
    )
    fitted = fit_standardizer(project.params, training_setup(project, 0), PlainRunner(), project.ledgers)
    assert (fitted.bytes_up, fitted.bytes_down) == (asked * 3 * FEATURES * 8, len(CLIENTS) * 2 * FEATURES * 8)
