"""What the silos of a data set may report: a policy in their own store, which no params of a run can widen.

The store is `private/<data.name>/`. `siloflow partition` makes it with new data. A silo with data and without a store
reports nothing until its owner makes a new one: the store may have been deleted, and with it what was reported. The
policy sets a client's privacy budget, beyond which it refuses a report.
"""

import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from pydantic import Field, ValidationError

from silos import param_limits
from silos.errors import RefusalError, UserError, shown, some
from silos.io.atomic_io import file_stamp, write_bytes
from silos.params_section import Section
from silos.privacy.differencing import LEAST_ROWS
from silos.strict_yaml import NotYamlError, load

POLICY = "policy.yaml"
OPENED = ".opened"
"""The folder with an empty file for each silo that has a ledger, which shows that a ledger was deleted."""

MOST_BINS = 1024

_DERIVED = ".partitions"  # of sweeps: each has its own ledgers, and the policy of the data that they are made from
_TEXT = f"""\
# What these silos may report, in all runs together. Only their owner changes this file; params.yaml cannot widen it.
budget: 8.0           # epsilon of all reports with noise
delta: 1.0e-05        # at which epsilon is counted
least_rows: {LEAST_ROWS}        # different rows that a class needs to be reported
bins: {MOST_BINS}            # the most bins of a number
without_noise: true   # whether exact numbers are reported
other_bins: false     # whether rows that were counted in some bins may be counted in others, without noise
other_silos: false    # whether rows that these silos reported may be reported by others, each with a budget of its own
silos: {{}}             # the same keys for single silos: {{oslo: {{without_noise: false}}}}
"""

_SLACK = 1 + 1e-9  # tolerance of a budget for rounding in sums
_DIGITS = 4

NEW_ROWS = "how new rows differ"
"""The kind of query about the rows that came since a version, a part of a silo's rows."""

MODELS = "models of halves"
"""The kind of query that is answered with models, whose difference to sums over rows reveals no rows."""


class Policy(Section):
    """What one silo may report. `budget` is the epsilon of all its reports with noise, at `delta`."""

    budget: float = Field(default=8.0, ge=0, le=param_limits.MAX_REAL)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    least_rows: int = Field(default=LEAST_ROWS, ge=LEAST_ROWS, le=param_limits.TIMES)
    bins: int = Field(default=MOST_BINS, ge=1, le=MOST_BINS)
    without_noise: bool = True
    other_bins: bool = False
    other_silos: bool = False


DEFAULT = Policy()


def make_store(folder: Path, other_silos: bool = False) -> None:
    """Make what a store lacks: the policy with its defaults, and the folder of opened ledgers."""
    (folder / OPENED).mkdir(parents=True, exist_ok=True)
    if not (folder / POLICY).exists():
        text = _TEXT.replace("other_silos: false", "other_silos: true ") if other_silos else _TEXT
        write_bytes(folder / POLICY, text.encode())


def folder_name(client: str) -> str:
    """Return the name of the files and folders of a silo in its store."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", client)[:60]
    return f"{readable}-{hashlib.sha256(client.encode()).hexdigest()[:16]}"


def has_store(folder: Path) -> bool:
    """Return whether a store is complete."""
    return (folder / POLICY).is_file() and (folder / OPENED).is_dir()


def policy_of(folder: Path, client: str) -> Policy:
    """Read the policy of a silo; RefusalError if the store is missing, UserError if the policy cannot be read."""
    if folder.parent.name == _DERIVED:
        folder = folder.parent.parent
        if not (folder / POLICY).exists():
            return DEFAULT
    elif not has_store(folder):
        missing = folder / (OPENED if (folder / POLICY).is_file() else POLICY)
        raise RefusalError(
            f"client {client}: got no {missing}, expected the file or folder that `siloflow partition` makes, since the "
            f"record of earlier reports may have been deleted. Restore {folder} from a copy, or let the client's owner "
            "start a new record: `siloflow data ledger --new`."
        )
    return _policies(folder / POLICY).of(client)


def policy_file(folder: Path) -> Path:
    """Return the file that the policy of a store is read from."""
    return (folder.parent.parent if folder.parent.name == _DERIVED else folder) / POLICY


def policy_of_run(folder: Path, client: str) -> Policy:
    """Read the policy of a silo from the store that a run's private folder lies in; the defaults if there is none."""
    stores = (store for store in (folder, *folder.parents[:_RUN_DEPTH]) if (store / POLICY).is_file())
    store = next(stores, None)
    return DEFAULT if store is None else _policies(store / POLICY).of(client)


def least_rows_of(folder: Path, clients: Collection[str]) -> tuple[int, int]:
    """Return the smallest and the largest `least_rows` of these silos' policies, as `policy_of_run` reads them."""
    least = {policy_of_run(folder, client).least_rows for client in clients}
    return min(least), max(least)


_RUN_DEPTH = 2  # private/<data.name>/<experiment>/<seed>


def recorded_policy(path: Path, client: str) -> Policy:
    """Read the policy of a silo from this file; the defaults if it is missing."""
    return _policies(path).of(client) if path.exists() else DEFAULT


