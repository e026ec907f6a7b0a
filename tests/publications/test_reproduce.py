"""What is kept of a published table's repetition."""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.bench_results import processor_name
from flows.core.console.safe_text import PlainConsole
from publications import print_tables
from publications.reproduce import reproduce
from publications.results_file import without_places
from publications.sweep import Sweep
from silos.errors import UserError

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
MEANWHILE = """
from flows.methods import fedavg
from flows.plugins import register_method
from publications.reproduce import reproduce


@register_method("meanwhile")
class Meanwhile(fedavg.FedAvg):
    def run_round(self, state, round):
        reproduce("tiny.yaml", "second")
        return super().run_round(state, round)
"""
BROKEN = """
from flows.methods import fedavg
from flows.plugins import register_method


@register_method("broken")
class Broken(fedavg.FedAvg):
    def run_round(self, state, round):
        raise {error}
"""
FINISHED = """
import sys

from publications import results_file
from flows.cli import app

parsed = []
read = results_file.read_json
results_file.read_json = lambda path: parsed.append(path) or read(path)
try:
    app(["reproduce", "uefl", "--table", "1"])
except SystemExit as end:
    assert not end.code, end.code
assert [path.name for path in parsed] == ["uefl.json"], parsed
assert not {"prefect", "mlflow"} & sys.modules.keys()
"""
QUICK = ["training.rounds=1", "training.epochs=1", "data.scheme=[{kind: equal, clients: 2}]", "model.hidden=[]"]


def table(**more: Any) -> dict[str, Any]:
    """A table of one cell with two seeds."""
    about = {"title": "t", "source": "made for this test", "known_errors": "none", "base": QUICK, "method": "fedavg"}
    return {**about, "cells": {"cell": {"about": "w"}}, "scales": {"cpu": {"seeds": [0, 1]}}, **more}


@pytest.fixture
def own_page(project, prefect, monkeypatch):
    """Writes tiny.yaml with these tables into a project, which is where we are."""
    monkeypatch.chdir(project)

    def write(**tables: Any) -> Path:
        (project / "tiny.yaml").write_text(yaml.safe_dump({"tables": tables}))
        return project

    return write


@pytest.mark.parametrize(
    "override",
    [
        "data.source.download_dir=/srv/mnist",
        "data.source.download_dir=~/mnist",
        "data.source={kind: mnist, download_dir: /srv/mnist}",
        'data.source={kind: npz, path: "/srv/a.npz"}',
        "tracking.uri=http://tracker:5000",
        "tracking.uri=sqlite:////srv/mlflow.db",
    ],
)
def test_no_place_of_a_machine_is_written_into_the_results(override):
    (kept,) = without_places([override])
    assert kept.startswith(override.partition("=")[0] + "=")
    assert "srv" not in kept
    assert "mnist" not in kept
    assert "tracker" not in kept


def test_two_places_stay_two():
    kept = without_places(["data.source.path=/a", "data.source.path=/b", "data.source.path=/a"])
    assert kept[0] == kept[2] != kept[1]


@pytest.mark.parametrize("override", ["training.rounds=20", "data.source={kind: npz, path: arrays/my.npz}", "a.b=1/2"])
def test_other_overrides_are_kept_as_typed(override):
    assert without_places([override]) == [override]


def test_the_results_that_were_written_before_are_still_read(tmp_path, monkeypatch):
    (tmp_path / "docs" / "results").mkdir(parents=True)
    shutil.copy(CHECKOUT / "docs" / "results" / "mcmahan.json", tmp_path / "docs" / "results")
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("publications.fill_sweep.run", None)  # nothing is run again
    found = reproduce.fn("mcmahan", "2NN")
    assert [row["values"] for row in found["rows"]] == [[36, 41, 40], [281, 263, 272]]
    assert [row["published"] for row in found["rows"]] == [87, 664]
    assert [row["choice"][-4:-1] for row in found["rows"]] == ["0.2", "0.1"]


