"""References to clients' rows on disk: what travels to a task instead of the rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from silos.errors import UserError
from silos.store import ClientEntry, Manifest, read_manifest


@dataclass(frozen=True)
class Silos:
    """A reference to clients' rows on disk: small, picklable, opened only where it is used.

    `members` is filled in by `pool`: then `clients` is one name, which owns the rows of all members.
    """

    folder: str
    version: str
    clients: tuple[str, ...]
    members: tuple[str, ...] = ()

    @classmethod
    def open(cls, folder: Path | str, version: str) -> "Silos":
        """All clients of a folder of silos, whose data version is `version`."""
        folder = str(Path(folder).absolute())
        return cls(folder, version, tuple(entry.name for entry in _manifest(folder, version).clients))

    @property
    def pooled(self) -> bool:
        """Whether these are several clients taken for one."""
        return bool(self.members)

    @property
    def manifest(self) -> Manifest:
        """What the folder holds, read once a process."""
        return _manifest(self.folder, self.version)

    def rows(self, split: str) -> dict[str, int]:
        """The number of rows of each of these clients in a split."""
        return {name: sum(entry.rows[split] for entry in self.entries(name)) for name in self.clients}

    def entries(self, client: str) -> list[ClientEntry]:
        """The manifest's entries behind one client: one, or those of all members if pooled."""
        if client not in self.clients:
            raise UserError(f"there is no client {client} among those chosen of {self.folder}.")
        return [self.manifest.client(name) for name in self.members or (client,)]

    def select(self, clients: Sequence[str]) -> "Silos":
        """These clients only, in this order."""
        for name in clients:
            self.entries(name)
        return replace(self, clients=tuple(clients))

    def pool(self) -> "Silos":
        """One client that owns the rows of all, in their order; pooling one client is that client."""
        if len(self.clients) == 1:
            return self
        return replace(self, clients=("+".join(self.clients),), members=self.clients)


@lru_cache(maxsize=16)
def _manifest(folder: str, version: str) -> Manifest:  # noqa: ARG001, another version is another manifest
    return read_manifest(Path(folder))
