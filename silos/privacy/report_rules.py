"""The kinds of reports, the unit of amounts, and why a ledger refuses a report."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from silos.errors import RefusalError

NEW_ROWS = "how new rows differ"
"""The kind of query about the rows that came since a version, a part of a silo's rows."""

MODELS = "models of halves"
"""The kind of query that is answered with models, whose difference to sums over rows reveals no rows."""

_SLACK = 1 + 1e-9  # tolerance of a budget for rounding in sums
_NEARLY = 1 + 4e-10  # an epsilon this much higher costs less than _SLACK more ρ
_DIGITS = 4


@dataclass(frozen=True)
class Unit:
    """The unit in which a refusal names amounts of ρ: `from_rho` grows with ρ; queries may ask for `least` or more."""

    name: str = "rho"
    from_rho: Callable[[float], float] = float
    least: float = 0.0
    also: str = ""


RHO = Unit()


class Costing(Protocol):
    """An entry of a ledger, with its cost ρ."""

    @property
    def rho(self) -> float: ...


def spent(entries: Iterable[Costing]) -> float:
    """Return what entries cost together, as ρ; Gaussian mechanisms add up exactly."""
    return math.fsum(entry.rho for entry in entries)


def check_budget(client: str, budget: float, spent: float, rho: float, unit: Unit) -> None:
    """Raise RefusalError if `spent` and `rho` together exceed `budget`, all in ρ; the error names what is left."""
    if math.fsum([spent, rho]) <= budget * _SLACK:
        return
    left = round_down(unit.from_rho(max(budget - spent, 0.0)))
    lower = f"lower {unit.name} to {left:.{_DIGITS}g} or less, " if left > 0 and left >= unit.least else ""
    raise RefusalError(
        f"client {client}: got a query that costs {unit.name} {unit.from_rho(rho):.{_DIGITS}g}, expected one within its "
        f"privacy budget of {unit.from_rho(budget):.{_DIGITS}g}{unit.also}, of which {unit.from_rho(spent):.{_DIGITS}g} is "
        f"spent. Repeat an earlier query, {lower}or let the client's owner raise budget in its owner.yaml."
    )


def round_down(value: float) -> float:
    """Round down to _DIGITS significant digits, but not if the difference is within _SLACK in ρ."""
    if value <= 0:
        return 0.0
    rounded = float(f"{value:.{_DIGITS}g}")
    step = 10.0 ** (math.floor(math.log10(value)) - _DIGITS + 1)
    return rounded if rounded <= value * _NEARLY else float(f"{rounded - step:.{_DIGITS}g}")


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
    way_out: str = (
        "wait until the class has lost none or at least ten rows, and gained none or at least ten, or report with noise: "
        "`siloflow diagnose --set 'diagnose.noise={epsilon: 4}'`"
    )
    once: str = ""

    def is_part_of(self, recorded: str) -> bool:
        """Return whether this query or a recorded one, but not both, is about new rows, a part of a silo's."""
        return (self.name == NEW_ROWS) != recorded.startswith(f"{NEW_ROWS}: ")

    def sums_as(self, recorded: str) -> bool:
        """Return whether a recorded query is answered with sums if this kind is; models are no sums over rows."""
        return (self.name == MODELS) == recorded.startswith(f"{MODELS}: ")

    def qualified(self, question: str) -> str:
        """Return the query as the ledger records it."""
        return f"{self.name}: {question}" if self.name else question

    def includes(self, recorded: str) -> bool:
        """Return whether a recorded query is of this kind."""
        return bool(self.name) and recorded.startswith(f"{self.name}: ")


def difference_refusal(client: str, before: str, version: str, kind: Kind, least: int) -> RefusalError:
    """Return the refusal if fewer than `least` rows were removed from, or added to, what two reports stand for."""
    differ = f"differ by fewer than {least} different rows of {kind.group}"
    way_out = f"{kind.way_out[:1].upper()}{kind.way_out[1:]}."
    if before == version:
        return RefusalError(
            f"client {client}: its earlier report and this one, of the same rows, {differ}, for example if so few miss a "
            f"value of a feature. Subtracting the two would reveal these rows. {way_out}"
        )
    return RefusalError(
        f"client {client}: its rows and those of an earlier report without noise {differ}, removed or added, or by fewer "
        "values of a column. Subtracting the two reports would reveal these. With `owners_view: true` "
        f"in its owner's file, `siloflow data diff VERSION` shows the class. {way_out}"
    )


def noise_refusal(client: str, policy: Path) -> RefusalError:
    """Return the refusal of a query without noise by a client that reports with noise only."""
    return RefusalError(
        f"client {client}: got a query without noise, expected one with noise, because its owner set without_noise: false "
        f"in {policy}. Set diagnose.noise, leave model.inputs and model.targets at none, or let the owner change that."
    )


def bins_refusal(client: str, features: Sequence[str]) -> RefusalError:
    """Return the refusal of counts in other bins than some of the rows were counted in before."""
    first = f"feature {features[0]!r}" if features[0] else "targets"
    more = f" (and {len(features) - 1} more)" if len(features) > 1 else ""
    return RefusalError(
        f"client {client}: got other bins of {first}{more} than in an earlier report of some of its rows, expected the "
        "same, since each further set of bins narrows down single values. Use the bounds, categories and diagnose.bins of "
        "that report, add noise, or let the client's owner set other_bins: true in its owner.yaml."
    )


def repetition_refusal(client: str, kind: Kind) -> RefusalError:
    """Return the refusal of a second query of a kind that is answered once for a version of the rows."""
    return RefusalError(
        f"client {client}: got a second query of the kind `{kind.name}` on its present rows, expected one, since each "
        f"further answer reveals more of single rows. {kind.once[:1].upper()}{kind.once[1:]}."
    )
