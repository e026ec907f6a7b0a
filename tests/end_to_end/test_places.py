"""A coordinator without rows and two places over HTTPS, typed as their people would: the same bits as on one machine."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from flows.training.run_records.run_folder import RunFolder
from silos.privacy.secret import cell_secret
from silos.storage.places import file_at
from tests.end_to_end.conftest import COMMAND, Folder
from tests.look import free_ports

pytestmark = pytest.mark.slow

SITES = {"north": ("oslo", "bergen", "tromso"), "south": ("rome", "bari")}
METHODS = ("fedavg", "scaffold")
SEEDS = ("--seeds", "0,1")
SMALL = ("--set", "training.rounds=2")
HERE = ("--set", "runner.kind=threads")
DROPPED = """
import json
from pathlib import Path

from flows.methods.client_sampler import FractionSampler, SampledClients
from flows.plugins import register_sampler


@register_sampler("dropped")
class Dropped(FractionSampler):
    def sample(self, setup, round_number, memory):
        gone = json.loads(Path("dropped.json").read_text()).get(str(round_number), ())
        return SampledClients(tuple(c for c in setup.silos.clients if c not in gone), tuple(gone))

    def draw(self, setup, clients, count, round_number, memory):
        return clients
"""
HELD = """
import time
from pathlib import Path

from flows.plugins import register_callback
from flows.training.callbacks.callback import Callback


@register_callback("held")
class Held(Callback):
    def after_round(self, run, played):
        while run.number == 9 and not Path("back").exists():
            time.sleep(0.05)
"""
BARE = """
from importlib.machinery import PathFinder

HIDDEN = {hidden}
find_spec = PathFinder.find_spec


def find(name, path=None, target=None):
    return None if name.partition(".")[0] in HIDDEN else find_spec(name, path, target)


