"""References to clients' rows on disk: what travels to a task instead of the rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from silos.dataset import SPLITS, Role
from silos.errors import UserError
from silos.standardizer import NO_STANDARDIZATION, Standardization
from silos.storage.client_table import ROLES, ClientEntry, ClientTable
from silos.storage.manifest import COLUMNS, COMMON, MANIFEST, Manifest, read_manifest
from silos.storage.shards import Sound
from silos.versioning.hashing import file_digest

_HASHED = (MANIFEST, COLUMNS, COMMON)


@dataclass(frozen=True)
class Silos:
    """A reference to clients' rows on disk: small, picklable, opened only where it is used.

    `members` is filled in by `pool`: then `clients` is one name, which owns the rows of all members. `hashes` are the
    md5s of the manifest, of its columns, which have a digest of each client's rows, and of common rows: whoever opens any
    of them, in whatever process, compares. `scaling` is what rows are opened with. What is asked costs by the clients
    chosen, after the columns are read once a process.
    """

    folder: str
    version: str
    clients: tuple[str, ...]
    members: tuple[str, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    scaling: Standardization = field(default=NO_STANDARDIZATION, repr=False)

    @classmethod
    def open(cls, folder: Path | str, version: str, hashes: Mapping[str, str] | None = None) -> "Silos":
        """All clients of a folder of silos, whose data version is `version`; its files are hashed here if nobody did."""
        folder = Path(folder).absolute()
        if hashes is None:
            hashes = {file: file_digest(str(folder / file)) for file in _HASHED if (folder / file).is_file()}
        silos = cls(str(folder), version, (), hashes={file: hashes[file] for file in _HASHED if file in hashes})
        return replace(silos, clients=silos._table.names)

    @property
    def pooled(self) -> bool:
        """Whether these are several clients taken for one."""
        return bool(self.members)

    @property
    def manifest(self) -> Manifest:
        """What the folder holds, read once a process."""
        return self._opened[0]

    def check(self, clients: Iterable[str] = (), common: bool = False) -> None:
        """UserError if the rows of these clients are no more what the version says; looks at the disk each time.

        So it does for the manifest and its columns, and for common rows if asked to.
        """
        for file in (MANIFEST, COLUMNS):
            _must_be(self.folder, self.version, file, self.hashes.get(file))
        if common:
            _must_be(self.folder, self.version, COMMON, self.hashes.get(COMMON), ", with the rows of all clients,")
        places = [self.index(client) for client in clients]
        wrong = self._opened[1].first_unsound(
            Path(self.folder), self._at if self.pooled and places else self._at[places]
        )
        if wrong is not None:
            entry, error = wrong
            raise _changed(self.folder, self.version, entry.file, f", with the rows of client {entry.name},", error)

    def rows(self, split: str) -> dict[str, int]:
        """The number of rows of each of these clients in a split."""
        return dict(zip(self.clients, self.rows_array(split).tolist(), strict=True))

    def rows_array(self, split: str) -> np.ndarray:
        """The same, in the order of `clients`: (clients,) int64."""
        rows = self._table.rows[self._at, SPLITS.index(split)].astype(np.int64)
        return rows.sum(keepdims=True) if self.pooled else rows

    def index(self, client: str) -> int:
        """A client's place in `clients`, and so in every array that is in their order."""
        place = self._places.get(client)
        if place is None:
            raise UserError(f"there is no client {client} among those chosen of {self.folder}.")
        return place

    def __contains__(self, client: object) -> bool:
        return client in self._places

    def of_role(self, role: Role) -> np.ndarray:
        """Which of `clients` are of this role: (clients,) bool."""
        return self._table.role[self._known_by] == ROLES.index(role)

    def common(self, split: str) -> int:
        """The number of rows of a split that no client owns."""
        return self.manifest.common.get(split, 0)

    def role(self, client: str) -> Role:
        """Whether a client is federated, fresh (a known law, never trained on) or unseen (a law nobody trained on)."""
        return ROLES[self._table.role[self._known_by[self.index(client)]]]

    def domain(self, client: str) -> str:
        """The client's law, by the name that the partition gave it; empty where the partition made no differences."""
        return self._table.domains[self._table.domain[self._known_by[self.index(client)]]]

    def laws(self) -> list[str]:
        """The laws of the clients that take part in training, sorted."""
        codes = np.unique(self._table.domain[self._known_by[self.of_role("federated")]])
        return sorted(self._table.domains[code] for code in codes.tolist())

    def federated(self) -> "Silos":
        """The clients that take part in training."""
        chosen = self.of_role("federated")
        return self if chosen.all() else replace(self, clients=tuple(compress(self.clients, chosen.tolist())))

    def entries(self, client: str) -> list[ClientEntry]:
        """The manifest's entries behind one client: one, or those of all members if pooled."""
        place = self.index(client)
        return [self._table[at] for at in (self._at if self.pooled else self._at[[place]]).tolist()]

    def select(self, clients: Sequence[str]) -> "Silos":
        """These clients only, in this order."""
        if tuple(clients) == self.clients:
            return self
        for name in clients:
            self.index(name)
        return replace(self, clients=tuple(clients))

    def pool(self) -> "Silos":
        """One client that owns the rows of all, in their order; pooling one client is that client."""
        if len(self.clients) == 1:
            return self
        return replace(self, clients=("+".join(self.clients),), members=self.clients)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone travel, not what was looked up."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _opened(self) -> tuple[Manifest, Sound]:
        return _open(self.folder, self.version, self.hashes.get(MANIFEST), self.hashes.get(COLUMNS))

    @property
    def _table(self) -> ClientTable:
        return self.manifest.clients

    @cached_property
    def _places(self) -> Mapping[str, int]:
        if self.clients == self._table.names:
            return self._table.places
        return {client: at for at, client in enumerate(self.clients)}

    @cached_property
    def _at(self) -> np.ndarray:
        """The places in the table of those who own the rows, of all members if pooled: int64."""
        owners = self.members or self.clients
        if owners == self._table.names:
            return np.arange(len(owners))
        return np.array([self.manifest.place(name) for name in owners], np.int64)

    @property
    def _known_by(self) -> np.ndarray:
        """The place whose role and domain are those of each of `clients`: (clients,) int64."""
        return self._at[:1] if self.pooled else self._at


