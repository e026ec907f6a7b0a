"""The members of an ensemble are the models that their runs report."""

import pytest
import torch

from flows.experiment.many_runs.seed_ensemble import _model
from flows.experiment.project import Project
from flows.experiment.run_folder import RunFolder
from models.state import State
from tasks.recording.json_files import write_json
from tasks.running.runner import PlainRunner

ROUNDS, BEST = 3, 2


@pytest.mark.parametrize(("report", "reported"), [("best", BEST), ("last", ROUNDS)])
def test_a_member_is_the_model_that_its_run_reports_and_no_other(report, reported, project):
    opened = Project.open([f"evaluation.report={report}"], project, derived=True)
    page = opened.params.page("fedavg", opened.root)
    start = page.init(opened.problem(0))

    def state(number: int) -> State:
        weights = {name: torch.full_like(w, float(number)) for name, w in start.tensors["weights"].items()}
        return start.with_tensors(weights=weights)

    folder = RunFolder(opened.runs / "compare-x" / "fedavg-seed0")
    for number in range(1, ROUNDS + 1):
        score = {"validation/accuracy/mean": 0.9 if number == BEST else 0.1, "accuracy/mean": number / 10}
        folder.commit(folder.files({"round": number, "metrics": score}, state(number)))
    folder.save_best(state(BEST), BEST)
    write_json(folder.result, {"rounds": ROUNDS, "reported_round": reported, "mlflow_run_id": None})
    model, round = _model(page, PlainRunner(), opened, 0, folder)
    assert round.number == reported
    assert {float(number) for w in model.shared.values() for number in w.unique()} == {float(reported)}
