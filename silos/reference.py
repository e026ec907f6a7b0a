"""References to clients' rows on disk: what travels to a task instead of the rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from silos.errors import UserError
from silos.manifest import MANIFEST, ClientEntry, Manifest, read_manifest
from silos.rows import Role
from silos.scaling import AS_THEY_ARE, Scaling
from silos.versions.digest import file_digest, file_hashes


@dataclass(frozen=True)
class Silos:
    """A reference to clients' rows on disk: small, picklable, opened only where it is used.

    `members` is filled in by `pool`: then `clients` is one name, which owns the rows of all members. `hashes` are the
    md5s of the files that make up the version: whoever opens one of them, in whatever process, compares. `scaling` is what
    rows are opened with.
    """

    folder: str
    version: str
    clients: tuple[str, ...]
    members: tuple[str, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    scaling: Scaling = field(default=AS_THEY_ARE, repr=False)

    @classmethod
    def open(cls, folder: Path | str, version: str, hashes: Mapping[str, str] | None = None) -> "Silos":
        """All clients of a folder of silos, whose data version is `version`; its files are hashed here if nobody did."""
        hashes = file_hashes(Path(folder), None) if hashes is None else hashes
        silos = cls(str(Path(folder).absolute()), version, (), hashes=hashes)
        return replace(silos, clients=tuple(entry.name for entry in silos.manifest.clients))

    @property
    def pooled(self) -> bool:
        """Whether these are several clients taken for one."""
        return bool(self.members)

    @property
    def manifest(self) -> Manifest:
        """What the folder holds, read once a process."""
        return _manifest(self.folder, self.version, self.hashes.get(MANIFEST))

    def check(self, files: Mapping[str, str]) -> None:
        """UserError if the manifest or one of these files is no more what the version says; looks at the disk each time.

        `files` says whose rows each holds.
        """
        _must_be(self.folder, self.version, MANIFEST, self.hashes.get(MANIFEST))
        for file, whose in files.items():
            _must_be(self.folder, self.version, file, self.hashes.get(file), f", with the rows of {whose},")

    def rows(self, split: str) -> dict[str, int]:
        """The number of rows of each of these clients in a split."""
        if split not in self._rows:
            self._rows[split] = {n: sum(entry.rows[split] for entry in self.entries(n)) for n in self.clients}
        return dict(self._rows[split])

    def rows_array(self, split: str) -> np.ndarray:
        """The same as `rows`, in the order of `clients`: (clients,) int64."""
        return np.fromiter(self.rows(split).values(), np.int64, len(self.clients))

    def index(self, client: str) -> int:
        """A client's place in `clients`, and so in every array that is in their order."""
        if client not in self._places:
            raise self._stranger(client)
        return self._places[client]

    def __contains__(self, client: object) -> bool:
        return client in self._places

    @property
    def is_federated(self) -> np.ndarray:
        """Which of `clients` take part in training: (clients,) bool."""
        return np.fromiter((self.role(client) == "federated" for client in self.clients), bool, len(self.clients))

    def common(self, split: str) -> int:
        """The number of rows of a split that no client owns."""
        return self.manifest.common.get(split, 0)

    def role(self, client: str) -> Role:
        """Whether a client is federated, fresh (a known law, never trained on) or unseen (a law nobody trained on)."""
        return self._roles[client] if client in self._roles else self.entries(client)[0].role

    def domain(self, client: str) -> str:
        """The client's law, by the name that the partition gave it; empty where the partition made no differences."""
        return self.entries(client)[0].domain

    def laws(self) -> list[str]:
        """The laws of the clients that take part in training, sorted."""
        return sorted({self.domain(name) for name in self.clients if self.role(name) == "federated"})

    def federated(self) -> "Silos":
        """The clients that take part in training."""
        return replace(self, clients=tuple(name for name in self.clients if self.role(name) == "federated"))

    def entries(self, client: str) -> list[ClientEntry]:
        """The manifest's entries behind one client: one, or those of all members if pooled."""
        if client not in self._places:
            raise self._stranger(client)
        return [self.manifest.client(name) for name in self.members or (client,)]

    def select(self, clients: Sequence[str]) -> "Silos":
        """These clients only, in this order."""
        if tuple(clients) == self.clients:
            return self
        for name in clients:
            self.entries(name)
        return replace(self, clients=tuple(clients))

    def pool(self) -> "Silos":
        """One client that owns the rows of all, in their order; pooling one client is that client."""
        if len(self.clients) == 1:
            return self
        return replace(self, clients=("+".join(self.clients),), members=self.clients)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone travel, not what was looked up."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _stranger(self, client: str) -> UserError:
        return UserError(f"there is no client {client} among those chosen of {self.folder}.")

    @cached_property
    def _places(self) -> dict[str, int]:
        return {client: at for at, client in enumerate(self.clients)}

    @cached_property
    def _rows(self) -> dict[str, dict[str, int]]:
        return {}

    @cached_property
    def _roles(self) -> dict[str, Role]:
        return {name: self.entries(name)[0].role for name in self.clients}


@lru_cache(maxsize=16)
def _manifest(folder: str, version: str, md5: str | None) -> Manifest:
    manifest = read_manifest(Path(folder))
    _must_be(folder, version, MANIFEST, md5)
    return manifest


def _must_be(folder: str, version: str, file: str, md5: str | None, about: str = "") -> None:
    path = f"{folder}/{file}"
    try:
        if file_digest(path) == md5:
            return
        what = f"is not what data version {version} says"
    except OSError as error:
        what = f"cannot be read any more ({error.strerror})"
    way_out = "Start again: it is made anew"  # a sweep's, from the cache of partitions
    if Path(folder).parent.name == "data":
        way_out = (
            f"`siloflow data use {version[:12]}` brings that version back; if this file alone is damaged, delete it and "
            "`dvc checkout` does"
        )
    elif Path(path).is_symlink():  # of an earlier version
        way_out = f"Delete {Path(path).resolve()} of DVC's cache, and `siloflow data use` brings it back from a remote"
    raise UserError(
        f"{path}{about} {what}: it was changed while it was in use, or it is damaged. {way_out}; --resume then goes on "
        "after the last whole round."
    )
