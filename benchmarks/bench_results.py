"""docs/results/bench.json: what benchmarks measured, by name, with the command, versions, and the machine in words."""

import os
import platform
import re
from collections.abc import Callable, Mapping
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import psutil

from silos.errors import UserError, shown
from silos.io.locks import in_turn
from tasks.tracking.json_io import read_json, write_records

BUSY = 0.25  # of each core: so much others may take before it is said that they did

_QUOTE = re.compile(r"\{(?P<name>[^{}:]+): (?P<what>[^{}]+?)(?: \.(?P<decimals>\d))?(?P<missing>\?)?\}")
_UNITS: Mapping[str, float] = {"percent": 0.01, "ms": 0.001, "hours": 3600, "MiB": 2**20}
_WORDS = {*_UNITS, "each"}


class BenchRecords:
    """Of this folder; `busy` is how many cores others used before the benchmark began."""

    def __init__(self, root: Path, busy: float = 0.0) -> None:
        self._file, self._lock = root / "docs" / "results" / "bench.json", root / "runs" / "bench.results.lock"
        self._busy = busy

    def keep(self, name: str, command: str, measured: Mapping[str, Any]) -> None:
        """In the place of what was measured under this name before."""
        versions = {one: installed(one) for one in ("torch", "numpy")} | {"python": platform.python_version()}
        record = {"command": command, "machine": machine(self._busy), "busy_before": round(self._busy, 2)}
        with in_turn(self._lock):
            write_records(
                self._file, {**self.all(), name: {**record, "versions": versions, "measured": dict(measured)}}
            )

    def all(self) -> dict[str, Any]:
        """name to record."""
        return read_json(self._file) or {}


class BenchQuotes:
    """Fills `{W2: ratio}` in from what was measured.

    What is asked for is a key, with / before a key or a place within it, `command` or `machine`; `each` before it is for a
    list, `percent`, `ms`, `hours` or `MiB` for another unit, or both; at the end ` .2` says how many decimals, and `?` that
    it may be missing.
    """

    def __init__(self, records: Mapping[str, Any]) -> None:
        self._records = records

    def fill(self, text: str) -> str:
        """UserError for what is not recorded."""
        return _QUOTE.sub(self._figure, text)

    def _figure(self, found: re.Match[str]) -> str:
        record = self._records.get(found["name"])
        if record is None:
            raise UserError(
                f"bench: {shown(repr(found['name']))} is not recorded; there are {', '.join(self._records)}."
            )
        if found["what"] in ("command", "machine"):
            return str(record[found["what"]])
        words, path = [], found["what"]
        while path.partition(" ")[0] in _WORDS:
            word, _, path = path.partition(" ")
            words.append(word)
        each = "each" in words
        value: Any = record["measured"]
        for key in path.split("/"):
            value = _within(value, key)
        if value is None:
            if found["missing"]:
                return ""
            raise UserError(f"bench: {found['name']} has no {shown(repr(path))}.")
        if isinstance(value, dict) or isinstance(value, list) != each:
            wanted = "no list" if each else "no single figure"
            raise UserError(f"bench: {shown(repr(path))} of {found['name']} is {wanted}.")
        unit = next((_UNITS[word] for word in words if word in _UNITS), 1)
        number = _number(int(found["decimals"]) if found["decimals"] else None, unit)
        return ", ".join(map(number, value)) if each else number(value)


def busy_cores() -> float:
    """How many of the machine's cores are at work during the next second, in which this process only waits.

    The load average would still tell of the benchmark before this one.
    """
    return psutil.cpu_percent(interval=1.0) / 100 * (os.cpu_count() or 1)


def _within(value: Any, key: str) -> Any:
    """What a mapping has under this key, or a list at this place; None if it has not."""
    if isinstance(value, list) and key.isdecimal():
        return value[int(key)] if int(key) < len(value) else None
    return value.get(key) if isinstance(value, dict) else None


def machine(busy: float) -> str:
    """`2 cores, Intel Xeon, 8 GiB; others used it` without a name by which it could be found."""
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    used = "others used it" if busy > BUSY * cores else "nobody else used it"
    return f"{cores} cores, {_processor()}, {memory:.0f} GiB; {used}"


def _processor() -> str:
    """Its kind, as Linux tells it, or what Python knows."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8", errors="replace").splitlines() if told.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _number(decimals: int | None, unit: float) -> Callable[[Any], str]:
    """Three digits that count, or so many decimals; text as it is."""

    def said(value: Any) -> str:
        if isinstance(value, str):
            return value
        number = value / unit
        auto = next((digits for digits, most in ((3, 0.9995), (2, 9.995), (1, 99.95)) if abs(number) < most), 0)
        auto = 0 if isinstance(value, int) and unit == 1 else auto
        return f"{number:,.{auto if decimals is None else decimals}f}"

    return said
