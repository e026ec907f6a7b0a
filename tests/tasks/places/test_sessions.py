"""Sessions: each request is carried out once, and nothing but the other side's own messages is believed."""

import hashlib
import json
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.places.broker_access import COORDINATOR
from tasks.places.envelopes import Header, PrivateKey, TooLargeError, seal, unseal
from tasks.places.planes import MOST_BYTES, FolderPlane, Plane
from tasks.places.sessions import (
    MOST_BODY,
    CoordinatorSession,
    PlaceAwayError,
    PlaceFailedError,
    PlaceRefusedError,
    PlaceSessions,
)

VERSION = "0.1.0"


class Place:
    """A place in a folder, with what its handler was called with; it serves when a test lets it."""

    def __init__(self, home: Path, keys: dict[str, PrivateKey], name: str = "north", **options: object):
        self.home, self.keys, self.name, self.options = home, keys, name, options
        self.plane = FolderPlane(str(home))
        self.calls: list[tuple[str, bytes]] = []
        self.restart()

    def restart(self) -> None:
        """As after a kill: all that is in memory is lost."""
        coordinator = self.keys[COORDINATOR].public
        folder = self.home / f".place-{self.name}"
        self.sessions = PlaceSessions(
            self.plane, self.keys[self.name], self.name, coordinator, folder, self.handle, VERSION, **self.options
        )

    def handle(self, header: Header, body: bytes) -> bytes:
        self.calls.append((header.subject, body))
        if header.subject == "fail":
            raise RuntimeError("no such column: " + "x" * 1000)
        return body * 100 if header.subject == "grow" else body[::-1]

    def answering(self) -> "Serving":
        return Serving(self)


class Serving:
    """Serves in a thread meanwhile."""

    def __init__(self, place: Place):
        self.place, self.stop = place, threading.Event()
        self.thread = threading.Thread(target=self.serve)

    def serve(self) -> None:
        while not self.stop.is_set():
            self.place.sessions.serve_once(0.05)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def place(tmp_path, keys) -> Place:
    return Place(tmp_path, keys)


def coordinator(place: Place, plane: Plane | None = None, **options: object) -> CoordinatorSession:
    key, public = place.keys[COORDINATOR], place.keys[place.name].public
    options = {"names": place.home / ".asking", **options}
    return CoordinatorSession(plane or place.plane, key, place.name, public, VERSION, **options)


def boxes(place: Place) -> dict[str, bytes]:
    files = [*place.home.glob("to/*/*"), *place.home.glob("from/*/*")]
    return {str(f.relative_to(place.home)): f.read_bytes() for f in files}


class Wire(FolderPlane):
    """A folder that keeps a copy of all that was put, and may change what is put or taken."""

    def __init__(self, address: str):
        super().__init__(address)
        self.seen: list[tuple[str, bytes]] = []
        self.change: Callable[[str, bytes], bytes | None] = lambda _, content: content

    def put(self, key: str, content: bytes) -> None:
        self.seen.append((key, content))
        changed = self.change(key, content)
        if changed is not None:
            super().put(key, changed)


@pytest.fixture
def talked(place) -> tuple[Place, list[tuple[str, bytes]]]:
    """A place after a session of three requests, and the envelopes of all four requests."""
    wire = Wire(str(place.home))
    with place.answering():
        session = coordinator(place, wire)
        for number in range(3):
            session.ask("step", bytes([number]))
    assert boxes(place) == {}
    return place, wire.seen


def refusal(place: Place, key: str, envelope: bytes) -> str:
    """What the place answers, signed, to an envelope that is not carried out."""
    calls = list(place.calls)
    place.plane.put(key, envelope)
    assert place.sessions.serve_once(5)
    assert place.calls == calls
    (answer,) = (k for k in boxes(place) if k.startswith("from/"))
    header, body = unseal(place.keys[place.name].public, boxes(place)[answer], 10_000)
    assert (header.way, header.subject, header.place) == ("answer", "refused", place.name)
    for left in boxes(place):
        place.plane.drop(left)
    assert "\n" not in body.decode()
    return body.decode()


def ignored(place: Place, key: str, envelope: bytes, caplog: pytest.LogCaptureFixture) -> str:
    """The line that the place logs about an envelope that it does not believe."""
    calls = list(place.calls)
    caplog.clear()
    place.plane.put(key, envelope)
    with caplog.at_level(logging.WARNING, logger="tasks.places.sessions"):
        assert place.sessions.serve_once(5)
    assert place.calls == calls
    assert boxes(place) == {}
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    return record.getMessage()


