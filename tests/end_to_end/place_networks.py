"""A coordinator and three places, each in a network namespace of its own: python -m tests.end_to_end.place_networks

Compares methods over the places and on one machine, and prints for each whether weights and metrics are the same bits:
all methods, or those that are named. A place reaches the coordinator alone. What crosses the broker is recorded by a
relay, which has the broker's certificate, as plain HTTP.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from silos.privacy.secret import REGISTER, cell_secret
from silos.storage.places import file_at
from tests.end_to_end.conftest import COMMAND, FORKING, plain_environment

SITES = {"north": ("oslo", "bergen"), "south": ("rome", "bari"), "west": ("cork", "york")}
ROWS, COMMON_ROWS = 60, 16
HUB, PORT = "10.213.0.1", 8440
RELAY = Path(__file__).with_name("recording_relay.py")
KINDS = ("fedavg", "ifca", "uefl", "selective", "virtual", "trees", "conditional", "fedper")
OPTIONS = {"trees": {"method.trees.iterations": 4}}
SMALL = ("--seeds", "0", "--set", "training.rounds=2")


def why_not() -> str:
    """Return why namespaces cannot be made here; nothing if they can."""
    if os.geteuid():
        return "network namespaces need root"
    if not (shutil.which("ip") and shutil.which("ss")):
        return "ip or ss is missing"
    name = f"siloflow-{os.getpid()}-probe"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"ip netns add: {tried.stderr.strip()}"
    usable = subprocess.run(["ip", "netns", "exec", name, "true"], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], check=True)
    return usable.stderr.strip() if usable.returncode else ""


class Networks:
    """Namespaces of the coordinator and of places, with a line from each place to the coordinator."""

    def __init__(self, places: Iterable[str]) -> None:
        self._prefix = f"siloflow-{os.getpid()}"
        self._made = list[str]()
        self.addresses = {place: f"10.213.{number}.2" for number, place in enumerate(places, start=1)}

    def __enter__(self) -> "Networks":
        try:
            self._add("coordinator")
            _ip("-n", self.name("coordinator"), "addr", "add", f"{HUB}/32", "dev", "lo")
            for number, (place, address) in enumerate(self.addresses.items(), start=1):
                self._add(place)
                ends = self.name("coordinator"), self.name(place)
                _ip(
                    "-n", ends[0], "link", "add", f"to{number}", "type", "veth", "peer", "name", "out", "netns", ends[1]
                )
                for end, device, own in ((ends[0], f"to{number}", f"10.213.{number}.1"), (ends[1], "out", address)):
                    _ip("-n", end, "addr", "add", f"{own}/30", "dev", device)
                    _ip("-n", end, "link", "set", device, "up")
                _ip("-n", ends[1], "route", "add", "10.213.0.0/16", "via", f"10.213.{number}.1")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def has(self, who: str) -> bool:
        return self.name(who) in self._made

    def name(self, who: str) -> str:
        return f"{self._prefix}-{who}"

    def inside(self, who: str, *command: str | Path) -> list[str]:
        """Return a command that runs in a namespace."""
        return ["ip", "netns", "exec", self.name(who), *map(str, command)]

    def listening(self, who: str) -> list[str]:
        """Return the sockets that listen in a namespace, with their processes."""
        found = subprocess.run(self.inside(who, "ss", "-ltnpH"), capture_output=True, text=True, check=True)
        return found.stdout.splitlines()

    def connects(self, who: str, host: str, port: int) -> str:
        """Try to connect from a namespace; return the kind of the error, or nothing."""
        program = (
            "import socket, sys\n"
            "try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()\n"
            "except OSError as error: print(type(error).__name__)"
        )
        command = self.inside(who, sys.executable, "-c", program, host, str(port))
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def _add(self, who: str) -> None:
        _ip("netns", "add", self.name(who))
        self._made.append(self.name(who))
        _ip("-n", self.name(who), "link", "set", "lo", "up")
        subprocess.run(self.inside(who, "sysctl", "-qw", "net.ipv4.ip_forward=0"), check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class SeparateMachines:
    """The projects of a coordinator and of places below a folder, and the processes that serve in their namespaces."""

    def __init__(self, home: Path, networks: Networks, databases: Path | None, server: str | None) -> None:
        self.home, self.networks, self.processes = home, networks, dict[str, subprocess.Popen[bytes]]()
        self._databases, self._server = databases, server
        self.captured = home / "captured"
        self.captured.mkdir()

    def type(self, who: str, *arguments: str | Path, is_inside: bool = True) -> Any:
        """Return what a command prints in a project's folder, in its namespace if it has one and `is_inside`."""
        words = [*map(str, arguments), "--json"]
        network = self.networks.name(who) if is_inside and self.networks.has(who) else None
        own = {"PREFECT_API_URL": self._server} if self._server and network is None else {}
        code, out, err = FORKING.run(words, self.home / who, {**_environment(), **own}, network)
        assert code == 0, f"siloflow {' '.join(words)}: {err}"
        return json.loads(out.splitlines()[-1])

    def start(self, name: str, who: str, *command: str | Path) -> None:
        """Start a process that serves in a namespace; the coordinator's log is kept with what crosses the plane."""
        with ((self.captured if who == "coordinator" else self.home) / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.networks.inside(who, *command), cwd=self.home / who, env=_environment(), stdout=log, stderr=log
            )

    def make(self) -> None:
        """Make the projects, let the places join, and let the coordinator list their data."""
        cell_secret(self.home / "shared")  # hashes of what clients keep are keyed with it, so that they can be compared
        write_common = common_lines()
        params = project_params()
        for seed, (place, silos) in enumerate(SITES.items()):
            folder = self._project(place)
            write_table(folder / "visits.csv", silos, seed, write_common)
            (folder / "params.yaml").write_text(yaml.safe_dump(params))
            shutil.copytree(self.home / "shared" / REGISTER, folder / "private" / REGISTER)
        coordinator = self._project("coordinator")
        there = {**params, "data": {**params["data"], "source": {"kind": "places"}}}
        there["runner"] = {**params["runner"], "kind": "places"}
        (coordinator / "params.yaml").write_text(yaml.safe_dump(there))
        key = self.type("coordinator", "place", "init", f"https://{HUB}:{PORT}")["fingerprint"]
        own = coordinator / ".places"
        listening = [own / "tls.pem", own / "broker" / "tls.key", HUB, str(PORT), self.captured]
        self.start("broker", "coordinator", COMMAND, "place", "broker", "--listen", "127.0.0.1")
        self.start("relay", "coordinator", sys.executable, RELAY, *listening)
        while self.networks.connects("coordinator", HUB, PORT):
            assert self.processes["relay"].poll() is None, (self.captured / "relay.log").read_text()

        def join(place: str) -> None:
            self.type(place, "partition", is_inside=False)
            invitation = self.type("coordinator", "place", "invite", place)["file"]
            joined = self.type(place, "place", "join", f"../coordinator/{invitation}", "--key", key)
            self.type("coordinator", "place", "accept", place, joined["fingerprint"])
            self.type(place, "place", "describe", "--approve", is_inside=False)
            self.start(place, place, COMMAND, "place", "serve")

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(join, SITES))
        listing = coordinator / "data" / "visits"
        listing.mkdir(parents=True)
        shutil.copy(self.home / "north" / "data" / "visits" / "common.safetensors", listing)
        self.type("coordinator", "partition")

    def _project(self, who: str) -> Path:
        """Make a folder with the tables of MLflow and Prefect, if there are some to copy."""
        folder = self.home / who
        folder.mkdir()
        for database, place in (("mlflow.db", "runs"), ("prefect.db", ".prefect")) if self._databases else ():
            (folder / place).mkdir()
            shutil.copy(self._databases / database, folder / place)
        return folder

    def put_together(self) -> None:
        """Make a project on one machine with the coordinator's listing and the rows of all places."""
        folder = self._project("together")
        ignored = shutil.ignore_patterns("runs", ".p*", "private")
        shutil.copytree(self.home / "coordinator", folder, ignore=ignored, dirs_exist_ok=True)
        shutil.copytree(self.home / "coordinator" / "private", folder / "private")
        shutil.copytree(self.home / "shared" / REGISTER, folder / "private" / REGISTER, dirs_exist_ok=True)
        for place in SITES:
            for file in (self.home / place / "data" / "visits").glob("*.safetensors"):
                if file.name not in ("manifest.safetensors", "common.safetensors"):
                    shutil.copy(file, folder / "data" / "visits" / file_at(place, file.name))
        subprocess.run(["dvc", "add", "-q", "data"], cwd=folder, check=True, env=_environment())

    def results(self, who: str, answer: Any) -> dict[str, tuple[str, Any]]:
        """Return weights_sha256 and metrics of each method of a comparison."""
        paths = (self.home / who / "runs" / answer["experiment"]).glob("*/result.json")
        found = [json.loads(path.read_text()) for path in paths]
        return {result["method"]: (result["weights_sha256"], result["metrics"]) for result in found}

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(60)


