"""The file of the silos' owner, which says what may be asked of them; no params of a run can widen it.

It is `private/<store>/owner.yaml`. `siloflow partition` writes it with new data. A silo with data and without this file
reports nothing until its owner makes a new one: it may have been deleted, and with it what was reported.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from silos import param_limits
from silos.data_params import DataParams
from silos.errors import RefusalError, UserError, shown, some
from silos.io.atomic_io import file_stamp, write_bytes
from silos.param_types import Name
from silos.params_section import Section
from silos.privacy.differencing import LEAST_ROWS
from silos.privacy.secret import OPENED, Secret, cell_secret
from silos.sources.source_params import PUBLIC_KINDS, is_public
from silos.strict_yaml import NotYamlError, load

OWNER_FILE = "owner.yaml"
MOST_BINS = 1024

COMMANDS = ("diagnose", "evaluate", "export", "partition", "predict", "run", "show", "stats")
"""What silos may be asked for; `run` is all training, also that of compare, tune, advise and reproduce."""

_FIXED = ("source", "features", "scheme", "split", "seed")
"""The keys of `data` that an owner's file fixes: all but its name. Each seed draws other training rows to be reported."""

_DERIVED = ".partitions"  # of sweeps: each has its own ledgers, and the file of the data that they are made from
_TEXT = """\
# What may be asked of these silos, in all runs together. Only their owner changes this file: params.yaml can ask for less,
# never for more. docs/owner.md explains each key.
{data}may_differ: []        # more keys of data that params may set otherwise, such as [source.drop, features, scheme, seed]
commands: all         # or a list of diagnose, evaluate, export, partition, predict, run (all training), show, stats
methods: all          # or a list, such as [fedavg, finetune]
messages: all         # or a list of the kinds that may leave, such as [Update, Scores]
training_rows: 1      # training rows below which a silo takes no part in training
private_training: false # whether training without training.privacy is refused, and of weights that silos keep
colluders: 1          # other silos that may help the server to read this one: the least that secure sums assume
peers: all            # or the keys of the silos that secure sums may have: `siloflow data ledger --keys` of their owners
own_models: false     # whether weights and scales that a silo keeps may predict, and may be exported and logged
owners_view: {view}    # whether `show`, `stats`, `data diff` and `predict` read rows without a guard, for the owner alone
budget: {budget}# epsilon of all reports with noise, and of training with training.privacy
delta: 1.0e-05        # at which epsilon is counted
least_rows: {least}        # different rows (patients, where rows name them) that a class needs to be reported
least_cell: {cell}        # different rows of a class in a cell of exact counts that has any; 1 allows single rows
bins: {bins}            # the most bins of a number
without_noise: true   # whether exact numbers are reported
other_bins: false     # whether rows that were counted in some bins may be counted in others, without noise
other_silos: {other}    # whether rows that these silos reported may be reported by others, each with a budget of its own
silos: {{}}             # the same keys, from commands on, for single silos: {{oslo: {{without_noise: false}}}}
"""

Listed = Literal["commands", "methods", "messages", "peers"]
"""The keys that list what is allowed."""

_Names = Literal["all"] | tuple[Name, ...]


class Policy(Section):
    """What one silo may be asked for, and may report. `budget` is the epsilon of all its reports with noise, at `delta`."""

    commands: _Names = "all"
    methods: _Names = "all"
    messages: _Names = "all"
    training_rows: int = Field(default=1, ge=1, le=param_limits.TIMES)
    private_training: bool = False
    colluders: int = Field(default=1, ge=0, le=param_limits.TIMES)
    peers: _Names = "all"
    own_models: bool = False
    owners_view: bool = False
    budget: float = Field(default=8.0, ge=0, le=param_limits.MAX_REAL)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    least_rows: int = Field(default=LEAST_ROWS, ge=LEAST_ROWS, le=param_limits.TIMES)
    least_cell: int = Field(default=LEAST_ROWS, ge=1, le=param_limits.TIMES)
    bins: int = Field(default=MOST_BINS, ge=1, le=MOST_BINS)
    without_noise: bool = True
    other_bins: bool = False
    other_silos: bool = False

    def allows(self, key: Listed, name: str) -> bool:
        """Return whether a command, method, kind of message, or a silo of this key is allowed."""
        listed: str | tuple[str, ...] = getattr(self, key)
        return listed == "all" or name in listed


