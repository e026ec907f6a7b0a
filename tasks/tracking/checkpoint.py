"""The server's state on disk, and each round's numbers beside it.

The order is the promise: journal of the round, then checkpoint, then delivery to MLflow. A round counts when its checkpoint
is there; what a killed process wrote of a later round is written again.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from models.server_state import ServerState
from silos.errors import UserError
from silos.io.atomic_io import write_bytes
from tasks.tracking.json_io import ANEW, compact, read_json

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Checkpoint(NamedTuple):
    """The state after a round, and what the sampler of clients remembers of the rounds: plain JSON."""

    state: ServerState
    round: int
    memory: Mapping[str, Any]


def save_state(path: Path, state: ServerState, round: int, memory: Mapping[str, Any] = NOTHING) -> None:
    """The checkpoint, whole or not at all; errors as of `state_bytes`."""
    write_bytes(path, state_bytes(state, round, memory))


def state_bytes(state: ServerState, round: int, memory: Mapping[str, Any] = NOTHING) -> bytes:
    """A checkpoint's content; ValueError or TypeError for a memory that is no plain JSON."""
    held = json.loads(json.dumps(dict(memory), sort_keys=True, allow_nan=False))
    if held != memory:
        raise TypeError(f"the sampler's memory comes back from JSON as {held}, and is {dict(memory)}")
    # clones, since safetensors refuses tensors that share memory
    tensors = {
        f"{s}/{n}": t.clone(memory_format=torch.contiguous_format)
        for s, ts in state.tensors.items()
        for n, t in ts.items()
    }
    rest = {
        "round": round,
        "memory": held,
        "numbers": state.numbers,
        "private": state.private,
        "finished": state.finished,
        "sections": list(state.tensors),
        "sha256": _sha256(state, round, held),
    }
    return bytes(save(tensors, metadata={"state": json.dumps(rest, sort_keys=True)}))


def load_state(path: Path) -> Checkpoint | None:
    """What was saved there; None if nothing was yet. UserError if it is damaged."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            rest = json.loads(file.metadata()["state"])
            sections: dict[str, dict] = {section: {} for section in rest["sections"]}
            for key in file.keys():  # noqa: SIM118
                section, _, name = key.partition("/")
                sections[section][name] = file.get_tensor(key)
        state = ServerState(sections, rest["numbers"], rest["private"], rest["finished"])
        digest, round, memory = rest["sha256"], rest["round"], rest["memory"]
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"the checkpoint {path} is damaged ({error}); {ANEW}.") from None
    if _sha256(state, round, memory) != digest:
        raise UserError(f"the checkpoint {path} is damaged (its hash differs); {ANEW}.")
    return Checkpoint(state, round, memory)


def _sha256(state: ServerState, round: int, memory: Mapping[str, Any]) -> str:
    return sha256(f"{state.sha256()}\n{round}\n{json.dumps(memory, sort_keys=True)}".encode()).hexdigest()


class Journal:
    """One file a round: metrics with their time, and a row for each client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, record: dict[str, Any]) -> tuple[Path, bytes]:
        """Where the record of a round is written, over what a killed process may have left; and its content."""
        return self._path(record["round"]), compact(record)

    def read(self, round: int) -> dict[str, Any]:
        """One round's record; UserError if it is not there whole."""
        path = self._path(round)
        record: dict[str, Any] | None = read_json(path, ANEW, ("round", "metrics"))
        if record is None:
            raise UserError(f"{path} is missing; {ANEW}.")
        if record["round"] != round:
            raise UserError(f"{path} is damaged (it holds round {record['round']}); {ANEW}.")
        return record

    def each(self, last: int) -> Iterator[dict[str, Any]]:
        """Rounds 1 to `last`, of which one is in memory at a time: a record has a row for each client."""
        for round in range(1, last + 1):
            yield self.read(round)

    def _path(self, round: int) -> Path:
        return self.folder / f"{round:06d}.json"
