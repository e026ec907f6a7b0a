"""Throws away what piles up, kind by kind, as far as it is agreed to and nobody works with it."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from flows.past.leftovers import Leftover, leftovers
from flows.past.open_files import open_elsewhere
from silos.errors import UserError
from silos.io.locks import alone


def clean(root: Path, agreed: Callable[[Leftover], bool]) -> dict[str, Any]:
    """What there is, and what of it is gone, as plain JSON; `agreed` is asked for each kind."""
    lines = []
    for one in leftovers(root):
        line = {"kind": one.kind, "lost": one.lost, "bytes": one.size, "deleted": agreed(one), "kept": []}
        line["places"] = [str(place.relative_to(root)) for place in one.places]
        if line["deleted"]:
            line["kept"] = [str(place.relative_to(root)) for place in one.places if not _thrown(one, place)]
        lines.append(line)
    return {"kinds": lines}


def _thrown(one: Leftover, place: Path) -> bool:
    """Whether it is gone; it stays where a process has begun to work on it meanwhile: a person is asked in between."""
    run = one.of.get(place)
    if place.is_file() and open_elsewhere([place]):
        return False
    try:
        with alone(run) if run is not None and run.is_dir() else nullcontext():
            if run is not None and (run / "result.json").is_file():
                return False
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    except UserError:
        return False
    _drop_empty(place.parent)
    return True


def _drop_empty(folder: Path) -> None:
    """Of private/ and of artifacts no empty folder stays."""
    if {"private", "artifacts"} & {*folder.parts} and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
