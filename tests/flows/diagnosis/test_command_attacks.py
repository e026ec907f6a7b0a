"""An asker types commands with any params, and writes files of their own: what got rows, values or membership once."""

import csv
import json
import shutil
import time

import numpy as np
import pytest

from flows.advise import _diagnosis as ask_for_diagnosis
from flows.compare import make_plan
from flows.methods.method_settings import method_of
from flows.project.make_partition import make
from flows.results.run_history.clean_runs import clean_runs, leftovers
from flows.results.serving.export_model import export_model
from flows.results.serving.open_model import open_model
from flows.results.serving.predict_file import predict_file
from flows.training.callbacks.report_run import MLflowTracking
from flows.training.run_context import check_allowed, open_run
from flows.training.run_records.fingerprint import fingerprint_of
from flows.training.run_records.run_folder import Noted, RunFolder
from flows.training.trainer import Trainer, default_callbacks
from flows.training.training_setup import training_setup
from silos.dataset import Clients
from silos.errors import RefusalError, UserError
from silos.partitioners.copied_rows import copied_row_notes
from silos.privacy.owned_source import check_source, find_store
from silos.privacy.owner_file import make_store
from tasks.evaluate import OUTCOMES, sum_targets
from tasks.execution.task_runner import PlainRunner, map_clients
from tasks.paired_outcomes import pair_outcomes

OWN_MODELS = "expected none, as the owner has set under own_models in"


def train(project, method="fedavg"):
    """Train a round without MLflow; return the run's name."""
    method_page, folder = method_of(project.params, method), RunFolder(project.store.runs / "first" / f"{method}-seed0")
    setup, noted = training_setup(project, 0), Noted(plugins=())
    identity = folder.identify(
        fingerprint_of(project, setup, method_page, method), False, project.data.same_rows, noted
    )
    folder.path.parent.joinpath("experiment.json").write_text(json.dumps({"kind": "run", "name": "first"}))
    run = open_run(project, method_page, setup, identity, folder, PlainRunner(), time.perf_counter())
    callbacks = default_callbacks(project.params.evaluation, (), False)
    Trainer(run, [each for each in callbacks if not isinstance(each, MLflowTracking)]).fit(0)
    return folder.name