@lru_cache(maxsize=16)
def _open(folder: str, version: str, *md5s: str | None) -> tuple[Manifest, Sound]:
    manifest = read_manifest(Path(folder))
    for file, md5 in zip((MANIFEST, COLUMNS), md5s, strict=True):
        _must_be(folder, version, file, md5)
    return manifest, Sound(manifest.clients)


def _must_be(folder: str, version: str, file: str, md5: str | None, about: str = "") -> None:
    try:
        if file_digest(f"{folder}/{file}") == md5:
            return
    except OSError as error:
        raise _changed(folder, version, file, about, error) from None
    raise _changed(folder, version, file, about)


def _changed(folder: str, version: str, file: str, about: str, error: OSError | None = None) -> UserError:
    path = f"{folder}/{file}"
    what = f"cannot be read any more ({error.strerror})" if error else f"is not what data version {version} says"
    way_out = "Start again: it is made anew"  # a sweep's, from the cache of partitions
    if Path(folder).parent.name == "data":
        way_out = (
            f"`siloflow data use {version[:12]}` brings that version back; if this file alone is damaged, delete it and "
            "`dvc checkout` does"
        )
    elif Path(path).is_symlink():  # of an earlier version
        way_out = f"Delete {Path(path).resolve()} of DVC's cache, and `siloflow data use` brings it back from a remote"
    return UserError(
        f"{path}{about} {what}: it was changed while it was in use, or it is damaged. {way_out}; --resume then goes on "
        "after the last whole round."
    )