def signed(home: Place, template: bytes, body: bytes = b"", **changes: object) -> tuple[str, bytes]:
    """A coordinator's authentic envelope with other fields, and its key."""
    header, _ = unseal(home.keys[COORDINATOR].public, template, 10_000)
    header = replace(header, **changes)
    return f"to/north/{header.session}-{header.number:08d}", seal(home.keys[COORDINATOR], header, body)


def test_requests_are_answered_in_order_and_leave_nothing_on_the_plane(place):
    with place.answering(), coordinator(place) as session:
        for number in range(5):
            assert session.ask("step", b"ab%d" % number, wait=30) == b"%dba" % number
        assert session.ask("step", b"") == b""
    place.sessions.serve_once(0)
    assert place.calls == [("step", b"ab%d" % n) for n in range(5)] + [("step", b"")]
    assert boxes(place) == {}
    assert list((place.home / ".place-north").iterdir()) == []  # close was heard


def test_sessions_of_several_coordinators_do_not_disturb_each_other(place):
    with place.answering():
        first, second = coordinator(place), coordinator(place)
        for number in range(3):
            assert first.ask("step", b"a%d" % number) == b"%da" % number
            assert second.ask("step", b"b%d" % number) == b"%db" % number


def test_a_place_that_is_away_is_named_and_the_same_request_goes_on_waiting(place):
    session = coordinator(place)
    with pytest.raises(PlaceAwayError, match="north: got no answer in 0 seconds"):
        session.ask("step", b"abc", wait=0.05)
    with place.answering():
        assert session.ask("step", b"abc", wait=30) == b"cba"
    with pytest.raises(PlaceAwayError):
        session.ask("step", b"def", wait=0.05)
    place.sessions.serve_once(5)  # it was only late
    assert session.ask("step", b"def", wait=0) == b"fed"
    assert place.calls == [("step", b"abc"), ("step", b"def")]


def test_after_an_absence_another_request_starts_again_and_the_old_one_is_withdrawn(place):
    session = coordinator(place)
    with place.answering():
        session.ask("step", b"a")
    with pytest.raises(PlaceAwayError):
        session.ask("step", b"withdrawn", wait=0)
    with pytest.raises(PlaceAwayError):
        session.ask("step", b"other", wait=0)
    with place.answering():
        assert session.ask("step", b"other") == b"rehto"
    assert place.calls == [("step", b"a"), ("step", b"other")]


def test_a_withdrawn_request_that_the_plane_delivers_late_is_not_carried_out(place):
    """It might delete private state that later requests have made."""
    wire = Wire(str(place.home))
    session = coordinator(place, wire)
    with place.answering():
        session.ask("step", b"a")
    with pytest.raises(PlaceAwayError):
        session.ask("step", b"withdrawn", wait=0)
    late = wire.seen[-1]
    with pytest.raises(PlaceAwayError):
        session.ask("step", b"other", wait=0)
    with place.answering():
        assert session.ask("step", b"other") == b"rehto"
        place.plane.put(*late)
        assert session.ask("step", b"b") == b"b"
    assert [body for _, body in place.calls] == [b"a", b"other", b"b"]


def test_a_late_request_of_a_killed_command_is_not_carried_out(place):
    """It lists the state that its run still needs, and a resumed run has made newer state."""
    killed = os.fork()
    if killed == 0:
        session = coordinator(place)
        session.ask("step", b"a")
        session.ask("keep", b"old")
        os._exit(0)
    assert place.sessions.serve_once(30)
    assert place.sessions.serve_once(30)
    late = place.plane.take("to/north/", 30)
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    place.plane.drop(late[0])
    with place.answering(), coordinator(place) as resumed:
        assert resumed.ask("step", b"new") == b"wen"
        place.plane.put(*late)
        assert resumed.ask("step", b"b") == b"b"
    assert [body for _, body in place.calls] == [b"a", b"new", b"b"]


def test_a_copied_coordinator_ends_no_session_of_its_original(place):
    with place.answering(), coordinator(place) as session:
        session.ask("step", b"a")
        shutil.copytree(place.home / ".asking", place.home / ".copied")
        with coordinator(place, names=place.home / ".copied") as copy:
            copy.ask("step", b"b")
        assert session.ask("step", b"c") == b"c"


