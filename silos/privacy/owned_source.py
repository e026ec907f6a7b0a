"""Find the store of the silos that params ask for, and check that params read their rows as the owner's file says.

A store belongs to a source and not to a name: the same file under another `data.name` has the same owner's file, ledgers
and budget.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from silos.data_params import DataParams
from silos.errors import RefusalError, UserError, shown
from silos.privacy.owner_file import OPENED, OWNER_FILE, OwnerFile, check_command, is_copy, make_store, read_owner_file
from silos.sources.source_params import PUBLIC_KINDS, is_public


def find_store(root: Path, data: DataParams) -> Path:
    """Return the store of these data's silos: the one whose owner's file names their source, or else that of `data.name`.

    UserError if the owner's file of that name cannot be read.
    """
    return store_of(root, data.name, data.source.kind, getattr(data.source, "path", None))


def store_of(root: Path, name: str, kind: str, path: str | None) -> Path:
    """Return the store of a source of this kind, in this file or folder; see `find_store`."""
    own = root / "private" / name
    if kind in PUBLIC_KINDS or (
        (own / OWNER_FILE).is_file() and _names(read_owner_file(own / OWNER_FILE), kind, path, root)
    ):
        return own
    for names in (_names, _overlaps):
        for file in sorted(own.parent.glob(f"[!.]*/{OWNER_FILE}")):
            with suppress(UserError):  # one that cannot be read stops its own silos only
                if names(read_owner_file(file), kind, path, root):
                    return file.parent
    return own


def prepare_store(root: Path, data: DataParams) -> Path | None:
    """Make the store of new data; return its owner's file if it was written.

    A store of public data has nothing to protect, so own data under the same name get a file of their own.
    """
    store = find_store(root, data)
    file = store / OWNER_FILE
    if file.exists() and not is_public(data.source) and read_owner_file(file).is_public:
        file.unlink()
    return file if make_store(store, data) else None


def check_partition(root: Path, data: DataParams) -> None:
    """Raise RefusalError if the owner's file does not allow `partition`, or fixes another reading of the source.

    An owner's file without `data` says of no source that it is its own, so that no other one is read until it does.
    """
    store = find_store(root, data)
    if not is_public(data.source):
        for file in sorted(store.parent.glob(f"[!.]*/{OWNER_FILE}")):
            _check_names_a_source(file, root)
    check_command(store, "partition", [""])
    check_source(root, data)


def _check_names_a_source(file: Path, root: Path) -> None:
    try:
        kind = read_owner_file(file).kind
    except UserError:  # one that cannot be read stops its own silos only
        return
    if kind is None and not is_copy(file):
        raise RefusalError(
            f"{file.relative_to(root)}: data: got none, expected at least the source of these silos, such as `data: "
            "{source: {kind: table, path: visits.csv, label: outcome}}`, so that its rows are read in no other way. Let "
            "their owner add it."
        )


def check_source(root: Path, data: DataParams, of_sweep: bool = False) -> None:
    """Raise RefusalError if params set a key that the owner's file fixes; nothing is fixed without such a file.

    of_sweep: of a partition of a sweep, which the seed draws. Its rows are reported only if no other silo reported them.
    """
    store = find_store(root, data)
    path = store / OWNER_FILE
    if not path.exists():
        return
    owner = read_owner_file(path)
    where, kind = path.relative_to(root), owner.kind
    if kind is None or owner.is_public:  # nothing to protect; `prepare_store` gives own data a file of their own
        return
    path_of_source = getattr(data.source, "path", None)
    if not _names(owner, data.source.kind, path_of_source, root):
        theirs, mine = owner.data["source"].get("path", kind), path_of_source or data.source.kind
        raise RefusalError(
            f"params.yaml: data.name: got {data.name}, whose store {where.parent} belongs to the source {theirs}, expected "
            f"another name for {mine}. Choose another data.name, or let the owner correct data.source in {where}."
            f"{_way_back(store)}"
        )
    refused, keys = list[str](), list[str]()
    for key, got, expected in _differences(owner, data, path):
        section = re.split(r"[.\[]", key)[0]
        if not {key, section} & {*owner.may_differ, *(["seed"] if of_sweep else [])}:
            refused.append(f"data.{key}: got {shown(got)}, expected {shown(expected)}")
            keys.append(section if "[" in key else key)
    if refused:
        raise RefusalError(
            f"params.yaml: {'; '.join(refused)}, as the silos' owner has set in {where}. "
            f"Set {'it' if len(refused) == 1 else 'them'} so, or let the owner add {', '.join(dict.fromkeys(keys))} to "
            f"may_differ there.{_way_back(store)}"
        )


def reported_nothing(store: Path) -> bool:
    """Return whether the folder of opened ledgers shows that none was opened; without it, they may have been deleted."""
    return (store / OPENED).is_dir() and not any((store / OPENED).iterdir())


def _way_back(store: Path) -> str:
    if not reported_nothing(store):
        return ""
    return " No ledger was opened yet, so the owner may also delete that file: `siloflow partition` writes it again."


def _names(owner: OwnerFile, kind: str, path: str | None, root: Path) -> bool:
    """Return whether an owner's file is of this source: of the same file or folder, or the same source of a plugin."""
    if owner.kind != kind:
        return False
    theirs = owner.data["source"].get("path")
    if path is None or theirs is None:
        return path is theirs
    return is_same_file(root / path, root / str(theirs))


