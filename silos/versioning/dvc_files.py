"""The version of data/: DVC records it, and its hash is checked here without importing DVC."""

import io
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from silos.data_params import DataParams
from silos.errors import UserError
from silos.storage.manifest import Manifest
from silos.versioning.git_commands import has_repository, no_local_variables, run_git
from silos.versioning.hashing import file_hashes, folder_digest, listing_digest

__all__ = ["folder_digest", "must_match_params", "record", "recorded_version", "verify"]

DATA = "data"
RECORD = "data.dvc"

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MAKES_IT = "`siloflow partition` makes it, as params.yaml describes it."
_WAYS_OUT = (
    "`dvc checkout` (or `dvc pull`) brings the recorded data back, `siloflow partition` makes new data and records it."
)


def record(root: Path) -> str:
    """Versions `root`/data with DVC, quietly, and returns its hash, which `root`/data.dvc then holds.

    Where `root` lies in no DVC repository, one is made there.
    """
    root = Path(root).resolve()
    if not (root / DATA).is_dir():
        raise UserError(f"there is no folder {root / DATA} to record; `siloflow partition` makes it.")
    os.environ["DVC_NO_ANALYTICS"] = "1"
    with _quiet():
        from dvc.exceptions import DvcException
        from dvc.scm import SCMError

        logging.getLogger("dvc").setLevel(logging.ERROR)  # its import sets INFO, and Prefect would print that
        try:
            return _add(root)
        except (DvcException, SCMError) as error:
            raise UserError(
                f"DVC cannot record {root / DATA}: {_said(error).rstrip('.')}. Mend that and run `siloflow partition` again."
            ) from error


def make_repository(root: Path) -> None:
    """A DVC repository, quietly, where `root` lies in none."""
    os.environ["DVC_NO_ANALYTICS"] = "1"
    with _quiet():
        _repository(Path(root).resolve()).close()


def recorded_version(root: Path) -> str | None:
    """The hash that `root`/data.dvc holds, or None where there is no such file."""
    path = Path(root) / RECORD
    return digest_in(path.read_bytes(), str(path)) if path.is_file() else None


def digest_in(text: str | bytes, path: str = RECORD) -> str:
    """The hash of data/ that the content of a data.dvc holds."""
    from silos import strict_yaml

    try:
        (out,) = strict_yaml.load(text)["outs"]
        digest = out["md5"]
        if out["path"] != DATA or not isinstance(digest, str) or not digest.endswith(".dir"):
            raise ValueError(f"it should hold the hash of the folder {DATA}")
    except (KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} is not what DVC writes ({reason}); bring it back with git, or delete it and run "
            "`siloflow partition`."
        ) from error
    return digest


def verify(root: Path, name: str, cache: Path | None = None) -> dict[str, str]:
    """The md5 of each file of `root`/data/`name`, after checking that data/ is as data.dvc records it.

    Their `listing_digest` is the data version.
    """
    root = Path(root)
    expected = recorded_version(root)
    if not (root / DATA / name).is_dir():
        ways_out = _WAYS_OUT if _could_check_out(root, expected) else _MAKES_IT
        raise UserError(f"there is no folder {root / DATA / name}; {ways_out}")
    if expected is None:
        raise UserError(
            f"{root / RECORD} is missing, so the version of data/ is unknown; `siloflow partition` records "
            "it, or bring the file back with git."
        )
    hashes = file_hashes(root / DATA, cache)
    if listing_digest(hashes) != expected:
        raise UserError(f"data/ is not what {RECORD} records: {_difference(root, expected, hashes)}; {_WAYS_OUT}")
    inside = f"{name}/"
    return {path.removeprefix(inside): md5 for path, md5 in hashes.items() if path.startswith(inside)}


def _could_check_out(root: Path, digest: str | None) -> bool:
    """Whether DVC can have the recorded data: in its cache, or in a remote. A fresh clone has neither."""
    if digest is None:
        return False
    settings = (root / ".dvc" / "config", root / ".dvc" / "config.local")
    has_remote = any(
        "[remote" in path.read_text(errors="replace").replace("'", "") for path in settings if path.is_file()
    )
    return has_remote or listed_files(root, digest) is not None


def object_path(root: Path, md5: str) -> Path:
    """Where DVC's cache keeps the file or the folder's list with this hash, whether it is there or not."""
    return _cache(Path(root).resolve()) / md5[:2] / md5[2:]


def listed_files(root: Path, digest: str) -> dict[str, str] | None:
    """The files of a recorded folder and their hashes; None where DVC's cache does not hold the list."""
    try:
        return {entry["relpath"]: entry["md5"] for entry in json.loads(object_path(root, digest).read_bytes())}
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def is_cached(root: Path, digest: str) -> bool:
    """Whether DVC's cache holds all files of a recorded folder."""
    files = listed_files(root, digest)
    return files is not None and all(object_path(root, md5).is_file() for md5 in files.values())


def record_text(digest: str, files: int, size: int) -> str:
    """data.dvc as DVC writes it: the hash, and the number of files and of bytes."""
    return f"outs:\n- md5: {digest}\n  size: {size}\n  nfiles: {files}\n  hash: md5\n  path: {DATA}\n"