def test_replayed_openings_do_not_displace_a_session_that_is_in_use(place, monkeypatch):
    monkeypatch.setattr("tasks.places.sessions._MOST_SESSIONS", 4)
    wire = Wire(str(place.home))
    with place.answering():
        used = coordinator(place)
        used.ask("step", b"a")
        for _ in range(6):
            with pytest.raises(PlaceAwayError):
                coordinator(place, wire).ask("step", b"", wait=0)
        assert used.ask("step", b"ab") == b"ba"


def test_an_error_of_the_handler_is_a_signed_answer_and_the_session_goes_on(place):
    with place.answering():
        session = coordinator(place)
        with pytest.raises(PlaceFailedError, match=r"^north: RuntimeError; the place's own screen") as caught:
            session.ask("fail", b"")
        assert "column" not in str(caught.value), "the text of an error may quote a row"
        assert session.ask("step", b"ab") == b"ba"


def test_a_request_above_the_limit_is_refused_at_both_ends(tmp_path, keys):
    place = Place(tmp_path, keys, limit_bytes=1000)
    with pytest.raises(TooLargeError, match="1,001 bytes, expected at most 1,000"):
        coordinator(place, limit_bytes=1000).ask("step", b"x" * 1001)
    assert boxes(place) == {}
    with place.answering():
        session = coordinator(place)
        with pytest.raises(PlaceRefusedError, match="north: body: got 1,001 bytes, expected at most 1,000"):
            session.ask("step", b"x" * 1001)
        assert session.ask("step", b"x" * 1000) == b"x" * 1000
    assert place.calls == [("step", b"x" * 1000)]


def test_an_answer_above_the_limit_is_refused_at_both_ends(tmp_path, keys):
    place = Place(tmp_path, keys, limit_bytes=1000)
    with place.answering():
        with pytest.raises(PlaceRefusedError, match="answer: got 1,100 bytes, expected at most 1,000"):
            coordinator(place).ask("grow", b"x" * 11)
        session = coordinator(place, limit_bytes=900)
        with pytest.raises(TooLargeError, match="1,000 bytes, expected at most 900"):
            session.ask("grow", b"x" * 10)
        assert session.ask("step", b"ab") == b"ba"
    place.sessions.serve_once(0)
    assert not [key for key in boxes(place) if key.startswith("from/")]


def test_the_largest_body_fits_into_the_largest_message_of_a_plane(place, monkeypatch):
    """A folder reads no more of a longer one, and what is cut is no answer: the command would wait in vain."""
    monkeypatch.setattr(place.plane, "_limit", most := 2**16)
    body = most - (MOST_BYTES - MOST_BODY)
    place.options["limit_bytes"] = body
    place.restart()
    with place.answering(), coordinator(place, limit_bytes=body) as session:
        assert session.ask("s" * 64, bytes(body), wait=30) == bytes(body)
        with pytest.raises(TooLargeError, match=f"request: got {body + 1:,} bytes, expected at most {body:,}"):
            session.ask("step", bytes(body + 1), wait=30)


def test_another_version_is_refused(place):
    key, public = place.keys[COORDINATOR], place.keys["north"].public
    session = CoordinatorSession(place.plane, key, "north", public, "0.2.0", place.home / ".asking")
    with place.answering(), pytest.raises(PlaceRefusedError, match=r"siloflow: got 0\.2\.0, expected 0\.1\.0"):
        session.ask("step", b"")


@pytest.mark.parametrize("restarted", [False, True])
def test_replayed_requests_are_refused_also_after_a_restart(talked, restarted):
    place, seen = talked
    if restarted:
        place.restart()
    for key, envelope in seen[:-1]:
        assert "expected 4. It came twice" in refusal(place, key, envelope)
    # the last one again is answered again, and not carried out again
    place.plane.put(*seen[-1])
    calls = list(place.calls)
    place.sessions.serve_once(5)
    assert place.calls == calls
    ((_, answer),) = boxes(place).items()
    assert unseal(place.keys["north"].public, answer, 100)[1] == b"\x02"


def test_requests_out_of_order_are_refused(talked):
    place, seen = talked
    for number in (5, 17, 99_999_999):
        key, envelope = signed(place, seen[-1][1], number=number)
        assert f"got {number}, expected 4" in refusal(place, key, envelope)
    assert "expected 4" in refusal(
        place, *signed(place, seen[-1][1], body=b"other")
    )  # the last number, another request
    assert "expected 0 to open" in refusal(place, *signed(place, seen[-1][1], number=0))
    assert "expected 0 to open" in refusal(place, *signed(place, seen[-1][1], number=4, subject="open"))


