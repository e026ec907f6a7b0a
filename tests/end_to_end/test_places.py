"""A coordinator without rows and three places, typed as their people would: the same bits as on one machine."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

from silos.privacy.secret import cell_secret
from silos.storage.places import file_at
from tests.end_to_end.conftest import COMMAND, Folder

pytestmark = pytest.mark.slow

SITES = {"north": ("oslo", "bergen", "tromso"), "south": ("rome", "bari")}
METHODS = ("fedavg", "scaffold")
SEEDS = ("--seeds", "0,1")
SMALL = ("--set", "training.rounds=2")
HERE = ("--set", "runner.kind=threads")
AT_PLACES = {"source": {"kind": "places"}, "split": {"validation": 0, "test": 0}}


def write_visits(path: Path, hospitals: tuple[str, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = ["hospital,age,crp,ill"]
    for index, hospital in enumerate(hospitals):
        age, crp = rng.normal(60 + 4 * index + 5 * seed, 12, 80).round(), rng.gamma(2, 8, 80).round(1)
        ill = rng.random(80) < 1 / (1 + np.exp(-0.08 * (age - 60) - 0.05 * (crp - 16)))
        lines += [f"{hospital},{a:g},{c},{'yes' if y else 'no'}" for a, c, y in zip(age, crp, ill, strict=True)]
    path.write_text("\n".join(lines) + "\n")


class Federation:
    """The folders of a coordinator and of places, and the processes that serve."""

    def __init__(self, home: Path, server: str) -> None:
        self.home, self.server, self.serving = home, server, dict[str, subprocess.Popen[str]]()

    def run(self, where: str, *arguments: str) -> tuple[int, str, str]:
        return Folder(self.home / where, self.server).run(list(arguments))

    def type(self, where: str, *arguments: str) -> Any:
        code, out, err = self.run(where, *arguments, "--json")
        assert code == 0, err
        return json.loads(out.splitlines()[-1])  # a forked `init` also prints what DVC says

    def serve(self, place: str) -> None:
        log = (self.home / f"{place}.log").open("a")
        self.serving[place] = subprocess.Popen(
            [COMMAND, "place", "serve"], cwd=self.home / place, stdout=log, stderr=log, text=True
        )

    def stop(self) -> None:
        for process in self.serving.values():
            process.kill()
            process.wait(60)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, server: str) -> Any:
    home = tmp_path_factory.mktemp("federation")
    (home / "plane").mkdir()
    made = Federation(home, server)
    for seed, (place, hospitals) in enumerate(SITES.items()):
        write_visits(home / f"{place}.csv", hospitals, seed)
        made.type(".", "init", place, "--data", f"{place}.csv", "--label", "ill", "--client", "hospital")
        made.type(place, "partition")
    made.type(".", "init", "coordinator")
    params = yaml.safe_load((home / "north" / "params.yaml").read_text())
    params = {**params, "data": {**params["data"], **AT_PLACES}, "runner": {**params["runner"], "kind": "places"}}
    (home / "coordinator" / "params.yaml").write_text(yaml.safe_dump(params))
    key = made.type("coordinator", "place", "init", "../plane")["fingerprint"]
    for place in SITES:
        invitation = made.type("coordinator", "place", "invite", place)["file"]
        joined = made.type(place, "place", "join", f"../coordinator/{invitation}", "--key", key)
        made.type("coordinator", "place", "accept", place, joined["fingerprint"])
        made.serve(place)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def compared(federation: Any) -> Any:
    """What the coordinator's comparison and diagnosis answer, after a partition."""
    federation.type("coordinator", "partition")
    return federation.type("coordinator", "compare", *METHODS, *SEEDS, *SMALL), federation.type(
        "coordinator", "diagnose"
    )


@pytest.fixture(scope="module")
def together(federation: Any, compared: Any) -> Path:
    """One machine with the rows of all places, as the coordinator lists them: the same comparison was typed there."""
    folder: Path = federation.home / "together"
    shutil.copytree(federation.home / "coordinator", folder, ignore=shutil.ignore_patterns("runs", ".prefect"))
    cell_secret(folder / "private")  # a partition of own rows would have made it
    record_rows(federation, folder)
    return folder


