"""The members of an ensemble are the models that their runs report."""

from functools import partial

import pytest
import torch

from flows.experiments.comparison.run_trials import _model, _score_ensemble
from flows.methods.method_settings import method_of
from flows.methods.round_context import RoundContext
from flows.project.project import Project
from flows.training.run_records.run_folder import RunFolder
from flows.training.training_setup import training_setup
from models.server_state import ServerState
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.json_io import write_json

ROUNDS, BEST = 3, 2


@pytest.fixture
def member(project):
    """The folder of a run that reports a round, with these scores on validation rows; and what it is as a member."""
    return partial(_member, project)


def _member(project, report, reported, validation):
    opened = Project.open([f"evaluation.report={report}"], project, derived=True)
    page = method_of(opened.params, "fedavg")
    start = page.init(training_setup(opened, 0))

    def state(number: int) -> ServerState:
        weights = {name: torch.full_like(w, float(number)) for name, w in start.tensors["weights"].items()}
        return start.with_tensors(weights=weights)

    folder = RunFolder(opened.store.runs / "compare-x" / "fedavg-seed0")
    for number in range(1, ROUNDS + 1):
        score = {"validation/accuracy/mean": validation[number - 1]} if validation else {}
        record = {"round": number, "metrics": {**score, "accuracy/mean": number / 10}}
        folder.commit(folder.files(record, state(number)))
    if validation:
        folder.save_best(state(BEST), BEST)
    write_json(folder.result, {"rounds": ROUNDS, "reported_round": reported, "mlflow_run_id": None})
    return folder, lambda: _model(page, PlainRunner(), opened, 0, folder)


@pytest.mark.parametrize(
    ("report", "reported", "validation"),
    [("best", BEST, (0.1, 0.9, 0.1)), ("last", ROUNDS, (0.1, 0.9, 0.1)), ("best", ROUNDS, ())],
)
def test_a_member_is_the_model_that_its_run_reports_and_no_other(report, reported, validation, member):
    """Also of a run that reports its last round, as nobody could tell the best."""
    _, opened = member(report, reported, validation)
    model, round = opened()
    assert round.number == reported
    assert {float(number) for w in model.shared.values() for number in w.unique()} == {float(reported)}


def test_a_run_whose_reported_round_is_not_on_disk_any_more_is_no_member(member):
    folder, opened = member("best", BEST, (0.1, 0.9, 0.1))
    (best,) = folder.path.glob("best-*")
    best.unlink()
    assert opened() is None


def test_the_means_of_an_ensemble_are_over_federated_clients(project, monkeypatch):
    """Fresh clients train in no member."""
    fresh = "data.scheme=[{kind: equal, clients: 6}, {kind: fresh, per_domain: 3}]"
    opened = Project.open([fresh], project, derived=True)
    page = method_of(opened.params, "fedavg")
    members = []
    for seed in (0, 1):
        folder = RunFolder(opened.store.runs / "compare-x" / f"fedavg-seed{seed}")
        state = page.init(training_setup(opened, seed))
        folder.commit(folder.files({"round": 1, "metrics": {"accuracy/mean": 0.1}}, state))
        write_json(folder.result, {"rounds": 1, "reported_round": 1, "mlflow_run_id": None})
        members.append((opened, seed, folder))
    asked, each = [], RoundContext.map_clients

    def spied(round, step, model, silos=None, **options):
        asked.append(silos.clients)
        return each(round, step, model, silos=silos, **options)

    monkeypatch.setattr(RoundContext, "map_clients", spied)
    numbers = _score_ensemble(page, members, PlainRunner())
    assert numbers
    assert [len(clients) for clients in asked] == [3]
    assert {opened.scored.role(client) for client in asked[0]} == {"federated"}
