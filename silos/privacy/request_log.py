"""What was asked of the silos of a store, by whom, and how it ended: one sealed log, which their owner reads."""

import os
import pwd
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from silos.errors import RefusalError, UserError, shown
from silos.io.locks import in_turn
from silos.privacy.owner_file import OWNER_FILE, policy_file, read_owner_file
from silos.privacy.sealed_log import Record, SealedLog
from silos.privacy.secret import cell_secret

_LOG, _COUNT, _LOCK = "requests.log", ".requests", ".requests.lock"
_MOST_TEXT = 1000  # characters of what was asked, and of an answer


def user() -> str:
    """Return the name of the process's user, by its number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name  # not by the environment, which can be set
    except KeyError:  # a container's user without a name
        return f"user {os.getuid()}"


def now() -> str:
    """Return the time (UTC) of an entry."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def read_requests(folder: Path) -> Sequence[Record]:
    """Return all records of the store that a folder is, or of the store of a sweep's partition; UserError if damaged."""
    log = _log_of(folder)
    return [] if log is None else log.read()


def record_request(folder: Path, asked: str, answer: str = "", by: str = "") -> int:
    """Record what was asked of a store, unless its data are public or none; return the number of the line.

    Args:
        folder: The store, or a sweep's partition in it.
        asked: The command or the step, with what identifies its settings.
        answer: How it ended; empty if it has just begun.
        by: Who asked; by default the process's user.
    """
    return _append(folder, {"asked": _short(asked), "answer": _short(answer), "by": by or user()})


def record_refusals(folder: Path, refusals: Mapping[str, str]) -> None:
    """Record why silos refused to report."""
    if refusals:
        _append(folder, {"refused": {silo: _short(why) for silo, why in refusals.items()}, "by": user()})


@contextmanager
def recording(find_store: Callable[[], Path], asked: str) -> Iterator[None]:
    """Record a command of data of one's own before it reads a row, and how it ended."""
    try:
        store: Path | None = find_store()
    except UserError:  # an owner's file that cannot be read lets nothing be reported
        store = None
    number = -1 if store is None else record_request(store, asked)
    outcome = "answered"
    try:
        yield
    except RefusalError as refusal:
        outcome = f"refused: {refusal}"
        raise
    except (UserError, KeyboardInterrupt) as error:
        outcome = f"ended: {str(error) or 'stopped'}"
        raise
    except Exception as error:
        outcome = f"failed: {type(error).__name__}"
        raise
    finally:
        if store is not None and number >= 0:
            _append(store, {"of": number, "answer": _short(outcome)})


def approve(folder: Path) -> None:
    """Record that the owner has approved the owner's file."""
    _append(folder, {"approved": OWNER_FILE, "by": user()})


def approval(folder: Path) -> str | None:
    """Return when and by whom the owner's file was approved; empty if it was not, and None if none is needed."""
    if _log_of(folder) is None:
        return None
    approvals = [record for record in read_requests(folder) if "approved" in record]
    return f"{approvals[-1]['when']} by {approvals[-1]['by']}" if approvals else ""


def forget_missing_requests(folder: Path) -> None:
    """Allow a new log instead of a deleted one."""
    log = _log_of(folder)
    if log is not None and not log.path.exists():
        log.count.unlink(missing_ok=True)


def _append(folder: Path, record: Record) -> int:
    log = _log_of(folder)
    if log is None:
        return -1
    with in_turn(log.path.with_name(_LOCK)):
        log.append({"when": now(), **record})
        return len(log.read()) - 1


def _log_of(folder: Path) -> SealedLog | None:
    """Return the log of a store; None of public data, and of a store of no source."""
    file = policy_file(folder)
    owner = read_owner_file(file) if file.is_file() else None
    if owner is None or not owner.data or owner.is_public:
        return None
    name = "the record of what was asked of these silos"
    return SealedLog(file.with_name(_LOG), file.with_name(_COUNT), cell_secret(file.parent.parent), name)


def _short(text: str) -> str:
    return shown(text, _MOST_TEXT)