def _overlaps(owner: OwnerFile, kind: str, path: str | None, root: Path) -> bool:
    """Return whether one folder of pictures lies in the other, so that some rows of both are the same."""
    if owner.kind != kind or kind != "folder" or path is None:
        return False
    mine, theirs = ((root / str(each)).resolve() for each in (path, owner.data["source"].get("path")))
    return mine.is_relative_to(theirs) or theirs.is_relative_to(mine)


def is_same_file(first: Path, second: Path) -> bool:
    """Return whether two paths lead to one file or folder, by any link."""
    if first.exists() and second.exists():
        return first.samefile(second)
    return first.resolve() == second.resolve()


def check_file(root: Path, path: Path) -> None:
    """Raise RefusalError if a file is the source of silos; `predict` copies columns of it, so their owner must allow it."""
    for file in sorted((root / "private").glob(f"[!.]*/{OWNER_FILE}")):
        owner = read_owner_file(file)
        source = owner.data.get("source", {}).get("path")
        if source is not None and is_same_file(path, root / str(source)):
            check_command(file.parent, "predict", [""])
            if not owner.every.owners_view:
                raise RefusalError(
                    f"input: got {path.name}, the source of silos of {file.parent.relative_to(root)}, expected a file of "
                    "other rows, since predictions repeat columns of each row. Predict a file of new rows, or let the owner "
                    f"set owners_view: true in {file.relative_to(root)}."
                )


def _differences(owner: OwnerFile, data: DataParams, path: Path) -> list[tuple[str, object, object]]:
    """Return the keys under `data` that differ from what the owner has fixed, with both values."""
    try:
        fixed = type(data).model_validate({**data.model_dump(mode="json"), **owner.data}).in_full()
    except (ValidationError, UserError) as error:
        raise UserError(f"{path}: data: got a section that cannot be read ({_first(error)}). Correct it.") from None
    got = data.in_full()
    if "path" in fixed["source"]:
        # `_names` has compared them, also if they are spelled otherwise
        fixed["source"]["path"] = got["source"]["path"]
    if "features" not in owner.data:
        fixed["features"] = []
    theirs, mine = _flat(fixed), _flat(got)
    same_features = theirs["features"] == mine["features"]
    keys = [key for key in {**theirs, **mine} if same_features or not key.startswith("features[")]
    return [(key, mine.get(key), theirs.get(key)) for key in keys if mine.get(key) != theirs.get(key)]


def _flat(data: Mapping[str, Any]) -> dict[str, object]:
    """Return the values under `data` by key: those of sections and features one by one, and the names of features."""
    features = data.get("features") or []
    flat = {key: value for key, value in data.items() if key not in ("source", "split", "features")}
    flat |= {f"{key}.{name}": value for key in ("source", "split") for name, value in data[key].items()}
    flat["features"] = [feature["name"] for feature in features]
    return flat | {f"features[{at}].{name}": value for at, each in enumerate(features) for name, value in each.items()}


def _first(error: ValidationError | UserError) -> str:
    return str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)