PathFinder.find_spec = find
"""
AT_PLACES = {"source": {"kind": "places"}, "split": {"validation": 0, "test": 0}}


def write_visits(path: Path, hospitals: tuple[str, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = ["hospital,age,crp,ill"]
    for index, hospital in enumerate(hospitals):
        age, crp = rng.normal(60 + 4 * index + 5 * seed, 12, 80).round(), rng.gamma(2, 8, 80).round(1)
        ill = rng.random(80) < 1 / (1 + np.exp(-0.08 * (age - 60) - 0.05 * (crp - 16)))
        lines += [f"{hospital},{a:g},{c},{'yes' if y else 'no'}" for a, c, y in zip(age, crp, ill, strict=True)]
    path.write_text("\n".join(lines) + "\n")


def needed(name: str, found: set[str]) -> set[str]:
    """Add what a distribution needs, without extras."""
    if (name := canonicalize_name(name)) not in found:
        found.add(name)
        with contextlib.suppress(metadata.PackageNotFoundError):  # of another platform
            for requirement in map(Requirement, metadata.requires(name) or ()):
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    needed(requirement.name, found)
    return found


def write_bare(folder: Path) -> None:
    """Write a folder that hides from Python, by PYTHONPATH, what an installation of siloflow without extras lacks."""
    there = needed("siloflow", set())
    hidden = [
        module
        for module, owners in metadata.packages_distributions().items()
        if not there & {canonicalize_name(owner) for owner in owners}
    ]
    assert {"prefect", "mlflow", "dvc", "fastapi", "matplotlib", "sqlalchemy"} < {*hidden}
    assert not {"flows", "torch", "numpy", "pandas", "typer"} & {*hidden}
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BARE.format(hidden=hidden))


class Federation:
    """The folders of a coordinator and of places, and the processes that serve; one place has what a place needs alone."""

    def __init__(self, home: Path, server: str) -> None:
        self.home, self.server, self.serving = home, server, dict[str, subprocess.Popen[str]]()
        self.bare = {"south": str(home / "bare")}
        write_bare(home / "bare")

    def run(self, where: str, *arguments: str) -> tuple[int, str, str]:
        if where in self.bare:
            return Folder(self.home / where, variables={"PYTHONPATH": self.bare[where]}).run(list(arguments))
        return Folder(self.home / where, self.server).run(list(arguments))

    def type(self, where: str, *arguments: str) -> Any:
        code, out, err = self.run(where, *arguments, "--json")
        assert code == 0, err
        return json.loads(out.splitlines()[-1])  # a forked `init` also prints what DVC says

    def serve(self, place: str, *arguments: str) -> None:
        """Start `place serve` at a place, or the broker of a coordinator; it writes to a file that `log` reads."""
        with (self.home / f"{place}.log").open("a") as log:
            self.serving[place] = subprocess.Popen(
                [COMMAND, "place", *(arguments or ("serve",))],
                cwd=self.home / place,
                env={**os.environ, **({"PYTHONPATH": self.bare[place]} if place in self.bare else {})},
                stdout=log,
                stderr=log,
                text=True,
            )

    def log(self, place: str) -> str:
        return (self.home / f"{place}.log").read_text()

    def let_in(self, coordinator: str, address: str, places: tuple[str, ...], *broker: str) -> None:
        """Type the commands by which places join a coordinator, and let them serve."""
        key = self.type(coordinator, "place", "init", address)["fingerprint"]
        if broker:
            self.serve(coordinator, *broker)
        for place in places:
            before = self.type(place, "place", "describe")
            is_copy = place.endswith("-2")  # with the log of what its owner approved
            assert (before["place"], before["address"], bool(before["approved"])) == (None, None, is_copy)
            assert len(before["silos"]) == len(SITES[place.partition("-")[0]])
            invitation = self.type(coordinator, "place", "invite", place)["file"]
            joined = self.type(place, "place", "join", f"../{coordinator}/{invitation}", "--key", key)
            self.type(coordinator, "place", "accept", place, joined["fingerprint"])
            if not is_copy:
                code, _, error = self.run(place, "place", "serve")
                assert (code, "got no approval of private/" in error) == (2, True), error
            approved = self.type(place, "place", "describe", "--approve")
            assert (approved["place"], bool(approved["approved"])) == (place, True)
            self.serve(place)

    def stop(self) -> None:
        for process in self.serving.values():
            process.kill()
            process.wait(60)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, server: str) -> Any:
    home = tmp_path_factory.mktemp("federation")
    made = Federation(home, server)
    for seed, (place, hospitals) in enumerate(SITES.items()):
        write_visits(home / f"{place}.csv", hospitals, seed)

    def init(place: str) -> None:
        if place == "coordinator":
            made.type(".", "init", place)
            return
        where, folder, file = (".", place, f"{place}.csv")
        if place in made.bare:  # its commands run in its folder
            (home / place).mkdir()
            where, folder, file = place, ".", f"../{place}.csv"
        made.type(where, "init", folder, "--data", file, "--label", "ill", "--client", "hospital")
        made.type(place, "partition")

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(init, [*SITES, "coordinator"]))
    params = yaml.safe_load((home / "north" / "params.yaml").read_text())
    params = {**params, "data": {**params["data"], **AT_PLACES}, "runner": {**params["runner"], "kind": "places"}}
    (home / "coordinator" / "params.yaml").write_text(yaml.safe_dump(params))
    (port,) = free_ports(1)
    made.let_in("coordinator", f"https://127.0.0.1:{port}", tuple(SITES), "broker", "--listen", "127.0.0.1")
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
    (owner,) = (folder / "private").glob("*/owner.yaml")
    owner.write_text(f"{owner.read_text()}own_models: true\n")  # the silos' owner predicts, as at a place
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
    shown = federation.type("south", "show")
    assert ([client["name"] for client in shown["clients"]], shown["figure"]) == (["bari", "rome"], None)
    code, out, error = federation.run("south", "show")
    assert (code, "picture         none was drawn: matplotlib is not installed" in out) == (0, True), error
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
    """The labels and probabilities of rome's new rows: by the model that was sent to its place, or on one machine."""
    where, words = ("south", ("place", "predict")) if at_place else ("together", ("predict", "--model", model, *HERE))
    federation.type(where, *words, "../new.csv", "--output", "labels.csv", "--client", "rome")
    return (federation.home / where / "labels.csv").read_text()


def test_no_row_is_at_the_coordinator_and_no_port_is_open_at_a_place(federation: Any, compared: Any) -> None:
    coordinator = federation.home / "coordinator"
    assert {path.name for path in (coordinator / "data").glob("*/*")} == {"manifest.json", "manifest.safetensors"}
    assert not [*(coordinator / "private").rglob("*.safetensors")]
    for place in SITES:
        process = federation.serving[place]
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
        code, _, unapproved = federation.run("coordinator", "run", "fedavg", *SMALL)
        assert (code, "changed after an approval" in unapproved) == (2, True), unapproved
        federation.type("south", "place", "describe", "--approve")
        code, _, error = federation.run("coordinator", "run", "fedavg", *SMALL)
    finally:
        file.write_text(before)
        federation.type("south", "place", "describe", "--approve")
    assert code == 2
    assert "place south" in error
    assert "under messages" in error


