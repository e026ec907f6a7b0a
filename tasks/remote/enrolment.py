"""Let places join a coordinator: the files of both ends, and the keys that each pins of the other.

The coordinator invites a place by a file, which the place's owner gets over any channel. Each end has a key, and its
fingerprint is read to the other end on the telephone; the coordinator types that of the place. After that, neither
believes another key.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from silos.errors import UserError, shown, some
from silos.io.atomic_io import write_bytes
from silos.io.locks import in_turn
from silos.param_types import plain
from tasks.places.broker_access import COORDINATOR, add_token, make_certificate, remove_token
from tasks.places.envelopes import PrivateKey, PublicKey, write_secret
from tasks.places.planes import Plane, open_plane
from tasks.places.sessions import CoordinatorSession

FOLDER = ".places"
"""The folder of a project, coordinator's or place's, that git ignores."""

_KEY, _CERTIFICATE, _TOKEN, _BROKER = "key.pem", "tls.pem", "token", "broker"
_COORDINATOR, _PLACE = "coordinator.json", "place.json"
_JOIN, _ASKING = "join", "asking"
_WAYS_IN = "`siloflow place init ADDRESS` makes a coordinator, and `siloflow place join FILE` a place"


@dataclass(frozen=True)
class Invitation:
    """What a place's owner gets: `token` lets the place in at a broker, and is secret."""

    place: str
    address: str
    coordinator: str
    certificate: str
    token: str


@dataclass(frozen=True)
class Membership:
    """A place's own end: where messages travel, and the key that requests must be signed with."""

    place: str
    plane: Plane
    key: PrivateKey
    coordinator: PublicKey
    sessions: Path


def set_up(root: Path, address: str) -> PublicKey:
    """Make a project's folder a coordinator, with messages over a plane at this address; return its key.

    UserError if it is one already, or is a place.
    """
    folder = root / FOLDER
    for file, what in ((_COORDINATOR, "coordinator"), (_PLACE, "place")):
        if (folder / file).exists():
            raise UserError(
                f"{folder}: got the files of a {what}, expected none. `siloflow place status` describes it."
            )
    if "://" not in address:
        address = str((root / address).resolve())  # invitations carry it to other folders
    _make_folder(folder)
    if _is_broker(address):
        host = address.removeprefix("https://").rpartition(":")[0].strip("[]")
        make_certificate(folder / _CERTIFICATE, folder / _BROKER / "tls.key", host)
        write_secret(folder / _TOKEN, add_token(folder / _BROKER, COORDINATOR).encode())
    else:
        open_plane(address)
    key = PrivateKey.create(folder / _KEY)
    _write(folder / _COORDINATOR, {"address": address, "places": {}})
    return key.public


def invite(root: Path, place: str) -> Invitation:
    """Return the invitation of a new place; UserError if one of this name has joined."""
    folder, content = root / FOLDER, _coordinator(root)
    if plain(place, "the place") == COORDINATOR:
        raise UserError(f"the place: got {place}, the name of the other end, expected another. Choose another name.")
    if content["places"].get(place):
        raise UserError(
            f"place {place}: got a place that has joined, expected a new name. `siloflow place revoke` it first."
        )
    address = content["address"]
    token, certificate = "", ""
    if _is_broker(address):
        token, certificate = add_token(folder / _BROKER, place), (folder / _CERTIFICATE).read_text()
    _change_places(root, lambda places: {**places, place: None})
    return Invitation(place, address, PrivateKey.read(folder / _KEY).public.text, certificate, token)


def write_invitation(root: Path, place: str) -> Path:
    """Write the invitation of a new place into a file that its holder alone may read; see `invite`."""
    path = root / FOLDER / f"{place}.invitation.json"
    invitation = invite(root, place)
    path.unlink(missing_ok=True)
    write_secret(path, (json.dumps(asdict(invitation), indent=1) + "\n").encode())
    return path


