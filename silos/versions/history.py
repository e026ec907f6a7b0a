"""Versions of the data: which there were, and how to come back to one.

A version is named by a git revision of data.dvc, or by a hash: of data/ as in data.dvc, or of data/<name> as on every run.
"""

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from silos.errors import UserError
from silos.machine.files import write_bytes
from silos.versions.digest import file_hashes, listing_digest
from silos.versions.dvc_version import RECORD, digest_in, listed, object_path, record_text, recorded, restore
from silos.versions.git_command import run_git
from silos.versions.linked import files_of, inside

_UNDER_WAY = Path("runs") / ".data-use.json"  # which two versions `use` is between
_UNFINISHED = re.compile(r"\.[A-Za-z0-9_-]{22}\.tmp")  # as DVC names a file that it is writing
_EMPTY = hashlib.md5(b"", usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Version:
    """One recorded state of data/: the commit that recorded it, and the hash of every partition in it."""

    revision: str
    date: str
    subject: str  # of the commit
    digest: str
    partitions: dict[str, str]  # name to data version; empty where DVC's cache does not hold it


def log(root: Path) -> list[Version]:
    """The versions that git knows, newest first; none before the first commit."""
    if _git(root, "rev-parse", "--git-dir") and not _git(root, "rev-parse", "--verify", "--quiet", "HEAD", check=False):
        return []
    text = _git(root, "log", "--format=%h%x09%cs%x09%s", "--", RECORD)
    versions = []
    for line in filter(None, text.split("\n")):  # a subject may hold other ends of lines
        revision, date, subject = line.split("\t", 2)
        digest = digest_in(_git(root, "show", "--end-of-options", f"{revision}:./{RECORD}"))
        versions.append(Version(revision, date, subject, digest, partitions(root, digest)))
    return versions


def partitions(root: Path, digest: str) -> dict[str, str]:
    """The data version of every partition in a version of data/."""
    files = listed(root, digest) or {}
    names = sorted({path.split("/", 1)[0] for path in files if "/" in path})
    return {name: listing_digest(inside(files, name)) for name in names}


def find(root: Path, revision: str) -> str:
    """The hash of data/ that a revision, or the start of a hash, stands for; UserError if there is none."""
    if not revision.strip():  # to git that is what is staged
        raise UserError("no version is named; give a git revision, or the start of one that `siloflow data log` lists.")
    text = _git(root, "show", "--end-of-options", f"{revision}:./{RECORD}", check=False)
    if text:
        return digest_in(text)
    prefix = revision.removesuffix(".dir")
    known = {digest: {digest, *partitions(root, digest).values()} for digest in listed_digests(root)}
    digests = [
        digest for digest, names in known.items() if len(prefix) >= 6 and any(n.startswith(prefix) for n in names)
    ]
    if recorded(root) in digests:
        return str(recorded(root))
    if not digests:
        with suppress(FileNotFoundError):
            run_git(root, "rev-parse")  # raises if git refuses the repository, and the revision may be one
        raise UserError(
            f"{revision} is neither a git revision with a {RECORD} nor the start of a hash that DVC's cache knows; "
            "`siloflow data log` lists versions."
        )
    return digests[0]


def listed_digests(root: Path) -> list[str]:
    """Every version of a folder that DVC's cache holds, newest first."""
    paths = sorted(object_path(root, "").glob("??/*.dir"), key=lambda path: -path.stat().st_mtime_ns)
    return [path.parent.name + path.name for path in paths]


def use(root: Path, revision: str) -> str:
    """Brings data/ back as it was in a version, from DVC's cache or its remote; answers with the version's hash.

    UserError if data/ holds something that is not recorded. A process killed here leaves data/ between two versions;
    any call after it goes on.
    """
    there = _hashes(root)
    if not _is_recorded(root, there) and not _left_by_a_kill(root, there):
        raise UserError(
            f"data/ is not as {RECORD} records it, and would be lost; `dvc add data` records it, "
            "`dvc checkout --force` throws it away."
        )
    text = _git(root, "show", "--end-of-options", f"{revision}:./{RECORD}", check=False)
    if not text:
        digest = find(root, revision)
        files = files_of(root, digest)
        size = sum(object_path(root, md5).stat().st_size for md5 in files.values() if object_path(root, md5).is_file())
        text = record_text(digest, len(files), size)
    digest = digest_in(text)
    write_bytes(root / _UNDER_WAY, json.dumps({"from": there, "to": digest}).encode())
    try:
        restore(root, text)
    except BaseException:
        if _is_recorded(root, _hashes(root)):  # nothing was done
            (root / _UNDER_WAY).unlink()
        raise
    (root / _UNDER_WAY).unlink()
    return digest


def _hashes(root: Path) -> dict[str, str]:
    return file_hashes(root / "data", None) if (root / "data").is_dir() else {}


def _is_recorded(root: Path, hashes: dict[str, str]) -> bool:
    """Whether nothing would be lost with these files of data/."""
    return not hashes or listing_digest(hashes) == recorded(root)


def _left_by_a_kill(root: Path, there: dict[str, str]) -> bool:
    """Whether data/ holds nothing but files of the two versions between which `use` was ended, and DVC's unfinished ones."""
    try:
        under_way = json.loads((root / _UNDER_WAY).read_bytes())
        before, after = dict(under_way["from"]), listed(root, under_way["to"]) or {}
    except (OSError, ValueError, KeyError, TypeError):
        return False  # what cannot be read excuses nothing
    return all(
        md5 in (before.get(path), after.get(path))
        or (path in after and md5 == _EMPTY)
        or _UNFINISHED.fullmatch(path.rpartition("/")[2])
        for path, md5 in there.items()
    )


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