def test_a_published_table_is_repeated_on_its_own_params_and_this_projects_machine(tmp_path, monkeypatch):
    text = (CHECKOUT / "params.yaml").read_text(encoding="utf-8")
    mine = text.replace("kind: cross_entropy}", "kind: squared_error}").replace("workers: 1 ", "workers: 2 ")
    (tmp_path / "params.yaml").write_text(mine.replace("  members: 1 ", "  members: 3 "), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    sweep = Sweep("mcmahan", "2NN", "cpu")
    params = sweep.project("iid", 0, sweep.tries("iid")[0][1]).params
    assert sweep.quantity("iid").name == "accuracy"
    assert (params.training.objective.kind, params.model.members) == ("cross_entropy", 1)
    assert params.runner.workers == 2


def test_a_finished_table_is_printed_without_prefect_from_results_that_are_parsed_once(tmp_path):
    shutil.copytree(CHECKOUT / "docs" / "results", tmp_path / "docs" / "results")
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    there = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-c", FINISHED]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    recorded = json.loads((CHECKOUT / "docs" / "results" / "uefl.json").read_text())["1"]["paired"]["cpu"]
    assert len(recorded) == 8
    assert all(pair["sentence"] in done.stdout for pair in recorded)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == there


def test_what_runs_say_together_is_recorded_once_and_made_up_for_where_it_is_missing(own_page, monkeypatch):
    cells = {"a": {"about": "w"}, "b": {"about": "w", "method": "local_only"}}
    pairs = [{"first": "a", "second": "b"}]
    folder = own_page(whole=table(cells=cells, paired=pairs, ensembles=True))
    results = folder / "docs" / "results" / "tiny.json"
    found, written = reproduce("tiny.yaml", "whole"), results.read_text()
    assert json.loads(written)["whole"]["cpu"]["a"][0]["processor"] == processor_name("cpu")
    assert set(found["ensembles"]["a"]) > {"accuracy", "mutual_information"}
    assert found["paired"][0]["difference"] == pytest.approx(found["rows"][0]["ours"] - found["rows"][1]["ours"])
    monkeypatch.setattr("publications.fill_sweep.run", None)  # nothing is run again
    for lost in ("paired", "ensembles"):
        results.write_text(json.dumps({"whole": {k: v for k, v in json.loads(written)["whole"].items() if k != lost}}))
        assert reproduce("tiny.yaml", "whole") == found
        assert results.read_text() == written
    monkeypatch.setattr("publications.reproduce.fill", None)
    assert reproduce("tiny.yaml", "whole") == found


def test_other_settings_of_a_page_or_of_params_yaml_or_another_measure_are_refused_until_the_cell_is_renamed(own_page):
    folder = own_page(one=table())
    reproduce("tiny.yaml", "one")
    records = (folder / "docs" / "results" / "tiny.json").read_bytes()
    loss = {"metric": "loss/mean"}
    for changed, what in (({"base": [*QUICK, "training.batch=4"]}, "settings"), ({"measure": loss}, "measure")):
        own_page(one=table(**changed))
        with pytest.raises(
            UserError, match=rf"cell is recorded with other {what} than the page or params.yaml has now"
        ):
            reproduce("tiny.yaml", "one")
    own_page(one=table(base=[*QUICK, "training.rounds=1.0", "runner.workers=1"]))
    reproduce("tiny.yaml", "one")  # the same, written otherwise
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["training"]["optimiser"]["learning_rate"] *= 2
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.raises(
        UserError, match="Restore the earlier settings, or rename the cell: then it is run as a new one"
    ):
        reproduce("tiny.yaml", "one")
    assert (folder / "docs" / "results" / "tiny.json").read_bytes() == records
    own_page(one=table(cells={"other": {"about": "w"}}, measure=loss))
    found = reproduce("tiny.yaml", "one")
    assert found["rows"][0]["ours"] != pytest.approx(json.loads(records)["one"]["cpu"]["cell"][0]["accuracy"])


def test_seeds_that_draw_the_data_are_no_part_of_the_settings(own_page):
    own_page(one=table(seeds_are="data"))
    reproduce("tiny.yaml", "one")
    assert reproduce("tiny.yaml", "one", seeds=[1])["rows"][0]["seeds"] == [1]


def test_cells_of_other_data_are_not_paired(own_page):
    cells = {"a": {"about": "w"}, "b": {"about": "w", "set": ["data.seed=9"]}}
    own_page(whole=table(cells=cells, paired=[{"first": "a", "second": "b"}]))
    with pytest.raises(UserError, match=r"the cells a and b have other data, .*; drop the pair, or give both"):
        reproduce("tiny.yaml", "whole")


def test_a_sweep_that_finishes_while_another_trains_keeps_its_records(own_page):
    others = [*QUICK, "plugins=[meanwhile.py]"]
    folder = own_page(first=table(method="meanwhile", base=others), second=table())
    (folder / "meanwhile.py").write_text(MEANWHILE)
    reproduce("tiny.yaml", "first")
    written = json.loads((folder / "docs" / "results" / "tiny.json").read_text())
    for name in ("first", "second"):
        assert [record["seed"] for record in written[name]["cpu"]["cell"]] == [0, 1]


@pytest.mark.parametrize("uri", ["http://127.0.0.1:{port}", None])
def test_an_estimate_leaves_nothing_in_the_project_and_tells_no_tracker(own_page, monkeypatch, uri):
    private = {"about": "w", "method": "local_only"}
    folder = own_page(first=table(cells={"shared": {"about": "w"}, "own": private}))
    with socket.create_server(("127.0.0.1", 0)) as tracker:
        if uri is None:
            monkeypatch.delenv("MLFLOW_TRACKING_URI")
        else:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(port=tracker.getsockname()[1]))
        before = left_in(folder)
        (folder / "cache" / "estimate" / "runs" / "of a killed process").mkdir(parents=True)
        found = reproduce("tiny.yaml", "first", estimate=True)
        tracker.setblocking(False)
        with pytest.raises(BlockingIOError):
            tracker.accept()  # nobody came
    assert set(found["seconds"]) == {"shared", "own"}
    assert min(found["seconds"].values()) > 0
    assert left_in(folder) == before


