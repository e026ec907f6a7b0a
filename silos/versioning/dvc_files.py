"""The version of data/: DVC records it, and its hash is checked without importing DVC.

A place may be installed without DVC. Its data then have the same record, and no earlier version can be restored.
"""

import io
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict

from pydantic import ValidationError

from silos.data_params import DataParams
from silos.errors import UserError, some
from silos.io.atomic_io import write_bytes
from silos.io.hashing import file_hashes, listing_digest
from silos.storage.manifest import Manifest
from silos.versioning.git_commands import has_repository, no_local_variables, run_git

DATA = "data"
RECORD = "data.dvc"

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HOW_TO_MAKE = "Run `siloflow partition` to make it from params.yaml."
_WAYS_OUT = (
    "Run `dvc checkout` (or `dvc pull`) to restore the recorded data, or `siloflow partition` to make new data "
    "and record them."
)


@cache
def is_installed() -> bool:
    """Return whether DVC is installed, which a place does without."""
    return find_spec("dvc") is not None


def record(root: Path) -> str:
    """Record `root`/data with DVC, without output, and return its hash, which `root`/data.dvc then holds.

    If `root` is in no DVC repository, one is created there.
    """
    root = Path(root).resolve()
    if not (root / DATA).is_dir():
        raise UserError(
            f"{root / DATA}: got no such folder, expected data to record. Run `siloflow partition` to make them."
        )
    if not is_installed():
        return _write_record(root)
    with _quiet():
        from dvc.exceptions import DvcException
        from dvc.scm import SCMError

        logging.getLogger("dvc").setLevel(logging.ERROR)  # importing DVC sets INFO, which Prefect would print
        try:
            return _add(root)
        except (DvcException, SCMError) as error:
            raise UserError(
                f"{root / DATA}: DVC cannot record it: {_message(error).rstrip('.')}. Correct that and run "
                "`siloflow partition` again."
            ) from error


def recorded_version(root: Path) -> str | None:
    """Return the hash in `root`/data.dvc, or None if there is no such file."""
    path = Path(root) / RECORD
    return parse_digest(path.read_bytes(), str(path)) if path.is_file() else None


def parse_digest(text: str | bytes, path: str = RECORD) -> str:
    """Parse the hash of data/ from the content of a data.dvc."""
    from silos import strict_yaml

    try:
        (out,) = strict_yaml.load(text)["outs"]
        digest = out["md5"]
        if out["path"] != DATA or not isinstance(digest, str) or not digest.endswith(".dir"):
            raise ValueError(f"it should hold the hash of the folder {DATA}")
    except (KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: got a file that DVC does not write ({reason}), expected its record. Restore it with git, or "
            "delete it and run `siloflow partition`."
        ) from error
    return digest


def verify(root: Path, name: str, cache: Path | None = None) -> dict[str, str]:
    """Check that data/ matches data.dvc, and return the md5 of each file of `root`/data/`name`.

    The `listing_digest` of these hashes is the data version.
    """
    root = Path(root)
    expected = recorded_version(root)
    if not (root / DATA / name).is_dir():
        ways_out = _WAYS_OUT if _could_check_out(root, expected) else _HOW_TO_MAKE
        raise UserError(f"{root / DATA / name}: got no such folder, expected a partition. {ways_out}")
    if expected is None:
        raise UserError(
            f"{root / RECORD} is missing, so the version of data/ is unknown. Run `siloflow partition` to record "
            "it, or restore the file with git."
        )
    hashes = file_hashes(root / DATA, cache)
    if listing_digest(hashes) != expected:
        raise UserError(
            f"data/: got files that differ from {RECORD}: {_difference(root, expected, hashes)}. {_WAYS_OUT}"
        )
    prefix = f"{name}/"
    return {path.removeprefix(prefix): md5 for path, md5 in hashes.items() if path.startswith(prefix)}


def _could_check_out(root: Path, digest: str | None) -> bool:
    """Return whether DVC has the recorded data in its cache, or may have it in a remote, unlike a fresh clone."""
    if digest is None:
        return False
    return has_remote(root) or listed_files(root, digest) is not None


def has_remote(root: Path) -> bool:
    """Return whether the project's own configuration of DVC names a remote, without the seconds of DVC's import."""
    config_files = (root / ".dvc" / "config", root / ".dvc" / "config.local")
    return any(
        "[remote" in path.read_text(errors="replace").replace("'", "") for path in config_files if path.is_file()
    )


def object_path(root: Path, md5: str) -> Path:
    """Return where DVC's cache stores the file or the folder's list with this hash, whether it exists or not."""
    return _cache(Path(root).resolve()) / md5[:2] / md5[2:]


