"""Planes of both kinds keep one contract: keys are written once, taken in order, and stay until they are dropped."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from silos.errors import UserError
from tasks.places.planes import CHUNK, FolderPlane, HttpsPlane, PlaneAwayError, PlaneRefusalError, open_plane

PATHS = ("", "/", "/etc/passwd", "../to/north/a", "to/../../a", "to/north/../a", "to//a", "to/north/", "~/a", "C:\\a")
NAMES = (".a", "a\n", "a b", "é", "a" * 151, "%2e%2e", "a\0", "a*", "a?b", "a#b")
WRONG_KEYS = (*PATHS, *(f"to/north/{name}" for name in NAMES))


class Ends:
    """The coordinator's and the place's view of one plane."""

    def __init__(self, coordinator, place):
        self.coordinator, self.place = coordinator, place


@pytest.fixture(params=["folder", "memory", "https"])
def ends(request, tmp_path) -> Ends:
    if request.param == "https":
        broker = request.getfixturevalue("broker")
        sides = Ends(broker.plane(), broker.plane("north"))
        while found := sides.place.take("to/north/", 0):
            sides.place.drop(found[0])
        return sides
    address = str(tmp_path) if request.param == "folder" else f"memory://{tmp_path.name}"
    return Ends(open_plane(address), open_plane(address))


def test_what_is_put_is_taken_in_order_until_it_is_dropped(ends):
    for name in ("b-2", "b-1", "a-9"):
        ends.coordinator.put(f"to/north/{name}", name.encode())
    assert ends.place.take("to/north/", 0) == ends.place.take("to/north/", 0) == ("to/north/a-9", b"a-9")
    assert ends.place.take("to/north/b-", 0) == ("to/north/b-1", b"b-1")
    assert ends.place.take("to/north/b-2", 0) == ("to/north/b-2", b"b-2")
    for name in ("a-9", "b-1", "b-2"):
        assert ends.place.take("to/north/", 0) == (f"to/north/{name}", name.encode())
        ends.place.drop(f"to/north/{name}")
        ends.place.drop(f"to/north/{name}")
    assert ends.place.take("to/north/", 0) is None


def test_a_key_is_written_once(ends):
    ends.coordinator.put("to/north/once", b"first")
    ends.coordinator.put("to/north/once", b"first")
    for other in (b"other", b"firstly", b"", b"firs"):
        with pytest.raises(PlaneRefusalError, match="written once"):
            ends.coordinator.put("to/north/once", other)
    assert ends.place.take("to/north/once", 0) == ("to/north/once", b"first")
    ends.place.drop("to/north/once")
    ends.coordinator.put("to/north/once", b"other")  # the same name for another message


def test_one_of_many_writers_of_a_key_wins_and_the_others_are_refused(ends):
    def write(number: int) -> bool:
        try:
            ends.coordinator.put("to/north/race", bytes([number]) * 1000)
        except PlaneRefusalError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(write, range(8)))
    assert sum(won) == 1
    assert ends.place.take("to/north/race", 0) == ("to/north/race", bytes([won.index(True)]) * 1000)


def test_a_take_waits_for_a_message(ends):
    assert ends.place.take("to/north/", 0.05) is None
    late = threading.Timer(0.2, ends.coordinator.put, ("to/north/late", b"late"))
    late.start()
    assert ends.place.take("to/north/", 20) == ("to/north/late", b"late")
    late.join()


@pytest.mark.parametrize("key", WRONG_KEYS)
def test_a_key_that_leaves_its_folder_is_refused(ends, key):
    for refused in (lambda: ends.coordinator.put(key, b"x"), lambda: ends.place.drop(key)):
        with pytest.raises(PlaneRefusalError, match="key: got"):
            refused()
    if key not in ("to/north/",):
        with pytest.raises(PlaneRefusalError, match="key: got"):
            ends.place.take(key, 0)


def test_large_messages_pass_in_chunks(ends):
    content = os.urandom(2 * CHUNK + 17)
    ends.coordinator.put("to/north/large", content)
    ends.coordinator.put("to/north/large", content)
    assert ends.place.take("to/north/", 0) == ("to/north/large", content)


def test_of_a_larger_message_than_the_limit_only_the_beginning_is_read(tmp_path, broker):
    content = os.urandom(3 * CHUNK)
    for sender, taker in (
        (FolderPlane(str(tmp_path)), FolderPlane(str(tmp_path), 100)),
        (broker.plane(), broker.plane("south", limit_bytes=100)),
    ):
        sender.put("to/south/large", content)
        _, taken = taker.take("to/south/", 0)
        assert 100 < len(taken) <= CHUNK
        assert content.startswith(taken)


def test_what_else_lies_in_a_shared_folder_is_passed_over(tmp_path):
    plane, folder = FolderPlane(str(tmp_path)), tmp_path / "to" / "north"
    (folder / "a-folder").mkdir(parents=True)
    os.mkfifo(folder / "a-pipe")
    (folder / ".hidden").write_bytes(b"x")
    (folder / "a name").write_bytes(b"x")
    (folder / "a-dangling").symlink_to(tmp_path / "nowhere")
    plane.put("to/north/b", b"message")
    assert plane.take("to/north/", 0) == ("to/north/b", b"message")
    assert plane.take("to/north/a-pipe", 0) is None


def test_no_half_written_file_is_seen_in_a_folder(tmp_path):
    plane, contents = FolderPlane(str(tmp_path)), [bytes([n]) * 3_000_000 for n in range(8)]

    def put_all() -> None:
        for number, content in enumerate(contents):
            plane.put(f"to/north/{number}", content)

    writer = threading.Thread(target=put_all)
    writer.start()
    for content in contents:
        key, taken = plane.take("to/north/", 20)
        assert taken == content
        plane.drop(key)
    writer.join()


def test_a_folder_that_is_not_mounted_is_away_and_not_made(tmp_path):
    plane = FolderPlane(str(tmp_path / "mount"))
    for missing in (lambda: plane.put("to/north/a", b"x"), lambda: plane.take("to/north/", 0)):
        with pytest.raises(PlaneAwayError, match="no folder"):
            missing()
    assert not (tmp_path / "mount").exists()


def test_a_full_disk_is_a_plane_that_is_away():
    plane = FolderPlane("/proc/self/fdinfo")  # a folder that takes no file
    with pytest.raises(PlaneAwayError):
        plane.put("to/north/a", b"x")


def test_addresses_are_opened_by_their_scheme(tmp_path, broker):
    assert isinstance(open_plane(str(tmp_path)), FolderPlane)
    assert isinstance(open_plane(f"file://{tmp_path}"), FolderPlane)
    assert isinstance(open_plane(broker.address, broker.certificate, "token"), HttpsPlane)
    for address, reason in (
        ("http://127.0.0.1", "expected https"),
        ("https://127.0.0.1", "no certificate or no token"),
        ("nothing://bucket", "file system"),
    ):
        with pytest.raises(UserError, match=reason):
            open_plane(address)
    with pytest.raises(UserError, match="no certificate"):
        open_plane(broker.address, tmp_path / "none.pem", "token")


def test_without_a_broker_a_plane_is_away_after_its_patience(broker, tmp_path):
    plane = HttpsPlane("https://127.0.0.1:9", broker.certificate, "token", patience=0.3)
    began = time.monotonic()
    for away in (lambda: plane.put("to/north/a", b"x"), lambda: plane.take("to/north/", 0.3)):
        with pytest.raises(PlaneAwayError, match="no answer"):
            away()
    assert time.monotonic() - began >= 0.6
