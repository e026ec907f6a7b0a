"""`siloflow init`: a project folder, with a params.yaml that fits the data."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.new_project import params_template
from flows.new_project.filled_template import filled
from flows.new_project.fitting_params import fitting
from flows.new_project.own_data import Asked, OwnData, look
from flows.params_file import read
from silos.dataset import some
from silos.errors import UserError, shown
from silos.identifiers import MOST
from silos.io.atomic_io import write_bytes
from silos.versioning.dvc_files import first_commit, versioned

_IGNORED = """# rows, what clients keep, results and caches; data.dvc says which rows there were
/data
/private/
/runs/
/.data-use/
/.data-used/
/cache/
/downloads/
/.prefect/
"""


def init(folder: Path, file: Path | None, asked: Asked) -> dict[str, Any]:
    """A project in this folder, new or empty but for the data's file, which is copied there if it lies elsewhere.

    A folder of pictures may take the place of the file. Without a file the data are the digits that come with
    scikit-learn. Answers with what was made, what was guessed and what to type next. UserError, and nothing made, for a
    folder that holds anything, and where the file is no source.
    """
    if file is not None and file.is_dir():
        file = file.resolve()  # `.` has no name
        if folder.resolve().is_relative_to(file):
            raise UserError(
                f"DIR: got {folder}, expected a folder outside of the pictures in {file}. Name another folder."
            )
    _must_be_free(folder, file)
    data = None if file is None else look(file, asked)
    text = params_template.text()
    if data is not None:
        text = filled(text, fitting(data, _plain(data), asked.clients))
    with _whole(folder):
        copied = file is not None and not _is_in(folder, file)
        if file is not None and copied:
            _copy(file, folder / file.name)
        ignored = "" if file is None else f"/{_as_pattern(file.name)}\n"
        write_bytes(folder / ".gitignore", (_IGNORED + ignored).encode())
        write_bytes(folder / "prefect.yaml", params_template.deployments().encode())
        write_bytes(folder / "params.yaml", params_template.pointed(text).encode())
        model = read(folder).model
        repositories = versioned(folder)
        committed = "git" in repositories and first_commit(folder)
    return {
        "folder": str(folder),
        "repositories": repositories,
        "committed": committed,
        "copied": file.name if file is not None and copied else None,
        "guessed": [] if data is None else list(data.guessed),
        "left_out": [] if data is None else list(data.left_out),
        "read": None if data is None else _read(data),
        "network": {"kind": model.kind, **({"hidden": model.hidden} if model.kind == "mlp" else {})},
    }


def _copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder without what is hidden."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"))
    else:
        shutil.copyfile(source, target)


def _must_be_free(folder: Path, file: Path | None) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder that is new or empty.")
    if (folder / "params.yaml").exists():
        raise UserError(
            f"{folder} is a project already: it has a params.yaml; name another folder, or change that file."
        )
    own = {file.name} if file is not None and _is_in(folder, file) else {}
    held = sorted(path.name for path in folder.iterdir() if path.name not in {".git", *own}) if folder.is_dir() else []
    if held:
        raise UserError(
            f"{folder} is not empty: it holds {some([shown(name, 40) for name in held], 3)}; name a new folder."
        )


def _is_in(folder: Path, file: Path) -> bool:
    """Whether the file, or a link to it, lies in the folder."""
    return file.parent.resolve() == folder.resolve()


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """The folder, in which nothing stays of what could not be ended."""
    new = not folder.exists()
    before = set() if new else set(folder.iterdir())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in set(folder.iterdir()) - before if folder.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if new and folder.is_dir():
            folder.rmdir()
        raise


def _as_pattern(name: str) -> str:
    """A file's name as git leaves it out: with brackets in it, it would be a pattern of other names."""
    return re.sub(r"([\\*?\[ ])", r"\\\1", name)


def _plain(data: OwnData) -> str:
    """The file's name as a folder under data/."""
    stem = data.source.path.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:MOST] or "mine"


def _read(data: OwnData) -> dict[str, Any]:
    """What the file holds."""
    rows = data.rows
    silos = rows.domain if rows.client is None else rows.client
    clients = None if silos is None else len(set(silos.tolist()))
    return {"rows": len(rows.y), "shape": list(rows.x.shape[1:]), "classes": len(rows.classes), "clients": clients}
