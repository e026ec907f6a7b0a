"""Record what a silo does in secure sums: one question and one list of silos a sum, and the keys of other silos."""

import json
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from silos.errors import RefusalError, UserError, shown
from silos.io.atomic_io import sync_folder, write_bytes
from silos.privacy.ledger import Ledger
from silos.privacy.masked_sums import PresentSilos, SumMember, SumSession, lasting_key
from silos.privacy.owner_file import policy_file


@dataclass(frozen=True)
class SumLedger(Ledger):
    """The part of a silo's ledger that lets the server read one sum of a session, and nothing less."""

    def public_key(self) -> str:
        """Return the lasting public key of the silo, in hexadecimal digits."""
        with self._lock():
            secret, _ = self._open()
            sync_folder(self._home)  # the secret must survive a power cut before others know its key
        return lasting_key(secret)

    def join(self, session: SumSession) -> SumMember:
        """Return the silo's part in a sum.

        Raises:
            UserError: As `SumSession.check`.
            RefusalError: If the owner assumes more colluders, or another silo has another key than in its first sum.
        """
        session.check()
        if session.colluders < self.policy.colluders:
            raise RefusalError(
                f"client {self.client}: training.privacy.colluders: got {session.colluders}, expected "
                f"{self.policy.colluders} or more, as the owner has set in {policy_file(Path(self.folder))}. Raise it."
            )
        with self._lock():
            secret, _ = self._open()
            member = SumMember(secret, self.client, session)
            self._meet(session)
        return member

    def is_used(self, session: SumSession) -> bool:
        """Return whether the silo has sent masked numbers in this session."""
        with self._lock():
            return f"{session.digest}/question" in self._bound()

    def bind_question(self, session: SumSession, question: str, present: PresentSilos) -> None:
        """Record what the silo masks, before it leaves; RefusalError if it masked something else in this session."""
        self._bind(f"{session.digest}/question", sha256(f"{question} {present.digest}".encode()).hexdigest())
        self._bind(f"{session.digest}/present", present.digest)

    def bind_answered(self, session: SumSession, present: PresentSilos, answered: tuple[str, ...]) -> None:
        """Record for which silos shares are revealed, before they leave; RefusalError for a second list of silos."""
        with self._lock():
            joined = self._bound().get(f"{session.digest}/present")
        if joined != present.digest:
            raise RefusalError(
                f"client {self.client}: got a sum that this silo masked nothing for, expected its own. Start the run again."
            )
        self._bind(f"{session.digest}/answered", sha256(json.dumps(answered).encode()).hexdigest())

    def _meet(self, session: SumSession) -> None:
        """Remember the keys of other silos at their first sum; RefusalError for another key of a silo that is known."""
        path = self._home / "peers.json"
        try:
            known: dict[str, str] = json.loads(path.read_bytes()) if path.exists() else {}
        except ValueError:
            raise UserError(f"{path}, the keys of other silos, cannot be read. Restore it from a copy.") from None
        listed = dict(zip(session.clients, session.keys, strict=True))
        replaced = [name for name, key in listed.items() if known.get(name, key) != key]
        if replaced:
            raise RefusalError(
                f"client {self.client}: got another key of client {shown(replaced[0])} than in its first sum, expected the "
                "same: a server with a key of its own could read this silo's numbers. If that silo has a new secret, let "
                f"the owner remove it from {path}."
            )
        if not listed.items() <= known.items():
            write_bytes(path, json.dumps({**known, **listed}, indent=1, ensure_ascii=False).encode())

    @property
    def _log(self) -> Path:
        return self._home / "sums.log"

    def _bound(self) -> dict[str, str]:
        if not self._log.exists():
            return {}
        lines = self._log.read_text(encoding="ascii", errors="replace").split("\n")[:-1]
        return dict(line.split(" ", 1) for line in lines)

    def _bind(self, name: str, value: str) -> None:
        with self._lock():
            bound = self._bound().get(name)
            if bound == value:
                return
            if bound is not None:
                raise RefusalError(
                    f"client {self.client}: got a second question or list of silos for the same secure sum, expected one. "
                    "Two would let the server read less than a sum. Resume the run."
                )
            with self._log.open("a+b") as file:
                file.truncate(self._end())
                file.write(f"{name} {value}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self._home)

    def _end(self) -> int:
        """Return where the last complete line ends; a line without its end was not acted on."""
        return self._log.read_bytes().rfind(b"\n") + 1
