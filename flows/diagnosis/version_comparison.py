"""An earlier version of data/, opened from DVC's cache.

Nothing here imports Prefect: a command looks here before its server has an address, which Prefect reads when it is imported.

Each silo beside itself in an earlier version of data/, which leaves data/ alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flows.console import progress
from flows.diagnosis.query_clients import build_query, bytes_reported, first_query, no_reports, query_clients
from flows.diagnosis.report import report_of_versions
from flows.diagnosis.text.findings_page import version_report_text
from flows.experiment.project import Project, scratch_dir
from models.shift.fomichev_distances import Readings
from silos.cohort import Silos
from silos.errors import UserError, shown
from silos.io import locks
from silos.schema import Schema
from silos.storage.manifest import read_manifest, schema_of
from silos.versioning import history
from silos.versioning.history import link_partition, partition_files, version_files
from tasks.diagnosis.compare_silos import ComparedVersions, compare_versions
from tasks.diagnosis.report_summary import summaries
from tasks.execution.task_runner import Runner


@contextmanager
def load_version(project: Project, revision: str) -> Iterator[Silos]:
    """The project's partition in a version, as `siloflow data use` would bring it back, in a folder of links.

    UserError where there is none, where DVC's cache does not hold it, and where its schema is another. Who has the same
    version open elsewhere is waited for.
    """
    name = project.params.data.name
    version = history.find_digest(project.root, revision)
    files = version_files(project.root, version)
    hashes = partition_files(files, name)
    if not hashes:
        others = ", ".join(sorted({path.split("/", 1)[0] for path in files if "/" in path}))
        raise UserError(f"params.yaml: data.name is {name}, and {shown(revision)} has {others or 'no data'} only.")
    place = project.root / "cache" / "versions" / version.removesuffix(".dir")
    turn = locks.write_lock(
        project.root / "runs" / "locks" / place.name, "another `siloflow diagnose --against`", progress.current().say
    )
    with turn, scratch_dir(place) as folder:
        link_partition(project.root, name, hashes, folder / name)
        read_manifest(folder / name, f"data/{name} in {shown(revision)}")
        silos = Silos.open(folder / name, version, hashes)
        fault = _difference(schema_of(silos.manifest), schema_of(project.manifest))
        if fault:
            raise UserError(
                f"data/{name} cannot be compared with what it was in {shown(revision)}: {fault}; name a version that has "
                "the schema of data/, or partition with the schema that it had then."
            )
        yield silos


def _difference(before: Schema, after: Schema) -> str | None:
    """The first thing in which two schemas differ, in words; None where they do not."""
    for what, was, now in (
        ("the task", before.task, after.task),
        ("a row's shape", _times(before.shape), _times(after.shape)),
        ("the type of a row", before.dtype, after.dtype),
    ):
        if was != now:
            return f"{what} was {was} and is {now}"
    labels = _names("label", before.classes, after.classes)
    if labels:
        return labels
    names = _names("feature", *([feature.name for feature in schema.features] for schema in (before, after)))
    if names:
        return names
    for old, new in zip(before.features, after.features, strict=True):
        for key in old.written().keys() | new.written().keys():
            was, now = getattr(old, key), getattr(new, key)
            if was != now:
                return f"{key} of feature {old.name!r} was {shown(_plain(was))} and is {shown(_plain(now))}"
    return None


def _names(what: str, before: Any, after: Any) -> str | None:
    gone, new = ([name for name in one if name not in other] for one, other in ((before, after), (after, before)))
    if gone or new:
        parts = [f"{_some(what, names)} {verb}" for names, verb in ((new, "is new"), (gone, "is gone")) if names]
        return ", ".join(parts)
    return None if list(before) == list(after) else f"the {what}s are in another order"


def _some(what: str, names: list[str]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{what} {shown(repr(names[0]))}{more}"


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _plain(value: Any) -> str:
    return "not given" if value is None else str(value)


def compare_with_version(project: Project, runner: Runner, revision: str) -> tuple[ComparedVersions, dict[str, Any]]:
    """What was found, and the same as plain JSON with the words for it.

    UserError as of `earlier`, and where no silo was there then.
    """
    params, data = project.params.diagnose, project.params.data.name
    if params.second_look:
        raise UserError(
            "params.yaml: diagnose.second_look is at pairs of silos, and --against compares each silo with itself; add "
            "--set diagnose.second_look=false."
        )
    private = project.ledgers
    with load_version(project, revision) as before:
        now, then = project.silos.federated(), before.federated()
        both = [client for client in now.clients if client in {*then.clients}]
        if not both:
            raise UserError(
                f"no silo of data/{data} was there in {shown(revision)}; `siloflow data diff` shows who was."
            )
        versions = [silos.select(both) for silos in (then, now)]
        first = first_query(now, params)
        to_first = [query_clients(runner, silos, private, first, params) for silos in versions] if first else []
        told = summaries([m for answers in to_first for m in answers.messages]) if first else None
        asked = build_query(now, params, told)  # the same of both versions: bins that either has rows in
        old, new = (query_clients(runner, silos, private, asked, params) for silos in versions)
    silent = {**old.silent, **new.silent}
    if len(silent) == len(both):
        raise UserError(no_reports(silent))
    readings = Readings(**params.paper.model_dump(), grid="federation")
    found: ComparedVersions = runner.run_on_server(
        compare_versions, old.messages, new.messages, asked, params.verdict, readings, progress.current().say
    )
    return found, version_report_text(
        {
            "verdict": params.verdict,
            "noise": params.noise.model_dump() if params.noise else None,
            **report_of_versions(found, asked),
            "came": sorted({*now.clients} - {*both}),
            "left": sorted({*then.clients} - {*both}),
            "silent": silent,
            "bytes": bytes_reported([*to_first, old, new]),
            "against": shown(revision),
            "since": before.version,
            "data_version": now.version,
        }
    )
