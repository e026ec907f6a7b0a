"""Ask places for what they hold, and write the coordinator's data from it: names, counts and digests, but no row."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from silos.errors import UserError, shown, some
from silos.privacy.owner_file import Policy
from silos.storage.manifest import COLUMNS, COMMON, MANIFEST, Manifest, read_manifest, to_bytes, to_json
from silos.storage.places import merge_parts
from tasks.places.sessions import CoordinatorSession, PlaceFailedError
from tasks.remote.answer_steps import read_answer
from tasks.remote.codec import pack
from tasks.remote.enrolment import coordinator_address, is_place, open_sessions, own_key, place_record, places_of
from tasks.remote.serve_place import MODEL, PART, STATUS, PartOfData, SentModel, machine_of
from tasks.remote.step_list import offered_functions
from tasks.tracking.result_types.place_results import PlaceState, PlaceStatus

LISTING_PATIENCE, MODEL_PATIENCE = 60.0, 120.0
"""Seconds in which a place answers what it holds, and in which it takes a model."""


def write_listing(
    root: Path, folder: Path, name: str, recipe: Mapping[str, Any], common: Path
) -> tuple[Manifest, dict[str, Any], list[str]]:
    """Write the manifest of all places' silos; return it, what their owners allow by silo, and notes.

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
        # the merge reads folders, as they lie at the places
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
    allowed = {client: policy for place, part in parts.items() for client, policy in _policies(place, part, manifest)}
    return manifest, allowed, machine_notes({place: part.machine for place, part in parts.items()})


def machine_notes(machines: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Name in what the machines of places, and the coordinator's, differ, since the last bits of results depend on it."""
    notes = []
    for key, own in machine_of().items():
        ends: dict[str, list[str]] = {own: ["the coordinator"]}
        for place, machine in machines.items():
            ends.setdefault(shown(machine.get(key, "unknown"), 40), []).append(place)
        if len(ends) > 1:
            differ = "; ".join(f"{value} at {some(names, 3)}" for value, names in ends.items())
            notes.append(f"{key} differs, so that the last bits of results may, too: {differ}")
    return notes


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


def are_parts_changed(root: Path, folder: Path) -> bool:
    """Return whether a place holds another part than that of a listing, or one has joined or left since."""
    with open_sessions(root) as sessions:
        parts: list[PartOfData] = _ask_all(sessions, PART, PartOfData)
        now = {place: part.digest for place, part in zip(sessions, parts, strict=True)}
    return now != {place: part.digest for place, part in read_manifest(folder).places.items()}


def send_to_places(root: Path, sent: Mapping[str, SentModel]) -> list[PlaceState]:
    """Send each place its model; return what each answers. UserError if none takes it."""
    with open_sessions(root) as sessions, ThreadPoolExecutor(len(sent)) as threads:
        if strangers := [place for place in sent if place not in sessions]:
            raise UserError(
                f"place {strangers[0]}: got data of this place, which has not joined, expected one of {some([*sessions])}. "
                "Let it join, or make the data again with `siloflow partition`."
            )
        bodies = {place: pack(content, offered_functions()) for place, content in sent.items()}
        states = threads.map(lambda place: _state(place, sessions[place], MODEL_PATIENCE, MODEL, bodies[place]), sent)
        answers = dict(zip(sent, states, strict=True))
    if not any(took for took, _ in answers.values()):
        raise UserError(
            f"places: got no model that was taken, expected one: {'; '.join(why for _, why in answers.values())}"
        )
    return [{"place": place, "joined": True, "answer": said} for place, (_, said) in answers.items()]


def ask_states(root: Path, patience: float = 5.0) -> dict[str, str]:
    """Return what each place that has joined says of itself, or why there is no answer."""
    with open_sessions(root) as sessions, ThreadPoolExecutor(len(sessions)) as threads:
        states = threads.map(lambda item: _state(item[0], item[1], patience), sessions.items())
        return {place: said for place, (_, said) in zip(sessions, states, strict=True)}


def _state(
    place: str, session: CoordinatorSession, patience: float, subject: str = STATUS, body: bytes = b""
) -> tuple[bool, str]:
    """Return whether a place answered, and its answer in words or why there is none."""
    try:
        state: str = read_answer(session.ask(subject, body, patience), str, place)
    except (UserError, PlaceFailedError, ValueError, TypeError) as error:
        return False, str(error)
    return True, "".join(letter if letter.isprintable() else "?" for letter in shown(state))


def _ask_all(sessions: Mapping[str, CoordinatorSession], subject: str, returned: object) -> list[Any]:
    def ask(item: tuple[str, CoordinatorSession]) -> Any:
        place, session = item
        return read_answer(session.ask(subject, b"", LISTING_PATIENCE), returned, place)

    with ThreadPoolExecutor(len(sessions)) as threads:
        return list(threads.map(ask, sessions.items()))
