"""Serve a project's silos as a place, and describe what its coordinator learns and may ask."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.project.project import Project
from flows.project.run_sets import scratch_dir
from silos.cohort import Silos
from silos.dataset import SPLITS
from silos.errors import RefusalError, UserError
from silos.privacy.owner_file import OWNER_FILE, read_owner_file
from silos.privacy.request_log import (
    approval,
    approve,
    needs_approval,
    owner_file_digest,
    record_request,
    was_changed_after_approval,
)
from silos.storage.places import part_digest
from silos.versioning.data_versions import find_part, link_partition
from tasks.places.sessions import PlaceSessions
from tasks.remote.enrolment import is_place, open_membership, place_record
from tasks.remote.serve_place import PlaceServer, machine_of
from tasks.remote.step_list import client_steps, message_types, returned_by
from tasks.tracking.result_types.place_results import PlaceDescription


def serve_place(project: Project, say: Callable[[str], None]) -> None:
    """Answer the coordinator until the process ends.

    Args:
        project: The place's own project, with partitioned data.
        say: Receives a line at the start, and one for each request that fails; the log of the store has all.
    """
    membership = open_membership(project.root)
    silos = project.silos
    if silos.manifest.places:
        raise UserError(f"data/{project.params.data.name}: got data of other places, expected rows of this one.")
    store = Path(project.ledgers.folder)
    _check_approved(store)
    coordinator = f"coordinator {membership.coordinator.fingerprint}"

    def note(subject: str, fault: str) -> None:
        record_request(store, subject, fault or "answered", coordinator)
        if fault:
            say("".join(sign if sign.isprintable() else "?" for sign in f"{subject}: {fault}"))

    server = PlaceServer(
        Path(silos.folder),
        store,
        lambda: working(project, store),
        note,
        lambda digest: _earlier_part(project, digest),
    )
    _print_warnings(say)
    say(f"serving {len(silos.clients):,} silos as {membership.place}; ctrl-C ends it, and rounds go on without them")
    PlaceSessions(
        membership.plane,
        membership.key,
        membership.place,
        membership.coordinator,
        membership.sessions,
        server.respond,
    ).serve_forever()


def _check_approved(store: Path) -> None:
    """Raise RefusalError if the owner's file is not approved as it is now."""
    if needs_approval(store) and not approval(store):
        now = " as it is now, since it was changed after an approval" if was_changed_after_approval(store) else ""
        raise RefusalError(
            f"place serve: got no approval of private/{store.name}/{OWNER_FILE}{now}, expected its owner's. Read it, and "
            "type `siloflow place describe --approve`."
        )


@contextmanager
def working(project: Project, store: Path) -> Iterator[None]:
    """Protect data/ while a request is answered; RefusalError if the owner's file is not approved as it is now."""
    with project.data.working("place serve"):
        _check_approved(store)
        yield


@contextmanager
def _earlier_part(project: Project, digest: str) -> Iterator[Silos]:
    """Open the place's silos in an earlier version, from DVC's cache, in a folder of links."""
    name = project.params.data.name
    files = find_part(project.root, name, digest)
    if files is None:
        raise UserError(
            f"data/{name}: got an earlier part that this place's DVC cache does not have, expected one that it has. Bring "
            "it back with `siloflow data use`, or compare with another version."
        )
    with scratch_dir(project.root / "cache" / "versions" / f"part-{digest}") as folder:
        link_partition(project.root, name, files, folder / name)
        yield Silos.open(folder / name, f"part {digest[:12]}", files)


def describe_place(project: Project, approves: bool = False) -> PlaceDescription:
    """Return what the coordinator learns of a place, or would learn after `place join`, and what it may ask of it.

    Args:
        project: The place's own project.
        approves: Whether its owner approves that, so that the place may serve.
    """
    record = place_record(project.root) if is_place(project.root) else {"place": None, "address": None}
    manifest = project.silos.manifest
    if manifest.places:
        raise UserError(
            f"data/{manifest.name}: got data of other places, expected rows of this one. Run it at a place."
        )
    owner_file = Path(project.ledgers.folder) / OWNER_FILE
    digest = owner_file_digest(owner_file.parent)  # first: an edit while it is read is not approved
    owner, table = read_owner_file(owner_file), manifest.clients
    if approves:
        approve(owner_file.parent, digest)
    return {
        "place": record["place"],
        "address": record["address"],
        "data": manifest.name,
        "part": part_digest(Path(project.silos.folder)),
        "owner_file": str(owner_file.relative_to(project.root)),
        "approved": approval(owner_file.parent) if needs_approval(owner_file.parent) else None,
        "task": manifest.task,
        "classes": list(manifest.classes),
        "features": [feature.name for feature in manifest.features],
        "silos": [
            {
                "silo": name,
                "rows": dict(zip(SPLITS, rows, strict=True)),
                "policy": owner.of(name).model_dump(mode="json", exclude_defaults=True),
            }
            for name, rows in zip(table.names, table.rows.tolist(), strict=True)
        ],
        "machine": machine_of(),
        "steps": sorted(client_steps()),
        "messages": sorted({kind.__name__ for step in client_steps() for kind in message_types(returned_by(step))}),
    }


def _print_warnings(say: Callable[[str], None]) -> None:
    """Let what is logged, such as messages that are not signed and a plane that is away, reach the terminal."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(self.format(record))

    for name in ("tasks.places", "tasks.remote"):
        logging.getLogger(name).addHandler(Lines(logging.WARNING))
