"""Record what a silo does in secure sums: one question and one list of silos a sum, and the keys of other silos."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from silos.errors import RefusalError, UserError, shown
from silos.io.atomic_io import sync_folder, write_bytes
from silos.privacy.ledger import Ledger
from silos.privacy.masked_sums import PresentSilos, SumMember, SumSession, hash_of, lasting_key
from silos.privacy.owner_file import policy_file

SECOND = "got a second question or list of silos"
"""Part of the refusal of a sum that was begun with other silos: another attempt may succeed."""


@dataclass(frozen=True)
class SumLedger(Ledger):
    """The part of a silo's ledger that lets the server read one sum of a session, and nothing less."""

    def public_key(self) -> str:
        """Return the lasting public key of the silo, in hexadecimal digits."""
        with self._lock():
            log, _ = self._open()
            sync_folder(self._home)  # the secret must survive a power cut before others know its key
        return lasting_key(log.secret)

    def join(self, session: SumSession) -> SumMember:
        """Return the silo's part in a sum.

        Raises:
            UserError: As `SumSession.check`.
            RefusalError: If the owner assumes more colluders or names other silos, or a silo has another key than before.
        """
        session.check()
        if session.colluders < self.policy.colluders:
            raise RefusalError(
                f"client {self.client}: training.privacy.colluders: got {session.colluders}, expected "
                f"{self.policy.colluders} or more, as the owner has set in {policy_file(Path(self.folder))}. Raise it."
            )
        with self._lock():
            log, _ = self._open()
            self._check_peers(session)
        return SumMember(log.secret, self.client, session)

    def bind_question(
        self, session: SumSession, question: str, present: PresentSilos, partition: str, layout: str
    ) -> None:
        """Record what the silo masks, before it leaves, and the keys of others; RefusalError if it masked something else.

        The caller has decrypted the shares of the present silos, so that their lasting keys are theirs.

        Args:
            session: The session.
            question: The hash of the question.
            present: The silos that sent shares.
            partition: The version of rows; of another one, the silo would send other numbers under the same masks.
            layout: What the last bits of numbers depend on besides.

        Raises:
            RefusalError: If any of them was another before.
        """
        with self._lock():
            self._meet({name: session.key_of(name) for name in present.clients if name != self.client})
            self._bind(f"{session.digest}/rows", hash_of([partition, layout]))
            self._bind(f"{session.digest}/question", hash_of([question, present.digest]))

    def bind_answered(
        self, session: SumSession, question: str, present: PresentSilos, answered: tuple[str, ...]
    ) -> None:
        """Record the list of silos that is confirmed, before it leaves; RefusalError for a second list."""
        with self._lock():
            if self._bound(f"{session.digest}/question") != hash_of([question, present.digest]):
                raise RefusalError(
                    f"client {self.client}: got a sum that this silo masked nothing for, expected its own. Start the run "
                    "again."
                )
            self._bind(f"{session.digest}/answered", hash_of([question, present.digest, *answered]))

    def check_answered(
        self, session: SumSession, question: str, present: PresentSilos, answered: tuple[str, ...]
    ) -> None:
        """Raise RefusalError for another list than the silo confirmed."""
        with self._lock():
            confirmed = self._bound(f"{session.digest}/answered")
        if confirmed != hash_of([question, present.digest, *answered]):
            raise RefusalError(
                f"client {self.client}: got a list of silos that this silo has not confirmed, expected its own. Start the "
                "run again."
            )

    def _check_peers(self, session: SumSession) -> None:
        """Raise RefusalError for silos that the owner does not name, and for other keys than those that are known."""
        listed = dict(zip(session.clients, session.keys, strict=True))
        strangers = [
            name for name, key in listed.items() if name != self.client and not self.policy.allows("peers", key)
        ]
        if strangers:
            raise RefusalError(
                f"client {self.client}: got client {shown(strangers[0])} with the key {listed[strangers[0]]} in a secure "
                f"sum, expected the keys that the owner lists under peers in {policy_file(Path(self.folder))}. Leave it "
                "out, or let the owner list it."
            )
        known = self._known()
        replaced = [name for name, key in listed.items() if known.get(name, key) != key]
        if replaced:
            raise RefusalError(
                f"client {self.client}: got another key of client {shown(replaced[0])} than in its first sum, expected the "
                "same: a server with a key of its own could read this silo's numbers. If that silo has a new secret, let "
                f"the owner remove it from {self._peers}."
            )

    def _meet(self, listed: Mapping[str, str]) -> None:
        """Remember the keys of other silos at their first sum."""
        known = self._known()
        if not listed.items() <= known.items():
            write_bytes(self._peers, json.dumps({**known, **listed}, indent=1, ensure_ascii=False).encode())

    def _known(self) -> dict[str, str]:
        try:
            known: dict[str, str] = json.loads(self._peers.read_bytes()) if self._peers.exists() else {}
        except ValueError:
            raise UserError(
                f"{self._peers}, the keys of other silos, cannot be read. Restore it from a copy."
            ) from None
        return known

    @property
    def _peers(self) -> Path:
        return self._home / "peers.json"

    def _bound(self, name: str) -> str | None:
        """Return the one value of a name, if it has one."""
        sums = (record["sum"] for record in self._log().read() if "sum" in record)
        return next((value for bound, value in sums if bound == name), None)

    def _bind(self, name: str, value: str) -> None:
        """Give a name its one value; the caller has the lock."""
        bound = self._bound(name)
        if bound is not None and bound != value:
            raise RefusalError(
                f"client {self.client}: {SECOND} for the same secure sum, expected one. "
                "Two would let the server read less than a sum. Resume the run."
            )
        if bound is None:
            self._log().append({"sum": [name, value]})