def project_params() -> dict[str, Any]:
    """Return the params of a project with a small table, of which all places have some rows in common."""
    params: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "params.yaml").read_text())
    source = {"kind": "table", "path": "visits.csv", "label": "ill", "client": "hospital", "unit": "patient"}
    params["data"] = {
        "name": "visits",
        "seed": 0,
        "source": {**source, "split": "part", "drop": ["remark"]},
        "scheme": [{"kind": "column", "column": "client"}],
        "split": {"validation": 0, "test": 0, "validation_rows": "common"},
        "features": [{"name": "age", "low": 0, "high": 120}, {"name": "crp", "low": 0, "high": 200}],
    }
    params["model"] = {**params["model"], "hidden": [6], "inputs": "standardise"}
    params["training"] = {**params["training"], "optimiser": {"kind": "sgd", "learning_rate": 0.1}}
    params["evaluation"] = {**params["evaluation"], "report": "last"}
    return params


def _lines(rng: np.random.Generator, silo: str, shift: float, splits: Sequence[str]) -> list[str]:
    lines = []
    for row, split in enumerate(splits):
        age, crp = float(rng.uniform(25 + shift, 85 + shift)), float(rng.gamma(2, 8))
        ill = rng.random() < 1 / (1 + np.exp(-0.08 * (age - 60) - 0.05 * (crp - 16)))
        unit, remark = f"zyxquor-{silo}-{row}", f"grelmuft-{silo}-{row}"
        lines.append(f"{silo},{unit},{remark},{age!r},{crp!r},{'yes' if ill else 'no'},{split}")
    return lines


