"""What the silos of a data set may report: a policy in their own store, which no params of a run can widen.

The store is `private/<data.name>/`. `siloflow partition` makes it with new data. A silo with data and without a store
reports nothing until its owner makes a new one: the store may have been deleted, and with it what was reported. The
policy sets a client's privacy budget, beyond which it refuses a report.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from pydantic import Field, ValidationError

from silos import param_limits
from silos.errors import RefusalError, UserError, shown, some
from silos.io.atomic_io import file_stamp, write_bytes
from silos.privacy.differencing import LEAST_ROWS
from silos.sources.source_params import Section
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