def listed_files(root: Path, digest: str) -> dict[str, str] | None:
    """Return the files of a recorded folder and their hashes; None if DVC's cache lacks the list."""
    try:
        return {entry["relpath"]: entry["md5"] for entry in json.loads(object_path(root, digest).read_bytes())}
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def is_cached(root: Path, digest: str) -> bool:
    """Return whether DVC's cache holds all files of a recorded folder."""
    files = listed_files(root, digest)
    return files is not None and all(object_path(root, md5).is_file() for md5 in files.values())


def record_text(digest: str, files: int, size: int) -> str:
    """Return data.dvc as DVC writes it: the hash, and the number of files and of bytes."""
    return f"outs:\n- md5: {digest}\n  size: {size}\n  nfiles: {files}\n  hash: md5\n  path: {DATA}\n"


def check_out(record: Path, root: Path) -> None:
    """Fetch what `record`, a data.dvc in any folder of the project, records into the data/ folder next to it.

    Raises:
        UserError: If neither DVC's cache nor its default remote has it.
    """
    with _quiet():
        from dvc.exceptions import CheckoutError, DvcException

        logging.getLogger("dvc").setLevel(logging.ERROR)
        repo = None
        try:
            repo = _repository(root, no_scm=True)  # it does not matter whether git ignores that folder
            fetch = repo.config["core"].get("remote") and not is_cached(root, str(recorded_version(record.parent)))
            (repo.pull if fetch else repo.checkout)([str(record)], force=True)
        except CheckoutError as error:  # its text names a temporary folder
            raise UserError(
                f"DVC cannot restore version {recorded_version(record.parent)}: its cache and its remote lack files. Push "
                "them from a copy of the project that has them, or take params.yaml of that version and run `siloflow "
                "partition`."
            ) from error
        except (DvcException, ImportError) as error:  # ImportError: the remote's type needs another package
            raise UserError(
                f"DVC cannot restore version {recorded_version(record.parent)}: {_message(error)}"
            ) from error
        finally:
            if repo is not None:
                repo.close()


def _message(error: BaseException) -> str:
    """Return DVC's message on one line, without colours."""
    return " ".join(_COLOUR.sub("", str(error)).split())


def must_match_params(manifest: Manifest, params: DataParams) -> None:
    """Raise UserError if the data section of params.yaml is not what the manifest was built from."""
    requested, built = params.recipe(), manifest.params
    with suppress(ValidationError, UserError):  # built by a siloflow with other keys
        requested, built = params.in_full(), type(params).model_validate(built).in_full()
    if requested == built:
        return
    key, current, previous = _first_difference("data", requested, built)
    raise UserError(
        f"params.yaml: {key}: got {current}, expected {previous}, with which data/{manifest.name} was made. Run "
        "`siloflow partition` to make the data again, or set the value back."
    )


def _write_record(root: Path) -> str:
    """Write data.dvc as DVC would, and keep no copy of the files."""
    hashes = file_hashes(root / DATA, None)
    digest = listing_digest(hashes)
    size = sum((root / DATA / path).stat().st_size for path in hashes)
    write_bytes(root / RECORD, record_text(digest, len(hashes), size).encode())
    return digest


def _add(root: Path) -> str:
    repo = _repository(root)
    try:
        before = recorded_version(root)
        if before is not None and not repo.status([str(root / RECORD)]):
            return before
        (stage,) = repo.add(str(root / DATA))
        return stage.outs[0].hash_info.value
    finally:
        repo.close()


def _repository(root: Path, no_scm: bool = False) -> Any:
    from dvc.exceptions import NotDvcRepoError
    from dvc.repo import Repo

    config = _config(root)
    try:
        return Repo(str(root), config={"core": {**config["core"], **({"no_scm": True} if no_scm else {})}})
    except NotDvcRepoError:
        git_roots = [folder for folder in (root, *root.parents) if (folder / ".git").exists()]
        created = Repo.init(str(root), no_scm=not git_roots, subdir=bool(git_roots) and git_roots[0] != root)
        with created.config.edit() as config:
            config["core"] |= {"analytics": False, "check_update": False}
        if git_roots:
            created.scm.add([created.config.files["repo"]])  # `init` staged it before the edit
        created.close()
        return Repo(str(root), config=config)


def _config(root: Path) -> dict[str, dict[str, bool]]:
    """Return DVC's config: no analytics, update checks or staging, and no git if the folder has none, as a download."""
    config = {"analytics": False, "check_update": False, "autostage": False}
    home = next((folder for folder in (root, *root.parents) if (folder / ".dvc").is_dir()), root)
    return {"core": config if has_repository(home) else {**config, "no_scm": True}}