DEFAULT = Policy()


def make_store(folder: Path, data: DataParams | None = None) -> bool:
    """Make what a store lacks, and return whether that was the owner's file.

    It fixes the source of data of one's own. Public and simulated rows are of no one who needs a budget.
    """
    (folder / OPENED).mkdir(parents=True, exist_ok=True)
    path = folder / OWNER_FILE
    if path.exists():
        return False
    public = data is not None and is_public(data.source)
    words = {
        "view": "true " if public else "false",
        "other": "true " if public else "false",
        "cell": "1 " if public else str(LEAST_ROWS),
        "budget": "1.0e+06       " if public else "8.0           ",
    }
    text = _TEXT.format(data=_section(data), least=LEAST_ROWS, bins=MOST_BINS, **words)
    write_bytes(path, text.encode())
    return True


def copy_policies(folder: Path, policies: Mapping[str, Mapping[str, Any]]) -> None:
    """Write down what the owners of silos at other places allow, by silo; each place decides by its own file.

    RefusalError if the folder has an owner's file of silos that are here.
    """
    check_copied(folder)
    (folder / OPENED).mkdir(parents=True, exist_ok=True)
    write_bytes(folder / OWNER_FILE, f"{_HEAD_OF_COPY}silos: {json.dumps(policies, ensure_ascii=False)}\n".encode())


_HEAD_OF_COPY = "# A copy: each place decides by its owner's file, and `siloflow partition` copies it again.\n"


def is_copy(file: Path) -> bool:
    """Return whether an owner's file is a copy of what owners of silos at places allow."""
    return file.read_bytes().startswith(_HEAD_OF_COPY.encode())


def check_copied(folder: Path) -> None:
    """Raise RefusalError if a store has an owner's file that is no copy of places' files: only its owner changes it."""
    path = folder / OWNER_FILE
    if path.exists() and not is_copy(path):
        raise RefusalError(
            f"params.yaml: data.source.kind: got places, but {path} is of silos that are here, expected another data.name. "
            "Choose one for the silos of places."
        )


def _section(data: DataParams | None) -> str:
    """Return the lines of the section `data`: how rows are read, dealt and split; of public data their kind alone."""
    if data is None:
        return ""
    recipe = data.recipe()
    if is_public(data.source):
        return f"data:\n  source: {json.dumps({'kind': data.source.kind})}\n"
    lines = ["data:", "  source:", *(f"    {key}: {json.dumps(value)}" for key, value in recipe["source"].items())]
    for key in ("features", "scheme"):
        lines += [f"  {key}:", *(f"    - {json.dumps(value)}" for value in recipe[key])] if recipe.get(key) else []
    lines += [f"  split: {json.dumps(recipe['split'])}", f"  seed: {data.seed}"]
    return "".join(f"{line}\n" for line in lines)


def folder_name(client: str) -> str:
    """Return the name of the files and folders of a silo in its store."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", client)[:60]
    return f"{readable}-{hashlib.sha256(client.encode()).hexdigest()[:16]}"


def has_store(folder: Path) -> bool:
    """Return whether a store is complete."""
    return (folder / OWNER_FILE).is_file() and (folder / OPENED).is_dir()


def policy_of(folder: Path, client: str) -> Policy:
    """Read the policy of a silo; RefusalError if the store is missing, UserError if the policy cannot be read."""
    if folder.parent.name == _DERIVED:
        folder = folder.parent.parent
        if not (folder / OWNER_FILE).exists():
            return DEFAULT
    elif not has_store(folder):
        missing = folder / (OPENED if (folder / OWNER_FILE).is_file() else OWNER_FILE)
        raise RefusalError(
            f"client {client}: got no {missing}, expected the file or folder that `siloflow partition` makes, since the "
            f"record of earlier reports may have been deleted. Restore {folder} from a copy, or let the client's owner "
            "start a new record: `siloflow data ledger --new`."
        )
    return read_owner_file(folder / OWNER_FILE).of(client)


def policy_file(folder: Path) -> Path:
    """Return the owner's file of a store, or of the store that a sweep's partition belongs to."""
    return (folder.parent.parent if folder.parent.name == _DERIVED else folder) / OWNER_FILE


def policy_of_run(folder: Path, client: str) -> Policy:
    """Read the policy of a silo from the store that a folder is, or a run's lies in; the defaults if there is none."""
    path = _file_above(folder)
    return DEFAULT if path is None else read_owner_file(path).of(client)


