"""The version of data/: DVC records it, and its hash is checked here without importing DVC."""

import io
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from silos.digest import file_hashes, folder_digest, listing_digest
from silos.errors import UserError
from silos.params import DataParams
from silos.store import Manifest

__all__ = ["folder_digest", "matches", "record", "recorded", "verify"]

DATA = "data"
RECORD = "data.dvc"

_CONFIG = {"core": {"analytics": False, "check_update": False, "autostage": False}}
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
            said = " ".join(str(error).split()).rstrip(".")
            raise UserError(
                f"DVC cannot record {root / DATA}: {said}. Mend that and run `siloflow partition` again."
            ) from error


def recorded(root: Path) -> str | None:
    """The hash that `root`/data.dvc holds, or None where there is no such file."""
    import yaml

    path = Path(root) / RECORD
    if not path.is_file():
        return None
    try:
        held = yaml.safe_load(path.read_bytes())
        (out,) = held["outs"]
        digest = out["md5"]
        if out["path"] != DATA or not isinstance(digest, str) or not digest.endswith(".dir"):
            raise ValueError(f"it should hold the hash of the folder {DATA}")
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise UserError(
            f"{path} is not what DVC writes ({said}); bring it back with git, or delete it and run "
            "`siloflow partition`."
        ) from error
    return digest


def verify(root: Path, name: str, cache: Path | None = None) -> str:
    """The data version of `root`/data/`name`, after checking that data/ is as data.dvc records it."""
    root = Path(root)
    expected = recorded(root)
    if not (root / DATA / name).is_dir():
        ways_out = _WAYS_OUT if expected else "`siloflow partition` makes it, as params.yaml describes it."
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
    return listing_digest({path.removeprefix(inside): md5 for path, md5 in hashes.items() if path.startswith(inside)})


def matches(manifest: Manifest, params: DataParams) -> None:
    """Raises UserError where the data section of params.yaml is not what the manifest was built from."""
    asked, built = params.model_dump(mode="json"), manifest.params
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
        before = recorded(root)
        if before is not None and not repo.status([str(root / RECORD)]):
            return before
        (stage,) = repo.add(str(root / DATA))
        return stage.outs[0].hash_info.value
    finally:
        repo.close()


def _repository(root: Path) -> Any:
    from dvc.exceptions import NotDvcRepoError
    from dvc.repo import Repo

    try:
        return Repo(str(root), config=_CONFIG)
    except NotDvcRepoError:
        above = [folder for folder in (root, *root.parents) if (folder / ".git").exists()]
        new = Repo.init(str(root), no_scm=not above, subdir=bool(above) and above[0] != root)
        with new.config.edit() as config:
            config["core"] |= {"analytics": False, "check_update": False}
        if above:
            new.scm.add([new.config.files["repo"]])  # `init` staged it as it was before the edit
        new.close()
        return Repo(str(root), config=_CONFIG)


@contextmanager
def _quiet() -> Iterator[None]:
    """Drops what DVC draws on a terminal; its import belongs in here too: it wraps the standard streams."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def _difference(root: Path, expected: str, hashes: Mapping[str, str]) -> str:
    """Which files differ from the recorded ones, where DVC's cache holds their list."""
    listed = _recorded_listing(root, expected)
    if listed is None:
        return f"its hash is {listing_digest(hashes)} and the recorded one {expected}"
    changed = sorted(path for path in listed.keys() & hashes.keys() if listed[path] != hashes[path])
    said = [
        f"{_some(paths)} {verb}"
        for paths, verb in (
            (changed, "changed"),
            (sorted(hashes.keys() - listed.keys()), "was added"),
            (sorted(listed.keys() - hashes.keys()), "is missing"),
        )
        if paths
    ]
    return ", ".join(said)


def _recorded_listing(root: Path, expected: str) -> dict[str, str] | None:
    root = root.resolve()
    for folder in (root, *root.parents):
        path = folder / ".dvc" / "cache" / "files" / "md5" / expected[:2] / expected[2:]
        try:
            return {entry["relpath"]: entry["md5"] for entry in json.loads(path.read_bytes())}
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


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