@pytest.mark.parametrize("error", ["ZeroDivisionError", "KeyboardInterrupt"])
def test_an_estimate_that_ends_early_leaves_nothing_either(own_page, error):
    folder = own_page(first=table(method="broken", base=[*QUICK, "plugins=[broken.py]"]))
    (folder / "broken.py").write_text(BROKEN.format(error=error))
    before = left_in(folder)
    with pytest.raises((UserError, KeyboardInterrupt)):
        reproduce("tiny.yaml", "first", estimate=True)
    assert left_in(folder) == before


def left_in(folder: Path) -> set[Path]:
    """All files and folders but for the cache of partitions and the marks of flow runs."""
    cache, marks = folder / "cache" / "partitions", folder / "runs" / "open"
    there = {p for p in folder.rglob("*") if not p.is_relative_to(cache) and not p.is_relative_to(marks)}
    return {p for p in there if p not in (cache.parent, marks.parent) and p.name != "__pycache__"}


@pytest.mark.parametrize("seeds_are", ["data", "training"])
def test_a_table_prints_within_120_columns(seeds_are):
    number = 0.123456789
    row = {
        "cell": "linear-conditional-fedavg-2K",
        "published": None,
        "ours": 14.90112,
        "sd": 1.85123,
        "floor": 3.57,
        "fresh": number,
        "unseen": 24.81234,
        "values": [14.90112, 13.12345, 16.54321, 12.98765, 15.11111],
        "missed": 0,
        "seconds": 31.4,
        "seeds": [0, 1, 2, 3, 4],
        "choice": 'training.optimiser.learning_rate=0.1; method.conditional.statistics=[{"kind": "loadings", "norm": 4}]',
        "tried": 10,
        "at_edge": ["training.optimiser.learning_rate"],
        "about": "ensemble of 3 experts, mini-batches of all clients' rows",
    }
    shown = {"published": 0.93, "ours": None}
    found = {
        "title": "t",
        "source": "s",
        "rows": [row],
        "seeds_are": seeds_are,
        "tune_seed": 0,
        "unit": "rmse or accuracy",
        "scale": "cpu",
        "also": {
            f"entropy {at}, nats": {"linear-conditional-fedavg-2K": {"published": 0.273, "ours": number, "sd": 0.01}}
            for at in range(12)
        },
        "ensembles": {"linear-conditional-fedavg-2K": {"accuracy": 0.9, "mutual_information": number}},
        "by_class": {"o": dict.fromkeys(("global", "cluster", "client", "conditional"), shown)},
        "paired": [{"sentence": "a − b +0.1 points, −0.2 to +0.4: not distinguishable on [o]"}],
        "known_errors": "none",
        "results": "docs/results/t.json",
        "figures": [],
        "experiment": "e",
    }
    console = PlainConsole(file=io.StringIO(), width=120)
    print_tables.reproduce(found, console)
    said = console.file.getvalue()
    assert max(map(len, said.splitlines())) <= 120
    assert ("draws of the data" in said) == (seeds_are == "data")
    for part in (
        "14.9 ± 1.9",
        "13.12",
        "24.81",
        "0.930 / -",
        "on [o]",
        "0.123 ± 0.01 (0.273)",
        "learning_rate=0.1,",
        "mutual information",
    ):
        assert part in said
    assert all(f"entropy {at}," in said for at in range(12))
    line, *_ = [line for line in said.splitlines() if line.startswith("linear-conditional-fedavg-2K")]
    assert line.split()[1] == "-"  # not published


