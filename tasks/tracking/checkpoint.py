"""Store the server's state and the record of each round on disk.

A round's journal is written first, then the checkpoint, then MLflow is notified. A round is complete when its
checkpoint exists; records of a later round that a killed process wrote are overwritten.
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
from tasks.tracking.json_io import RESTORE_ADVICE, compact_json, read_json
from tasks.tracking.result_types.journal_record import RoundRecord

Memory = Mapping[str, Any]
"""A sampler's state between rounds, as plain JSON; checkpoints hold it, so that a resumed run samples the same clients."""

NO_MEMORY: Memory = MappingProxyType({})


class Checkpoint(NamedTuple):
    """The state after a round, and the client sampler's memory of earlier rounds as plain JSON."""

    state: ServerState
    round: int
    memory: Memory


def save_state(path: Path, state: ServerState, round: int, memory: Memory = NO_MEMORY) -> None:
    """Write the checkpoint, completely or not at all; raises the errors of `state_bytes`."""
    write_bytes(path, state_bytes(state, round, memory))


def state_bytes(state: ServerState, round: int, memory: Memory = NO_MEMORY) -> bytes:
    """Return a checkpoint's content; ValueError or TypeError if the sampler's memory is not plain JSON."""
    parsed = json.loads(json.dumps(dict(memory), sort_keys=True, allow_nan=False))
    if parsed != memory:
        raise TypeError(f"sampler: got memory that JSON restores as {parsed}, expected {dict(memory)}")
    # clones, since safetensors refuses tensors that share memory
    tensors = {
        f"{s}/{n}": t.clone(memory_format=torch.contiguous_format)
        for s, ts in state.tensors.items()
        for n, t in ts.items()
    }
    metadata = {
        "round": round,
        "memory": parsed,
        "numbers": state.numbers,
        "private": state.private,
        "finished": state.finished,
        "sections": list(state.tensors),
        "sha256": _sha256(state, round, parsed),
    }
    return bytes(save(tensors, metadata={"state": json.dumps(metadata, sort_keys=True)}))


def load_state(path: Path) -> Checkpoint | None:
    """Load a checkpoint, or return None if there is none; UserError if it is damaged."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads(file.metadata()["state"])
            sections: dict[str, dict[str, torch.Tensor]] = {section: {} for section in metadata["sections"]}
            for key in file.keys():  # noqa: SIM118
                section, _, name = key.partition("/")
                sections[section][name] = file.get_tensor(key)
        state = ServerState(sections, metadata["numbers"], metadata["private"], metadata["finished"])
        digest, round, memory = metadata["sha256"], metadata["round"], metadata["memory"]
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"the checkpoint {path} is damaged ({error}). {RESTORE_ADVICE}.") from None
    if _sha256(state, round, memory) != digest:
        raise UserError(f"the checkpoint {path} is damaged (its hash differs). {RESTORE_ADVICE}.")
    return Checkpoint(state, round, memory)


def _sha256(state: ServerState, round: int, memory: Memory) -> str:
    return sha256(f"{state.sha256()}\n{round}\n{json.dumps(memory, sort_keys=True)}".encode()).hexdigest()


class Journal:
    """Records of the rounds of a run, one file per round: timed metrics, and a row for each client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, record: RoundRecord) -> tuple[Path, bytes]:
        """Return the path and the content of a round's record; it replaces what a killed process may have left."""
        return self._path(record["round"]), compact_json(record)

    def read(self, round: int) -> RoundRecord:
        """Read one round's record; UserError if it is missing or damaged."""
        path = self._path(round)
        record: RoundRecord | None = read_json(path, RESTORE_ADVICE, ("round", "metrics"))
        if record is None:
            raise UserError(f"{path} is missing. {RESTORE_ADVICE}.")
        if record["round"] != round:
            raise UserError(f"{path} is damaged (it contains round {record['round']}). {RESTORE_ADVICE}.")
        return record

    def each(self, last: int) -> Iterator[RoundRecord]:
        """Yield the records of rounds 1 to `last`, one in memory at a time because each has a row for every client."""
        for round in range(1, last + 1):
            yield self.read(round)

    def _path(self, round: int) -> Path:
        return self.folder / f"{round:06d}.json"
