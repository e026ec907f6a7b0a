"""Candidates of a comparison, the champion among them, and transactions that a kill does not halve."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking.mlflow_logging.connection import connect

pytestmark = pytest.mark.slow

# a promotion that is killed at each of its steps, and what the next command makes of it
KILLED = """
import json, os, sys
from pathlib import Path

from flows.project.project import Project
from flows.results.registry import JOURNAL, model_finder, promotion, promotion_history
from tasks.tracking.mlflow_logging.model_registry import Registry


def in_child(work):
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writable, json.dumps(work()).encode())
        os._exit(0)
    os.close(writable)
    answer = os.fdopen(readable).read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else None


def killed_at(step):
    def work():
        target = promotion if step == "append_decision" else Registry
        setattr(target, step, lambda *_: os._exit(9))
        promotion.promote(Project.open(), version, force=True, with_data=False)
    return work


def completed():
    project = Project.open()
    promotion.finish(project)
    registry = Registry(project.store.tracking, model_finder.model_name(project))
    return {"aliases": registry.aliases(), "tag": registry.find(version).tags["decision"]}


found = []
for step, version in zip(("tag", "log_decision", "set_aliases", "append_decision"), sys.argv[1:] * 2):
    assert in_child(killed_at(step)) is None
    interrupted = JOURNAL.is_file()
    found.append({"step": step, "version": version, "interrupted": interrupted, **in_child(completed)})
    found[-1]["left"] = JOURNAL.is_file()
