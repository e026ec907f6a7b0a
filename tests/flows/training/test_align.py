"""Tests `clients.align`: training, scoring, export and MLflow use features that each client aligns itself."""

from pathlib import Path

import mlflow
import numpy as np
import pytest
import torch

from flows.experiments.advice.candidates import candidates, features_to_align
from flows.project.project import Project
from flows.results.reports.open_faults import open_faults
from flows.results.serving.export_model import export_model
from flows.results.serving.open_model import open_model
from silos.errors import UserError
from silos.standardizer import Standardization, Standardizer
from tasks.tracking.json_io import write_json

CLIENTS, ROWS, TRAIN = ("north", "south", "east"), 120, 72
PERSONAL = "tracking.personal_models=true"
ALIGNED = ["clients.align.kind=standardise", PERSONAL]


def write_rows(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    split = np.tile(np.repeat(["train", "validation", "test"], [TRAIN, 12, ROWS - TRAIN - 12]), len(CLIENTS))
    client = np.repeat(CLIENTS, ROWS)
    np.savez(path, x=x, y=y, client=client, domain=client, split=split)


def settings(file: str) -> list[str]:
    return [
        f"data.name={file}",
        f"data.source={{kind: npz, path: {file}.npz}}",
        "data.scheme=[{kind: column, column: client}]",
        "training.optimiser.learning_rate=0.05",
    ]


@pytest.fixture(scope="module")
def units(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write rows of one rule; the second feature of `east` has another unit and another zero."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(len(CLIENTS) * ROWS, 3)).astype(np.float32)
    y = (x[:, 0] + 2 * x[:, 1] > 0).astype(int)
    x[2 * ROWS :, 1] = 10 * x[2 * ROWS :, 1] + 40
    write_rows(folder / "units.npz", x, y)
    return x, y


def aligned(x: np.ndarray, kind: str) -> np.ndarray:
    """Return the rows of each client, aligned by its own training rows."""
    parts = x.reshape(len(CLIENTS), ROWS, -1)
    each = []
    for rows in parts:
        train = rows[:TRAIN].astype(np.float64)
        if kind == "quantiles":
            fitted = Standardization(own_columns=(0, 1, 2), by_quantiles=True).inputs_of(rows[:TRAIN])
        else:
            fitted = Standardizer(tuple(train.mean(0)), tuple(train.std(0)))
        each.append(fitted.transform(rows))
    return np.concatenate(each)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("fedavg", "standardise"),
        ("fedavg", "quantiles"),
        *(pytest.param(m, "standardise", marks=pytest.mark.slow) for m in ("conditional", "pooled")),
    ],
)
def test_weights_are_those_of_rows_aligned_beforehand_to_the_bit(method, kind, folder, play_run, units):
    x, y = units
    run = play_run(method, "threads", 1, *settings("units"), f"clients.align.kind={kind}", PERSONAL)
    write_rows(folder / f"{kind}.npz", aligned(x, kind), y)
    beforehand = play_run(method, "threads", 1, *settings(kind))
    assert run["weights_sha256"] == beforehand["weights_sha256"]
    assert run["metrics"]["accuracy/by_client"] == beforehand["metrics"]["accuracy/by_client"]


@pytest.mark.slow
def test_a_named_feature_repairs_a_unit_and_the_others_keep_the_agreed_scale(folder, play_run, units):
    asked = [*settings("units"), "model.inputs=standardise", "training.rounds=10"]
    plain = play_run("fedavg", "threads", 1, *asked)
    repaired = play_run("fedavg", "threads", 1, *asked, "clients.align={kind: standardise, features: [x1]}")
    assert repaired["metrics"]["accuracy/mean"] > plain["metrics"]["accuracy/mean"] + 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints
@pytest.mark.parametrize("kind", ["standardise", "quantiles"])
def test_a_client_gets_the_same_answers_from_its_file_and_from_mlflow(kind, folder, play_run, units):
    write_json(folder / "runs" / "paper" / "experiment.json", {"kind": "reproduce", "name": "paper", "about": ""})
    aligned_settings = [*settings("units"), f"clients.align.kind={kind}", PERSONAL]
    run = play_run("fedavg", "threads", 1, *aligned_settings, experiment="paper", cell=f"align-{kind}")
    project = Project.open([], folder)
    rows = units[0][2 * ROWS : 2 * ROWS + 7]
    with pytest.raises(UserError, match="--client: got no client, expected one, since each client aligns"):
        export_model(project, run["folder"].removeprefix("runs/"), None, "pt2", None)
    found = export_model(project, run["folder"].removeprefix("runs/"), "east", "pt2", None)
    assert found["personal"]
    probabilities = torch.export.load(str(folder / found["file"])).module()(torch.from_numpy(rows)).numpy()
    mlflow.set_tracking_uri(project.store.tracking)
    model = mlflow.pyfunc.load_model(f"runs:/{run['mlflow_run_id']}/{Path(run['folder']).name}")
    answers = model.predict(rows, params={"client": "east"})
    columns = [name for name in answers if name.startswith("probability/")]
    np.testing.assert_allclose(answers[columns].to_numpy(), probabilities, rtol=1e-5, atol=1e-7)
    others = model.predict(rows, params={"client": "north"})
    assert not np.allclose(others[columns].to_numpy(), probabilities)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["conditional", "flux"])
