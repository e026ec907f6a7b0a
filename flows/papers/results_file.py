"""docs/results/<paper>.json: the records of finished runs, which several sweeps may write at once."""

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from silos.machine.locks import in_turn
from tasks.recording.json_files import read_json, write_json


class Results:
    """Lists of records in one JSON file, parsed once; `lock` is a file beside it in no folder that git has."""

    def __init__(self, file: Path, lock: Path) -> None:
        self.file, self._lock = file, lock
        self._content: dict[str, Any] | None = None

    def find(self, place: Sequence[str], asked: dict[str, Any]) -> dict[str, Any] | None:
        """The record in the list at this place that was asked for like this; None if there is none."""
        if self._content is None:
            self.read_again()
        records = [record for record in _there(self._content or {}, place) if _same(record, asked)]
        return dict(records[0]) if records else None

    def read_again(self) -> None:
        """As it is on disk now, whoever wrote there meanwhile."""
        self._content = read_json(self.file) or {}

    def keep(self, place: Sequence[str], asked: dict[str, Any], outcome: dict[str, Any]) -> None:
        """Writes one record down, what was asked with what came of it, and leaves all others as they are on disk now."""
        with in_turn(self._lock):
            results = read_json(self.file) or {}
            records = _list_at(results, place)
            records[:] = [other for other in records if not _same(other, asked)] + [{**asked, **outcome}]
            write_json(self.file, results)
        self.read_again()


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