def test_a_foreign_session_or_nonce_is_refused(talked):
    place, seen = talked
    assert "does not know" in refusal(place, *signed(place, seen[-1][1], session="a" * 32, number=1))
    assert "nonce: got another session's" in refusal(place, *signed(place, seen[-1][1], nonce="a" * 32, number=4))
    assert "nonce: got another session's" in refusal(place, *signed(place, seen[-1][1], nonce="", number=4))


def test_a_session_that_the_place_lost_must_start_again_under_another_nonce(talked):
    """What was signed for the old session is worth nothing in the new one."""
    place, seen = talked
    shutil.rmtree(place.home / ".place-north")
    place.restart()
    for key, envelope in seen[1:]:
        assert "Start again" in refusal(place, key, envelope)
    place.plane.put(*seen[0])  # the plane opens it again
    place.sessions.serve_once(5)
    for key in boxes(place):
        place.plane.drop(key)
    for key, envelope in seen[1:]:
        assert "nonce: got another session's" in refusal(place, key, envelope)


def test_two_places_with_one_key_end_the_session_in_a_sentence(place):
    """As when a place's folder was copied, and both serve."""
    twin = Place(place.home, place.keys)
    twin.sessions = PlaceSessions(
        place.plane,
        place.keys["north"],
        "north",
        place.keys[COORDINATOR].public,
        place.home / ".twin",
        twin.handle,
        VERSION,
    )
    with coordinator(place) as session:
        with place.answering():
            session.ask("step", b"a")
        with twin.answering(), pytest.raises(PlaceRefusedError, match="which this place does not know"):
            session.ask("step", b"b")
        with place.answering():
            assert session.ask("step", b"c") == b"c"
    assert (place.calls, twin.calls) == ([("step", b"a"), ("step", b"c")], [])


def test_a_message_for_another_place_is_refused(talked):
    place, seen = talked
    key, envelope = signed(place, seen[-1][1], place="south", number=4)
    assert "got a message for south, expected one for north" in refusal(place, key, envelope)
    key, envelope = signed(place, seen[-1][1], number=4)
    assert "under its own key" in refusal(place, f"{key}x", envelope)
    assert "got a message" in refusal(place, *signed(place, seen[-1][1], way="answer", number=4))


def test_what_the_coordinator_did_not_sign_is_dropped_with_one_line(talked, caplog):
    place, seen = talked
    key, envelope = signed(place, seen[-1][1], number=4, body=b"body")
    header, _ = unseal(place.keys[COORDINATOR].public, envelope, 100)
    for content, reason in (
        (seal(place.keys["south"], header, b"body"), "signature"),  # a stolen key of another place
        (seal(place.keys["north"], header, b"body"), "signature"),  # its own key
        (bytes(64) + envelope[64:], "signature"),  # unsigned
        (envelope.replace(b'"step"', b'"stop"'), "signature"),  # altered in the header
        (envelope[:-1] + b"x", "altered"),  # altered in the body
        (envelope[:-1], "truncated"),
        (envelope[:50], "truncated"),
        (b"", "truncated"),
        (b"\xff" * 200, "no envelope"),
        (b"PK\x03\x04" + bytes(1000), "truncated"),
    ):
        assert reason in ignored(place, key, content, caplog)
    assert place.plane.take("to/north/", 0) is None
    with place.answering():
        place.plane.put(key, envelope)  # and the place is unharmed
    assert place.calls[-1] == ("step", b"body")


def test_answers_that_the_place_did_not_give_are_dropped_and_awaited_again(place, caplog, monkeypatch):
    monkeypatch.setattr("tasks.places.sessions._BAD_ANSWER_PAUSE", 0.01)
    wire = Wire(str(place.home))
    place.plane = wire
    place.restart()
    session = coordinator(place)
    with place.answering():
        session.ask("step", b"first")
    (_, old), *_ = [(k, e) for k, e in reversed(wire.seen) if k.startswith("from/")]

    def forged(key: str, envelope: bytes) -> list[bytes]:
        header, _ = unseal(place.keys["north"].public, envelope, 1000)
        return [
            seal(place.keys["south"], header, b"forged"),
            bytes(64) + envelope[64:],
            envelope[:-1] + b"x",
            envelope[:-1],
            old,  # replayed
            seal(place.keys["north"], replace(header, nonce="a" * 32), b"forged"),
            seal(place.keys["north"], replace(header, session="a" * 32), b"forged"),
            seal(place.keys["north"], replace(header, way="ask"), b"forged"),
            seal(place.keys["north"], replace(header, number=1), b"forged"),
        ]

    tried: list[int] = []

    def change(key: str, content: bytes) -> bytes:
        if key.startswith("to/") or len(tried) == 9:
            return content
        tried.append(len(tried))
        return forged(key, content)[tried[-1]]

    wire.change = change
    with place.answering(), caplog.at_level(logging.WARNING, logger="tasks.places.sessions"):
        assert session.ask("step", b"second", wait=60) == b"dnoces"
    assert len([r for r in caplog.records if "ignored an answer" in r.getMessage()]) == 9
    assert place.calls == [("step", b"first"), ("step", b"second")]


