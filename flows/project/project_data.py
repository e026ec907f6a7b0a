"""Opens the data of a project: checked against data.dvc, or made for a sweep in the cache of partitions."""

import hashlib
import json
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.core.console import progress
from silos.cohort import Silos
from silos.data_params import DataParams
from silos.errors import RefusalError
from silos.io import locks
from silos.io.atomic_io import write_bytes
from silos.io.hashing import code_digest, file_hashes, listing_digest
from silos.plugin_registry import Registered
from silos.privacy.owned_source import check_source, find_store
from silos.privacy.owner_file import OWNER_FILE
from silos.sources.source_params import AtPlaces
from silos.sources.source_registry import content_hashes
from silos.storage.partition_store import write
from silos.versioning import data_versions, dvc_files
from silos.versioning.data_versions import recover
from tasks.tracking.json_io import read_json

SOURCE_HASHES = Path("private") / ".sources.json"
"""The hashes of the files that each partition was made from; they would confirm a guess of a row, so they are private."""


@dataclass
class Checked:
    """Caches what a command has computed of a project while its data cannot change; derived projects share it."""

    locks: int = 0
    results: dict[Hashable, Any] = field(default_factory=dict)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Drop results from before data/ was locked: the data may have changed since."""
        if not self.locks:
            self.results.clear()
        self.locks += 1
        try:
            yield
        finally:
            self.locks -= 1


@dataclass(frozen=True)
class ProjectData:
    """The data that a project's params describe.

    Attributes:
        root: The project's folder.
        params: The section `data`.
        plugins: The plugin files of params.yaml, which may make the data.
        derived: Whether the data come from the cache of partitions, instead of data/.
        checked: Holds the data once they are checked.
    """

    root: Path
    params: DataParams
    plugins: tuple[str, ...]
    derived: bool
    checked: Checked

    def silos(self) -> Silos:
        """Return the data, checked once for all projects that share them, whatever else these differ in.

        Raises:
            UserError: If data/ is not what data.dvc records, or not what params describe.
            RefusalError: If params read the source in another way than its owner's file says.
        """
        key = ("verified", self.derived, self.plugins, self.params.model_dump_json())
        if key not in self.checked.results:
            if self.derived:
                check_source(self.root, self.params, of_sweep=True)  # before rows are read
                self.checked.results[key] = self._in_cache()
            else:
                silos = self._recorded()
                check_source(self.root, self.params)
                self.checked.results[key] = silos
        checked: Silos = self.checked.results[key]
        return checked

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Protect data/ from changes; a process that would change it is refused with `name`. May be nested."""
        lock = nullcontext() if self.derived else locks.read_lock(_locks(self.root), name, progress.say)
        with lock, self.checked.locked():
            yield

    def is_source_changed(self) -> bool:
        """Return whether a file of the source differs from what data/ was made from, or whether that is unknown.

        Of data at places, return whether one of them holds another part now; UserError if one does not answer.
        """
        if isinstance(self.params.source, AtPlaces):
            from tasks.remote.gather_parts import are_parts_changed  # imports torch

            return are_parts_changed(self.root, self.root / "data" / self.params.name)
        made_from = (read_json(self.root / SOURCE_HASHES) or {}).get(self.params.name, {})
        return bool(content_hashes(self.params.source, self.root) != made_from)

    def same_rows(self, first: str, second: str) -> bool:
        """Return whether this project's partition is equal in two data versions; other partitions may differ."""
        return first == second or (
            not self.derived and data_versions.same_rows(self.root, self.params.name, first, second)
        )

    def _recorded(self) -> Silos:
        name = self.params.name
        with locks.wait_for_writer(_locks(self.root), progress.say):
            recover(self.root)
            hashes = dvc_files.verify(self.root, name, self.root / "runs" / "hashes.json")
            silos = Silos.open(self.root / "data" / name, str(dvc_files.recorded_version(self.root)), hashes)
        dvc_files.must_match_params(silos.manifest, self.params)
        copy = find_store(self.root, self.params) / OWNER_FILE
        if isinstance(self.params.source, AtPlaces) and not copy.is_file():
            raise RefusalError(
                f"{copy} is missing, the copy of what the owners of silos at places allow. `siloflow partition` copies it "
                "again."
            )
        return silos

    def _in_cache(self) -> Silos:
        """Return a partition of a sweep, outside of data/: made once for its recipe, the source's files, and our code.

        A changed partition is made again. Other processes that need it wait meanwhile.
        """
        steps: list[Any] = [step for step in self.params.scheme if isinstance(step, Registered)]
        digests = [step.entry.digest for step in steps]
        recipe = json.dumps(
            [self.params.recipe(), content_hashes(self.params.source, self.root), code_digest(), *digests],
            sort_keys=True,
        )
        folder = self.root / "cache" / "partitions" / hashlib.sha256(recipe.encode()).hexdigest()[:16]
        record = folder.with_name(f"{folder.name}.version")
        name = f"the making of {folder.relative_to(self.root)}"
        with locks.write_lock(folder.with_name(f"{folder.name}.lock"), name, progress.say):
            hashes = file_hashes(folder, None)
            if not record.is_file() or record.read_text() != listing_digest(hashes):
                write(folder, self.params, self.root)
                hashes = file_hashes(folder, None)
                write_bytes(record, listing_digest(hashes).encode())
        return Silos.open(folder, listing_digest(hashes), hashes)


@contextmanager
def exclusive_data_access(root: Path, name: str) -> Iterator[None]:
    """Lock data/ of this project for writing; UserError if another process works on it, with that process's name."""
    with locks.write_lock(_locks(root), name, progress.say):
        recover(root)
        yield


def _locks(root: Path) -> Path:
    return root / "runs" / "locks"