def test_a_client_opens_its_model_of_a_run_that_logged_none(method, folder, play_run, units):
    write_json(folder / "runs" / "paper" / "experiment.json", {"kind": "reproduce", "name": "paper", "about": ""})
    run = play_run(method, "threads", 1, *settings("units"), ALIGNED[0], experiment="paper", cell=f"own-{method}")
    opened = open_model(Project.open([], folder), run["folder"], ["east"])
    assert opened.card["clients"] == ["east"]


def test_fedavg_races_with_the_features_that_differ_aligned(folder, units):
    project = Project.open(settings("units"), folder, derived=True)
    changes = [("mean", "x1"), ("category", "ward=a"), ("spread", "x2"), ("spread", "x1")]
    report = {"between": [{"changes": {"feature": [{"what": what, "name": name} for what, name in changes]}}, {}]}
    assert features_to_align(report) == ["x1", "x2"]
    plain, aligned = [], []
    for each in candidates(project, 0, ["fedprox"], ["x1", "ward=a"]):
        (aligned if any(setting.startswith("clients.align") for setting in each.settings) else plain).append(each)
    assert {each.method for each in aligned} == {"fedavg"}
    assert {tuple(project.with_overrides(each.settings).params.clients.align.features) for each in aligned} == {("x1",)}
    rates = {each.settings[0] for each in plain if each.method == "fedavg"}
    assert {each.settings[0] for each in aligned} == rates
    assert len({each.name for each in [*plain, *aligned]}) == len(plain) + len(aligned)
    assert not any("align" in str(each.settings) for each in candidates(project, 0, ["fedprox"]))
    aligns = Project.open([*settings("units"), "clients.align.kind=standardise"], folder, derived=True)
    assert not any("align" in str(each.settings) for each in candidates(aligns, 0, ["fedprox"], ["x1"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "clients.align.kind: got standardise, expected none, since data/digits has no rows of numbers with named"),
        (
            [*settings("units"), "clients.align.features=[age]"],
            "clients.align.features: got 'age', expected numeric features of data/units: x0, x1, x2. Correct the name.",
        ),
        (
            [*settings("units"), "clients.align.features=[]"],
            "clients.align.features: got no numeric feature of data/units, expected at least one. Name one, or set",
        ),
        (
            [
                *settings("units"),
                "data.split={validation: 0.2, test: 0.2, test_rows: common}",
                "data.scheme=[{kind: equal, clients: 3}]",
            ],
            "since no client owns the common rows of data/units",
        ),
    ],
)
def test_what_cannot_be_aligned_is_refused(more, message, folder, play_run, units):
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        play_run("fedavg", "threads", 1, *more, "clients.align.kind=standardise")


def test_a_unit_that_the_newest_diagnosis_suspects_is_a_fault_until_each_silo_standardises_it(folder, units):
    change = {"name": "x1", "what": "mean", "first": 1.0, "second": 10.0, "difference": -9.0, "factor": 0.1}
    changes = {"changes": {"feature": [change]}, "input_features": {"x1": 1.0}, "transform": False}
    pair = {
        "first": "north",
        "second": "east",
        "types": ["feature"],
        "undetermined": False,
        "concept_identifiable": True,
    }
    counts = {"pairs": 1, "undetermined": 0, "none": 0, "not_identifiable": 0, "rule_unknown": 0, "groups": [0, 1]}
    line = {**counts, **changes, "types": {"feature": 1, "label": 0, "concept": 0}, "transform": 0, "features": ["x1"]}
    report = {
        "between": [line],
        "clients": ["north", "east"],
        "groups": [["north"], ["east"]],
        "pairs": [pair | changes],
        "pairs_of": "silos",
        "rest": [],
        "query": {"targets": [], "pictures": False},
        "label": "",
        "sentences": [],
        "data_faults": [],
    }
    for name, content in (("diagnose-1", {**report, "pairs": []}), ("diagnose-2", report)):
        about = {"kind": "diagnose", "name": name, "started": name[-1], "data_version": "v1"}
        write_json(folder / "runs" / name / "experiment.json", about)
        write_json(folder / "runs" / name / "report.json", content)
    foreign = folder / "runs" / "diagnose-3"
    write_json(
        foreign / "experiment.json", {"kind": "diagnose", "name": foreign.name, "started": "3", "data_version": "v3"}
    )
    write_json(
        foreign / "report.json", {"sentences": [], "data_faults": [], "pairs": [pair], "between": [{}], "rest": []}
    )
    project = Project.open(settings("units"), folder, derived=True)
    step = "Check the unit of x1 at north and east, convert it there if it is another one, and diagnose again."
    assert open_faults(project, "v1") == [
        f"diagnose-2 found a fault that is still open. {step}",
        "Or let each silo standardise by its own rows: `siloflow compare --set "
        """'clients.align={kind: standardise, features: ["x1"]}'`""",
    ]
    assert open_faults(project, "v2") == []
    assert open_faults(project, "v3") == [], "a report of another version of siloflow"
    for features, faults in (("[x1]", 0), ("[x0]", 1), ("all", 0)):
        aligned = project.with_overrides([f"clients.align={{kind: standardise, features: {features}}}"])
        assert len(open_faults(aligned, "v1")) == faults
