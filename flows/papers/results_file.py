"""docs/results/<paper>.json: the records of finished runs, which several sweeps may write at once."""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.recording.json_files import read_json, write_json


@dataclass(frozen=True)
class Results:
    """Lists of records in one JSON file; `lock` is a file beside it in no folder that git has."""

    file: Path
    lock: Path

    def find(self, place: Sequence[str], asked: dict[str, Any]) -> dict[str, Any] | None:
        """The record in the list at this place that was asked for like this, as it is on disk now; None if there is none."""
        records = _list_at(read_json(self.file) or {}, place)
        found = [record for record in records if _same(record, asked)]
        return dict(found[0]) if found else None

    def keep(self, place: Sequence[str], asked: dict[str, Any], record: dict[str, Any]) -> None:
        """Writes one record down and leaves all others as they are on disk now, whoever wrote them and when."""
        with self._alone():
            results = read_json(self.file) or {}
            records = _list_at(results, place)
            records[:] = [other for other in records if not _same(other, asked)] + [record]
            write_json(self.file, results)

    def latest(
        self, place: Sequence[str], asked: dict[str, Any], found: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """The record with what was found now, written down if it is news; what is there already if nothing was found."""
        known = self.find(place, asked)
        if found is None:
            return known
        record = {**asked, **found}
        if record != known:
            self.keep(place, asked, record)
        return record

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One writer at a time; the others wait, for as long as writing takes. The lock goes with its process."""
        self.lock.parent.mkdir(parents=True, exist_ok=True)
        with self.lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _list_at(results: dict[str, Any], place: Sequence[str]) -> list[dict[str, Any]]:
    """The list of records below these keys, made if it is not there."""
    *sections, last = place
    for section in sections:
        results = results.setdefault(section, {})
    found: list[dict[str, Any]] = results.setdefault(last, [])
    return found


def _same(record: dict[str, Any], asked: dict[str, Any]) -> bool:
    return all(record[key] == value for key, value in asked.items())
