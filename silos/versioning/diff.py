"""What changed between two versions of the data, client by client."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from silos.data_overview import figures
from silos.dataset import SPLITS
from silos.storage.client_table import ClientTable, empty_table
from silos.storage.partition_store import MANIFEST, read_manifest
from silos.versioning.history import files_of, inside, link

LISTED, FEW = 1_000, 20  # changed clients up to which each is described; how many are of more


def diff(root: Path, before: str, after: str) -> dict[str, list[dict[str, Any]]]:
    """What differs between two versions of data/, ready for JSON.

    `silos` has a record for every client that differs, or for a few of very many: name of the partition, client, change
    (added, removed, changed), and rows and label shares before and after. `partitions` counts, for each partition that
    differs, its clients and rows before and after, and those of each change.
    """
    old, new = files_of(root, before), files_of(root, after)
    names = sorted({path.split("/", 1)[0] for path in {*old, *new} if old.get(path) != new.get(path)})
    answer: dict[str, list[dict[str, Any]]] = {"silos": [], "partitions": []}
    for name in names:
        with _opened(root, name, old, before) as was, _opened(root, name, new, after) as now:
            changes = _changes(was.table, now.table)
            counts = {
                kind: sum(change == kind for change in changes.values()) for kind in ("added", "removed", "changed")
            }
            answer["partitions"].append({"name": name, **counts, "before": was.counts(), "after": now.counts()})
            for client in sorted(changes)[: len(changes) if len(changes) <= LISTED else FEW]:
                told = {"name": name, "client": client, "change": changes[client]}
                answer["silos"].append({**told, "before": was.describe(client), "after": now.describe(client)})
    return answer


def _changes(was: ClientTable, now: ClientTable) -> dict[str, str]:
    """Each client that differs, with how; by the digests of their rows, without opening any."""
    same = was.names == now.names
    at = np.arange(len(now)) if same else np.array([now.places.get(name, -1) for name in was.names], np.int64)
    there = np.flatnonzero(at >= 0)
    changed = there[(was.digest[there] != now.digest[at[there]]).any(axis=1)]
    gone = [] if same else [name for name in was.names if name not in now.places]
    come = [] if same else [name for name in now.names if name not in was.places]
    return {
        **{was.names[place]: "changed" for place in changed.tolist()},
        **dict.fromkeys(gone, "removed"),
        **dict.fromkeys(come, "added"),
    }


class _Opened:
    """A partition of some version, as files that the store can read; of no clients where it is not there."""

    def __init__(self, folder: Path, version: str) -> None:
        self._folder = folder
        self._manifest = read_manifest(folder, version) if (folder / MANIFEST).exists() else None
        self.table = self._manifest.clients if self._manifest else empty_table()

    def counts(self) -> dict[str, Any]:
        """Clients, and rows by split."""
        rows = self.table.rows.sum(axis=0, dtype=int).tolist()
        return {"clients": len(self.table), "rows": dict(zip(SPLITS, rows, strict=True))}

    def describe(self, client: str) -> dict[str, Any] | None:
        """Rows, domain and label shares of a client, None if it is not there."""
        if client not in self.table.places or self._manifest is None:
            return None
        found = figures(self._manifest, self._folder, self._manifest.client(client))
        return {key: found[key] for key in ("domain", "rows", "label_shares", "mean")}


@contextmanager
def _opened(root: Path, name: str, files: dict[str, str], version: str) -> Iterator[_Opened]:
    with TemporaryDirectory() as temporary:
        link(root, name, inside(files, name), Path(temporary))
        yield _Opened(Path(temporary), f"data/{name} of version {version[:12]}")
