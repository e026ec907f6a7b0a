"""Record what a client answers in private training, and its cost, so that no answer is given twice with other bytes.

A question is all that an answer depends on: the rows' version, the received weights and the settings. A client pays for
as many answers as a run has rounds when it answers a run's first question. A repeated question, as of a resumed run, costs
nothing and gets the same bytes, or is refused if they cannot be computed again. Other weights are another question.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from silos.errors import RefusalError
from silos.privacy.ledger import Entry, Ledger
from silos.privacy.report_rules import RHO, Kind, Unit, check_budget, spent
from silos.privacy.reported_rows import RowRegister
from silos.privacy.request_log import now, user
from silos.privacy.sealed_log import SealedLog

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
            return self._open()[0].secret.key("training", partition, question)

    def account(self, purchase: Purchase) -> tuple[float, int]:
        """Return what the client has spent so far, as ρ, and how many answers are paid for and not given."""
        with self._lock():
            log, entries = self._open()
            return spent(entries), self._paid(purchase, entries) - len(_answers(purchase, log))

    def check(self, purchase: Purchase, question: str) -> None:
        """Raise RefusalError if an answer to a question would exceed the budget; before any row is read."""
        with self._lock():
            log, entries = self._open()
            answers, paid = _answers(purchase, log), self._paid(purchase, entries)
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
            ValueError: If the purchase is of nothing, or costs nothing.
        """
        if purchase.answers < 1 or not 0 < purchase.rho < math.inf:
            raise ValueError(f"purchase: got {purchase.answers} answers for {purchase.rho}, expected a price of some")
        with self._lock():
            log, entries = self._open()
            answers = _answers(purchase, log)
            if question in answers:
                self._compare(answers[question], digest)
                return
            paid = self._paid(purchase, entries)
            if len(answers) >= paid:
                rows = register()
                price = purchase.price(paid)
                self._check(purchase, entries, rows, price)
                if rows is not None:
                    rows.record(self.policy)
                bought = Entry(purchase.partition, purchase.question, price, 0, now(), "", "", by=user())
                self._write(log, report=asdict(bought))  # a new secret survives a power cut before it is used
            log.append({"answer": [purchase.settings, question, digest]})

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


def _answers(purchase: Purchase, log: SealedLog) -> dict[str, str]:
    """Return the hash of each answer that was recorded, by question."""
    given = (record["answer"] for record in log.read() if "answer" in record)
    return {answer[1]: answer[2] for answer in given if answer[0] == purchase.settings}