def check_command(folder: Path, command: str, silos: Iterable[str], *others: str) -> None:
    """Raise RefusalError if a silo answers neither a command nor one of the others; folder: their store, or a run's."""
    _check_listed(folder, silos, "commands", command, "Ask for something else", *others)


def check_messages(folder: Path, clients: Iterable[str], kind: str) -> None:
    """Raise RefusalError if one of these silos does not let messages of a kind leave; folder: that of a run."""
    _check_listed(folder, clients, "messages", kind, "Use a method that sends none")


def must_be_private(folder: Path, clients: Iterable[str]) -> bool:
    """Return whether the owner of one of these silos requires training.privacy; folder: that of a run."""
    path = _file_above(folder)  # read once, since this is checked for each message of a round
    owner = OwnerFile(DEFAULT, {}) if path is None else read_owner_file(path)
    return any(owner.of(client).private_training for client in clients)


def check_training(folder: Path, method: str | None, rows: Iterable[tuple[str, int]]) -> None:
    """Raise RefusalError if one of these silos takes no part in training with a method.

    Args:
        folder: The private folder of the run.
        method: The method's name; None where it is not known.
        rows: Each silo that takes part, with its training rows.
    """
    by_silo = dict(rows)
    check_command(folder, "run", by_silo)
    if method is not None:
        _check_listed(folder, by_silo, "methods", method, "Leave them out by clients.leave, or choose another method")
    few = [silo for silo, own in by_silo.items() if own < policy_of_run(folder, silo).training_rows]
    if few:
        least, more = policy_of_run(folder, few[0]).training_rows, _and_more(few)
        raise RefusalError(
            f"client {few[0]}{more}: got {by_silo[few[0]]} training rows, expected {least} or more to take part in "
            f"training, as the owner has set in {_file_above(folder)}. Leave such clients out by clients.leave: "
            f"{{{few[0]}: 1}}, or let the owner change it."
        )


def answering(folder: Path, silos: Sequence[str], *commands: str) -> Sequence[str]:
    """Return the silos that answer one of these commands; folder: as of `check_command`."""
    path = _file_above(folder)
    owner = OwnerFile(DEFAULT, {}) if path is None else read_owner_file(path)
    answers = {
        policy: any(policy.allows("commands", each) for each in commands)
        for policy in (owner.every, *owner.silos.values())
    }
    return silos if all(answers.values()) else [silo for silo in silos if answers[owner.of(silo)]]


def check_own_models(folder: Path, silos: Iterable[str], got: str) -> None:
    """Raise RefusalError if weights and scales that one of these silos keeps would leave it; got: what asks for them."""
    path = _file_above(folder)
    owner = None if path is None else read_owner_file(path)
    refusing = [] if owner is None or owner.is_public else [silo for silo in silos if not owner.of(silo).own_models]
    if refusing:
        raise RefusalError(
            f"{got} of client {refusing[0]}{_and_more(refusing)}, expected none, as the owner has set under own_models in "
            f"{path}, since they reveal values of rows. Use a model that all silos share, or let the owner change it."
        )


