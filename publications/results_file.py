"""docs/results/<paper>.json: the records of finished runs, which several sweeps may write at once.

Under a project's own lie those that siloflow comes with.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from silos.io.locks import in_turn
from tasks.tracking.json_io import read_json, write_records

RECORDS = Path(__file__).parents[1] / "docs" / "results"


class Results:
    """Lists of records in one JSON file, parsed once; `lock` is a file beside it in no folder that git has.

    `shipped` is another, from which what the first lacks is read; nothing is written there.
    """

    def __init__(self, file: Path, lock: Path, shipped: Path | None = None) -> None:
        self.file, self._lock, self._shipped = file, lock, shipped
        self._content: dict[str, Any] | None = None

    def find(self, place: Sequence[str], asked: dict[str, Any]) -> dict[str, Any] | None:
        """The record in the list at this place that was asked for like this; None if there is none."""
        if self._content is None:
            self.read_again()
        found = _first(self._content or {}, place, asked) or _first(self._others, place, asked)
        return dict(found) if found else None

    def read_again(self) -> None:
        """As it is on disk now, whoever wrote there meanwhile."""
        self._content = read_json(self.file) or {}

    def where(self, root: Path) -> str:
        """The file to look into: in this folder, or else where siloflow is installed."""
        own = self._shipped is None or self.file.is_file()
        return str(self.file.relative_to(root) if own else self._shipped)

    def keep(self, place: Sequence[str], asked: dict[str, Any], outcome: dict[str, Any]) -> None:
        """Writes one record down, what was asked with what came of it, and leaves all others as they are on disk now."""
        with in_turn(self._lock):
            results = read_json(self.file) or {}
            records = _list_at(results, place)
            records[:] = [other for other in records if not _same(other, asked)] + [{**asked, **outcome}]
            write_records(self.file, results)
        self.read_again()

    @cached_property
    def _others(self) -> dict[str, Any]:
        """The shipped ones; in siloflow's own checkout they are the first file's."""
        if self._shipped is None or self._shipped.resolve() == self.file.resolve():
            return {}
        return read_json(self._shipped) or {}


def without_places(overrides: Sequence[str]) -> list[str]:
    """Overrides as the results keep them: they are committed, and where something lies on one machine is nobody's matter.

    A value that holds an absolute path or an address becomes its hash, so that two of them stay two.
    """
    kept = []
    for override in overrides:
        key, _, value = override.partition("=")
        place = re.search(r"""(^|[\s,:=\[{"'])(/|~)""", value)
        kept.append(f"{key}=(a place: {sha256(value.encode()).hexdigest()[:6]})" if place else override)
    return kept


def _first(results: dict[str, Any], place: Sequence[str], asked: dict[str, Any]) -> dict[str, Any] | None:
    return next((record for record in _there(results, place) if _same(record, asked)), None)


def _there(results: dict[str, Any], place: Sequence[str]) -> list[dict[str, Any]]:
    """The list of records below these keys, empty if it is not there."""
    *sections, last = place
    for section in sections:
        results = results.get(section, {})
    records: list[dict[str, Any]] = results.get(last, [])
    return records


def _list_at(results: dict[str, Any], place: Sequence[str]) -> list[dict[str, Any]]:
    """The list of records below these keys, made if it is not there."""
    *sections, last = place
    for section in sections:
        results = results.setdefault(section, {})
    records: list[dict[str, Any]] = results.setdefault(last, [])
    return records


def _same(record: dict[str, Any], asked: dict[str, Any]) -> bool:
    return all(record[key] == value for key, value in asked.items())