def check_out(record: Path, root: Path) -> None:
    """Fetch what `record`, a data.dvc in any folder of the project, records into the data/ folder next to it.

    Raises:
        UserError: If neither DVC's cache nor its default remote has it.
    """
    os.environ["DVC_NO_ANALYTICS"] = "1"
    with _quiet():
        from dvc.exceptions import DvcException

        logging.getLogger("dvc").setLevel(logging.ERROR)
        repo = None
        try:
            repo = _repository(root, no_scm=True)  # whether git ignores that folder is no matter
            fetch = repo.config["core"].get("remote") and not is_cached(root, str(recorded_version(record.parent)))
            (repo.pull if fetch else repo.checkout)([str(record)], force=True)
        except (DvcException, ImportError) as error:  # the second: of a kind of remote that needs another package
            raise UserError(
                f"DVC cannot bring version {recorded_version(record.parent)} back: {_said(error)}"
            ) from error
        finally:
            if repo is not None:
                repo.close()


def _said(error: BaseException) -> str:
    """DVC's message on one line, without the colours that it gives some of them."""
    return " ".join(_COLOUR.sub("", str(error)).split())


def must_match_params(manifest: Manifest, params: DataParams) -> None:
    """Raises UserError where the data section of params.yaml is not what the manifest was built from."""
    asked, built = params.recipe(), manifest.params
    with suppress(ValidationError, UserError):  # of a siloflow with other keys
        asked, built = params.in_full(), type(params).model_validate(built).in_full()
    if asked == built:
        return
    key, now, before = _first_difference("data", asked, built)
    raise UserError(
        f"params.yaml: {key} is {now}, and data/{manifest.name} was made with {before}; "
        "`siloflow partition` makes the data anew, or set the value back."
    )


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
        above = [folder for folder in (root, *root.parents) if (folder / ".git").exists()]
        new = Repo.init(str(root), no_scm=not above, subdir=bool(above) and above[0] != root)
        with new.config.edit() as config:
            config["core"] |= {"analytics": False, "check_update": False}
        if above:
            new.scm.add([new.config.files["repo"]])  # `init` staged it as it was before the edit
        new.close()
        return Repo(str(root), config=config)


def _config(root: Path) -> dict[str, Any]:
    """DVC without its own habits, and without git where the copy has none, as one that was downloaded."""
    config = {"analytics": False, "check_update": False, "autostage": False}
    home = next((folder for folder in (root, *root.parents) if (folder / ".dvc").is_dir()), root)
    return {"core": config if has_repository(home) else {**config, "no_scm": True}}


@lru_cache
def _cache(root: Path) -> Path:
    os.environ["DVC_NO_ANALYTICS"] = "1"
    with _quiet():
        from dvc.exceptions import DvcException, NotDvcRepoError
        from dvc.repo import Repo

        try:
            repo = Repo(str(root), config=_config(root))
        except NotDvcRepoError:
            raise UserError(f"{root} is in no DVC repository; `siloflow partition` makes and records data.") from None
        except DvcException as error:
            raise UserError(f"DVC's settings cannot be read: {_said(error)}") from error
        try:
            return Path(repo.cache.local.path)
        finally:
            repo.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Drops what DVC draws on a terminal; its import belongs in here too: it wraps the standard streams.

    DVC's git sees the repository around the folder that it is given, not one that a hook's environment names.
    """
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), no_local_variables():
        yield


def _difference(root: Path, expected: str, hashes: Mapping[str, str]) -> str:
    """Which files differ from the recorded ones, where DVC's cache holds their list."""
    known = listed_files(root, expected)
    if known is None:
        return f"its hash is {listing_digest(hashes)} and the recorded one {expected}"
    changed = sorted(path for path in known.keys() & hashes.keys() if known[path] != hashes[path])
    phrases = [
        f"{_some(paths)} {verb}"
        for paths, verb in (
            (changed, "changed"),
            (sorted(hashes.keys() - known.keys()), "was added"),
            (sorted(known.keys() - hashes.keys()), "is missing"),
        )
        if paths
    ]
    return ", ".join(phrases)


def _some(paths: list[str]) -> str:
    shown = ", ".join(f"data/{path}" for path in paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"


def _first_difference(key: str, asked: Any, built: Any) -> tuple[str, str, str]:
    """The first key at which two plain JSON values differ, and both values there as text."""
    if isinstance(asked, dict) and isinstance(built, dict):
        for name in [*asked, *(name for name in built if name not in asked)]:
            if name not in asked or name not in built:
                return f"{key}.{name}", _shown(asked, name), _shown(built, name)
            if asked[name] != built[name]:
                return _first_difference(f"{key}.{name}", asked[name], built[name])
    if isinstance(asked, list) and isinstance(built, list) and len(asked) == len(built):
        for index, (one, other) in enumerate(zip(asked, built, strict=True)):
            if one != other:
                return _first_difference(f"{key}[{index}]", one, other)
    return key, json.dumps(asked), json.dumps(built)


def _shown(held: dict, name: str) -> str:
    return json.dumps(held[name]) if name in held else "not given"


def versioned(root: Path) -> list[str]:
    """Makes the repositories that `root` lacks and answers with which: git, where it is installed, and DVC."""
    root, made = Path(root).resolve(), []  # of a relative path the parents end at the working folder
    if not has_repository(root) and shutil.which("git"):
        run_git(root, "init", "--quiet").check_returncode()
        made.append("git")
    if not any((folder / ".dvc").is_dir() for folder in (root, *root.parents)):
        make_repository(root)
        made.append("DVC")
    return made


def first_commit(root: Path) -> bool:
    """Commits all files that git does not ignore; False if git has no name and address of an author, or refuses."""
    for words in (["add", "--all"], ["commit", "--quiet", "--message", "Start the project"]):
        if run_git(root, "-c", "user.useConfigOnly=true", *words).returncode:
            return False
    return True