print(json.dumps({"found": found, "decisions": promotion_history.decisions(Path())}))
"""


def typed(folder: Any, *arguments: str, code: int = 0) -> Any:
    return folder.type(*arguments, "--json", code=code).json


@pytest.fixture
def folder(finished: Any, tmp_path: Path, server: str) -> Any:
    return finished.folder.copy(tmp_path / "project", server)


def aliases(folder: Any) -> dict[str, str]:
    found = folder.mlflow().get_registered_model("digits").aliases
    return {alias: str(number) for alias, number in found.items()}


def test_a_comparison_registers_a_run_of_each_method_whose_model_is_logged(finished, folder):
    registry = finished.compare.json["registry"]
    (candidate,) = registry["candidates"]  # the models of local_only are personal
    assert (registry["model"], registry["champion"], registry["challenger"]) == ("digits", None, candidate["version"])
    run = finished.run(candidate["method"], candidate["seed"])
    version = folder.mlflow().get_model_version("digits", candidate["version"])
    assert version.run_id == run["mlflow_run_id"]
    for key in ("method", "data_version", "weights_sha256"):
        assert version.tags[key] == str(run[key])
    assert version.tags["run"] == run["folder"]
    again = typed(folder, "compare", "--resume", "fedavg", "local_only", "--seeds", "0,1", "--set", "training.rounds=4")
    assert again["registry"]["candidates"] == registry["candidates"], "no version is made twice"


def test_only_a_better_model_is_promoted_and_rollback_serves_the_one_before(folder):
    worse = typed(folder, "promote", code=1)
    assert worse["reason"].endswith(": local_only is better"), "training alone, in the comparison that it comes from"
    first = typed(folder, "promote", "--force")
    assert (first["decision"], first["forced"], first["champion"]) == ("promoted", True, None)
    assert aliases(folder) == {"champion": first["version"]}
    code, _, err = folder.run(["promote", first["version"]])
    assert code == 2
    assert f"promote: got version {first['version']} of digits, which is the champion, expected another." in err

    compared = typed(folder, "compare", "fedavg", "fedsgd", "--seeds", "0", "--set", "training.rounds=8")
    better, worse = compared["registry"]["candidates"]
    assert [better["better"], worse["better"]] == [True, False]
    assert compared["registry"]["challenger"] == better["version"]
    refused = typed(folder, "promote", worse["version"], code=1)
    assert (refused["decision"], refused["reason"]) == ("refused", "its interval is not above zero")
    assert aliases(folder)["champion"] == first["version"]
    assert "not promoted" in folder.type("promote", worse["version"], code=1).out

    second = typed(folder, "promote")
    assert (second["version"], second["champion"]) == (better["version"], first["version"])
    assert second["against"]["low"] > 0
    tags = folder.mlflow().get_model_version("digits", better["version"]).tags
    assert tags["decision"].startswith("promoted at ")
    assert float(tags["low"]) == pytest.approx(second["against"]["low"], rel=1e-5)
    artifacts = folder.mlflow().list_artifacts(second["run_id"], "decisions")
    assert f"decisions/{second['id']}.json" in [artifact.path for artifact in artifacts]
    assert aliases(folder) == {"champion": better["version"], "previous": first["version"]}

    forced = typed(folder, "promote", worse["version"], "--force")
    assert (forced["forced"], forced["reason"]) == (True, "forced, although its interval is not above zero")
    for expected in (better["version"], first["version"]):
        assert typed(folder, "rollback")["version"] == expected
        assert aliases(folder)["champion"] == expected
    code, _, err = folder.run(["rollback"])
    assert code == 2
    assert "rollback: got no former champion of digits, expected one." in err
    listed = typed(folder, "history")["decisions"]
    assert [each["decision"] for each in reversed(listed)] == [
        "refused",
        "promoted",
        "refused",
        "refused",
        "promoted",
        "promoted",
        "rolled back",
        "rolled back",
    ]
    assert second["against"]["sentence"] in " ".join(folder.type("history").out.split())


def test_a_champion_of_other_data_is_scored_on_the_present_rows(folder):
    first = typed(folder, "promote", "--force")
    params = folder.path / "params.yaml"
    params.write_text(params.read_text().replace("angles: [0, -50, 120]", "angles: [0, 90, 180]"))
    typed(folder, "partition")
    compared = typed(folder, "compare", "fedavg", "--seeds", "0", "--set", "training.rounds=8")
    (candidate,) = compared["registry"]["candidates"]
    assert candidate["better"]
    scored = typed(folder, "evaluate")
    assert (scored["trained_on"], scored["version"]) == (first["data_version"], first["version"])
    assert scored["data_version"] == compared["data_version"] != first["data_version"]
    assert candidate["against"]["low"] > 0.05, "rows of the new angles, which the champion never saw"
    promoted = typed(folder, "promote")
    assert promoted["decision"] == "promoted"
    back = typed(folder, "rollback", "--data")
    assert back["data_version"] != promoted["data_version"]
    assert f"md5: {back['data_version']}" in (folder.path / "data.dvc").read_text()


def test_a_promotion_that_is_killed_at_any_step_is_completed_by_the_next_command(finished, folder, environment):
    versions = [
        typed(folder, "promote", finished.run("fedavg", seed)["folder"], "--force")["version"] for seed in (0, 1)
    ]
    done = subprocess.run(
        [sys.executable, "-P", "-c", KILLED, *versions],
        cwd=folder.path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    for found in answer["found"]:
        assert found["interrupted"], found["step"]
        assert not found["left"]
        assert found["aliases"]["champion"] == found["version"], found["step"]
        assert found["tag"].startswith("promoted at ")
    assert [each["version"] for each in reversed(answer["decisions"])] == versions * 3


def test_candidates_are_registered_on_a_server_and_its_absence_costs_no_comparison(folder, mlflow_server, databases):
    mlflow_server.start()
    tracked = replace(folder, variables={"MLFLOW_TRACKING_URI": mlflow_server.url})
    there = partial(typed, tracked)
    registry = there("compare", "fedavg", "fedsgd", "--seeds", "0", "--set", "training.rounds=1")["registry"]
    assert registry["model"] == f"{folder.path.name}-digits"
    assert [each["method"] for each in registry["candidates"]] == ["fedavg", "fedsgd"]
    first = there("promote", registry["candidates"][0]["version"], "--force")
    second = there("promote", registry["candidates"][1]["version"], "--force")
    assert second["against"]["sentence"]
    assert there("rollback")["version"] == first["version"]
    assert [each["decision"] for each in there("history")["decisions"]] == ["rolled back", "promoted", "promoted"]
    client = connect(mlflow_server.url)
    assert client.get_model_version_by_alias(registry["model"], "champion").version == first["version"]
    mlflow_server.stop()
    err = tracked.type("promote", code=2).err
    assert "does not respond. Nothing was changed; try again." in err
    assert "Traceback" not in err