def read_invitation(path: Path) -> Invitation:
    """Read the file of an invitation; UserError if it is none."""
    try:
        content = json.loads(path.read_bytes())
        invitation = Invitation(**content)
        if not all(isinstance(value, str) for value in content.values()):
            raise TypeError("got a value that is no text")
        PublicKey.from_text(invitation.coordinator)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}), expected an invitation. Check its path.") from None
    except (ValueError, TypeError, UserError):
        raise UserError(
            f"{path}: got no invitation, expected the whole file that `siloflow place invite` wrote."
        ) from None
    plain(invitation.place, f"{path}: place")
    return invitation


def join(root: Path, invitation: Invitation, fingerprint: str) -> PublicKey:
    """Make a project's folder the place of an invitation, and send its key to the coordinator; return that key.

    A place that has joined may join again by a new invitation to the same name, and keeps its key.

    Args:
        root: The place's project.
        invitation: What the coordinator sent.
        fingerprint: Of the coordinator's key, as it was read on the telephone.

    Raises:
        UserError: If the invitation holds another key, or the folder has joined otherwise.
    """
    folder = root / FOLDER
    if not same_key(fingerprint, PublicKey.from_text(invitation.coordinator).fingerprint):
        raise UserError(
            f"--key: got {shown(fingerprint)}, expected the key of the invitation. Let the coordinator read it again; if it "
            "still differs, delete the file and get a new one over another channel."
        )
    kept = asdict(invitation)
    record = {name: kept[name] for name in ("place", "address", "coordinator")}
    if (folder / _COORDINATOR).exists() or ((folder / _PLACE).exists() and place_record(root) != record):
        raise UserError(
            f"{folder}: got a folder that has joined or invites, expected a new one, or an invitation to the same place. "
            "Move it away to start again."
        )
    _make_folder(folder)
    if invitation.certificate:
        write_bytes(folder / _CERTIFICATE, invitation.certificate.encode())
        # the token of an earlier invitation: a secret is not written over
        (folder / _TOKEN).unlink(missing_ok=True)
        write_secret(folder / _TOKEN, invitation.token.encode())
    key = PrivateKey.read(folder / _KEY) if (folder / _KEY).exists() else PrivateKey.create(folder / _KEY)
    _write(folder / _PLACE, record)
    send_key(root)
    return key.public


def send_key(root: Path) -> None:
    """Put a place's key on the plane, until the coordinator accepts it."""
    membership = open_membership(root)
    membership.plane.put(f"from/{membership.place}/{_JOIN}", membership.key.public.text.encode())


def accept(root: Path, place: str, fingerprint: str, wait: float = 5.0) -> PublicKey:
    """Pin the key that a place has sent, if it has this fingerprint, and return it; UserError for none, or another."""
    content = _coordinator(root)
    if place not in content["places"]:
        raise UserError(
            f"place {place}: got a place that was not invited, expected one. `siloflow place invite {place}`."
        )
    plane = _plane(root, content["address"])
    found = plane.take(f"from/{place}/{_JOIN}", wait)
    if found is None:
        raise UserError(
            f"place {place}: got no key of it, expected one. Let its owner run `siloflow place join` first."
        )
    try:
        key = PublicKey.from_text(found[1].decode("ascii", "replace"))
    except UserError:
        key = None
    if key is None or not same_key(key.fingerprint, fingerprint):
        plane.drop(found[0])
        raise UserError(
            f"place {place}: got a key of another fingerprint, expected {shown(fingerprint)}. Another may have sent it: "
            "let the owner run `siloflow place join` again, and read the fingerprint aloud once more."
        )
    text = key.text
    _change_places(root, lambda places: {**places, place: text})
    plane.drop(found[0])
    return key


def revoke(root: Path, place: str) -> None:
    """Forget a place's key and token, such as after a theft; its data stay listed until the next partition."""
    folder, content = root / FOLDER, _coordinator(root)
    if place not in content["places"]:
        raise UserError(f"place {place}: got no such place, expected one of {some([*content['places']]) or 'none'}.")
    if _is_broker(content["address"]):
        remove_token(folder / _BROKER, place)
    _change_places(root, lambda places: {name: key for name, key in places.items() if name != place})


def _change_places(root: Path, change: Callable[[dict[str, str | None]], dict[str, str | None]]) -> None:
    """Write a coordinator's places again; other commands take their turn, so that none undoes a revocation."""
    with in_turn(root / FOLDER / "lock"):
        content = _coordinator(root)
        _write(root / FOLDER / _COORDINATOR, {**content, "places": change(content["places"])})


