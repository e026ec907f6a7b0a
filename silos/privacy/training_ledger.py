"""Record what a client answers in private training, and its cost, so that no answer is given twice with other bytes.

A question is all that an answer depends on: the rows' version, the received weights and the settings. A client pays for
as many answers as a run has rounds when it answers a run's first question. A repeated question, as of a resumed run, costs
nothing and gets the same bytes, or is refused if they cannot be computed again. Other weights are another question.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from silos.errors import RefusalError, UserError
from silos.io.atomic_io import write_bytes
from silos.privacy.ledger import Entry, Ledger, now, user
from silos.privacy.report_rules import RHO, Kind, Unit, check_budget, spent
from silos.privacy.reported_rows import RowRegister

TRAINING = Kind("training")

Register = Callable[[], RowRegister | None]


@dataclass(frozen=True)
class Purchase:
    """What a client pays for at once.

    Attributes:
        partition: The version of all silos' rows.
        settings: A hash of the version and of the settings that the cost depends on.
        answers: The number of answers.
        rho: Their cost together.
        budget: The most that all reports and answers of the client may cost, in the same unit.
        unit: The unit of amounts in errors.
        singly: Whether answers after those of the first run are bought one by one.
    """

    partition: str
    settings: str
    answers: int
    rho: float
    budget: float
    unit: Unit = RHO
    singly: bool = False

    @property
    def question(self) -> str:
        """Return the query as the ledger records it."""
        return TRAINING.qualified(self.settings)

    def price(self, paid: int) -> float:
        """Return the cost of what is bought next, after this many answers were paid for."""
        return self.rho / self.answers if self.singly and paid else self.rho


@dataclass(frozen=True)
class TrainingLedger(Ledger):
    """The part of a client's ledger that records its answers in private training."""

    def noise_key(self, partition: str, question: str) -> bytes:
        """Return the key of the noise of an answer, which follows from the client's secret: 32 bytes."""
        with self._lock():
            secret, _ = self._open()
        return secret.key("training", partition, question)

    def account(self, purchase: Purchase) -> tuple[float, int]:
        """Return what the client has spent so far, as ρ, and how many answers are paid for and not given."""
        with self._lock():
            _, entries = self._open()
            return spent(entries), self._paid(purchase, entries) - len(self._answers(purchase, entries))

    def check(self, purchase: Purchase, question: str) -> None:
        """Raise RefusalError if an answer to a question would exceed the budget; before any row is read."""
        with self._lock():
            _, entries = self._open()
            answers, paid = self._answers(purchase, entries), self._paid(purchase, entries)
            if question not in answers and len(answers) >= paid:
                self._check(purchase, entries, None, purchase.price(paid))

    def record(self, purchase: Purchase, question: str, digest: str, register: Register) -> None:
        """Record an answer before it leaves, and pay if the answers that were paid for are used up.

        Args:
            purchase: What is paid for.
            question: The hash of the question.
            digest: The hash of the answer.
            register: Returns the register of the client's rows, which is read when the client pays; None of public rows.

        Raises:
            RefusalError: If the budget is exceeded, another silo reported the rows, or the question was answered with
                other bytes.
            UserError: If the record of earlier answers is missing.
            ValueError: If the purchase is of nothing, or costs nothing.
        """
        if purchase.answers < 1 or not 0 < purchase.rho < math.inf:
            raise ValueError(f"purchase: got {purchase.answers} answers for {purchase.rho}, expected a price of some")
        with self._lock():
            secret, entries = self._open()
            answers, path = self._answers(purchase, entries), self._path(purchase)
            if question in answers:
                self._compare(answers[question], digest)
                return
            paid = self._paid(purchase, entries)
            if len(answers) >= paid:
                rows = register()
                price = purchase.price(paid)
                self._check(purchase, entries, rows, price)
                if not path.exists():
                    write_bytes(path, b"")
                if rows is not None:
                    rows.record(self.policy)
                bought = Entry(purchase.partition, purchase.question, price, 0, now(), "", "", by=user())
                self._write(secret, [*entries, bought])
            with path.open("r+b") as file:
                file.truncate(file.seek(path.read_bytes().rfind(b"\n") + 1))  # a line without its end was not sent
                file.write(f"{question} {digest}\n".encode())
                file.flush()
                os.fsync(file.fileno())

    def _check(self, purchase: Purchase, entries: list[Entry], rows: RowRegister | None, price: float) -> None:
        if rows is not None:
            rows.check()
        check_budget(self.client, purchase.budget, spent(entries), price, purchase.unit)

    def _compare(self, recorded: str, digest: str) -> None:
        if recorded != digest:
            raise RefusalError(
                f"client {self.client}: got a question of an earlier run, but this machine computes other bytes than the "
                "answer that was sent. The difference of the two would reveal rows. Resume the run on the machine that "
                "began it, with its device and engine.stack, or train with another seed."
            )

    def _paid(self, purchase: Purchase, entries: list[Entry]) -> int:
        prices = [e.rho for e in entries if (e.version, e.question) == (purchase.partition, purchase.question)]
        whole, single = prices.count(purchase.rho), prices.count(purchase.price(1))
        return whole * purchase.answers + (single if purchase.singly and purchase.answers > 1 else 0)

    def _path(self, purchase: Purchase) -> Path:
        return self._home / f"training-{purchase.settings}.log"

    def _answers(self, purchase: Purchase, entries: list[Entry]) -> dict[str, str]:
        """Return the hash of each answer that was recorded, by question."""
        path = self._path(purchase)
        if not path.exists():
            if self._paid(purchase, entries):
                raise UserError(
                    f"{path}, the record of what client {self.client} answered in training, is missing. Restore it from a "
                    "copy, or change training.privacy.epsilon, rounds or epochs."
                )
            return {}
        lines = path.read_text(encoding="ascii", errors="replace").split("\n")[:-1]
        return dict(line.split(" ", 1) for line in lines)