def test_rounds_go_on_without_an_absent_place_and_it_comes_back(federation: Any, compared: Any, together: Path) -> None:
    """While south is away, one run drops its clients and another waits for them; both end when it is back."""
    # a scale of all silos' inputs would wait for south before round 1, and the best round depends on which are scored
    raw = ("--set", "model.inputs=none", "--set", "evaluation.report=last")
    expected = federation.type("coordinator", "run", "fedavg", "--set", "training.rounds=3", *raw)
    federation.serving["south"].kill()
    federation.serving["south"].wait(60)
    patient = (*raw, "--set", "runner.patience=2")
    (federation.home / "coordinator" / "held.py").write_text(HELD)
    held = ("--set", "plugins=[held.py]", "--set", "callbacks=[{kind: held}]")
    going = start(
        federation, "run", "fedavg", "--set", "training.rounds=40", "--set", "evaluation.every=7", *held, *patient
    )
    waiting = start(federation, "run", "fedavg", "--set", "training.rounds=3", "--set", "clients.least=4", *patient)
    await_line(waiting, "waits for place south: 3 clients of 5 answer, and clients.least is 4")
    await_line(going, "place south is absent: no answer to check_scale in 2 seconds")
    await_line(going, "round 7 is not scored: place south does not answer")
    before = federation.log("south").count("serving")
    federation.serve("south")
    eventually(lambda: federation.log("south").count("serving") > before)
    (federation.home / "coordinator" / "back").touch()
    waited, went = (json.loads(process.communicate(timeout=600)[0]) for process in (waiting, going))
    assert waited["weights_sha256"] == expected["weights_sha256"]
    journal = RunFolder(federation.home / "coordinator" / went["folder"]).journal
    dropped = {record["round"]: record["dropped"] for record in journal.each(40)}
    assert {*map(tuple, dropped.values())} == {("bari", "rome"), ()}
    assert dropped[1]
    assert not dropped[40]
    (together / "dropped.py").write_text(DROPPED)
    (together / "dropped.json").write_text(json.dumps(dropped))
    sampling = "clients.sampling={kind: dropped}"
    here = ("--set", "runner.kind=threads", "--set", "plugins=[dropped.py]", "--set", sampling, *raw)
    again = federation.type(
        "together", "run", "fedavg", "--set", "training.rounds=40", "--set", "evaluation.every=40", *here
    )
    assert again["weights_sha256"] == went["weights_sha256"]
    assert again["metrics"] == went["metrics"]


def test_a_place_that_is_killed_within_a_round_is_dropped_and_comes_back(
    federation: Any, compared: Any, together: Path
) -> None:
    """It dies while it trains; the round starts again without its clients, and later ones have them."""
    coordinator, south = federation.home / "coordinator", federation.home / "south"
    (coordinator / "back").unlink(missing_ok=True)
    (coordinator / "held3.py").write_text(HELD.replace('"held"', '"held3"').replace("== 9", "== 3"))
    long = ("--set", "training.rounds=5", "--set", "training.epochs=300", "--set", "evaluation.every=5")
    raw = (*long, "--set", "model.inputs=none", "--set", "evaluation.report=last")
    held = ("--set", "plugins=[held3.py]", "--set", "callbacks=[{kind: held3}]", "--set", "runner.patience=15")
    before = federation.log("south").count("serving")
    going = start(federation, "run", "fedavg", *raw, *held)
    while not is_training(south):
        assert going.poll() is None, going.communicate()
        time.sleep(0.01)
    federation.serving["south"].kill()
    federation.serving["south"].wait(60)
    await_line(going, "starts again without the clients of place south")
    federation.serve("south")
    eventually(lambda: federation.log("south").count("serving") > before)
    (coordinator / "back").touch()
    went = json.loads(going.communicate(timeout=600)[0])
    dropped = {r["round"]: r["dropped"] for r in RunFolder(coordinator / went["folder"]).journal.each(5)}
    assert dropped[1] == ["bari", "rome"]
    assert dropped[5] == []
    (together / "dropped.py").write_text(DROPPED)
    (together / "dropped.json").write_text(json.dumps(dropped))
    here = (*HERE, "--set", "plugins=[dropped.py]", "--set", "clients.sampling={kind: dropped}")
    again = federation.type("together", "run", "fedavg", *raw, *here)
    assert again["weights_sha256"] == went["weights_sha256"]


