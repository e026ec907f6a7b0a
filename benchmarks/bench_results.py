"""Keep results of benchmarks in docs/results/bench.json by name, with command, versions and machine."""

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import psutil

from flows.training.run_records.mlflow_run_metadata import git_commit
from silos.io.locks import in_turn
from tasks.tracking.json_io import read_json, write_records

BUSY = 0.25  # share of each core that other programs may use before a record mentions them


class BenchRecords:
    """Reads and writes the records of a project.

    Args:
        root: The project.
        busy: How many cores other programs used before the benchmark began.
    """

    def __init__(self, root: Path, busy: float = 0.0) -> None:
        self._file, self._lock = root / "docs" / "results" / "bench.json", root / "runs" / "bench.results.lock"
        self._busy = busy

    def keep(self, name: str, command: str, measured: Mapping[str, Any]) -> None:
        """Record a result, and replace an earlier one of this name; ratios of all recordings stay in its history."""
        record: dict[str, Any] = {
            "command": command,
            "machine": machine(self._busy),
            "busy_before": round(self._busy, 2),
            "versions": {one: installed(one) for one in ("torch", "numpy")} | {"python": platform.python_version()},
            "measured": dict(measured),
        }
        with in_turn(self._lock):
            kept = self.all()
            if ratios := measured.get("ratio_by_turn"):
                line = {
                    "commit": git_commit(Path(__file__).resolve().parents[1], ".", ":!docs"),
                    "date": datetime.now(UTC).date().isoformat(),
                    "processor": processor_name("cuda" if name.endswith("-cuda") else "cpu"),
                    "busy_before": round(self._busy, 2),
                    "ratio_by_turn": ratios,
                }
                record["history"] = [*kept.get(name, {}).get("history", []), line]
            write_records(self._file, {**kept, name: record})

    def all(self) -> dict[str, Any]:
        """Return the records by name."""
        return read_json(self._file) or {}


def busy_cores() -> float:
    """Measure for a second how many cores are busy; the load average would still include the benchmark before."""
    return psutil.cpu_percent(interval=1.0) / 100 * (os.cpu_count() or 1)


def machine(busy: float) -> str:
    """Describe the machine without its name: `2 cores, Intel Xeon, 8 GiB; other load`."""
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    used = "other load" if busy > BUSY * cores else "no other load"
    return f"{cores} cores, {processor_name('cpu')}, {memory:.0f} GiB; {used}"


def processor_name(device: str) -> str:
    """Return the model of the CPU, or of the GPU for the device `cuda`."""
    if device == "cuda":
        import torch  # not needed for a CPU, and slow

        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
