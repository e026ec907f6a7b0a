"""The owner reads who asked what of the silos, and how it ended; also of commands that were killed."""

import hashlib
import os
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest

from flows.orchestration.flow_decorator import IncompleteError
from silos.errors import RefusalError, UserError
from silos.privacy.owner_file import OWNER_FILE
from silos.privacy.request_log import (
    approval,
    approve,
    forget_missing_requests,
    needs_approval,
    owner_file_digest,
    read_requests,
    record_refusals,
    recording,
    user,
    was_changed_after_approval,
)
from silos.privacy.secret import REGISTER


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
        (SystemExit(1), "ended: exit code 1"),
        (SystemExit(0), "answered"),
        (IncompleteError("two silos failed", None), "ended: exit code 1"),
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
    approve(store, owner_file_digest(store))
    assert approval(store).endswith(f" by {user()}")
    (store / "requests.log").unlink()
    for use in (
        lambda: approval(store),
        lambda: approve(store, owner_file_digest(store)),
        lambda: record_refusals(store, {"oslo": "no"}),
    ):
        with pytest.raises(UserError, match=r"requests\.log, the record of what was asked of these silos, is damaged"):
            use()
    forget_missing_requests(store)
    assert approval(store) == "", "what was approved is forgotten, too"
    assert needs_approval(store)
    (store / OWNER_FILE).write_text("data: {source: {kind: digits}}")
    assert not needs_approval(store)


def test_an_owners_file_that_was_changed_needs_another_approval(store):
    before = (store / OWNER_FILE).read_text()
    assert not was_changed_after_approval(store)
    approve(store, owner_file_digest(store))
    (store / OWNER_FILE).write_text(f"{before}\nbudget: 100.0\n")
    assert (approval(store), was_changed_after_approval(store)) == ("", True)
    (store / OWNER_FILE).write_text(before)
    assert approval(store)
    assert not was_changed_after_approval(store)


def test_where_the_secret_was_lost_the_owner_starts_another_log(store):
    approve(store, owner_file_digest(store))
    (store.parent / REGISTER / "secret").unlink()
    with pytest.raises(UserError, match=r"Its secret is private/\.rows/secret.*move the log away.*data ledger --new"):
        approval(store)
    (store / "requests.log").rename(store / "requests.old")
    forget_missing_requests(store)
    approve(store, owner_file_digest(store))
    assert approval(store)


def test_the_folder_of_the_log_has_no_number_of_its_lines(store):
    approve(store, owner_file_digest(store))
    shutil.rmtree(store)
    store.mkdir()
    (store / OWNER_FILE).write_text("data: {source: {kind: table, path: visits.csv}}")
    with pytest.raises(UserError, match="lacks lines"):
        approval(store)


def test_no_setting_of_a_long_command_is_left_out(store):
    """Once, the middle of more than 1,000 characters was, where a setting could hide."""
    many = ["--set data.seed=1"] * 60
    asked = " ".join(["siloflow diagnose", *many, "--set data.seed=77", *many])
    with recording(lambda: store, asked):
        pass
    assert said(store)[0][1] is None
    assert said(store)[0][0] == asked
    longest = f"siloflow diagnose {'x' * 30_000}"
    with recording(lambda: store, longest):
        pass
    (shortened,) = [line["asked"] for line in read_requests(store)[2:] if line.get("asked")]
    assert len(shortened) < 20_200
    assert hashlib.sha256(longest.encode()).hexdigest() in shortened
