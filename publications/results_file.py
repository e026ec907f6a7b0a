"""Read and write docs/results/<paper>.json, the records of finished runs; several sweeps may write at once.

What a project's own records lack is read from the records in siloflow's checkout.
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
    """Lists of records in one JSON file, which is parsed once.

    Args:
        file: The file, which `keep` writes.
        lock: The lock of the file, outside folders that git tracks.
        shipped: A second file for records that the first lacks; never written.
    """

    def __init__(self, file: Path, lock: Path, shipped: Path | None = None) -> None:
        self.file, self._lock, self._shipped = file, lock, shipped
        self._content: dict[str, Any] | None = None

    def find(self, place: Sequence[str], key: dict[str, Any]) -> dict[str, Any] | None:
        """Return the record at this place that has the items of `key`; None if there is none."""
        if self._content is None:
            self.read_again()
        found = _first(self._content or {}, place, key) or _first(self._others, place, key)
        return dict(found) if found else None

    def read_again(self) -> None:
        """Read the file again, since another sweep may have written it."""
        self._content = read_json(self.file) or {}

    def where(self, root: Path) -> str:
        """Return the file with the records: the project's own, or else the shipped one."""
        own = self._shipped is None or self.file.is_file()
        return str(self.file.relative_to(root) if own else self._shipped)

    def keep(self, place: Sequence[str], key: dict[str, Any], outcome: dict[str, Any]) -> None:
        """Write one record, and leave all others as they are on disk.

        Args:
            place: The keys of the list that holds the record.
            key: The items by which the record is found; a record with these items is replaced at its place.
            outcome: The other items of the record.
        """
        with in_turn(self._lock):
            results = read_json(self.file) or {}
            records = _list_at(results, place)
            at = next((at for at, other in enumerate(records) if _same(other, key)), len(records))
            records[at:] = [{**key, **outcome}, *(other for other in records[at:] if not _same(other, key))]
            write_records(self.file, results)
        self.read_again()

    @cached_property
    def _others(self) -> dict[str, Any]:
        """Return the shipped records; none in siloflow's own checkout, where both files are one."""
        if self._shipped is None or self._shipped.resolve() == self.file.resolve():
            return {}
        return read_json(self._shipped) or {}


def without_places(overrides: Sequence[str]) -> list[str]:
    """Hide places on this machine in overrides, since records are committed.

    A value that holds an absolute path or an address becomes its hash, so that different values stay different.
    """
    kept = []
    for override in overrides:
        key, _, value = override.partition("=")
        place = re.search(r"""(^|[\s,:=\[{"'])(/|~)""", value)
        kept.append(f"{key}=(a place: {sha256(value.encode()).hexdigest()[:6]})" if place else override)
    return kept


def _first(results: dict[str, Any], place: Sequence[str], key: dict[str, Any]) -> dict[str, Any] | None:
    return next((record for record in _there(results, place) if _same(record, key)), None)


def _there(results: dict[str, Any], place: Sequence[str]) -> list[dict[str, Any]]:
    """Return the list of records below these keys; an empty list if there is none."""
    *sections, last = place
    for section in sections:
        results = results.get(section, {})
    records: list[dict[str, Any]] = results.get(last, [])
    return records


def _list_at(results: dict[str, Any], place: Sequence[str]) -> list[dict[str, Any]]:
    """Return the list of records below these keys; add it if there is none."""
    *sections, last = place
    for section in sections:
        results = results.setdefault(section, {})
    records: list[dict[str, Any]] = results.setdefault(last, [])
    return records


def _same(record: dict[str, Any], key: dict[str, Any]) -> bool:
    return all(record[key] == value for key, value in key.items())
