"""The versions of the data: list them, compare them, and restore one.

A version is named by a git revision of data.dvc, or by the hash that DVC writes into data.dvc and every run records. A
partition of another version is opened as links into DVC's cache, without changing data/. When a version is restored, a
kill or a failure leaves the old or the new version complete.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypedDict

import numpy as np

from silos.data_overview import Shares, client_overview
from silos.dataset import SPLITS
from silos.errors import UserError, some
from silos.io.atomic_io import restore_moved, write_bytes
from silos.io.hashing import file_hashes, folder_digest, listing_digest
from silos.storage.manifest import COLUMNS, MANIFEST, ClientTable, Manifest, empty_table, read_manifest
from silos.storage.partition_store import open_client, open_missing, open_units
from silos.storage.places import digest_of_part
from silos.versioning.dvc_files import (
    DATA,
    RECORD,
    check_out,
    has_remote,
    is_cached,
    listed_files,
    object_path,
    parse_digest,
    record,
    record_text,
    recorded_version,
)
from silos.versioning.git_commands import failure_reason, run_git

CheckOut = Callable[[Path], None]
"""Fetches what a data.dvc of any folder records into the data/ folder next to that file."""

# in the project's folder, so that a rename is enough
_STAGED, _DONE = ".data-use", ".data-used"


def version_files(root: Path, digest: str) -> dict[str, str]:
    """Return the files of a version of data/ and their hashes; UserError if DVC's cache lacks their list."""
    files = listed_files(root, digest)
    if files is None:
        raise UserError(
            f"version {digest}: got no copy in DVC's cache, expected one. Restore it from a remote with `siloflow "
            f"data use {digest[:12]}`."
        )
    return files


def partition_files(files: dict[str, str], name: str) -> dict[str, str]:
    """Return the files of one partition, by their paths in it."""
    return {path.split("/", 1)[1]: md5 for path, md5 in files.items() if path.startswith(f"{name}/")}


def find_part(root: Path, name: str, digest: str) -> dict[str, str] | None:
    """Return the files of a partition as `partition_files` does, of a version in DVC's cache.

    Args:
        root: The project's folder.
        name: The name of the data.
        digest: The `part_digest` of the version; None is returned if no version has it.
    """
    for path in object_path(root, "").glob("??/*.dir"):
        files = partition_files(listed_files(root, path.parent.name + path.name) or {}, name)
        with suppress(OSError, KeyError):  # the cache lacks it
            if digest_of_part(*(object_path(root, files[file]).read_bytes() for file in (MANIFEST, COLUMNS))) == digest:
                return files
    return None


