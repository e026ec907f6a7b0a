"""The owner reads who asked what of the silos, and how it ended; also of commands that were killed."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest

from silos.errors import RefusalError, UserError
from silos.privacy.owner_file import OWNER_FILE
from silos.privacy.request_log import (
    approval,
    approve,
    forget_missing_requests,
    read_requests,
    record_refusals,
    recording,
    user,
)


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "private" / "visits"
    folder.mkdir(parents=True)
    (folder / OWNER_FILE).write_text("data: {source: {kind: table, path: visits.csv}}")
    return folder


def said(store):
    return [(line.get("asked"), line.get("of"), line.get("answer")) for line in read_requests(store)]


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (None, "answered"),
        (RefusalError("client oslo: no"), "refused: client oslo: no"),
        (UserError("no such run"), "ended: no such run"),
        (KeyboardInterrupt(), "ended: stopped"),
        (ValueError("a row: 17"), "failed: ValueError"),
    ],
)
def test_a_command_is_recorded_before_it_begins_and_when_it_ends(error, answer, store):
    def work():
        assert said(store) == [("siloflow diagnose", None, "")]
        if error is not None:
            raise error

    with nullcontext() if error is None else pytest.raises(type(error)), recording(lambda: store, "siloflow diagnose"):
        work()
    assert said(store)[1:] == [(None, 0, answer)]
    assert read_requests(store)[0]["by"] == user()


def test_a_command_that_was_killed_has_no_end_and_others_go_on(store):
    child = os.fork()
    if child == 0:
        with recording(lambda: store, "killed"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with recording(lambda: store, "next"):
        pass
    assert said(store) == [("killed", None, ""), ("next", None, ""), (None, 1, "answered")]


def test_partitions_of_a_sweep_have_the_log_of_their_store(store):
    record_refusals(store / ".partitions" / "ab", {"oslo": "budget"})
    record_refusals(store, {})
    assert [line["refused"] for line in read_requests(store)] == [{"oslo": "budget"}]


@pytest.mark.parametrize("text", ["data: {source: {kind: digits}}", "commands: all", "budget: many"])
def test_public_data_and_stores_of_no_source_have_none(text, store):
    (store / OWNER_FILE).write_text(text)

    def find() -> Path:
        if "many" in text:
            raise UserError("owner.yaml cannot be read")
        return store

    with recording(find, "siloflow diagnose"):
        pass
    assert [path.name for path in store.iterdir()] == [OWNER_FILE]


def test_an_owner_approves_once_and_a_deleted_log_is_no_new_one_until_the_owner_says_so(store):
    assert approval(store) == ""
    approve(store)
    assert approval(store).endswith(f" by {user()}")
    (store / "requests.log").unlink()
    for use in (lambda: approval(store), lambda: approve(store), lambda: record_refusals(store, {"oslo": "no"})):
        with pytest.raises(UserError, match=r"requests\.log, the record of what was asked of these silos, is damaged"):
            use()
    forget_missing_requests(store)
    assert approval(store) == "", "what was approved is forgotten, too"
    (store / OWNER_FILE).write_text("data: {source: {kind: digits}}")
    assert approval(store) is None
