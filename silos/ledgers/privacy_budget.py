"""What noisy answers may cost a client in all, and the sentence of the one that would go beyond it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from silos.errors import RefusalError

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