def test_a_source_of_one_guessed_row_confirms_no_guess(hospital):
    """Once, the refusal named the silo of a row, of which the asker knew one value and the class."""
    assert isinstance(hospital.diagnose(), dict)
    known = hospital.table()[:12]
    for rows in ([known[0]], known[:9]):
        with (hospital.folder / "guess.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["crp", "outcome"], *[[row[3], row[-1]] for row in rows]])
        said = hospital.diagnose(
            "data.name=guess",
            "data.source={kind: table, path: guess.csv, label: outcome}",
            "data.scheme=[{kind: equal, clients: 1}]",
            "data.features=[{name: crp, low: 0, high: 60}]",
            "diagnose.noise={epsilon: 1}",
        )
        assert "silos of private/visits" not in str(said)


def test_copies_of_one_guess_in_a_large_silo_confirm_no_guess():
    """Once, 65 copies in a silo of 650 rows were named as rows of another silo, if it has the row."""
    rng = np.random.default_rng(0)
    own, other = rng.normal(size=(650, 3)), rng.normal(size=(72, 3))
    own[:65] = other[0]
    ends, names = np.array([72, 722]), ["north", "south"]
    clients = Clients(names, ["", ""], ["federated"] * 2, ends, np.concatenate([other, own]), np.zeros(722))
    assert copied_row_notes(clients) == []


def test_clean_deletes_no_record_of_reported_rows(hospital):
    """Once, `clean --yes` took it for the private state of a deleted run, and a copy had another budget."""
    assert isinstance(hospital.diagnose(), dict)
    before = [*(hospital.folder / "private").rglob("*.safetensors")]
    (hospital.folder / "runs" / ".ledgers").mkdir()
    (hospital.folder / "runs" / ".ledgers" / "experiment.json").write_text('{"kind": "run", "name": ".ledgers"}')
    listed = [path for kind in leftovers(hospital.folder) for path in kind.paths]
    assert not [path for path in listed if path.is_relative_to(hospital.folder / "private")]
    clean_runs(hospital.here.open(), lambda _: True)
    assert [*(hospital.folder / "private").rglob("*.safetensors")] == before
    shutil.copy(hospital.folder / "visits.csv", hospital.folder / "copy.csv")
    assert "that other silos of private/visits reported" in hospital.diagnose(
        "data.name=v2", "data.source.path=copy.csv"
    )


def test_the_source_is_predicted_only_if_its_owner_looks(hospital):
    """Once, `predict visits.csv --keep age --keep crp` copied all rows with their label."""
    with pytest.raises(
        RefusalError, match=r"input: got visits\.csv, the source of silos of private/visits, expected a"
    ):
        predict_file(hospital.here.open(), "visits.csv", "out.csv", None, "fedavg-seed0", keep=["age", "crp"])
    hospital.owner(owners_view=True)
    with pytest.raises(UserError, match="got no run 'fedavg-seed0'"):
        predict_file(hospital.here.open(), "visits.csv", "out.csv", None, "fedavg-seed0", keep=["age", "crp"])


def test_weights_and_scales_that_a_silo_keeps_are_logged_only_if_its_owner_agrees(hospital):
    """Once, quantiles of a silo's own rows, which are values of patients, were logged with the model."""
    project = hospital.here.open("tracking.personal_models=true", "clients.align.kind=quantiles")
    with pytest.raises(
        RefusalError, match=rf"personal_models: got true.* of client north \(and 1 more\), {OWN_MODELS}"
    ):
        check_allowed(project, "fedavg", training_setup(project, 0))
    hospital.owner(own_models=True)
    check_allowed(project, "fedavg", training_setup(project, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "asked"), [("fedavg", ["clients.align.kind=quantiles"]), ("local_only", []), ("finetune", [])]
)
def test_weights_and_scales_that_a_silo_keeps_neither_predict_nor_are_exported(method, asked, hospital):
    """Once, `export --client` wrote the quantiles, and predictions of chosen rows have a kink at each of them."""
    project = hospital.here.open("training.rounds=1", "training.epochs=1", *asked)
    run = train(project, method)
    for open_private in (
        lambda: export_model(project, run, "north", "pt2", str(hospital.folder / "north.pt2")),
        lambda: open_model(project, run, ["north"]),
    ):
        with pytest.raises(RefusalError, match=f"got weights or scales of client north, {OWN_MODELS}"):
            open_private()
        hospital.owner(own_models=True)
        open_private()
        hospital.owner(commands=["run"])
        with pytest.raises(RefusalError, match=r"got (predict|export), expected one of run"):
            open_private()
        hospital.owner(commands="all")
        hospital.owner(own_models=False)
    assert not (hospital.folder / "private" / "north.pt2").exists()


def test_a_silo_that_answers_no_training_and_is_left_out_is_not_scored(hospital):
    """Once, `clients.leave` let a run begin that scored rows of a silo, although its owner allows `diagnose` only."""
    asked = ["clients.leave={north: 1}"]
    assert hospital.here.open(*asked).scored.clients == ("north", "south"), "training alone is left"
    hospital.owner(silos={"north": {"commands": ["diagnose"]}})
    assert hospital.here.open(*asked).scored.clients == ("south",)
    hospital.owner(silos={"north": {"commands": ["evaluate"]}})
    assert hospital.here.open(*asked).scored.clients == ("north", "south")


def test_a_folder_in_the_folder_of_pictures_has_the_same_owner(hospital):
    """Once, the pictures of one domain in another size were other rows, with an owner's file of their own."""
    pictures = {"kind": "folder", "path": "pictures", "size": 8}
    (hospital.folder / "pictures" / "ward").mkdir(parents=True)
    scheme = "data.scheme=[{kind: equal, clients: 2}]"

    def data(**source):
        asked = [f"data.source={json.dumps(pictures | source)}", scheme, "data.features=[]", "data.name=v2"]
        return hospital.here.open(*asked).params.data

    make_store(hospital.folder / "private" / "scans", data())
    assert find_store(hospital.folder, data()).name == "scans"
    check_source(hospital.folder, data())
    for path, size in (("pictures/ward", 8), ("pictures/ward", 16), (".", 8)):
        with pytest.raises(RefusalError, match=r"belongs to the source pictures, expected|source\.path: got"):
            check_source(hospital.folder, data(path=path, size=size))


def test_partitions_that_would_report_a_scale_each_are_refused_before_one_trains(hospital):
    """Once, the second partition recorded the rows, and after training the silos of data/ could report nothing."""
    hospital.owner(may_differ=["scheme", "split"])
    own = [
        "data.scheme=[{kind: equal, clients: 2}]",
        "data.split={validation: 0.2, test: 0.2}",
        "comparison.partitions=2",
    ]
    make(hospital.here.open(*own))
    said = r"got 2 with model\.inputs: standardise, expected 1, .* Set model\.inputs to none .* other_silos: true in"
    with pytest.raises(UserError, match=said):
        make_plan(hospital.here.open(*own, "model.inputs=standardise"), ("fedavg", "local_only"), (0,), "fedavg")
    make_plan(hospital.here.open(*own), ("fedavg", "local_only"), (0,), "fedavg")
    hospital.owner(other_silos=True)
    make_plan(hospital.here.open(*own, "model.inputs=standardise"), ("fedavg", "local_only"), (0,), "fedavg")


def test_outcomes_of_ended_runs_are_not_compared_once_the_owner_stops_everything(hospital):
    """Once, `results A B` and `promote` made silos compare two runs, although `commands: []` stops all."""
    hospital.owner(may_differ=["split"])
    project = hospital.here.open("data.split={validation: 0.2, test: 0.2}")
    make(project)
    clients, rows = [*project.silos.clients], list(project.silos.rows("test").values())
    kept = [
        (store, store.save(OUTCOMES, clients, {"correct": np.full((2, max(rows)), number, np.uint8)}, "outcomes"))
        for number, store in enumerate(project.store.private(project.store.runs / "first" / name) for name in "ab")
    ]

    def pair():
        options = {"classes": None, "outcome": "correct", "split": "test"}
        return map_clients(PlainRunner(), pair_outcomes, project.silos, kept[:1], kept[1:], stack=4, **options)

    def count_labels():
        return map_clients(PlainRunner(), sum_targets, project.silos, stack=4, private=project.ledgers)

    for commands in (["run"], ["evaluate"], "all"):
        hospital.owner(commands=commands)
        assert [message.clients for message in pair() + count_labels()] == [("north", "south")] * 2
    hospital.owner(commands="all", silos={"south": {"commands": ["diagnose", "show", "stats"]}})
    for ask in (pair, count_labels):
        with pytest.raises(RefusalError, match="client south: got run, expected one of diagnose, show, stats"):
            ask()


def test_advice_asks_for_no_diagnosis_and_no_run_that_the_owner_does_not_allow(hospital):
    """It starts both inside one command, as `--tune` starts runs."""
    hospital.owner(commands=["run"])
    (sentence,) = ask_for_diagnosis(hospital.here.open(), PlainRunner()).about["sentences"]
    assert "got diagnose, expected one of run" in sentence
    hospital.owner(commands=["diagnose"])
    with pytest.raises(RefusalError, match="got run, expected one of diagnose"):
        train(hospital.here.open("training.rounds=1"))
