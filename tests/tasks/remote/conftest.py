"""Silos cut into places, and a runner that asks places in this process."""

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from models.client_model import Model
from models.networks.mlp import MLP
from models.prng import server_stream
from models.training.engine import Training
from models.training.objectives import CrossEntropy
from models.training.optimizers import SGD
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack
from silos.privacy.owner_file import make_store
from silos.privacy.secret import REGISTER, cell_secret
from silos.storage.manifest import COLUMNS, COMMON, MANIFEST, read_manifest, to_bytes, to_json
from silos.storage.places import file_at, merge_parts, part_digest
from tasks.places.sessions import PlaceAwayError, PlaceSessions
from tasks.remote.answer_steps import answer, run_step
from tasks.remote.codec import OpenedPlace
from tasks.remote.enrolment import accept, invite, join, open_membership, own_key, set_up
from tasks.remote.place_workers import ask_place
from tasks.remote.serve_place import PlaceServer
from tasks.remote.step_list import offered_functions
from tests.silos.storage.cut_part import cut_part

CLIENTS = {"oslo": 11, "lyon": 7, "rome": 9}


def share_secret(home: Path, private: Path) -> None:
    """Give a store the secret that all of a test share: hashes of what clients keep are keyed with it."""
    cell_secret(home / "shared")
    shutil.copytree(home / "shared" / REGISTER, private / REGISTER, dirs_exist_ok=True)


@dataclass
class Separate:
    """The same silos in one folder (`together`), as the coordinator lists them (`listed`), and at `places`.

    Places that are `away` answer so many steps more; after one that they do not answer they are `absent`.
    """

    together: Silos
    listed: Silos
    places: Mapping[str, OpenedPlace]
    asked: list[tuple[str, str, bytes]] = field(default_factory=list)
    away: dict[str, int] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)

    def ask(self, place: str) -> Callable[[str, bytes], bytes]:
        def send(step: str, content: bytes) -> bytes:
            self.asked.append((place, step, content))
            if place in self.away:
                self.away[place] -= 1
                if self.away[place] < 0:
                    self.absent.add(place)
                    raise PlaceAwayError(place, 1)
            return answer(lambda: run_step(step, content, self.places[place]))

        return send


@dataclass(frozen=True)
class PlacesRunner:
    """Asks places in this process: the protocol `Runner`."""

    separate: Separate
    when: str = ""
    waits: bool = False

    def absent(self) -> frozenset[str]:
        return frozenset(self.separate.absent & self.separate.away.keys())

    @property
    def workers(self) -> int:
        return len(self.separate.places)

    def map_cohorts(self, task, calls):
        asks = {place: self.separate.ask(place) for place in self.separate.places}
        return [ask_place(asks, task.name, args, options) for args, options in calls]

    def run_on_server(self, task, *args):
        return task.fn(*args)


@pytest.fixture
def separate(tmp_path: Path) -> Callable[[Silos, Sequence[Sequence[str]]], Separate]:
    """Cuts silos into places "a", "b", ... with these clients."""

    def cut(silos: Silos, clients: Sequence[Sequence[str]]) -> Separate:
        whole, root = Path(silos.folder), tmp_path / "apart"
        folders = {chr(ord("a") + index): root / chr(ord("a") + index) for index in range(len(clients))}
        for folder, names in zip(folders.values(), clients, strict=True):
            cut_part(whole, folder / "data", names)
            make_store(folder / "private" / "store")
            share_secret(tmp_path, folder / "private")
        merged = merge_parts(
            "merged",
            {},
            {place: folder / "data" for place, folder in folders.items()},
            {place: part_digest(folder / "data") for place, folder in folders.items()},
        )
        for name in ("together", "coordinator"):
            (root / name / "data").mkdir(parents=True)
            (root / name / "data" / COLUMNS).write_bytes(to_bytes(merged.clients))
            (root / name / "data" / MANIFEST).write_bytes(to_json(merged))
            if merged.common:
                shutil.copy(whole / COMMON, root / name / "data" / COMMON)
        for place, folder in folders.items():
            for file in read_manifest(folder / "data").clients.files:
                shutil.copy(folder / "data" / file, root / "together" / "data" / file_at(place, file))
        version = f"{tmp_path.name}-{len(clients)}"
        together, listed = (Silos.open(root / name / "data", version) for name in ("together", "coordinator"))
        places = {
            place: OpenedPlace(
                Silos.open(folder / "data", version),
                part_digest(folder / "data"),
                folder / "private" / "store",
                offered_functions(),
            )
            for place, folder in folders.items()
        }
        return Separate(together, listed, places)

    return cut


@pytest.fixture
def at_places() -> type[PlacesRunner]:
    return PlacesRunner


@pytest.fixture
def stores(tmp_path: Path) -> Callable[[str], ClientStore]:
    def make(name: str) -> ClientStore:
        make_store(tmp_path / name / "private" / "store")
        share_secret(tmp_path, tmp_path / name / "private")
        return ClientStore(str(tmp_path / name / "private" / "store"))

    return make


@pytest.fixture
def federation(write_silos, separate, tmp_path):
    """A coordinator's folder, and two places that answer in threads of this process unless they are `away`."""
    apart, root, threads = separate(write_silos(CLIENTS), [["oslo", "lyon"], ["rome"]]), tmp_path / "coordinator", []
    (tmp_path / "plane").mkdir()
    root.mkdir()
    set_up(root, str(tmp_path / "plane"))
    ended = threading.Event()
    for place, opened in apart.places.items():
        home = tmp_path / f"home-{place}"
        home.mkdir()
        accept(root, place, join(home, invite(root, place), own_key(root).fingerprint).fingerprint)
        own = open_membership(home)
        server = PlaceServer(Path(opened.silos.folder), opened.store, nullcontext, lambda *_: None)
        sessions = PlaceSessions(own.plane, own.key, place, own.coordinator, own.sessions, server.respond)

        def serve(place=place, sessions=sessions):
            while not ended.is_set():
                if place in apart.away:
                    time.sleep(0.02)
                else:
                    sessions.serve_once(0.05)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
    yield root, apart
    ended.set()
    for thread in threads:
        thread.join(60)


def calls(silos, private):
    network = MLP(5, (), 3)
    model = Model(network, network.init(server_stream(0, 0, "init")), clients=silos.clients)
    training = Training(CrossEntropy(), SGD(0.1), 1, 4)
    options = {"training": training, "private": private, "seed": 0, "round": 1, "device": "cpu", "keep": "own"}
    made = []
    for part in silos.by_place().values():
        cohort = Cohort(part, (Stack(part.clients, len(part.clients)),))
        made.append(((cohort, model.select(part.clients)), options))
    return made
