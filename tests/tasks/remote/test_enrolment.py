"""A place joins by an invitation and two keys read aloud; anything else is refused, and nothing is overwritten."""

import json
import stat

import pytest

from silos.errors import UserError
from tasks.places.envelopes import PrivateKey, PublicKey
from tasks.places.planes import open_plane
from tasks.remote import enrolment
from tasks.remote.enrolment import (
    FOLDER,
    accept,
    invite,
    join,
    open_membership,
    open_sessions,
    places_of,
    revoke,
    set_up,
)


@pytest.fixture
def ends(tmp_path):
    """A coordinator's and a place's folder, and the folder in which messages travel."""
    for name in ("plane", "coordinator", "place"):
        (tmp_path / name).mkdir()
    key = set_up(tmp_path / "coordinator", "../plane")
    return tmp_path / "coordinator", tmp_path / "place", key


def join_with(root, invitation):
    return join(root, invitation, PublicKey.from_text(invitation.coordinator).fingerprint)


def test_a_place_joins_and_each_end_pins_the_others_key(ends):
    coordinator, place, key = ends
    invitation = invite(coordinator, "north")
    assert invitation.coordinator == key.text
    assert places_of(coordinator) == {"north": None}
    own = join_with(place, invitation)
    accept(coordinator, "north", own.fingerprint.upper().replace(" ", "-"))
    assert places_of(coordinator) == {"north": own}
    membership = open_membership(place)
    assert (membership.place, membership.coordinator, membership.key.public) == ("north", key, own)
    with open_sessions(coordinator) as sessions:
        assert list(sessions) == ["north"]


def test_keys_are_readable_by_their_owner_alone_and_git_ignores_them(ends):
    coordinator, place, _ = ends
    join_with(place, invite(coordinator, "north"))
    for root in (coordinator, place):
        assert stat.S_IMODE((root / FOLDER / "key.pem").stat().st_mode) == 0o600
        assert (root / FOLDER / ".gitignore").read_text() == "*\n"


def test_another_key_than_the_one_read_aloud_is_not_accepted(ends, tmp_path):
    coordinator, place, _ = ends
    own = join_with(place, invite(coordinator, "north"))
    plane = open_plane(str(tmp_path / "plane"))
    plane.drop("from/north/join")
    plane.put("from/north/join", PrivateKey.create(tmp_path / "thief.pem").public.text.encode())
    with pytest.raises(UserError, match="got a key of another fingerprint"):
        accept(coordinator, "north", own.fingerprint)
    assert places_of(coordinator) == {"north": None}
    plane.put("from/north/join", b"\xff no key")
    with pytest.raises(UserError, match="got a key of another fingerprint"):
        accept(coordinator, "north", own.fingerprint)
    enrolment.send_key(place)
    accept(coordinator, "north", own.fingerprint)


def test_what_is_out_of_order_is_refused_with_the_way_out(ends, tmp_path):
    coordinator, place, _ = ends
    with pytest.raises(UserError, match="got the files of a coordinator"):
        set_up(coordinator, "../plane")
    with pytest.raises(UserError, match="was not invited"):
        accept(coordinator, "north", "00", wait=0)
    invitation = invite(coordinator, "north")
    with pytest.raises(UserError, match="got no key of it"):
        accept(coordinator, "north", "00", wait=0)
    with pytest.raises(UserError, match="got none that has joined"), open_sessions(coordinator):
        pass
    own = join_with(place, invitation)
    assert join_with(place, invitation) == own, "again, with the key that it has"
    with pytest.raises(UserError, match="expected the key of the invitation"):
        join(place, invitation, own.fingerprint)
    with pytest.raises(UserError, match="has joined or invites"):
        join_with(place, invite(coordinator, "south"))
    with pytest.raises(UserError, match="has joined or invites"):
        join_with(coordinator, invitation)
    accept(coordinator, "north", own.fingerprint)
    with pytest.raises(UserError, match="has joined, expected a new name"):
        invite(coordinator, "north")
    with pytest.raises(UserError, match="expected at most 100 letters"):
        invite(coordinator, "../etc")
    with pytest.raises(UserError, match=r"place\.json is missing"):
        open_membership(coordinator)
    with pytest.raises(UserError, match=r"coordinator\.json is missing"):
        places_of(place)
    for text in (
        "{}",
        "[",
        json.dumps({**invitation.__dict__, "place": "a/b"}),
        json.dumps({**invitation.__dict__, "token": 1}),
    ):
        (tmp_path / "file").write_text(text)
        with pytest.raises(UserError):
            enrolment.read_invitation(tmp_path / "file")


def test_a_revoked_place_is_believed_no_more(ends):
    coordinator, place, _ = ends
    accept(coordinator, "north", join_with(place, invite(coordinator, "north")).fingerprint)
    with pytest.raises(UserError, match="expected one of north"):
        revoke(coordinator, "south")
    revoke(coordinator, "north")
    assert places_of(coordinator) == {}


def test_an_address_of_a_broker_needs_a_port_and_gets_a_certificate(tmp_path):
    with pytest.raises(UserError, match="expected https://HOST:PORT"):
        set_up(tmp_path, "https://fl.example.org")
    set_up(tmp_path, "https://fl.example.org:8440")
    files = enrolment.broker_files(tmp_path)
    assert files.port == 8440
    invitation = invite(tmp_path, "north")
    assert "BEGIN CERTIFICATE" in invitation.certificate
    assert invitation.token
    assert invitation.token not in (files.folder / "tokens.json").read_text()
