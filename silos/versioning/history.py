"""Versions of the data: which there were, and how to come back to one.

A version is named by a git revision of data.dvc, or by the hash that DVC writes into data.dvc, which every run carries.

A partition of some version, opened without touching data/: links to what DVC's cache holds, under its names.

What changed between two versions of the data, client by client.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from silos.data_overview import figures
from silos.dataset import SPLITS
from silos.errors import UserError
from silos.storage.client_table import ClientTable, empty_table
from silos.storage.partition_store import MANIFEST, read_manifest
from silos.versioning.data_swap import replace_data
from silos.versioning.dvc_files import (
    DATA,
    RECORD,
    check_out,
    digest_in,
    is_cached,
    listed_files,
    object_path,
    record,
    record_text,
    recorded_version,
)
from silos.versioning.git_commands import run_git
from silos.versioning.hashing import file_hashes, listing_digest


def files_of(root: Path, digest: str) -> dict[str, str]:
    """The files of a version of data/ and their hashes; UserError where DVC's cache does not hold their list."""
    files = listed_files(root, digest)
    if files is None:
        raise UserError(
            f"DVC's cache does not hold version {digest}; `siloflow data use` brings it back from a remote."
        )
    return files


def inside(files: dict[str, str], name: str) -> dict[str, str]:
    """Those of one partition, by their paths in it."""
    return {path.split("/", 1)[1]: md5 for path, md5 in files.items() if path.startswith(f"{name}/")}


def link(root: Path, name: str, hashes: dict[str, str], folder: Path) -> None:
    """Makes `folder` that partition, of links; UserError where DVC's cache misses a file of it."""
    for path, md5 in hashes.items():
        source = object_path(root, md5)
        if not source.is_file():
            raise UserError(
                f"DVC's cache misses data/{name}/{path} of that version; `siloflow data use` brings it back."
            )
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(source)


@dataclass(frozen=True)
class Version:
    """One recorded state of data/: the commit that recorded it, its hash in data.dvc, and the partitions in it."""

    revision: str
    date: str
    subject: str  # of the commit
    digest: str
    partitions: tuple[str, ...]  # their names; empty if DVC's cache does not hold the version


def version_log(root: Path) -> list[Version]:
    """The versions that git knows, newest first; none before the first commit."""
    if _git(root, "rev-parse", "--git-dir") and not _git(root, "rev-parse", "--verify", "--quiet", "HEAD", check=False):
        return []
    versions = []
    for (revision, date, subject), text in _committed(root):
        digest = digest_in(text)
        versions.append(Version(revision, date, subject, digest, tuple(partitions(root, digest))))
    return versions


def _committed(root: Path) -> Iterator[tuple[list[str], str]]:
    """Yield revision, date and subject of every commit of data.dvc, and the content of the file in it."""
    log = _git(root, "log", "--format=%h%x09%cs%x09%s", "--", RECORD)
    for line in filter(None, log.split("\n")):  # a subject may hold other ends of lines
        commit = line.split("\t", 2)
        yield commit, _git(root, "show", "--end-of-options", f"{commit[0]}:./{RECORD}")


def partitions(root: Path, digest: str) -> dict[str, str]:
    """The hash of every partition in a version of data/, by its name; empty if DVC's cache does not hold the version."""
    files = listed_files(root, digest) or {}
    names = sorted({path.split("/", 1)[0] for path in files if "/" in path})
    return {name: listing_digest(inside(files, name)) for name in names}


def same_rows(root: Path, name: str, one: str, other: str) -> bool:
    """Whether two versions of data/ hold the same files of a partition, as far as DVC's cache knows them.

    What carries the hash of the partition alone, as records of earlier siloflows do, is compared by it.
    """
    return one == other or len({partitions(root, digest).get(name, digest) for digest in (one, other)}) == 1


def find(root: Path, revision: str) -> str:
    """The hash of data/ that a revision, or the start of a hash, stands for; UserError if there is none."""
    if not revision.strip():  # to git that is what is staged
        raise UserError("no version is named; give a git revision, or the start of one that `siloflow data log` lists.")
    text = _git(root, "show", "--end-of-options", f"{revision}:./{RECORD}", check=False)
    if text:
        return digest_in(text)
    prefix = revision.removesuffix(".dir")
    # a fresh clone has them in git only; records of earlier siloflows name a partition's own hash
    known = {digest: {digest, *partitions(root, digest).values()} for digest in [*listed_digests(root), *_in_git(root)]}
    digests = [
        digest for digest, names in known.items() if len(prefix) >= 6 and any(n.startswith(prefix) for n in names)
    ]
    if recorded_version(root) in digests:
        return str(recorded_version(root))
    if not digests:
        with suppress(FileNotFoundError):
            run_git(root, "rev-parse")  # raises if git refuses the repository, and the revision may be one
        raise UserError(
            f"{revision} is neither a git revision with a {RECORD} nor the start of a hash that git or DVC's cache knows; "
            "`siloflow data log` lists versions."
        )
    return digests[0]


def listed_digests(root: Path) -> list[str]:
    """Every version of a folder that DVC's cache holds, newest first."""
    paths = sorted(object_path(root, "").glob("??/*.dir"), key=lambda path: -path.stat().st_mtime_ns)
    return [path.parent.name + path.name for path in paths]


def use_version(root: Path, revision: str) -> str:
    """Brings data/ back as it was in a version, from DVC's cache or its remote; answers with the version's hash.

    On any failure, and if the process is killed, data/ and data.dvc are as they were, or as they are to be.

    Raises:
        UserError: If data/ holds something that DVC does not have, or if DVC does not have the version.
    """
    root = Path(root).resolve()
    _keep(root)
    text = _git(root, "show", "--end-of-options", f"{revision}:./{RECORD}", check=False)
    if not text:
        digest = find(root, revision)
        text = _in_git(root).get(digest, "")
    if not text:
        files = files_of(root, digest)
        size = sum(object_path(root, md5).stat().st_size for md5 in files.values() if object_path(root, md5).is_file())
        text = record_text(digest, len(files), size)
    replace_data(root, text, lambda record: check_out(record, root))
    return digest_in(text)


def _in_git(root: Path) -> dict[str, str]:
    """The content of every committed data.dvc, by its hash; empty where git knows none."""
    with suppress(UserError):
        return {digest_in(text): text for _, text in _committed(root)}
    return {}


def _keep(root: Path) -> None:
    """Puts what data/ holds into DVC's cache if data.dvc records it; UserError if it is in neither."""
    hashes = file_hashes(root / DATA, None) if (root / DATA).is_dir() else {}
    if not hashes or is_cached(root, listing_digest(hashes)):
        return
    if listing_digest(hashes) != recorded_version(root):
        raise UserError(
            f"data/ is neither what {RECORD} records nor in DVC's cache, and would be lost; `dvc add data` records it, "
            "`dvc checkout --force` throws it away."
        )
    record(root)


def _git(root: Path, *arguments: str, check: bool = True) -> str:
    try:
        done = run_git(root, *arguments)
    except FileNotFoundError:
        code, out, reason = 1, "", "it is not installed"
    except UserError:
        if check:
            raise
        return ""
    else:
        code, out, reason = done.returncode, done.stdout, (done.stderr.strip().splitlines() or [""])[-1]
    if code and check:
        raise UserError(
            f"the versions of data/ are read from git, and that fails ({reason}); a clone of the repository knows them, "
            "and a version's hash is a name everywhere."
        )
    return "" if code else out


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
