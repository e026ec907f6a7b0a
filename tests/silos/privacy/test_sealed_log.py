"""A log says if a line of it was changed, moved or deleted, and what was written before a kill is in it."""

import errno
import os
import pickle
import random

import pytest

from silos.errors import UserError
from silos.privacy import sealed_log
from silos.privacy.sealed_log import SealedLog, _opened
from silos.privacy.secret import Secret

RECORDS = [{"n": number, "text": "ø \n" * number} for number in range(6)]


@pytest.fixture
def log(tmp_path):
    made = SealedLog(tmp_path / "log", tmp_path / "elsewhere" / "count", Secret.open(tmp_path / "secret"), "the record")
    for record in RECORDS:
        made.append(record)
    return made


def lines(log):
    return log.path.read_bytes().splitlines(keepends=True)


def test_records_are_read_as_they_were_written_by_any_process(log):
    for again in (log, pickle.loads(pickle.dumps(log))):
        _opened.clear()
        assert again.read() == RECORDS
        again.append({"n": "more"})
        assert again.read()[-1] == {"n": "more"}
        log.path.write_bytes(b"".join(lines(log)[:6]))
        log.count.write_bytes(b"6")


CHANGES = {
    "a line is deleted": lambda all: all[:2] + all[3:],
    "the last line is deleted": lambda all: all[:-1],
    "all lines are deleted": lambda all: all[:0],
    "two lines are exchanged": lambda all: [all[1], all[0], *all[2:]],
    "a line is repeated": lambda all: [*all, all[-1]],
    "a byte is changed": lambda all: [*all[:3], all[3].replace(b"3", b"4", 1), *all[4:]],
    "the last line lost its end": lambda all: [*all[:-1], all[-1][:-1]],
    "a line without a hash is added": lambda all: [*all, b'{"n": 7}\n'],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_moved_or_deleted_line_is_noticed_and_nothing_is_added(change, log):
    log.path.write_bytes(b"".join(CHANGES[change](lines(log))))
    for use in (log.read, lambda: log.append({"n": 7})):
        with pytest.raises(
            UserError, match="log, the record, is damaged, lacks lines, or is sealed with another secret"
        ):
            use()


def test_a_deleted_file_and_another_secret_are_noticed(log, tmp_path):
    other = SealedLog(log.path, log.count, Secret.open(tmp_path / "other"), "the record")
    log.path.rename(tmp_path / "aside")
    with pytest.raises(UserError, match="lacks lines"):
        log.read()
    (tmp_path / "aside").rename(log.path)
    assert log.read() == RECORDS
    with pytest.raises(UserError, match="another secret"):
        other.read()
    log.count.write_bytes(b"six")
    with pytest.raises(UserError, match="count, the number of lines of log, is damaged"):
        log.read()


@pytest.mark.parametrize("short", ["line", "number"])
def test_what_a_full_disk_cut_is_no_record_and_the_log_goes_on(short, log, monkeypatch, tmp_path):
    """Once, a line that a full disk cut was counted, so that the next process found the log damaged for good."""
    first = SealedLog(tmp_path / "new", tmp_path / "number of new", log.secret, "the record")
    write, cuts = os.pwrite, {"line": lambda data: b"{" in data, "number": lambda data: b"{" not in data}

    def cut(file, data, at):
        return write(file, data[:5] if cuts[short](data) else data, at)

    for each, known in ((log, len(RECORDS)), (first, 0)):
        with monkeypatch.context() as full:
            full.setattr(os, "pwrite", cut)
            with pytest.raises(OSError, match="No space left") as error:
                each.append({"n": "cut"})
        assert error.value.errno == errno.ENOSPC
        for forget in (lambda: None, _opened.clear):
            forget()
            assert len(each.read()) == known + (short == "number")
        each.append({"n": "after"})
        _opened.clear()
        assert each.read()[-1] == {"n": "after"}
        assert int(each.count.read_bytes()) == len(each.read())


def test_a_number_that_a_power_cut_lost_is_none(log):
    log.count.write_bytes(b"\0" * 13)
    assert log.read() == RECORDS
    log.append({})
    assert int(log.count.read_bytes()) == len(RECORDS) + 1


def test_a_record_copies_no_earlier_ones_and_derives_no_key(log, monkeypatch):
    before, derive, derived = log.read(), Secret._derive, []
    monkeypatch.setattr(Secret, "_derive", lambda secret, *names: derived.append(names) or derive(secret, *names))
    log.append({"n": "more"})
    assert log.read() is before
    assert derived == []


def test_a_line_that_a_kill_cut_is_replaced_and_one_that_it_left_uncounted_is_kept(log):
    for _ in range(20):
        whole, (last,) = lines(log), lines(log)[-1:]
        log.path.write_bytes(b"".join([*whole, last[: random.Random(len(whole)).randrange(1, len(last))]]))
        assert len(log.read()) == len(whole)
        log.append({"n": len(whole)})
        assert log.read()[-1] == {"n": len(whole)}
        assert lines(log)[:-1] == whole
    log.count.write_bytes(b"%12d\n" % (len(lines(log)) - 1))
    assert len(log.read()) == len(lines(log))
    log.append({})
    assert int(log.count.read_bytes()) == len(lines(log))


def test_a_power_cut_after_the_first_record_takes_neither_file(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(sealed_log, "sync_folder", synced.append)
    made = SealedLog(tmp_path / "log", tmp_path / "elsewhere" / "count", Secret.open(tmp_path / "secret"), "the record")
    for record in RECORDS:
        made.append(record)
    assert synced == [tmp_path, tmp_path / "elsewhere"]