def named_silos(folder: Path) -> list[str]:
    """Return the silos that the policy names."""
    return [*_policies(folder / POLICY).silos]


def check_named_silos(folder: Path, silos: Collection[str]) -> None:
    """Raise UserError if the policy names a silo that is none of these and has no ledger: its keys would hold for none."""
    if not has_store(folder):
        return
    for name in named_silos(folder):
        if name not in silos and not (folder / OPENED / folder_name(name)).exists():
            spelled = {silo.casefold(): silo for silo in silos}
            near = get_close_matches(name.casefold(), spelled, 1)
            hint = f"Did you mean {spelled[near[0]]}?" if near else f"The silos are {some([*silos], 5)}."
            raise UserError(
                f"{folder / POLICY}: silos: got {shown(name)}, expected a silo of the data. {hint} Correct its name."
            )


@dataclass(frozen=True)
class _Policies:
    every: Policy
    silos: Mapping[str, Policy]

    def of(self, client: str) -> Policy:
        return self.silos.get(client, self.every)


def _policies(path: Path) -> _Policies:
    return _read(path, file_stamp(path))


@lru_cache(maxsize=64)
def _read(path: Path, _: tuple[int, ...]) -> _Policies:
    try:
        content = load(path.read_bytes())
    except NotYamlError as error:
        raise UserError(f"{path}: {error}. {_WAY_OUT}") from None
    if not isinstance(content, dict):  # also an empty file, such as of a full disk: defaults may allow more
        got = "nothing" if content is None else shown(content)
        raise UserError(f"{path}: got {got}, expected keys with values. {_WAY_OUT}")
    of_silos = content.pop("silos", None) or {}
    if not isinstance(of_silos, dict) or not all(isinstance(own, dict) for own in of_silos.values()):
        raise UserError(f"{path}: silos: got {shown(of_silos)}, expected a section for each silo. {_WAY_OUT}")
    every = _policy(path, "", content)
    silos = {name: _policy(path, f"silos.{name}.", {**every.model_dump(), **own}) for name, own in of_silos.items()}
    return _Policies(every, silos)


def _policy(path: Path, section: str, content: Mapping[str, object]) -> Policy:
    try:
        return Policy.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if key not in _EXPECTED:
            near = get_close_matches(key, _EXPECTED, 1)
            hint = f". Did you mean {near[0]}?" if near else f", expected one of {', '.join(_EXPECTED)}."
            raise UserError(f"{path}: {section}{key}: got an unknown key{hint} {_WAY_OUT}") from None
        got = "nothing" if first["input"] is None else shown(repr(first["input"]))
        raise UserError(f"{path}: {section}{key}: got {got}, expected {_EXPECTED[key]}. {_WAY_OUT}") from None


_SWITCH = "true or false"
_EXPECTED = {
    "budget": "a number from 0 on",
    "delta": "a number between 0 and 1",
    "least_rows": f"a whole number of {LEAST_ROWS} or more",
    "bins": f"a whole number from 1 to {MOST_BINS}",
    "without_noise": _SWITCH,
    "other_bins": _SWITCH,
    "other_silos": _SWITCH,
}
_WAY_OUT = f"Correct {POLICY}; its silos report nothing until then."


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
    lower = f"lower {unit.name} to {left:.{_DIGITS}g} or less, " if left > 0 and left >= unit.least else ""
    raise RefusalError(
        f"client {client}: got a query that costs {unit.name} {unit.from_rho(rho):.{_DIGITS}g}, expected one within its "
        f"privacy budget of {unit.from_rho(budget):.{_DIGITS}g}{unit.also}, of which {unit.from_rho(spent):.{_DIGITS}g} is "
        f"spent. Repeat an earlier query, {lower}or let the client's owner raise budget in its policy.yaml."
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
    way_out: str = (
        "wait until the class has lost none or at least ten rows, and gained none or at least ten, or report with noise: "
        "`siloflow diagnose --set 'diagnose.noise={epsilon: 4}'`"
    )
    once: str = ""

    def sums_as(self, recorded: str) -> bool:
        """Return whether a recorded query is answered with sums if this kind is; models are no sums over rows."""
        return (self.name == MODELS) == recorded.startswith(f"{MODELS}: ")

    def counts_values_as(self, recorded: str) -> bool:
        """Return whether values of a recorded query can be counted against this kind's; new rows are a part of a silo's."""
        return (self.name == NEW_ROWS) == recorded.startswith(f"{NEW_ROWS}: ")

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
        "values of a column. Subtracting the two reports would reveal these. `siloflow data diff VERSION` shows the owner "
        f"the class. {way_out}"
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
        "that report, add noise, or let the client's owner set other_bins: true in its policy.yaml."
    )


def repetition_refusal(client: str, kind: Kind) -> RefusalError:
    """Return the refusal of a second query of a kind that is answered once for a version of the rows."""
    return RefusalError(
        f"client {client}: got a second query of the kind `{kind.name}` on its present rows, expected one, since each "
        f"further answer reveals more of single rows. {kind.once[:1].upper()}{kind.once[1:]}."
    )