def record_rows(federation: Any, folder: Path) -> None:
    """Copy the present listing and rows into a folder that has them all."""
    (listing,) = (path for path in (federation.home / "coordinator" / "data").iterdir() if path.is_dir())
    shutil.rmtree(folder / "data" / listing.name)
    shutil.copytree(listing, folder / "data" / listing.name)
    for place in SITES:
        (source,) = (path for path in (federation.home / place / "data").iterdir() if path.is_dir())
        for file in source.glob("*.safetensors"):
            if file.name != "manifest.safetensors":
                shutil.copy(file, folder / "data" / listing.name / file_at(place, file.name))
    subprocess.run(["dvc", "add", "-q", "data"], cwd=folder, check=True, env=with_scripts())


@pytest.fixture(scope="module")
def on_one_machine(federation: Any, together: Path) -> Any:
    """What the comparison and the diagnosis answer there."""
    return federation.type("together", "compare", *METHODS, *SEEDS, *SMALL, *HERE), federation.type(
        "together", "diagnose", *HERE
    )


def test_a_comparison_and_a_diagnosis_over_places_have_the_bits_of_one_machine(
    federation: Any, compared: Any, on_one_machine: Any
) -> None:
    (over_places, diagnosis), (here, again) = compared, on_one_machine
    assert outcomes(here, federation.home / "together") == outcomes(over_places, federation.home / "coordinator")
    assert here["baseline"] == over_places["baseline"]
    assert over_places["baseline"]["metrics"]["accuracy/mean"] > 0
    assert again["pairs"] == diagnosis["pairs"]
    assert again["groups"] == diagnosis["groups"]


def test_a_champion_is_promoted_and_predicts_at_a_place_as_on_one_machine(federation: Any, on_one_machine: Any) -> None:
    promoted = [federation.type(where, "promote", *more) for where, more in (("coordinator", ()), ("together", HERE))]
    assert [{key: one[key] for key in ("decision", "version", "reason")} for one in promoted[:1]] == [
        {"decision": "promoted", "version": promoted[1]["version"], "reason": promoted[1]["reason"]}
    ]
    scores = [federation.type(where, "evaluate", *more) for where, more in (("coordinator", ()), ("together", HERE))]
    assert scores[0]["clients"] == scores[1]["clients"]
    rows = federation.home / "new.csv"
    rows.write_text("age,crp\n61,12\n90,30.5\n40,2\n")
    assert federation.type("coordinator", "place", "send")["version"] == promoted[0]["version"]
    assert predicted(federation, "champion") == predicted(federation, "champion", at_place=True)
    runs = [
        federation.type(where, "run", "ditto", *more)
        for where, more in (("coordinator", SMALL), ("together", (*SMALL, *HERE)))
    ]
    federation.type("coordinator", "place", "send", runs[0]["folder"])
    assert predicted(federation, runs[1]["folder"]) == predicted(federation, runs[0]["folder"], at_place=True)
    code, _, error = federation.run(
        "coordinator", "predict", "../new.csv", "--output", "o.csv", "--model", runs[0]["folder"], "--client", "oslo"
    )
    assert code == 2
    assert "`siloflow place send`" in error


def predicted(federation: Any, model: str, at_place: bool = False) -> str:
    """The labels and probabilities of oslo's new rows: by the model that was sent to its place, or on one machine."""
    where, words = ("north", ("place", "predict")) if at_place else ("together", ("predict", "--model", model, *HERE))
    federation.type(where, *words, "../new.csv", "--output", "labels.csv", "--client", "oslo")
    return (federation.home / where / "labels.csv").read_text()