@lru_cache
def _cache(root: Path) -> Path:
    if not is_installed():
        return root / ".dvc" / "cache" / "files" / "md5"  # DVC's default, which a project from elsewhere may have
    with _quiet():
        from dvc.exceptions import DvcException, NotDvcRepoError
        from dvc.repo import Repo

        try:
            repo = Repo(str(root), config=_config(root))
        except NotDvcRepoError:
            raise UserError(
                f"{root}: got no DVC repository, expected one. Run `siloflow partition` to make and record data."
            ) from None
        except DvcException as error:
            raise UserError(f"DVC's settings cannot be read: {_message(error)}") from error
        try:
            return Path(repo.cache.local.path)
        finally:
            repo.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress DVC's terminal output and analytics; its import belongs inside, since it wraps the standard streams.

    DVC's git uses the repository around its folder, not one that a hook's environment names.
    """
    os.environ["DVC_NO_ANALYTICS"] = "1"
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), no_local_variables():
        yield


def _difference(root: Path, expected: str, hashes: Mapping[str, str]) -> str:
    """Describe which files differ from the recorded ones, if DVC's cache holds their list."""
    recorded = listed_files(root, expected)
    if recorded is None:
        return f"its hash is {listing_digest(hashes)} and the recorded one is {expected}"
    changed = sorted(path for path in recorded.keys() & hashes.keys() if recorded[path] != hashes[path])
    phrases = [
        f"{some([f'data/{path}' for path in paths], 3)} {verb}"
        for paths, verb in (
            (changed, "changed"),
            (sorted(hashes.keys() - recorded.keys()), "was added"),
            (sorted(recorded.keys() - hashes.keys()), "is missing"),
        )
        if paths
    ]
    return ", ".join(phrases)


def _first_difference(key: str, requested: object, built: object) -> tuple[str, str, str]:
    """Return the first key at which two plain JSON values differ, and both values as text."""
    if isinstance(requested, dict) and isinstance(built, dict):
        for name in [*requested, *(name for name in built if name not in requested)]:
            if name not in requested or name not in built:
                return f"{key}.{name}", _value_text(requested, name), _value_text(built, name)
            if requested[name] != built[name]:
                return _first_difference(f"{key}.{name}", requested[name], built[name])
    if isinstance(requested, list) and isinstance(built, list) and len(requested) == len(built):
        for index, (left, right) in enumerate(zip(requested, built, strict=True)):
            if left != right:
                return _first_difference(f"{key}[{index}]", left, right)
    return key, json.dumps(requested), json.dumps(built)


def _value_text(values: dict, name: str) -> str:
    return json.dumps(values[name]) if name in values else "nothing"


def init_repositories(root: Path) -> list[str]:
    """Create the repositories that `root` lacks, and return which: git, if it is installed, and DVC."""
    root, created = Path(root).resolve(), []  # parents of a relative path end at the working folder
    if not has_repository(root) and shutil.which("git"):
        run_git(root, "init", "--quiet").check_returncode()
        created.append("git")
    if is_installed() and not any((folder / ".dvc").is_dir() for folder in (root, *root.parents)):
        with _quiet():
            _repository(root).close()
        created.append("DVC")
    return created


def first_commit(root: Path) -> bool:
    """Commit all files that git does not ignore; False if git has no author's name and address, or refuses."""
    for arguments in (["add", "--all"], ["commit", "--quiet", "--message", "Start the project"]):
        if run_git(root, "-c", "user.useConfigOnly=true", *arguments).returncode:
            return False
    return True


class RemoteStatus(TypedDict):
    """How DVC's cache differs from the default remote: numbers of files."""

    remote: str
    push: int
    pull: int
    missing: int
    """In both."""
    problem: str | None
    """Why the remote could not be read; the numbers are 0 then."""


def remote_status(root: Path) -> RemoteStatus | None:
    """Compare DVC's cache with the default remote, as `dvc status -c`; None if there is no default remote.

    Returns:
        The remote's name, and how many files `push`, `pull` and are `missing` in both; or a `problem` with the remote.
    """
    root = Path(root).resolve()
    if not (root / RECORD).is_file() or not has_remote(root):
        return None
    with _quiet():
        from dvc.exceptions import DvcException
        from dvc.repo import Repo

        logging.getLogger("dvc").setLevel(logging.ERROR)
        repo = Repo(str(root), config=_config(root))
        try:
            remote = repo.config["core"].get("remote")
            if not remote:
                return None
            states = [*repo.status([str(root / RECORD)], cloud=True).values()]
            push, pull, missing = (states.count(word) for word in _REMOTE_STATES)
            return {"remote": remote, "push": push, "pull": pull, "missing": missing, "problem": None}
        except (DvcException, OSError, ImportError) as error:
            problem = _message(error).rstrip(".")
            return {"remote": remote, "push": 0, "pull": 0, "missing": 0, "problem": problem}
        finally:
            repo.close()


_REMOTE_STATES = ("new", "deleted", "missing")  # DVC's words for files to push, to pull, and in neither