def common_lines() -> list[str]:
    """Return the common rows, which are no secret: every place has them, and so has the coordinator."""
    return _lines(np.random.default_rng(99), "all", 0, ["validation"] * COMMON_ROWS)


def write_table(path: Path, silos: tuple[str, ...], seed: int, common: list[str]) -> None:
    """Write the rows of a place: numbers of sixteen digits, and words that stand nowhere else."""
    lines = ["hospital,patient,remark,age,crp,ill,part"]
    for index, silo in enumerate(silos):
        splits = ["test" if row % 4 == 3 else "train" for row in range(ROWS)]
        lines += _lines(np.random.default_rng([seed, index]), silo, 4 * index + 3 * seed, splits)
    path.write_text("\n".join([*lines, *common]) + "\n")


def private_needles(home: Path) -> dict[str, bytes]:
    """Return what must lie at places alone, by what it is: numbers of every third row, words, the secret, kept weights."""
    needles = {"the secret": (home / "shared" / REGISTER / "secret").read_bytes()}
    for place in SITES:
        rows = [line.split(",") for line in (home / place / "visits.csv").read_text().splitlines()[1:]]
        for silo, unit, remark, age, crp, *_ in (row for row in rows if row[0] != "all"):
            needles |= {f"{silo}: {word}": word.encode() for word in (unit, remark)}
            if int(unit.rpartition("-")[2]) % 3:
                continue
            pair = np.array([age, crp], float)
            for name, text, value in (("age", age, pair[0]), ("crp", crp, pair[1])):
                needles |= {
                    f"{unit}: {name} as text": text[:12].encode(),
                    f"{unit}: {name} as float32 text": repr(float(np.float32(value)))[:12].encode(),
                    f"{unit}: {name} as float64": np.float64(value).tobytes(),
                }
            needles[f"{unit}: a row of float32"] = pair.astype("<f4").tobytes()
            if unit.endswith("-0"):  # four bytes also occur by chance, so one row of each silo has to do
                needles[f"{unit}: age as float32"] = pair[:1].astype("<f4").tobytes()
        for file in sorted((home / place / "private").glob("*/of-coordinator/*/*/*/*.safetensors")):
            if (file.parents[1] / ".kinds" / file.parent.name).read_text() == "weights":
                content = file.read_bytes()
                start = 8 + int.from_bytes(content[:8], "little")
                if len(set(content[start : start + 24])) > 8:  # a client without codewords keeps none
                    needles[f"{place}: {file.parent.name} of {file.parents[1].name}"] = content[start : start + 24]
    return needles