def link_partition(root: Path, name: str, hashes: dict[str, str], folder: Path) -> None:
    """Fill `folder` with links to the files of a partition; UserError if DVC's cache lacks one."""
    for path, md5 in hashes.items():
        source = object_path(root, md5)
        if not source.is_file():
            raise UserError(
                f"data/{name}/{path}: got no copy of that version in DVC's cache, expected one. Restore it with "
                "`siloflow data use VERSION`."
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
    """Return the versions in git's history, newest first; empty before the first commit."""
    if _git(root, "rev-parse", "--git-dir") and not _git(root, "rev-parse", "--verify", "--quiet", "HEAD", check=False):
        return []
    versions = []
    for (revision, date, subject), text in _committed(root):
        digest = parse_digest(text)
        versions.append(Version(revision, date, subject, digest, tuple(partitions(root, digest))))
    return versions


def _committed(root: Path) -> Iterator[tuple[list[str], str]]:
    """Yield revision, date and subject of every commit of data.dvc, and the content of the file in it."""
    log = _git(root, "log", "--format=%h%x09%cs%x09%s", "--", RECORD)
    for line in filter(None, log.split("\n")):  # a subject may contain other line separators
        commit = line.split("\t", 2)
        yield commit, _git(root, "show", "--end-of-options", f"{commit[0]}:./{RECORD}")


def partitions(root: Path, digest: str) -> dict[str, str]:
    """Return the hash of every partition in a version of data/, by name; empty if DVC's cache lacks the version."""
    files = listed_files(root, digest) or {}
    names = sorted({path.split("/", 1)[0] for path in files if "/" in path})
    return {name: listing_digest(partition_files(files, name)) for name in names}


def same_rows(root: Path, name: str, first: str, second: str) -> bool:
    """Return whether two versions of data/ have the same files of a partition, as far as DVC's cache knows them.

    Records of earlier siloflows carry the hash of the partition alone, which is compared instead.
    """
    return first == second or len({partitions(root, digest).get(name, digest) for digest in (first, second)}) == 1


def find_digest(root: Path, revision: str) -> str:
    """Return the hash of data/ for a revision, or the start of a hash; UserError if there is none."""
    text = _text_at(root, revision)
    if text:
        return parse_digest(text)
    prefix = revision.removesuffix(".dir")
    # a fresh clone has versions in git only; records of earlier siloflows name a partition's hash
    lists = sorted(object_path(root, "").glob("??/*.dir"), key=lambda path: -path.stat().st_mtime_ns)  # newest first
    versions = [*(path.parent.name + path.name for path in lists), *_committed_texts(root)]
    hashes_of = {digest: {digest, *partitions(root, digest).values()} for digest in versions}
    digests = [
        digest for digest, names in hashes_of.items() if len(prefix) >= 6 and any(n.startswith(prefix) for n in names)
    ]
    if recorded_version(root) in digests:
        return str(recorded_version(root))
    if not digests:
        with suppress(FileNotFoundError):
            run_git(root, "rev-parse")  # raises if git refuses the repository, and the revision may be one
        raise UserError(
            f"version: got {revision}, expected a git revision with a {RECORD} or the start of a hash in git or "
            "DVC's cache. `siloflow data log` lists versions."
        )
    return digests[0]


def use_version(root: Path, revision: str) -> str:
    """Restore data/ as it was in a version, from DVC's cache or its remote; return the version's hash.

    After a failure or a kill, data/ and data.dvc are either as before or as requested.

    Raises:
        UserError: If data/ holds something that DVC does not have, or if DVC does not have the version.
    """
    root = Path(root).resolve()
    text = _text_at(root, revision)
    _cache_current(root)
    if not text:
        digest = find_digest(root, revision)
        text = _committed_texts(root).get(digest, "")
    if not text:
        files = version_files(root, digest)
        size = sum(object_path(root, md5).stat().st_size for md5 in files.values() if object_path(root, md5).is_file())
        text = record_text(digest, len(files), size)
    _must_be_there(root, parse_digest(text))
    replace_data(root, text, lambda record: check_out(record, root))
    return parse_digest(text)


def _text_at(root: Path, revision: str) -> str:
    """Return data.dvc at a git revision; "" if it is none. UserError for an empty name: for git it is what is staged."""
    if not revision.strip():
        raise UserError(
            "version: got no name, expected a git revision, or the start of a version. `siloflow data log` lists versions."
        )
    return _git(root, "show", "--end-of-options", f"{revision}:./{RECORD}", check=False)


def _must_be_there(root: Path, digest: str) -> None:
    """Raise UserError if files of a version are gone, and no remote may have them."""
    if is_cached(root, digest) or has_remote(root):
        return
    raise UserError(
        f"DVC cannot restore version {digest}: its cache lacks files (`dvc gc` deletes versions that its options do "
        "not keep), and there is no remote. Copy the cache back, or take params.yaml of that version from git and run "
        "`siloflow partition`."
    )


def _committed_texts(root: Path) -> dict[str, str]:
    """Return the content of every committed data.dvc, by its hash; empty if git knows none."""
    with suppress(UserError):
        return {parse_digest(text): text for _, text in _committed(root)}
    return {}


def _cache_current(root: Path) -> None:
    """Put the content of data/ into DVC's cache if data.dvc records it; UserError if it is in neither."""
    hashes = file_hashes(root / DATA, None) if (root / DATA).is_dir() else {}
    if not hashes or is_cached(root, listing_digest(hashes)):
        return
    if listing_digest(hashes) != recorded_version(root):
        raise UserError(
            f"data/: got data that neither {RECORD} nor DVC's cache has, expected recorded data, since these "
            "would be lost. Run `dvc add data` to record them, or `dvc checkout --force` to discard them."
        )
    record(root)


def _git(root: Path, *arguments: str, check: bool = True) -> str:
    try:
        process = run_git(root, *arguments)
    except FileNotFoundError:
        code, output, reason = 1, "", "it is not installed"
    except UserError:
        if check:
            raise
        return ""
    else:
        code, output = process.returncode, process.stdout
        reason = failure_reason(process) or f"exit code {code}"  # a killed git gives no reason
    if code and check:
        raise UserError(
            f"git: cannot read the versions of data/ ({reason}). Use a clone of the repository, or name a version "
            "by its hash."
        )
    return "" if code else output


LISTED, FEW = 1_000, 20  # changed clients that are all described; number described if there are more


ChangeOfClient = Literal["added", "removed", "changed"]


class PartitionCounts(TypedDict):
    """The number of clients, and all rows by split."""

    clients: int
    rows: dict[str, int]


class PartitionChange(TypedDict):
    """The clients of a partition by how they changed, and its counts before and after."""

    name: str
    added: int
    removed: int
    changed: int
    before: PartitionCounts
    after: PartitionCounts


class ClientSide(TypedDict):
    """A client in one version."""

    domain: str
    rows: dict[str, int]
    label_shares: Shares
    """Empty for data of one's own, unless the owner's file says `owners_view: true`; likewise the mean is null."""
    mean: float | None


class ClientChange(TypedDict):
    """A client that differs between two versions; `before` or `after` is null if it is not there."""

    name: str
    """The partition."""
    client: str
    change: ChangeOfClient
    before: ClientSide | None
    after: ClientSide | None


class VersionChanges(TypedDict):
    """What differs between two versions of data/: the first clients, and counts of all."""

    silos: list[ClientChange]
    partitions: list[PartitionChange]


def diff(
    root: Path,
    before: str,
    after: str,
    is_open: Callable[[Manifest, str], bool] = lambda manifest, _: manifest.is_public,
) -> VersionChanges:
    """Compare two versions of data/, ready for JSON.

    Args:
        root: The project's folder.
        before: The hash of a version.
        after: The hash of another.
        is_open: Whether statistics of the rows of a client may be returned.

    `silos` has a record for every client that differs, or for the first FEW of more than LISTED: name of the partition,
    client, change (added, removed, changed), and rows and label shares before and after. `partitions` counts, for each
    partition that differs, its clients and rows before and after, and the clients of each change.
    """
    old, new = version_files(root, before), version_files(root, after)
    names = sorted({path.split("/", 1)[0] for path in {*old, *new} if old.get(path) != new.get(path)})
    result: VersionChanges = {"silos": [], "partitions": []}
    for name in names:
        with _open_partition(root, name, old, before) as older, _open_partition(root, name, new, after) as newer:
            changes = _changes(older.table, newer.table)
            kinds = [*changes.values()]
            result["partitions"].append(
                {
                    "name": name,
                    "added": kinds.count("added"),
                    "removed": kinds.count("removed"),
                    "changed": kinds.count("changed"),
                    "before": older.counts(),
                    "after": newer.counts(),
                }
            )
            # a list of thousands of silos is too long to read; the counts above are of all
            for client in sorted(changes)[: len(changes) if len(changes) <= LISTED else FEW]:
                result["silos"].append(
                    {
                        "name": name,
                        "client": client,
                        "change": changes[client],
                        "before": older.describe(client, is_open),
                        "after": newer.describe(client, is_open),
                    }
                )
    return result


def changed_silos(root: Path, name: str, before: str, after: str) -> dict[str, str]:
    """Map each client of a partition that differs between two versions to added, removed or changed.

    Digests in the client tables are compared. Rows are opened only where a value filled in for a missing one may be all
    that differs: the mean of other clients changes with their rows, and this is no change of the client.
    """
    old, new = version_files(root, before), version_files(root, after)
    with _open_partition(root, name, old, before) as older, _open_partition(root, name, new, after) as newer:
        changes: dict[str, str] = {**_changes(older.table, newer.table)}
        if not (older.fills_in_means() and newer.fills_in_means()):
            return changes
        return {
            client: how
            for client, how in changes.items()
            if how != "changed" or older.present_values(client) != newer.present_values(client)
        }


def _changes(older: ClientTable, newer: ClientTable) -> dict[str, ChangeOfClient]:
    """Return how each differing client changed, by comparing the digests of rows, without opening rows."""
    same = older.names == newer.names
    matches = (
        np.arange(len(newer)) if same else np.array([newer.indices.get(name, -1) for name in older.names], np.int64)
    )
    common = np.flatnonzero(matches >= 0)
    changed = common[(older.digest[common] != newer.digest[matches[common]]).any(axis=1)]
    removed = [] if same else [name for name in older.names if name not in newer.indices]
    added = [] if same else [name for name in newer.names if name not in older.indices]
    return {
        **{older.names[index]: "changed" for index in changed.tolist()},
        **dict.fromkeys(removed, "removed"),
        **dict.fromkeys(added, "added"),
    }


class _VersionPartition:
    """A partition of some version, as files that the store can read; without clients if the version lacks it."""

    def __init__(self, folder: Path, version: str) -> None:
        self._folder = folder
        self._manifest = read_manifest(folder, version) if (folder / MANIFEST).exists() else None
        self.table = self._manifest.clients if self._manifest else empty_table()

    def counts(self) -> PartitionCounts:
        """Count clients, and rows by split."""
        rows = self.table.rows.sum(axis=0, dtype=int).tolist()
        return {"clients": len(self.table), "rows": dict(zip(SPLITS, rows, strict=True))}

    def describe(self, client: str, is_open: Callable[[Manifest, str], bool]) -> ClientSide | None:
        """Return rows, domain and label shares of a client; None if it is not there."""
        if client not in self.table.indices or self._manifest is None:
            return None
        if not is_open(self._manifest, client):
            entry = self._manifest.client(client)
            return {"domain": entry.domain, "rows": dict(entry.rows), "label_shares": {}, "mean": None}
        statistics = client_overview(self._manifest, self._folder, self._manifest.client(client))
        return {
            "domain": statistics["domain"],
            "rows": statistics["rows"],
            "label_shares": statistics["label_shares"],
            "mean": statistics["mean"],
        }

    def fills_in_means(self) -> bool:
        """Return whether a mean replaces missing values of some feature, in rows that lie here."""
        if self._manifest is None or self._manifest.places:
            return False
        return any(feature.fill == "mean" for feature in self._manifest.features)

    def present_values(self, client: str) -> str:
        """Hash the rows of a client, with 0 instead of each filled-in value."""
        assert self._manifest is not None
        entry, hashed = self._manifest.client(client), hashlib.sha256()
        for split in SPLITS:
            x, y = open_client(self._folder, entry, split)
            missing, units = open_missing(self._folder, entry, split), open_units(self._folder, [entry], split)
            parts = [x, y] if missing is None else [np.where(missing, np.zeros_like(x), x), y, missing]
            for part in parts if units is None else [*parts, units]:
                hashed.update(f"{part.shape} {part.dtype}".encode() + part.tobytes())
        return hashed.hexdigest()


@contextmanager
def _open_partition(root: Path, name: str, files: dict[str, str], version: str) -> Iterator[_VersionPartition]:
    with TemporaryDirectory() as temporary:
        link_partition(root, name, partition_files(files, name), Path(temporary))
        yield _VersionPartition(Path(temporary), f"data/{name} of version {version[:12]}")


def replace_data(root: Path, text: str, check_out: CheckOut) -> None:
    """Make `root`/data.dvc this text and `root`/data what it records; on any failure, both stay as they are.

    The new folder is built and checked under another name, and replaces the old one by a rename. `recover` cleans up
    after a kill in between. Raises UserError if the contents are damaged, and whatever `check_out` raises.
    """
    recover(root)
    data, staged = root / DATA, root / _STAGED
    try:
        write_bytes(staged / RECORD, text.encode())
        check_out(staged / RECORD)
        if folder_digest(staged / DATA) != parse_digest(text):
            raise UserError(_damage(root, parse_digest(text), file_hashes(staged / DATA, None)))
        if data.is_mount():  # a rename cannot replace a mount
            return _check_out_in_place(root, text, check_out)
        if data.exists():
            data.rename(staged / "old")
        (staged / DATA).rename(data)
        (staged / RECORD).replace(root / RECORD)
    finally:
        recover(root)


def recover(root: Path) -> None:
    """Finish or undo a replacement of data/ that was killed."""
    data, staged, done = root / DATA, root / _STAGED, root / _DONE
    restore_moved(data)
    with contextlib.suppress(FileNotFoundError):  # another process recovers at the same time
        if (staged / "old").exists() and not data.exists():
            (staged / "old").rename(data)
        if (staged / RECORD).exists() and not (staged / DATA).exists() and data.is_dir():
            text = (staged / RECORD).read_bytes()
            if folder_digest(data) == parse_digest(text):
                (staged / RECORD).replace(root / RECORD)
        if staged.exists():
            staged.rename(done)
    shutil.rmtree(done, ignore_errors=True)


def _damage(root: Path, digest: str, hashes: Mapping[str, str]) -> str:
    """Name the files of DVC's cache with wrong contents; hashes: those of their contents."""
    damaged = [
        str(object_path(root, md5))
        for path, md5 in (listed_files(root, digest) or {}).items()
        if hashes.get(path) != md5
    ]
    return (
        f"DVC's cache: got damaged files of version {digest} ({some(damaged)}), expected their contents to match their "
        "names. Delete these files and repeat `siloflow data use`, which fetches them from the remote; or partition with "
        "the params of that version."
    )


def _check_out_in_place(root: Path, text: str, check_out: CheckOut) -> None:
    """Write into data/ itself; if that fails, write the previous version back."""
    before = (root / RECORD).read_bytes()
    write_bytes(root / RECORD, text.encode())
    try:
        check_out(root / RECORD)
    except BaseException:
        write_bytes(root / RECORD, before)
        check_out(root / RECORD)
        raise