def _check_listed(folder: Path, silos: Iterable[str], key: Listed, got: str, way_out: str, *others: str) -> None:
    """Raise RefusalError if a silo lists neither `got` nor one of the others under a key of its owner's file."""
    path = _file_above(folder)
    owner = None if path is None else read_owner_file(path)
    asked = (got, *others)
    refusing = [] if owner is None else [s for s in silos if not any(owner.of(s).allows(key, each) for each in asked)]
    if owner is None or not refusing:
        return
    who = f"client {refusing[0]}{_and_more(refusing)}" if refusing[0] else "silos"
    listed = getattr(owner.of(refusing[0]), key)
    expected = f"one of {', '.join(listed)}" if listed else "nothing"
    raise RefusalError(
        f"{who}: got {got}, expected {expected}, as the owner has set "
        f"under {key} in {path}. {way_out}, or let the owner change it."
    )


def _and_more(silos: Sequence[str]) -> str:
    return f" (and {len(silos) - 1} more)" if len(silos) > 1 else ""


def _file_above(folder: Path) -> Path | None:
    """Return the owner's file of the store that a folder is, or lies in; None if there is none."""
    stores = (policy_file(store) for store in (folder, *folder.parents[:_RUN_DEPTH]))
    return next((file for file in stores if file.is_file()), None)


def store_of_run(folder: Path) -> Path:
    """Return the store that a run's private folder lies in; RefusalError if there is none."""
    path = _file_above(folder)
    if path is None:
        raise RefusalError(
            f"{folder}: got no store with {OWNER_FILE} above it, expected the one that `siloflow partition` makes, since it "
            "holds the budget of the silos. Partition the data, or set training.privacy.epsilon to null."
        )
    return path.parent


def secret_of_run(folder: Path) -> Secret | None:
    """Return the secret by which hashes that a run publishes are keyed; None if the data are public, or have no store."""
    path = _file_above(folder)
    return None if path is None or read_owner_file(path).is_public else cell_secret(path.parent.parent)


def least_rows_of(folder: Path, clients: Collection[str]) -> tuple[int, int]:
    """Return the smallest and the largest `least_rows` of these silos' policies, as `policy_of_run` reads them."""
    least = {policy_of_run(folder, client).least_rows for client in clients}
    return min(least), max(least)


_RUN_DEPTH = 3  # private/<data.name>/of-coordinator/<experiment>/<seed>, at a place


def check_named_silos(folder: Path, silos: Collection[str]) -> None:
    """Raise UserError if the policy names a silo that is none of these and has no ledger: its keys would hold for none."""
    if not has_store(folder):
        return
    for name in read_owner_file(folder / OWNER_FILE).silos:
        if name not in silos and not (folder / OPENED / folder_name(name)).exists():
            spelled = {silo.casefold(): silo for silo in silos}
            near = get_close_matches(name.casefold(), spelled, 1)
            hint = f"Did you mean {spelled[near[0]]}?" if near else f"The silos are {some([*silos], 5)}."
            raise UserError(
                f"{folder / OWNER_FILE}: silos: got {shown(name)}, expected a silo of the data. {hint} Correct its name."
            )


@dataclass(frozen=True)
class OwnerFile:
    """The content of an owner's file.

    Attributes:
        every: What holds for all silos.
        silos: What holds for single ones.
        data: The keys of `data` that are fixed, as written; empty if there are none.
        may_differ: The keys under `data` that params may set otherwise.
    """

    every: Policy
    silos: Mapping[str, Policy]
    data: Mapping[str, Any] = field(default_factory=dict)
    may_differ: tuple[str, ...] = ()

    def of(self, client: str) -> Policy:
        """Return what holds for a silo."""
        return self.silos.get(client, self.every)

    @property
    def kind(self) -> str | None:
        """Return the kind of the source; None if no source is fixed."""
        return self.data["source"]["kind"] if self.data else None

    @property
    def is_public(self) -> bool:
        """Return whether the source is public or simulated."""
        return self.kind in PUBLIC_KINDS


def read_owner_file(path: Path) -> OwnerFile:
    """Read an owner's file; UserError, which names the key, if it cannot be read."""
    return _read(path, file_stamp(path))