def places_of(root: Path) -> Mapping[str, PublicKey | None]:
    """Return the coordinator's places with their keys, None for one that was invited and not accepted yet."""
    places = _coordinator(root)["places"]
    return {name: PublicKey.from_text(key) if key else None for name, key in sorted(places.items())}


def coordinator_address(root: Path) -> str:
    """Return where a coordinator's messages travel."""
    return str(_coordinator(root)["address"])


def place_record(root: Path) -> dict[str, Any]:
    """Return what a place keeps of its invitation: place, address, coordinator; UserError if it has not joined."""
    return _read(root / FOLDER / _PLACE, "`siloflow place join FILE` makes it")


def own_key(root: Path) -> PublicKey:
    """Return the public key of this end."""
    return PrivateKey.read(root / FOLDER / _KEY).public


def same_key(first: str, second: str) -> bool:
    """Return whether two fingerprints are equal, however they are spelled."""
    return _letters(first) == _letters(second)


def is_place(root: Path) -> bool:
    """Return whether a project's folder has joined a coordinator."""
    return (root / FOLDER / _PLACE).exists()


def open_membership(root: Path) -> Membership:
    """Open a place's own end; UserError if the folder has not joined."""
    folder = root / FOLDER
    content = place_record(root)
    return Membership(
        content["place"],
        _plane(root, content["address"]),
        PrivateKey.read(folder / _KEY),
        PublicKey.from_text(content["coordinator"]),
        folder / "sessions",
    )


@contextmanager
def open_sessions(root: Path) -> Iterator[dict[str, CoordinatorSession]]:
    """Open a session with each place that has joined, at the first request; close them afterwards."""
    content, key = _coordinator(root), PrivateKey.read(root / FOLDER / _KEY)
    version = metadata.version("siloflow")
    sessions = {
        place: CoordinatorSession(
            _plane(root, content["address"]), key, place, public, version, root / FOLDER / _ASKING / place
        )
        for place, public in places_of(root).items()
        if public is not None
    }
    if not sessions:
        raise UserError(
            "places: got none that has joined, expected one or more. `siloflow place invite NAME` begins it."
        )
    try:
        yield sessions
    finally:
        for session in sessions.values():
            session.close()


@dataclass(frozen=True)
class BrokerFiles:
    """Where a coordinator's broker serves, and from what."""

    port: int
    folder: Path
    certificate: Path
    key: Path


def broker_files(root: Path) -> BrokerFiles:
    """Return what `siloflow place broker` serves; UserError if messages travel over a folder or bucket."""
    address, folder = _coordinator(root)["address"], root / FOLDER
    if not _is_broker(address):
        raise UserError(f"{address}: got a folder or bucket, which needs no broker, expected https://HOST:PORT.")
    port = int(address.rpartition(":")[2])
    return BrokerFiles(port, folder / _BROKER, folder / _CERTIFICATE, folder / _BROKER / "tls.key")


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    write_bytes(folder / ".gitignore", b"*\n")


def _is_broker(address: str) -> bool:
    if not address.startswith("https://"):
        return False
    host, colon, port = address.removeprefix("https://").rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
        raise UserError(
            f"{shown(address)}: got no host and port, expected https://HOST:PORT, a folder or s3://BUCKET/FOLDER."
        )
    return True


def _plane(root: Path, address: str) -> Plane:
    folder = root / FOLDER
    if not _is_broker(address):
        return open_plane(address)
    return open_plane(address, folder / _CERTIFICATE, (folder / _TOKEN).read_text())


def _coordinator(root: Path) -> dict[str, Any]:
    return _read(
        root / FOLDER / _COORDINATOR,
        _WAYS_IN,
    )


def _read(path: Path, way_out: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path} is missing; {way_out}.") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). Restore it from a copy.") from None
    found: dict[str, Any] = content
    return found


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())


def _letters(fingerprint: str) -> str:
    return "".join(letter for letter in fingerprint.casefold() if letter.isalnum())