def leaks(needles: dict[str, bytes], *folders: Path) -> list[str]:
    """Return what of these is found in the files of folders, also compressed ones."""
    heads = np.unique(np.frombuffer(b"".join(needle[:8] for needle in needles.values() if len(needle) >= 8), "<u8"))
    found = []
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        for content in _contents(path):
            occurring = _heads_in(content, heads)  # to search for each of a thousand needles would take seconds
            possible = {name: needle for name, needle in needles.items() if len(needle) < 8 or needle[:8] in occurring}
            found += [f"{name} in {path}" for name, needle in possible.items() if needle in content]
    return found


def _heads_in(content: bytes, heads: np.ndarray) -> set[bytes]:
    """Return which of these ascending words of eight bytes occur anywhere in the content."""
    occurring = set[bytes]()
    for start in range(min(8, len(content) - 7)):
        words = np.frombuffer(content, "<u8", (len(content) - start) // 8, start)
        near = heads[np.minimum(heads.searchsorted(words), len(heads) - 1)]
        occurring |= {word.tobytes() for word in words[near == words]}
    return occurring


def _contents(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    yield content
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in archive.namelist())
    elif content[:1] == b"\x78":  # as git's objects
        with contextlib.suppress(zlib.error):
            yield zlib.decompress(content)


def _environment() -> dict[str, str]:
    own = {name: value for name, value in plain_environment().items() if not name.lower().endswith("_proxy")}
    return {**own, "OMP_NUM_THREADS": "1", "PATH": f"{COMMAND.parent}{os.pathsep}{own['PATH']}"}


@contextlib.contextmanager
def machines(databases: Path | None = None, server: str | None = None) -> Iterator[SeparateMachines]:
    """Make the namespaces and projects, and remove them however the block ends.

    Args:
        databases: the folder of `mlflow.db` and `prefect.db` with empty tables, which takes each project seconds to make.
        server: the address of a Prefect server for commands outside the namespaces; without it each starts its own.
    """
    home = Path(tempfile.mkdtemp(prefix="siloflow-networks-"))
    try:
        with Networks(SITES) as networks:
            made = SeparateMachines(home, networks, databases, server)
            try:
                made.make()
                yield made
            finally:
                made.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def settings_of(methods: Sequence[str]) -> list[str]:
    """Return the settings that keep these methods small."""
    return [
        word
        for method in methods
        for key, value in OPTIONS.get(method, {}).items()
        for word in ("--set", f"{key}={value}")
    ]


def _of_places(leaked: Sequence[str]) -> list[str]:
    """Leave out what a place was sent before anything was sent from one, as initial codewords are, which it kept."""
    first = dict[str, tuple[int, str]]()
    named = [line.rpartition(" in ") for line in leaked]
    for name, _, path in named:
        number, _, way = Path(path).name.partition("-")
        if way in ("up", "down"):
            first[name] = min(first.get(name, (int(number), way)), (int(number), way))
    return [line for line, (name, *_) in zip(leaked, named, strict=True) if first.get(name, (0, ""))[1] != "down"]


def main() -> int:
    """Print a line a method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="by default all but pooled")
    arguments = parser.parse_args()
    if reason := why_not():
        print(reason)
        return 1
    differ = 0
    with machines() as made:
        made.put_together()
        named = arguments.methods or [m["method"] for m in made.type("coordinator", "methods")["methods"]]
        for method in (name for name in named if name != "pooled"):
            small, found = (*SMALL, *settings_of([method])), dict[str, Any]()
            for who, more in (("coordinator", ()), ("together", ("--set", "runner.kind=threads"))):
                try:
                    answer = made.type(who, "compare", method, *small, *more)
                    found[who] = made.results(who, answer)[method]
                except AssertionError as error:
                    found[who] = str(error).strip().splitlines()[-1]
            same = found["coordinator"] == found["together"]
            differ += not same
            is_refused = isinstance(found["coordinator"], str)
            shown = found["coordinator"] if is_refused else f"{found['coordinator'][0][:12]} same"
            print(f"{method:18} {shown if same else found}", flush=True)
        leaked = _of_places(leaks(private_needles(made.home), made.home / "coordinator", made.captured))
    print("\n".join([*leaked, f"{differ} methods differ; {len(leaked)} private values found outside the places"]))
    return int(bool(differ or leaked))


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        FORKING.stop()
