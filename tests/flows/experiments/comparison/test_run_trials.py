"""What one run of a comparison may end, and what it may not."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from flows.experiments.comparison import run_trials
from flows.project.project import Project
from flows.run import run_trial
from flows.training.training_setup import training_setup
from silos.errors import DivergedError, MethodError, UserError


def ended_by(error, monkeypatch, folder):
    def on(*_, **__):
        raise error

    monkeypatch.setattr("flows.run.run.on", on)
    return run_trial(Project.open(root=folder), "uefl", 0, "compare")


def test_a_run_that_diverged_leaves_the_others_going_on(monkeypatch, folder):
    assert ended_by(DivergedError("no finite numbers"), monkeypatch, folder) == "no finite numbers"


def test_a_method_that_a_setting_does_not_fit_leaves_the_others_going_on(monkeypatch, folder):
    assert ended_by(MethodError("resets its optimiser"), monkeypatch, folder) == "resets its optimiser"


def test_what_would_end_every_run_is_raised(monkeypatch, folder):
    with pytest.raises(UserError, match="a full disk"):
        ended_by(UserError("a full disk"), monkeypatch, folder)


def test_a_comparison_pays_for_the_rounds_that_are_left_of_each_method_with_queries_of_its_own(monkeypatch, folder):
    overrides = ["training.privacy.epsilon=8", "training.rounds=5", "comparison.partitions=1"]
    project = Project.open(overrides, folder, derived=True)
    counted, done = list[int](), {"fedavg-seed0": 5, "fedprox-seed1": 2}
    monkeypatch.setattr(run_trials, "unfinished", lambda _, __, runs: [r for r in runs if r != "fedavg-seed0"])
    monkeypatch.setattr(
        run_trials,
        "load_state",
        lambda path: SimpleNamespace(round=done[path.parent.name]) if path.parent.name in done else None,
    )
    monkeypatch.setattr(run_trials, "project_workers", lambda _: nullcontext())
    monkeypatch.setattr(run_trials, "check_budgets", lambda *args: counted.append(args[4]))

    def answers(methods, tune=0):
        run_trials.check_comparison_budgets(project, "first", run_trials.Plan(methods, [0, 1], "fedavg", tune, "v"))
        return counted.pop()

    assert answers(["fedavg"]) == 5  # seed 0 is finished
    assert answers(["fedavg", "finetune", "local_only"]) == 5  # which are FedAvg's queries, and none
    assert answers(["fedavg", "fedprox"]) == 5 + 5 + 3
    free = project.with_overrides(["training.privacy.epsilon=null"])
    run_trials.check_comparison_budgets(free, "first", run_trials.Plan(["fedavg"], [0], "fedavg", 0, "v"))
    assert not counted


def test_settings_may_be_chosen_on_common_validation_rows_and_not_on_none(folder):
    def check(*overrides):
        project = Project.open(["comparison.tune=4", *overrides], folder, derived=True)
        run_trials.check_tuning(project, ["fedavg"], training_setup(project, 0))

    check("data.split.validation_rows=common", "evaluation.clients=2")
    with pytest.raises(UserError, match="got no validation rows in the data"):
        check("data.split.validation=0")
    with pytest.raises(
        UserError, match=r"got no validation rows in the clients that are scored \(evaluation.clients\)"
    ):
        check("data.split.validation=0", "evaluation.clients=2")


def test_validation_rows_of_fresh_clients_choose_no_setting(folder, monkeypatch):
    """Fresh clients are never trained: a check over all roles would count their rows."""
    scheme = "data.scheme=[{kind: equal, clients: 6}, {kind: fresh, per_domain: 3}]"
    project = Project.open(["comparison.tune=4", scheme], folder, derived=True)
    rows = {c: 9 if project.scored.role(c) == "fresh" else 0 for c in project.scored.clients}
    assert any(rows.values())
    monkeypatch.setattr(run_trials, "validation_rows", lambda silos: {c: rows[c] for c in silos.clients})
    with pytest.raises(UserError, match="got no validation rows in the data"):
        run_trials.check_tuning(project, ["fedavg"], training_setup(project, 0))
