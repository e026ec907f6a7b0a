"""What a run may be resumed with, and what not."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.methods.method_settings import method_of
from flows.project.project import Project
from flows.training.run_records.fingerprint import fingerprint_of
from flows.training.run_records.run_folder import RunFolder
from flows.training.training_setup import training_setup
from silos.errors import UserError

PLUGIN = """
from flows.training.callbacks.callback import Callback
from flows.plugins import register_callback, register_figure, register_metric

@register_callback("mine")
class Mine(Callback):
    pass

@register_figure("picture")
def picture(scene):
    return None

@register_metric("number")
def number(logits, y):
    return y
"""


@pytest.fixture
def check(project: Path) -> Any:
    """Check a run with more overrides, which was started without them."""
    (project / "mine.py").write_text(PLUGIN)

    def fingerprint(*overrides: str) -> dict[str, Any]:
        opened = Project.open(overrides, project, derived=True)
        return fingerprint_of(opened, training_setup(opened, 0), method_of(opened.params, "fedavg"), "fedavg")

    folder = RunFolder(project / "runs" / "run" / "fedavg-seed0")
    folder.identify(json.loads(json.dumps(fingerprint())), resume=False, noted={"plugins": []})

    def checked(*overrides: str) -> dict[str, Any]:
        return folder.identify(fingerprint(*overrides), resume=True, noted={"plugins": ["mine.py"]})

    return checked


@pytest.mark.parametrize(
    "overrides",
    [
        ["plugins=[mine.py]"],
        ["plugins=[mine.py]", "callbacks=[{kind: mine}]", "figures=[{kind: picture}]"],
        ["figures=[{kind: groups}]"],
        ["runner.patience=9", "clients.least=3"],
        ["runner.workers=2", "tracking.personal_models=true", "comparison.seeds=[7]"],
    ],
)
def test_what_changes_neither_weights_nor_metrics_may_change_when_a_run_is_resumed(check, overrides):
    identity = check(*overrides)
    assert identity["plugins"] == ["mine.py"]
    assert check() == identity


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        (["training.rounds=4"], "params.training.rounds: 3 → 4"),
        (["evaluation.every=2"], "params.evaluation.every: 1 → 2"),
        (["method.fedavg={}", "model.hidden=[9]"], "params.model.hidden: [8] → [9]"),
        (["plugins=[mine.py]", "evaluation.metrics=[{kind: number}]"], "params.evaluation.metrics"),
    ],
)
def test_what_changes_weights_or_metrics_may_not(check, override, changed):
    with pytest.raises(UserError, match="got other settings than at its start") as error:
        check(*override)
    assert changed in str(error.value)
