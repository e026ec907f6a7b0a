"""A plugin file that is there but not listed is named where its names are unknown; it is read, and not run."""

import json

import pytest

from flows.cli import app, training_commands
from flows.compare import make_plan
from flows.core.unlisted_plugins import unlisted_plugins
from flows.project.project import Project
from silos.errors import UserError

FILE = """
from flows.plugins import register_method, register_sampler

raise SystemExit("it was run")

@register_method("fedown")
class Own: ...

@register_sampler(
    "in_turns"
)
class Turns: ...
"""
HINT = "mine.py registers the {} {}: name this file under plugins in params.yaml."


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app(["init", "."], standalone_mode=False)
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path


def test_what_files_register_is_found_by_their_text(tmp_path):
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "more.py").write_text('import flows.plugins as p\n@p.register_metric("margin")\n')
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "text.py").write_text('"""Write\n    @register_method("indented")\n"""\nx = \'register_method("b")\'\n')
    (tmp_path / "folder.py").mkdir()
    found = [
        ("method", "fedown", "mine.py"),
        ("sampler", "in_turns", "mine.py"),
        ("metric", "margin", "plugins/more.py"),
    ]
    assert [*unlisted_plugins(tmp_path, [])] == found
    assert [*unlisted_plugins(tmp_path, [str(tmp_path / "mine.py")])] == found[2:]


@pytest.mark.parametrize(
    "command",
    [
        lambda _: app(["methods", "fedown"], standalone_mode=False),
        lambda opened: training_commands._check_method(opened, "fedown", 0),
        lambda opened: make_plan(opened, ["fedown", "fedavg"], None, None),
    ],
    ids=["methods", "run", "compare"],
)
def test_a_command_on_an_unlisted_method_names_its_file(project, capsys, command):
    with pytest.raises((UserError, SystemExit)) as refused:
        command(Project.open([]))
    said = f"{refused.value} {capsys.readouterr().err}"
    assert f"method: got 'fedown', expected a known method. {HINT.format('method', 'fedown')}" in said


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("comparison.methods=[fedown]", f"got an unknown method 'fedown'. {HINT.format('method', 'fedown')}"),
        ("clients.sampling={kind: in_turns}", HINT.format("sampler", "in_turns")),
    ],
)
def test_params_that_name_what_an_unlisted_file_registers_are_refused_with_its_name(project, override, told):
    with pytest.raises(UserError) as refused:
        Project.open([override])
    assert str(refused.value).endswith(told)


def test_methods_lists_those_of_unlisted_files(project, capsys):
    app(["methods"], standalone_mode=False)
    assert "mine.py registers fedown, and params.yaml does not list it. Name this" in capsys.readouterr().out
    app(["methods", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["unlisted"] == [{"method": "fedown", "file": "mine.py"}]
