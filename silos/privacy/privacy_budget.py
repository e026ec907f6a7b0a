"""The privacy budget of a client, and the sentences with which it refuses a report."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from silos.errors import RefusalError
from silos.privacy.differencing import LEAST_ROWS

_SLACK = 1 + 1e-9  # of a budget, for what adding up rounds
_DIGITS = 4


@dataclass(frozen=True)
class Unit:
    """In what a refusal names amounts of ρ: `of` one, growing with it. Nobody can ask for less than `least`."""

    name: str = "rho"
    of: Callable[[float], float] = float
    least: float = 0.0
    also: str = ""


RHO = Unit()


def check_budget(client: str, budget: float, spent: float, rho: float, unit: Unit) -> None:
    """RefusalError where `spent` and `rho` are beyond `budget` together, all in ρ; it names what may be asked for."""
    if math.fsum([spent, rho]) <= budget * _SLACK:
        return
    left = _down(unit.of(max(budget - spent, 0.0)))
    lower = f"ask at {unit.name} {left:.{_DIGITS}g} or less, " if left > 0 and left >= unit.least else ""
    raise RefusalError(
        f"client {client} has a privacy budget of {unit.name} {unit.of(budget):.{_DIGITS}g}{unit.also}, of which "
        f"{unit.of(spent):.{_DIGITS}g} is spent, and this question costs {unit.of(rho):.{_DIGITS}g}; ask one that it has "
        f"answered, {lower}or let whoever answers for the client raise its budget."
    )


def _down(value: float) -> float:
    """The largest number of so many digits that is no more."""
    if value <= 0:
        return 0.0
    rounded = float(f"{value:.{_DIGITS}g}")
    step = 10.0 ** (math.floor(math.log10(value)) - _DIGITS + 1)
    return rounded if rounded <= value else float(f"{rounded - step:.{_DIGITS}g}")


@dataclass(frozen=True)
class Kind:
    """What questions have in common. name: by which the ledger tells them from others; group: what an answer is a sum over.

    way_out: where two answers differ by a few rows. once: the way out where another such question was answered of the same
    version of the rows; none where any number is.
    """

    name: str = ""
    group: str = "a class"
    way_out: str = "ask with noise, or wait until ten rows or more of the class have changed"
    once: str = ""

    def named(self, question: str) -> str:
        """As the ledger has it."""
        return f"{self.name}: {question}" if self.name else question

    def has(self, question: str) -> bool:
        """Whether what the ledger has is of this kind."""
        return bool(self.name) and question.startswith(f"{self.name}: ")


def too_near(client: str, before: str, version: str, kind: Kind) -> RefusalError:
    """Of what was told of the version before, which may be the same, and would be told of this one."""
    if before == version:
        return RefusalError(
            f"what client {client} told and what it would tell of the same rows differ by fewer than {LEAST_ROWS} different "
            f"rows of {kind.group}, as where so few miss a value of a feature, and subtracting them would show those; "
            f"{kind.way_out}."
        )
    return RefusalError(
        f"what client {client} told of version {before[:12]} without noise and what it would tell of "
        f"version {version[:12]} differ by fewer than {LEAST_ROWS} different rows of {kind.group}, and subtracting "
        f"them would show those; {kind.way_out}."
    )


def asked_once(client: str, version: str, kind: Kind) -> RefusalError:
    """Of a second question of a kind that a version's rows answer one of."""
    return RefusalError(
        f"client {client} has answered another question for {kind.name} about version {version[:12]} of its rows, and "
        f"answers one, as each more would tell more of single rows; {kind.once}."
    )
