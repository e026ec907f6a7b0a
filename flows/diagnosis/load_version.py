"""Opens an earlier version of data/ from DVC's cache; data/ is not changed.

This module does not import Prefect: a command uses it before its server has an address, which Prefect reads at import.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from flows.core.console import progress
from flows.project.project import Project
from flows.project.run_sets import scratch_dir
from silos.cohort import Silos
from silos.errors import UserError, shown
from silos.io import locks
from silos.schema import Schema
from silos.storage.manifest import read_manifest, schema_of
from silos.versioning import data_versions
from silos.versioning.data_versions import link_partition, partition_files, version_files


@contextmanager
def load_version(project: Project, revision: str) -> Iterator[Silos]:
    """Open the project's partition in a version, as `siloflow data use` would restore it, in a folder of links.

    Waits while another command has the same version open. UserError if the version does not exist or is not in DVC's
    cache, or if its schema differs.
    """
    name = project.params.data.name
    version = data_versions.find_digest(project.root, revision)
    files = version_files(project.root, version)
    hashes = partition_files(files, name)
    if not hashes:
        others = ", ".join(sorted({path.split("/", 1)[0] for path in files if "/" in path}))
        raise UserError(f"params.yaml: data.name is {name}, and {shown(revision)} has {others or 'no data'} only.")
    location = project.root / "cache" / "versions" / version.removesuffix(".dir")
    lock = locks.write_lock(
        project.root / "runs" / "locks" / location.name, "another `siloflow diagnose --against`", progress.current().say
    )
    with lock, scratch_dir(location) as folder:
        link_partition(project.root, name, hashes, folder / name)
        read_manifest(folder / name, f"data/{name} in {shown(revision)}")
        silos = Silos.open(folder / name, version, hashes)
        fault = _difference(schema_of(silos.manifest), schema_of(project.silos.manifest))
        if fault:
            raise UserError(
                f"--against: got {shown(revision)}, in which data/{name} has another schema ({fault}), expected a version "
                "with the schema of data/. Name another version, or partition with the schema of that one."
            )
        yield silos


def _difference(before: Schema, after: Schema) -> str | None:
    """Return the first difference of two schemas in words; None without one."""
    for what, was, now in (
        ("the task", before.task, after.task),
        ("a row's shape", _shape(before.shape), _shape(after.shape)),
        ("the type of a row", before.dtype, after.dtype),
    ):
        if was != now:
            return f"{what} was {was} and is {now}"
    labels = _name_difference("label", before.classes, after.classes)
    if labels:
        return labels
    names = _name_difference("feature", *([feature.name for feature in schema.features] for schema in (before, after)))
    if names:
        return names
    for old, new in zip(before.features, after.features, strict=True):
        for key in old.written().keys() | new.written().keys():
            was, now = getattr(old, key), getattr(new, key)
            if was != now:
                return f"{key} of feature {old.name!r} was {shown(_value(was))} and is {shown(_value(now))}"
    return None


def _name_difference(what: str, before: Sequence[str], after: Sequence[str]) -> str | None:
    removed, new = (
        [name for name in names if name not in other] for names, other in ((before, after), (after, before))
    )
    if removed or new:
        parts = [
            f"{_name_first(what, listed)} {verb}" for listed, verb in ((new, "is new"), (removed, "is gone")) if listed
        ]
        return ", ".join(parts)
    return None if list(before) == list(after) else f"the {what}s are in another order"


def _name_first(what: str, names: list[str]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{what} {shown(repr(names[0]))}{more}"


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _value(value: object) -> str:
    return "not given" if value is None else str(value)
