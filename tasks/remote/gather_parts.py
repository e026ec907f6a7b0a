"""Ask places for what they hold, and write the coordinator's data from it: names, counts and digests, but no row."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from silos.errors import UserError, shown
from silos.privacy.owner_file import Policy
from silos.storage.manifest import COLUMNS, COMMON, MANIFEST, Manifest, to_bytes, to_json
from silos.storage.places import merge_parts
from tasks.places.sessions import CoordinatorSession, PlaceFailedError
from tasks.remote.answer_steps import read_answer
from tasks.remote.enrolment import coordinator_address, is_place, open_sessions, own_key, place_record, places_of
from tasks.remote.serve_place import PART, STATUS, PartOfData
from tasks.tracking.result_types.place_results import PlaceState, PlaceStatus

LISTING_PATIENCE = 60.0
"""Seconds in which a place answers what it holds."""


def write_listing(
    root: Path, folder: Path, name: str, recipe: Mapping[str, Any], common: Path
) -> tuple[Manifest, dict[str, Any]]:
    """Write the manifest of all places' silos; return it, and what their owners allow by silo.

    Args:
        root: The coordinator's project.
        folder: A new folder.
        name: The name of the data.
        recipe: The coordinator's section `data`.
        common: The file of the common rows, if places have some; each place has a copy of them.

    Raises:
        UserError: If a place does not answer, or parts do not fit together.
    """
    with open_sessions(root) as sessions, TemporaryDirectory() as scratch:
        parts = dict(zip(sessions, _ask_all(sessions, PART, PartOfData), strict=True))
        for place, part in parts.items():
            (Path(scratch) / place).mkdir()
            for file, content in ((MANIFEST, part.manifest), (COLUMNS, part.columns)):
                (Path(scratch) / place / file).write_bytes(content.numpy().tobytes())
        folders = {place: Path(scratch) / place for place in parts}
        manifest = merge_parts(name, recipe, folders, {place: part.digest for place, part in parts.items()})
    folder.mkdir(parents=True)
    if manifest.common:
        if not common.is_file():
            raise UserError(
                f"{common}: got no such file, expected the common rows that all places have. Copy it from a place, if its "
                "owner agrees that you have these rows."
            )
        (folder / COMMON).write_bytes(common.read_bytes())
    (folder / COLUMNS).write_bytes(to_bytes(manifest.clients))
    (folder / MANIFEST).write_bytes(to_json(manifest))
    return manifest, {
        client: policy for place, part in parts.items() for client, policy in _policies(place, part, manifest)
    }


def _policies(place: str, part: PartOfData, manifest: Manifest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what a place's owner allows of its own silos; UserError for what no owner's file can say."""
    for client, policy in part.policies.items():
        if client not in manifest.names or manifest.client(client).file not in manifest.places[place].files:
            raise UserError(f"place {place}: got what the owner of {shown(client)} allows, expected its own silos.")
        try:
            checked = Policy.model_validate(policy)
        except ValidationError:
            raise UserError(
                f"place {place}: {shown(client)}: got {shown(str(policy))}, expected an owner's keys."
            ) from None
        if content := checked.model_dump(mode="json", exclude_defaults=True):
            yield client, content


def status_of(root: Path) -> PlaceStatus:
    """Return this end's name and key; of a coordinator, also what each place answers."""
    if is_place(root):
        record = place_record(root)
        name, address, places = record["place"], record["address"], list[PlaceState]()
    else:
        name, address, joined = "coordinator", coordinator_address(root), places_of(root)
        answers = ask_states(root) if any(joined.values()) else {}
        places = [
            {
                "place": place,
                "joined": key is not None,
                "answer": answers.get(place, "was invited, and is not accepted yet"),
            }
            for place, key in joined.items()
        ]
    return {
        "role": "place" if is_place(root) else "coordinator",
        "name": name,
        "address": address,
        "fingerprint": own_key(root).fingerprint,
        "places": places,
    }


def ask_states(root: Path, patience: float = 5.0) -> dict[str, str]:
    """Return what each place that has joined says of itself, or why there is no answer."""
    with open_sessions(root) as sessions, ThreadPoolExecutor(len(sessions)) as threads:
        states = threads.map(lambda item: _state(item[0], item[1], patience), sessions.items())
        return dict(zip(sessions, states, strict=True))


def _state(place: str, session: CoordinatorSession, patience: float) -> str:
    try:
        state: str = read_answer(session.ask(STATUS, b"", patience), str, place)
    except (UserError, PlaceFailedError, ValueError, TypeError) as error:
        return str(error)
    return "".join(letter if letter.isprintable() else "?" for letter in shown(state))


def _ask_all(sessions: Mapping[str, CoordinatorSession], subject: str, returned: object) -> list[Any]:
    def ask(item: tuple[str, CoordinatorSession]) -> Any:
        place, session = item
        return read_answer(session.ask(subject, b"", LISTING_PATIENCE), returned, place)

    with ThreadPoolExecutor(len(sessions)) as threads:
        return list(threads.map(ask, sessions.items()))
