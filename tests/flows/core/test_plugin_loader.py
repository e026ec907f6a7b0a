"""Plugin files are loaded by their content, once a command, and an error in one is a sentence."""

import os
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

from flows.core.config.load_config import ParamsFile
from flows.core.plugin_loader import PluginFiles, plugin_error
from flows.methods.method_settings import method_of
from flows.plugins import METHODS, METRICS
from flows.project.project import Project
from flows.training.evaluation import row_metrics_of
from silos.errors import UserError

SOURCE = str(Path(__file__).parents[3])
METRIC = (
    "from flows.plugins import register_metric\n\n\n@register_metric({name!r})\ndef f(logits, y):\n    return {value}\n"
)


@pytest.mark.parametrize(
    ("notes", "where"),
    [
        ([], " (mine.py, line 6)"),
        (["in train of client a (mine.py, line 6)", "more"], " in train of client a (mine.py, line 6)"),
    ],
)
@pytest.mark.parametrize("has_method", [True, False])
def test_the_line_is_named_and_inside_a_step_what_the_step_says(notes, where, has_method, tmp_path):
    path = str(tmp_path / "mine.py")
    (tmp_path / "mine.py").write_text(METRIC.format(name="mine", value="1 / 0"))
    entry = PluginFiles(tmp_path).load(["mine.py"]).of(METRICS)["mine"]
    with pytest.raises(ZeroDivisionError) as raised:
        entry.target(None, None)
    for note in notes:
        raised.value.add_note(note)
    said = plugin_error(raised.value, "fedavg", {path: "mine.py"}, path if has_method else "")
    assert str(said).startswith(f"fedavg failed: ZeroDivisionError: division by zero{where}. Correct mine.py; ")


def test_the_file_that_raised_is_named_and_not_that_of_the_method(tmp_path):
    method, metric = str(tmp_path / "method.py"), str(tmp_path / "metric.py")
    (tmp_path / "metric.py").write_text(METRIC.format(name="mine", value="1 / 0"))
    entry = PluginFiles(tmp_path).load(["metric.py"]).of(METRICS)["mine"]
    with pytest.raises(ZeroDivisionError) as raised:
        entry.target(None, None)
    said = plugin_error(raised.value, "own", {method: "method.py", metric: "metric.py"}, method)
    assert "(metric.py, line 6). Correct metric.py; " in str(said)


def test_an_error_that_no_plugin_raised_is_not_said_to_be_a_plugins(tmp_path):
    path = str(tmp_path / "mine.py")
    with pytest.raises(ZeroDivisionError) as raised:
        print(1 / 0)
    assert plugin_error(raised.value, "fedavg", {path: "mine.py"}) is None


def test_a_file_is_run_once_until_its_text_changes(tmp_path, capsys):
    file = tmp_path / "mine.py"
    for value in (1, 1, 2, 1):
        file.write_text(METRIC.format(name="mine", value=value) + f"print('value {value}')\n")
        assert PluginFiles(tmp_path).load(["mine.py"]).of(METRICS)["mine"].target(0, 0) == value
    assert capsys.readouterr() == ("", "value 1\nvalue 2\n")


def test_an_edit_is_run_although_a_compiled_file_of_the_same_time_and_size_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "mine.py"
    for value in (1, 2):
        file.write_text(METRIC.format(name="mine", value=value))
        os.utime(file, (1_000_000_000, 1_000_000_000))
        assert PluginFiles(tmp_path).load(["mine.py"]).of(METRICS)["mine"].target(0, 0) == value


METHOD = """
from flows.methods.fedavg import FedAvg
from flows.plugins import register_method, register_metric

@register_method("mine")
class Mine(FedAvg):
    x: int = 1

@register_metric("version")
def version(logits, y):
    return 1
"""


def test_an_edit_while_a_command_runs_reaches_none_of_its_runs(project):
    plugin = project / "mine.py"
    plugin.write_text(METHOD)
    file = ParamsFile.read(project).with_overrides(["plugins=[mine.py]", "evaluation.metrics=[{kind: version}]"])
    opened = Project.of(file, project)
    before = method_of(opened.params, "mine")
    for text in (METHOD.replace("x: int = 1", "x: int = 2").replace("return 1", "return 2"), "1 / 0", None):
        plugin.unlink() if text is None else plugin.write_text(text)
        trial = opened.with_overrides(["training.rounds=1"])
        assert (method_of(trial.params, "mine"), trial.params.registered) == (before, opened.params.registered)
        assert [metric(0, 0) for metric in row_metrics_of(trial.params.evaluation).values()] == [1]
    plugin.write_text(METHOD.replace("x: int = 1", "x: int = 2"))
    assert method_of(Project.open(["plugins=[mine.py]"], project).params, "mine").x == 2


def test_a_worker_process_gets_the_version_that_was_loaded(project):
    """It unpickles functions by their code, without the file."""
    (project / "mine.py").write_text(METHOD)
    opened = Project.open(["plugins=[mine.py]", "evaluation.metrics=[{kind: version}]"], project)
    (project / "mine.py").write_text(METHOD.replace("return 1", "return 2"))
    sent = cloudpickle.dumps(row_metrics_of(opened.params.evaluation)["version"])
    program = f"import pickle; print(pickle.loads({sent!r})(0, 0))"
    asked = [sys.executable, "-c", program]
    done = subprocess.run(asked, env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_what_a_project_names_is_not_known_in_another(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(METRIC.format(name=name, value=1))
    assert [set(PluginFiles(tmp_path / name).load(["mine.py"]).of(METRICS)) for name in ("one", "two")] == [
        {"one"},
        {"two"},
    ]
    assert PluginFiles(tmp_path).load([]).of(METHODS) == {}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["margin", "margin"],
            r"plugins: got the metric 'margin' from 0\.py and from 1\.py, expected one of each name",
        ),
        (["loss"], r"0\.py, line 4: ValueError: metric 'loss': got the name of a built-in metric, expected a new name"),
        (["a b"], "the metric: got 'a b', expected at most 100 letters, digits, dots, dashes and underscores"),
    ],
)
def test_a_name_that_is_taken_or_none_is_refused(names, said, tmp_path):
    for at, name in enumerate(names):
        (tmp_path / f"{at}.py").write_text(METRIC.format(name=name, value=1))
    with pytest.raises(UserError, match=said):
        PluginFiles(tmp_path).load([f"{at}.py" for at in range(len(names))])


MESSAGE = """
from dataclasses import dataclass
from typing import Annotated

import torch

from tasks.messages.message_policy import FEW, Message


class Base(Message):
    def mean(self):
        return self.losses.mean()


@dataclass(frozen=True)
class Losses(Base):
    losses: {annotation}
"""


@pytest.mark.parametrize(
    ("annotation", "refused"),
    [
        ("Annotated[torch.Tensor, FEW]", ""),
        ("torch.Tensor", "Losses.losses: got no numbers in the annotation, expected Annotated[..., Numbers(...)]"),
    ],
)
def test_a_message_without_declared_numbers_is_refused_when_the_file_is_loaded(annotation, refused, tmp_path):
    (tmp_path / "mine.py").write_text(MESSAGE.format(annotation=annotation))
    if not refused:
        PluginFiles(tmp_path).load(["mine.py"])
        return
    with pytest.raises(UserError) as told:
        PluginFiles(tmp_path).load(["mine.py"])
    assert str(told.value) == f"{tmp_path / 'mine.py'}: TypeError: {refused}. Correct the plugin file."