def is_training(place: Path) -> bool:
    """Whether a place carries out a step: its owner's log has no line of it, but its session has counted it."""
    for state in place.glob(".places/sessions/*/state.json"):
        with contextlib.suppress(FileNotFoundError, ValueError):
            number = json.loads(state.read_text())["number"]
            answer = state.with_name(f"answer-{number:08d}")
            seen = [number > 0 and not answer.exists() for _ in range(20) if time.sleep(0.01) is None]
            if all(seen) and json.loads(state.read_text())["number"] == number:
                return True
    return False


@pytest.mark.parametrize("killed", ["broker", "coordinator"])
def test_a_run_ends_with_the_same_bits_after_two_kills_of(federation: Any, compared: Any, killed: str) -> None:
    """One kill when the first round is written down, and another one in a later round."""
    coordinator = federation.home / "coordinator"
    typed = ("run", "scaffold", "--set", "training.rounds=4")
    expected, more = federation.type("coordinator", *typed), list[str]()
    there = {*coordinator.glob("runs/**/journal/*.json")}
    for written in ("000001.json", "000003.json"):
        running = start(federation, *typed, *more)
        while running.poll() is None and not [
            path for path in coordinator.glob(f"runs/**/journal/{written}") if path not in there
        ]:
            time.sleep(0.005)
        victim = running if killed == "coordinator" else federation.serving["coordinator"]
        victim.kill()
        victim.wait(60)
        if killed == "coordinator":
            more = ["--resume"]
            continue
        federation.serve("coordinator", "broker", "--listen", "127.0.0.1")
        answer, error = running.communicate(timeout=600)
        assert running.returncode == 0, error
        assert json.loads(answer)["weights_sha256"] == expected["weights_sha256"]
        there = {*coordinator.glob("runs/**/journal/*.json")}
    again = federation.type("coordinator", *typed, *more)
    assert again["weights_sha256"] == expected["weights_sha256"]


def test_a_folder_is_a_plane_too(federation: Any) -> None:
    home = federation.home
    (home / "plane").mkdir()
    for name, copy in (("coordinator", "archive"), ("north", "north-2")):
        shutil.copytree(home / name, home / copy, ignore=shutil.ignore_patterns("runs", ".places", ".prefect"))
    federation.let_in("archive", "../plane", ("north-2",))
    eventually(lambda: federation.type("archive", "place", "status")["places"][0]["answer"] == "3 silos of 240 rows")


def test_watch_finds_new_rows_of_a_place_as_on_one_machine(federation: Any, together: Path) -> None:
    """One of the last tests: it changes a place's data."""
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


def test_a_revoked_place_is_refused_in_a_sentence_at_both_ends(federation: Any, compared: Any) -> None:
    """The last test: north is out."""
    answers = {one["place"]: one["answer"] for one in federation.type("coordinator", "place", "status")["places"]}
    assert answers["north"].startswith("3 silos of ")  # a test before may have added rows
    assert answers["south"] == "2 silos of 160 rows"
    assert federation.type("north", "place", "status")["role"] == "place"
    federation.type("coordinator", "place", "revoke", "north")
    assert [one["place"] for one in federation.type("coordinator", "place", "status")["places"]] == ["south"]
    code, _, error = federation.run("coordinator", "run", "fedavg", *SMALL)
    assert code == 2
    assert "place 'north': got data of this place, which has not joined, expected one of south" in error
    refused = "token: got an unknown one, expected that of a place or the coordinator. Join again."
    eventually(lambda: refused in federation.log("north"))


def start(federation: Any, *arguments: str) -> "subprocess.Popen[str]":
    folder = federation.home / "coordinator"
    return subprocess.Popen(
        [COMMAND, *arguments, "--json"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def await_line(process: "subprocess.Popen[str]", wanted: str) -> None:
    """Read what a command prints until a line has these words."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if wanted in line:
            return
    raise AssertionError(f"{wanted!r} is not in {seen}")


def eventually(holds: Callable[[], bool]) -> None:
    for _ in range(120):
        if holds():
            return
        time.sleep(0.5)
    raise AssertionError("it did not hold within a minute")


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