def test_lost_requests_and_answers_are_sent_again_and_carried_out_once(place, monkeypatch):
    monkeypatch.setattr(CoordinatorSession, "_first_resend", 0.05)
    wire = Wire(str(place.home))
    seen: set[tuple[str, bytes]] = set()

    def lose(key: str, content: bytes) -> bytes | None:
        """Lose each message once."""
        if (key, content) in seen:
            return content
        seen.add((key, content))
        return None

    wire.change = lose
    place.plane = wire
    place.restart()
    session = coordinator(place, wire)
    with place.answering():
        for number in range(4):
            assert session.ask("step", b"ab%d" % number, wait=60) == b"%dba" % number
    assert place.calls == [("step", b"ab%d" % n) for n in range(4)]


def test_messages_that_arrive_twice_or_late_change_nothing(place):
    wire = Wire(str(place.home))
    session = coordinator(place, wire)
    with place.answering():
        for number in range(4):
            assert session.ask("step", b"%d" % number) == b"%d" % number
            for key, envelope in wire.seen[-2:]:  # the last one, and the one before
                FolderPlane.put(wire, key, envelope)
        assert session.ask("step", b"end") == b"dne"
    assert place.calls == [("step", b"%d" % n) for n in range(4)] + [("step", b"end")]


def test_a_bounded_number_of_sessions_is_kept_and_the_oldest_is_forgotten(place, monkeypatch):
    monkeypatch.setattr("tasks.places.sessions._MOST_SESSIONS", 4)
    with place.answering():
        sessions = [coordinator(place) for _ in range(7)]
        for session in sessions:
            session.ask("step", b"a")
        assert len(list((place.home / ".place-north").iterdir())) == 4
        with pytest.raises(PlaceRefusedError, match="has forgotten"):
            sessions[2].ask("step", b"b")
        assert sessions[3].ask("step", b"ba") == b"ab"
        assert sessions[2].ask("step", b"ba") == b"ab"  # it started again


def test_a_full_disk_at_the_place_leaves_the_request_on_the_plane(place, monkeypatch):
    session = coordinator(place)
    with place.answering():
        session.ask("step", b"a")
    with pytest.raises(PlaceAwayError):
        session.ask("step", b"cd", wait=0)
    (folder,) = (place.home / ".place-north").iterdir()
    state = folder / "state.json"
    moved = folder.rename(place.home / "moved")
    folder.write_bytes(b"")  # nothing can be written below a file
    with pytest.raises(OSError, match=r"state|Not a directory|File exists"):
        place.sessions.serve_once(5)
    folder.unlink()
    moved.rename(folder)
    assert json.loads(state.read_bytes())["number"] == 1
    place.restart()
    with place.answering():
        assert session.ask("step", b"cd") == b"dc"
    assert place.calls == [("step", b"a"), ("step", b"cd")]


def test_what_a_place_stores_names_no_content_of_requests(talked):
    place, seen = talked
    state = json.loads(next((place.home / ".place-north").rglob("state.json")).read_bytes())
    assert state == {
        "used": 4,
        "nonce": state["nonce"],
        "number": 3,
        "digest": hashlib.sha256(seen[-1][1]).hexdigest(),
    }


def test_reserved_subjects_are_not_asked(place):
    for subject in ("open", "close"):
        with pytest.raises(ValueError, match="of the session itself"):
            coordinator(place).ask(subject, b"")


def test_threads_of_a_coordinator_take_turns(place):
    session, answers = coordinator(place), []
    threads = [threading.Thread(target=lambda n=n: answers.append(session.ask("step", b"a%d" % n))) for n in range(6)]
    with place.answering():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(answers) == [b"%da" % n for n in range(6)]


def test_waiting_is_paid_by_no_busy_loop(place):
    began = time.process_time()
    with pytest.raises(PlaceAwayError):
        coordinator(place).ask("step", b"", wait=0.5)
    assert time.process_time() - began < 0.25
