"""The code that computed a record is known by the modules that can change its numbers."""

import ast
import subprocess

import pytest
import yaml

from flows.core.config.load_config import load_params
from flows.init_project import create_project
from flows.plugins import method_modules
from publications import code_version
from publications.code_version import CODE, changed_since, code_hash, modules_of_run, modules_of_verdicts
from publications.render.doc_tables import _MARK, renewed, unmarked
from publications.render.table_list import listing, stale_records
from publications.sweep import Sweep

PAGE = {
    **{"title": "t", "source": "s", "known_errors": "none", "method": "fedavg"},
    "cells": {"a": {"about": "one"}, "b": {"about": "two", "method": "virtual"}, "c": {"about": "three"}},
    "scales": {"cpu": {"seeds": [0]}},
}
DOC = "<!-- table: tiny.yaml 2\n| {{ table('1').figure('NAME') }} |\n-->\n<!-- end -->\n"


@pytest.fixture(scope="module")
def params():
    return load_params(create_project.TEMPLATES, [])


@pytest.mark.parametrize("method", sorted(method_modules()))
def test_a_run_depends_on_its_method_and_on_no_other_verb(method, params):
    modules = modules_of_run(method, params)
    assert {method_modules()[method], "models.training.engine", "tasks.evaluate"} <= {*modules}
    computing = {"silos.cohort", "tasks.execution.load_client_data", "tasks.tracking.result_tables"}
    computing |= {"flows.training.paired_runs", "flows.training.run_records.round_record"}
    assert computing <= {*modules}
    around = ("flows.cli", "flows.core.console", "tasks.execution", "tasks.tracking")
    assert not [name for name in modules if name.startswith(around) and name not in computing]
    assert ("flows.methods.cfl" in modules) == (method == "cfl")


def test_a_run_depends_on_its_network_its_data_and_its_sampler(params):
    plain = {*modules_of_run("fedavg", params)}
    settings = [
        "model={kind: cnn_bn, channels: [8], inputs: standardise}",
        "data.scheme=[{kind: shards, clients: 3, shards_per_client: 2}]",
    ]
    settings += ["data.source={kind: npz, path: a.npz}", "clients.sampling={kind: improving, focus: 0.8}"]
    other = {*modules_of_run("fedavg", load_params(create_project.TEMPLATES, settings))}
    assert other - plain >= {
        "flows.training.fit_standardizer",
        "models.networks.cnn",
        "silos.partitioners.label_partitioners",
        "silos.sources.npz",
        "tasks.fit_scale",
    }
    assert "flows.methods.client_sampler" in plain & other


@pytest.mark.parametrize(
    ("setting", "fits"),
    [
        ("training.rounds=3", False),
        ("model.inputs=standardise", True),
        ("model.targets=standardise", True),
        ("clients.align.kind=standardise", True),
        ("clients.align.kind=quantiles", True),
    ],
)
def test_a_run_depends_on_the_fit_of_its_scale_if_it_scales_or_aligns(setting, fits):
    modules = modules_of_run("fedavg", load_params(create_project.TEMPLATES, [setting]))
    assert ("flows.training.fit_standardizer" in modules) == fits


@pytest.mark.slow
def test_verdicts_depend_on_the_tests_of_shift_and_not_on_training(params):
    drawn, silos = {*modules_of_verdicts(None)}, {*modules_of_verdicts(params)}
    assert "models.diagnosis.name_shift_types" in drawn & silos
    assert {name for name in drawn - silos if name.startswith("publications.synthetic_pairs")}
    assert "tasks.diagnosis.compare_silos" in silos - drawn
    assert not [name for name in drawn | silos if name.startswith("models.training")]


@pytest.mark.parametrize(
    ("after", "changes"),
    [
        ('"""Other."""\n\n\nX = 1  # one\n\n\ndef f(a):\n    return a + X\n', False),
        ("X = (\n    1\n)\ndef f(a):\n    'Says.'\n    return a + X\n", False),
        ("X = 2\ndef f(a):\n    return a + X\n", True),
        ("X = 1\ndef f(a):\n    return a - X\n", True),
    ],
)
def test_a_text_a_comment_or_a_line_break_is_no_change(after, changes):
    before = '"""Text."""\nX = 1\ndef f(a):\n    """Say."""\n    return a + X\n'
    forms = [code_version._form(ast.parse(source)) for source in (before, after)]
    assert (forms[0] != forms[1]) == changes


def test_what_has_changed_since_a_commit_is_named(tmp_path, monkeypatch):
    def git(*command):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *command], cwd=tmp_path, check=True)

    (tmp_path / "models").mkdir()
    for name in ("a", "b"):
        (tmp_path / "models" / f"{name}.py").write_text("X = 1\n")
    monkeypatch.setattr(code_version, "CODE", tmp_path)
    assert changed_since("0123456789ab", ["models.a"]) is None
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "all")
    (tmp_path / "models" / "b.py").write_text("X = 2\n")
    assert changed_since("HEAD+changes", ["models.a", "models.b"]) == ["models.b"]
    assert changed_since("0123456789ab", ["models.a"]) is None


def test_records_of_other_code_are_listed_and_their_tables_marked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = {"tables": {"1": PAGE, "2": {**PAGE, "runs_of": "1"}}, "verdicts": {1: "{{ figure('b') }} of it."}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(page))
    (tmp_path / "params.yaml").write_bytes((CODE / "params.yaml").read_bytes())
    sweep = Sweep("tiny.yaml", "1", "cpu")
    codes = {"a": code_hash(sweep.modules("a")), "b": "of long ago", "c": None}
    for cell, code in codes.items():
        named = {} if code is None else {"code": code, "commit": "0123456789ab"}
        record = {"value": 0.5, "accuracy": 0.5, **named}
        sweep.results.keep(("1", "cpu", cell), sweep.key(0, None), record)
    answer = stale_records("tiny.yaml")
    assert {name: answer[name] for name in ("stale", "unknown", "today")} == {"stale": 1, "unknown": 1, "today": 1}
    (table,) = answer["tables"]  # the other one shows its runs
    (found,) = table["cells"]
    assert (found["cell"], found["records"], found["commits"], found["changed"]) == ("b", 1, ["0123456789ab"], None)
    assert [entry["stale"] for entry in listing("tiny.yaml")["papers"][0]["tables"]] == [True, False]
    for cell in codes:
        (tmp_path / "page.md").write_text(DOC.replace("NAME", cell))
        made = renewed(tmp_path / "page.md")
        assert (_MARK in made) == (cell == "b")
        assert unmarked(made) == DOC.replace("NAME", cell).replace("<!-- end", "| .500 |\n<!-- end")
