"""Silos cut into places, and a runner that asks places in this process."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.privacy.owner_file import make_store
from silos.privacy.secret import REGISTER, cell_secret
from silos.storage.manifest import COLUMNS, COMMON, MANIFEST, read_manifest, to_bytes, to_json
from silos.storage.places import cut_part, file_at, merge_parts, part_digest
from tasks.remote.answer_steps import answer, run_step
from tasks.remote.codec import OpenedPlace
from tasks.remote.place_workers import ask_place
from tasks.remote.step_list import offered_functions


def share_secret(home: Path, private: Path) -> None:
    """Give a store the secret that all of a test share: hashes of what clients keep are keyed with it."""
    cell_secret(home / "shared")
    shutil.copytree(home / "shared" / REGISTER, private / REGISTER, dirs_exist_ok=True)


@dataclass
class Separate:
    """The same silos in one folder (`together`), as the coordinator lists them (`listed`), and at `places`."""

    together: Silos
    listed: Silos
    places: Mapping[str, OpenedPlace]
    asked: list[tuple[str, str, bytes]] = field(default_factory=list)

    def ask(self, place: str) -> Callable[[str, bytes], bytes]:
        def send(step: str, content: bytes) -> bytes:
            self.asked.append((place, step, content))
            return answer(lambda: run_step(step, content, self.places[place]))

        return send


@dataclass(frozen=True)
class PlacesRunner:
    """Asks places in this process: the protocol `Runner`."""

    separate: Separate
    when: str = ""

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
