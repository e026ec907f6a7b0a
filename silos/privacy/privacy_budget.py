"""The privacy budget of a client, and the errors with which it refuses a report."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from silos.errors import RefusalError
from silos.privacy.differencing import LEAST_ROWS

_SLACK = 1 + 1e-9  # tolerance of a budget for rounding in sums
_DIGITS = 4


@dataclass(frozen=True)
class Unit:
    """The unit in which a refusal names amounts of ρ: `from_rho` grows with ρ; queries may ask for `least` or more."""

    name: str = "rho"
    from_rho: Callable[[float], float] = float
    least: float = 0.0
    also: str = ""


RHO = Unit()


def check_budget(client: str, budget: float, spent: float, rho: float, unit: Unit) -> None:
    """Raise RefusalError if `spent` and `rho` together exceed `budget`, all in ρ; the error names what is left."""
    if math.fsum([spent, rho]) <= budget * _SLACK:
        return
    left = _round_down(unit.from_rho(max(budget - spent, 0.0)))
    lower = f"ask at {unit.name} {left:.{_DIGITS}g} or less, " if left > 0 and left >= unit.least else ""
    raise RefusalError(
        f"client {client} has a privacy budget of {unit.name} {unit.from_rho(budget):.{_DIGITS}g}{unit.also}, of which "
        f"{unit.from_rho(spent):.{_DIGITS}g} is spent, and this question costs {unit.from_rho(rho):.{_DIGITS}g}; "
        f"ask one that it has answered, {lower}or let whoever answers for the client raise its budget."
    )


def _round_down(value: float) -> float:
    """Round down to _DIGITS significant digits."""
    if value <= 0:
        return 0.0
    rounded = float(f"{value:.{_DIGITS}g}")
    step = 10.0 ** (math.floor(math.log10(value)) - _DIGITS + 1)
    return rounded if rounded <= value else float(f"{rounded - step:.{_DIGITS}g}")


@dataclass(frozen=True)
class Kind:
    """What queries of a kind share.

    Attributes:
        name: Prefix by which the ledger distinguishes the kind's queries from others.
        group: What a report sums over.
        way_out: Advice if two reports differ by a few rows.
        once: Advice if another query of this kind was answered for the same version; empty if any number is allowed.
    """

    name: str = ""
    group: str = "a class"
    way_out: str = "ask with noise, or wait until ten rows or more of the class have changed"
    once: str = ""

    def qualified(self, question: str) -> str:
        """Return the query as the ledger records it."""
        return f"{self.name}: {question}" if self.name else question

    def includes(self, recorded: str) -> bool:
        """Return whether a recorded query is of this kind."""
        return bool(self.name) and recorded.startswith(f"{self.name}: ")


def difference_refusal(client: str, before: str, version: str, kind: Kind) -> RefusalError:
    """Return the refusal if reports of two versions, or of one, differ by fewer than LEAST_ROWS rows."""
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


def repetition_refusal(client: str, version: str, kind: Kind) -> RefusalError:
    """Return the refusal of a second query of a kind that is answered once for a version of the rows."""
    return RefusalError(
        f"client {client} has answered another question for {kind.name} about version {version[:12]} of its rows, and "
        f"answers one, as each more would tell more of single rows; {kind.once}."
    )
