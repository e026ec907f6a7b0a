"""Makes, finds and reads the folders in runs/ of a set of runs: a run, a comparison, a race, a sweep or a diagnosis."""

import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.project.project import Project
from silos.errors import UserError
from silos.io import locks
from tasks.tracking.json_io import RESTORE_ADVICE, read_json, write_json
from tasks.tracking.result_types.run_files import ExperimentRecord

UNNAMED = re.compile(r"([a-z]+)-(\d{8}-\d{6})-[0-9a-f]{4}")
"""The name of a set of runs that the user did not name: its kind, its start time, and a random suffix."""


def new_experiment(project: Project, kind: str, about: dict[str, Any], name: str | None = None) -> str:
    """Create the folder of a set of runs; without a name from the user, a unique one with the time is generated.

    A random tag, written before MLflow's run of the set exists, lets a killed process find that run again.
    """
    from prefect.runtime import flow_run  # here: `siloflow show` and `data` need no Prefect

    started = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    name = name or f"{kind}-{started}-{secrets.token_hex(2)}"
    tag = secrets.token_hex(8)
    record = {"kind": kind, "name": name, "started": started, "tag": tag, "flow_run": flow_run.id}
    record |= {"overrides": project.overrides, **about}
    write_json(project.store.runs / name / "experiment.json", record)
    return name


def newest_experiment(project: Project, kind: str, inside: str = "") -> str | None:
    """Return the set of runs of this kind that was started last.

    With `inside`, it is the last of those that hold such a run unfinished, begun with the same overrides, or else of those
    that hold it.
    """
    started = {}
    for path in project.store.runs.glob("*/experiment.json"):
        if not inside or (path.parent / inside / "run.json").is_file():
            name = path.parent.name
            unnamed = UNNAMED.fullmatch(name)
            info = {"kind": unnamed[1], "started": unnamed[2]} if unnamed else experiment(project, name)
            if info["kind"] == kind:  # by second, then by the file's time: a name ends randomly
                continues = bool(inside) and _continues(project, path, inside)
                started[name] = (continues, info["started"], path.stat().st_mtime_ns)
    return max(started, key=started.__getitem__, default=None)


NOT_OF_RUN = frozenset(
    ("advise", "callbacks", "comparison", "diagnose", "figures", "plugins", "retention", "runner", "tracking", "watch")
)
"""Sections of params.yaml that may change when a run is resumed: they change no weight, and no metric in its journal."""


def _of_run(overrides: Sequence[str]) -> set[str]:
    """Return the overrides that a resumed run must have again."""
    return {override for override in overrides if override.partition("=")[0].partition(".")[0] not in NOT_OF_RUN}


def _continues(project: Project, experiment: Path, run: str) -> bool:
    """Return whether this run is not finished, and was begun with the project's overrides, or by an earlier version."""
    files = (experiment, experiment.parent / run / "result.json")
    try:
        begun, result = (read_json(file) for file in files)
    except UserError:  # a damaged file: if it is of the newest, who opens the run gets the way out
        return False
    now = _of_run(project.overrides)
    same = begun is None or "overrides" not in begun or _of_run(begun["overrides"]) == now
    return same and (result is None or result.get("mlflow_run_id") is None)


def begun_before(project: Project, kind: str) -> str | None:
    """Return the set of runs that this flow run of Prefect began before its Retry; None if it began none."""
    from prefect.runtime import flow_run

    if flow_run.run_count < 2:
        return None
    for path in project.store.runs.glob("*/experiment.json"):
        info = read_json(path) or {}
        if (info.get("kind"), info.get("flow_run")) == (kind, flow_run.id):
            return path.parent.name
    return None


def experiment(project: Project, name: str) -> ExperimentRecord:
    """Read what `new_experiment` wrote."""
    path = project.store.runs / name / "experiment.json"
    info: ExperimentRecord | None = read_json(path, RESTORE_ADVICE, ("kind", "name"))
    if info is None:
        raise UserError(f"{path} is missing. {RESTORE_ADVICE}.")
    return info


def is_of_other_partition(project: Project, run: Path, version: str) -> bool:
    """Return whether a run in this folder was trained on a partition of the cache with this version, not on data/."""
    about = experiment(project, run.parent.name)
    return about["kind"] == "reproduce" or not project.data.same_rows(about.get("data_version", version), version)


@contextmanager
def scratch_dir(folder: Path) -> Iterator[Path]:
    """Provide an empty folder, which is deleted afterwards; the next call empties what a killed process left.

    Raises:
        UserError: If another process uses the folder.
    """
    with locks.exclusive_lock(folder):
        try:
            _empty(folder)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _empty(folder: Path) -> None:
    """Delete all folders inside, and so keep the lock file."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
