"""What was asked of the silos of a store, by whom, and how it ended: one sealed log, which their owner reads."""

import hashlib
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
from silos.privacy.secret import REGISTER, cell_secret

_LOG, _LOCK = "requests.log", ".requests.lock"
_COUNTS = f"{REGISTER}/.requests"
"""The folder under private/ with the number of lines of each store's log; no store's rows are registered under this name."""

_WAY_OUT = (
    f"Its secret is private/{REGISTER}/secret. Restore both from a copy, or let their owner move the log away and start a "
    "new one: `siloflow data ledger --new`. Nothing is reported until then."
)
_MOST_TEXT = 1000  # characters of an answer
_MOST_ASKED = 20_000  # characters of what was asked; a longer one also has its hash, so that nothing can be left unseen


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


def record_request(folder: Path, asked: str, answer: str = "", by: str = "", when: str = "") -> int:
    """Record what was asked of a store, unless its data are public or none; return the number of the line.

    Args:
        folder: The store, or a sweep's partition in it.
        asked: The command or the step, with what identifies its settings.
        answer: How it ended; empty if it has just begun.
        by: Who asked; by default the process's user.
        when: As `now` returns it, the default.
    """
    return _append(
        folder, {"when": when or now(), "asked": _in_full(asked), "answer": _short(answer), "by": by or user()}
    )


def record_refusals(folder: Path, refusals: Mapping[str, str]) -> None:
    """Record why silos refused to report."""
    if refusals:
        _append(folder, {"refused": {silo: _short(why) for silo, why in refusals.items()}, "by": user()})


@contextmanager
def recording(find_store: Callable[[], Path], asked: str) -> Iterator[None]:
    """Record a command of data of one's own before it reads a row, and how it ended.

    Its end repeats when it began, since a number alone may be that of another command in a renewed log. An error with
    `exit_code` ends with it, as SystemExit does.
    """
    try:
        store: Path | None = find_store()
    except UserError:  # an owner's file that cannot be read lets nothing be reported
        store = None
    began, outcome = now(), "ended: stopped"
    number = -1 if store is None else record_request(store, asked, when=began)
    try:
        yield
        outcome = "answered"
    except RefusalError as refusal:
        outcome = f"refused: {refusal}"
        raise
    except UserError as error:
        outcome = f"ended: {error}"
        raise
    except SystemExit as end:
        outcome = f"ended: exit code {end.code}" if end.code else "answered"
        raise
    except Exception as error:
        code = getattr(error, "exit_code", None)
        outcome = f"failed: {type(error).__name__}" if code is None else f"ended: exit code {code}"
        raise
    finally:
        if store is not None and number >= 0:
            _append(store, {"of": number, "began": began, "answer": _short(outcome)})


def approve(folder: Path, digest: str) -> None:
    """Record that the owner has approved the owner's file, whose content had this SHA-256 when its owner read it."""
    _append(folder, {"approved": OWNER_FILE, "sha256": digest, "by": user()})


def needs_approval(folder: Path) -> bool:
    """Return whether a place serves these silos only once their owner has approved the owner's file."""
    return _log_of(folder) is not None


def approval(folder: Path) -> str:
    """Return when and by whom the owner's file was approved as it is now; empty if it was not, or needs no approval."""
    last = _last_approval(folder)
    return f"{last['when']} by {last['by']}" if last.get("sha256") == owner_file_digest(folder) else ""


def was_changed_after_approval(folder: Path) -> bool:
    """Return whether the owner's file was approved and is not as it was then."""
    return bool(_last_approval(folder)) and not approval(folder)


def _last_approval(folder: Path) -> Record:
    return next((record for record in reversed(read_requests(folder)) if "approved" in record), {})


def owner_file_digest(folder: Path) -> str:
    """Return the SHA-256 of the owner's file, in hexadecimal digits."""
    return hashlib.sha256(policy_file(folder).read_bytes()).hexdigest()


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
    private = file.parent.parent
    return SealedLog(file.with_name(_LOG), private / _COUNTS / file.parent.name, cell_secret(private), name, _WAY_OUT)


def _short(text: str) -> str:
    return shown(text, _MOST_TEXT)


def _in_full(asked: str) -> str:
    if len(asked) <= _MOST_ASKED:
        return asked
    return f"{shown(asked, _MOST_ASKED)} (sha256 {hashlib.sha256(asked.encode(errors='replace')).hexdigest()})"