def test_no_row_is_at_the_coordinator_and_no_port_is_open_at_a_place(federation: Any, compared: Any) -> None:
    coordinator = federation.home / "coordinator"
    assert {path.name for path in (coordinator / "data").glob("*/*")} == {"manifest.json", "manifest.safetensors"}
    assert not [*(coordinator / "private").rglob("*.safetensors")]
    for process in federation.serving.values():
        assert process.poll() is None
        assert not [c for c in psutil.Process(process.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    shown = federation.type("coordinator", "show")
    assert [client["name"] for client in shown["clients"]] == ["bergen", "oslo", "tromso", "bari", "rome"]
    code, _, error = federation.run("coordinator", "data", "ledger")
    assert code == 2
    assert "got rows at place north, which do not leave it" in error
    (copy,) = (coordinator / "private").glob("*/owner.yaml")
    kept = copy.rename(copy.with_suffix(".away"))
    code, _, error = federation.run("coordinator", "show")
    kept.rename(copy)
    assert code == 2
    assert "`siloflow partition` copies it again" in error


def test_a_place_that_was_killed_continues_with_the_same_bits(federation: Any, compared: Any) -> None:
    expected = federation.type("coordinator", "run", "scaffold", *SMALL)
    command = [COMMAND, "run", "scaffold", *SMALL, "--json"]
    running = subprocess.Popen(command, cwd=federation.home / "coordinator", stdout=subprocess.PIPE, text=True)
    before = len([*(federation.home / "south" / "private").rglob("*.safetensors")])
    while running.poll() is None and len([*(federation.home / "south" / "private").rglob("*.safetensors")]) == before:
        time.sleep(0.02)
    os.kill(federation.serving["south"].pid, signal.SIGKILL)
    assert running.poll() is None
    federation.serving["south"].wait(60)
    federation.serve("south")
    out, _ = running.communicate(timeout=600)
    assert json.loads(out)["weights_sha256"] == expected["weights_sha256"]


def test_a_place_refuses_what_its_owner_does_not_allow(federation: Any, compared: Any) -> None:
    (file,) = (federation.home / "south" / "private").glob("*/owner.yaml")
    before = file.read_text()
    file.write_text(before.replace("messages: all", "messages: [Scores]"))
    try:
        code, _, error = federation.run("coordinator", "run", "fedavg", *SMALL)
    finally:
        file.write_text(before)
    assert code == 2
    assert "place south" in error
    assert "under messages" in error


def test_watch_finds_new_rows_of_a_place_as_on_one_machine(federation: Any, together: Path) -> None:
    """The last test: it changes a place's data."""
    rng = np.random.default_rng(5)
    (source,) = (federation.home / "north").glob("north.csv")
    with source.open("a") as file:
        file.writelines(f"oslo,{rng.normal(90, 6):.0f},{rng.gamma(2, 8):.1f},{label}\n" for label in ["yes", "no"] * 30)
    federation.type("north", "partition")
    quick = (*SMALL, "--set", "comparison.seeds=[0]")
    seen = [federation.type("coordinator", "watch", "--once", *quick)]
    record_rows(federation, together)
    seen.append(federation.type("together", "watch", "--once", *quick, *HERE))
    assert seen[0]["changed"] == {"oslo": "changed"}
    assert seen[0]["shifted"][0]["client"] == "oslo"
    for key in ("outcome", "champion", "changed", "shifted", "unchecked", "unseen"):
        assert seen[0][key] == seen[1][key], key
    assert seen[0]["decision"]["reason"] == seen[1]["decision"]["reason"]


def outcomes(answer: Any, folder: Path) -> dict[str, Any]:
    """The metrics of every run, and its hash; that of a method with private state is keyed with each place's secret."""
    results = [json.loads(path.read_text()) for path in (folder / "runs" / answer["experiment"]).glob("*/result.json")]
    assert len(results) == 2 * len(METHODS)
    return {
        f"{result['method']} {result['seed']}": (
            result["metrics"],
            result["weights_sha256"] if result["method"] == "fedavg" else "",
        )
        for result in results
    }


def with_scripts() -> dict[str, str]:
    return {**os.environ, "PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"}