def test_runs_that_come_out_as_recorded_name_todays_code_and_others_stay(own_page):
    project = own_page(one=table(scales={"cpu": {"seeds": [0, 1, 2]}}))
    reproduce("tiny.yaml", "one")
    file = project / "docs" / "results" / "tiny.json"
    content = json.loads(file.read_text())
    records = content["one"]["cpu"]["cell"]
    for record in records:
        del record["code"]
    records[0]["data_version"] = "older.dir"  # of files in another form
    records[1]["weights_sha256"] = "0" * 64
    records[2] |= {"value": 0.5, "accuracy": 0.5}  # another evaluation of the same weights
    file.write_text(json.dumps(content))
    folders = {*(project / "runs").rglob("*")}

    found = reproduce("tiny.yaml", "one", again=3)
    outcome = {run["seed"]: (run["weights"], run["numbers"]) for run in found["runs"]}
    assert outcome == {0: (True, True), 1: (False, True), 2: (True, False)}
    assert (found["same"], found["records"]) == (1, 3)
    assert {run["seed"]: run["recorded"] == run["now"] for run in found["runs"]} == {0: True, 1: True, 2: False}
    assert {*(project / "runs").rglob("*")} == folders
    assert [path for path in (project / "cache" / "again").rglob("*") if path.is_dir()] == []
    after = json.loads(file.read_text())["one"]["cpu"]["cell"]
    assert [record["seed"] for record in after] == [0, 1, 2]  # each at its place
    by_seed = {record["seed"]: record for record in after}
    times = {"seconds", "seconds_per_round", "date"}
    assert {k: v for k, v in by_seed[0].items() if k not in {*times, "code"}} == {
        k: v for k, v in records[0].items() if k not in times
    }
    assert "code" in by_seed[0]
    assert [by_seed[1], by_seed[2]] == records[1:]

    found = reproduce("tiny.yaml", "one", again=2)
    assert {run["seed"] for run in found["runs"]} == {1, 2}, "a record of today's code was run again before others"


def test_a_run_that_cells_share_is_run_again_once_and_one_that_fails_does_not_end_the_others(own_page):
    shared = {"about": "w", "shared": {"table": "one", "cell": "cell"}}
    of_plugin = {"method": "broken", "base": [*QUICK, "plugins=[broken.py]"]}
    project = own_page(one=table(**of_plugin), two=table(**of_plugin, cells={"a": shared, "b": shared}))
    (project / "broken.py").write_text(BROKEN.partition("    def run_round")[0] + "    pass\n")
    reproduce("tiny.yaml", "one")
    found = reproduce("tiny.yaml", "two", again=9)
    assert sorted(run["seed"] for run in found["runs"]) == [0, 1]
    assert (found["records"], found["same"]) == (2, 2)
    file = project / "docs" / "results" / "tiny.json"
    records = json.loads(file.read_text())["one"]["cpu"]["cell"]
    assert all("--table one " in record["command"] for record in records)

    (project / "broken.py").write_text(BROKEN.format(error="ZeroDivisionError"))
    found = reproduce("tiny.yaml", "one", again=2)
    assert found["same"] == 0
    assert all("ZeroDivisionError" in run["error"] for run in found["runs"])
    assert json.loads(file.read_text())["one"]["cpu"]["cell"] == records


def test_what_cannot_be_run_again_is_refused(own_page):
    own_page(one=table())
    with pytest.raises(UserError, match="run it without --again first"):
        reproduce("tiny.yaml", "one", again=1)
    with pytest.raises(UserError, match="table of verdicts"):
        reproduce("shift-types", "images", again=1)
    with pytest.raises(UserError, match="got both"):
        reproduce("tiny.yaml", "one", again=1, estimate=True)