@lru_cache(maxsize=64)
def _read(path: Path, _: tuple[int, ...]) -> OwnerFile:
    try:
        content = load(path.read_bytes())
    except NotYamlError as error:
        raise UserError(f"{path}: {error}. {_WAY_OUT}") from None
    if not isinstance(content, dict):  # also an empty file, such as of a full disk: defaults may allow more
        got = "nothing" if content is None else shown(content)
        raise UserError(f"{path}: got {got}, expected keys with values. {_WAY_OUT}")
    data, may_differ = content.pop("data", None) or {}, content.pop("may_differ", None) or []
    if not isinstance(data, dict) or not {*data} <= {*_FIXED}:
        raise UserError(f"{path}: data: got {shown(data)}, expected a section of {', '.join(_FIXED)}. {_WAY_OUT}")
    if data and not (isinstance(data.get("source"), dict) and "kind" in data["source"]):
        raise UserError(
            f"{path}: data.source: got {shown(data.get('source'))}, expected a section with a kind. {_WAY_OUT}"
        )
    if not isinstance(may_differ, list) or not all(isinstance(key, str) for key in may_differ):
        raise UserError(f"{path}: may_differ: got {shown(may_differ)}, expected a list of keys of data. {_WAY_OUT}")
    of_silos = content.pop("silos", None) or {}
    if not isinstance(of_silos, dict) or not all(isinstance(own, dict) for own in of_silos.values()):
        raise UserError(f"{path}: silos: got {shown(of_silos)}, expected a section for each silo. {_WAY_OUT}")
    every = _policy(path, "", content)
    silos = {name: _policy(path, f"silos.{name}.", {**every.model_dump(), **own}) for name, own in of_silos.items()}
    return OwnerFile(every, silos, data, tuple(may_differ))


def _policy(path: Path, section: str, content: Mapping[str, object]) -> Policy:
    try:
        policy = Policy.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if key not in _EXPECTED:
            near = get_close_matches(key, _EXPECTED, 1)
            hint = f". Did you mean {near[0]}?" if near else f", expected one of {', '.join(_EXPECTED)}."
            raise UserError(f"{path}: {section}{key}: got an unknown key{hint} {_WAY_OUT}") from None
        got = "nothing" if first["input"] is None else shown(repr(first["input"]))
        raise UserError(f"{path}: {section}{key}: got {got}, expected {_EXPECTED[key]}. {_WAY_OUT}") from None
    wrong = () if policy.peers == "all" else [key for key in policy.peers if not re.fullmatch("[0-9a-f]{64}", key)]
    if wrong:
        raise UserError(f"{path}: {section}peers: got {shown(wrong[0])}, expected {_EXPECTED['peers']}. {_WAY_OUT}")
    unknown = () if policy.commands == "all" else [name for name in policy.commands if name not in COMMANDS]
    if unknown:
        raise UserError(f"{path}: {section}commands: got {unknown[0]}, expected {_EXPECTED['commands']}. {_WAY_OUT}")
    return policy


_SWITCH = "true or false"
_EXPECTED = {
    "commands": f"all, or a list of {', '.join(COMMANDS)}",
    "methods": "all, or a list of methods",
    "messages": "all, or a list of kinds of messages",
    "training_rows": "a whole number of 1 or more",
    "private_training": _SWITCH,
    "colluders": "a whole number of 0 or more",
    "peers": "all, or a list of keys of 64 hexadecimal digits, with small letters",
    "own_models": _SWITCH,
    "owners_view": _SWITCH,
    "budget": "a number from 0 on",
    "delta": "a number between 0 and 1",
    "least_rows": f"a whole number of {LEAST_ROWS} or more",
    "least_cell": "a whole number of 1 or more",
    "bins": f"a whole number from 1 to {MOST_BINS}",
    "without_noise": _SWITCH,
    "other_bins": _SWITCH,
    "other_silos": _SWITCH,
}
_WAY_OUT = f"Correct {OWNER_FILE}; its silos report nothing until then."
