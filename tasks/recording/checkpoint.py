"""The server's state on disk, and each round's numbers beside it.

The order is the promise: journal of the round, then checkpoint, then delivery to MLflow. A round counts when its checkpoint
is there; what a killed process wrote of a later round is written again.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from models.state import State
from silos.errors import UserError
from silos.files import write_bytes
from tasks.recording.json_files import ANEW, read_json, write_compact


def save_state(path: Path, state: State, round: int) -> None:
    """The state after this round, whole or not at all."""
    # clones, since safetensors refuses tensors that share memory
    tensors = {
        f"{s}/{n}": t.clone(memory_format=torch.contiguous_format)
        for s, ts in state.tensors.items()
        for n, t in ts.items()
    }
    rest = {
        "round": round,
        "numbers": state.numbers,
        "private": state.private,
        "finished": state.finished,
        "sections": list(state.tensors),
        "sha256": state.sha256(),
    }
    write_bytes(path, save(tensors, metadata={"state": json.dumps(rest, sort_keys=True)}))


def load_state(path: Path) -> tuple[State, int] | None:
    """The state and its round; None if there is no checkpoint yet."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            rest = json.loads(file.metadata()["state"])
            sections: dict[str, dict] = {section: {} for section in rest["sections"]}
            for key in file.keys():  # noqa: SIM118
                section, _, name = key.partition("/")
                sections[section][name] = file.get_tensor(key)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"the checkpoint {path} is damaged ({error}); {ANEW}.") from None
    state = State(sections, rest["numbers"], rest["private"], rest["finished"])
    if state.sha256() != rest["sha256"]:
        raise UserError(f"the checkpoint {path} is damaged (its hash differs); {ANEW}.")
    return state, rest["round"]


class Journal:
    """One file a round: metrics with their time, and a row for each client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, record: dict[str, Any]) -> None:
        """The record of its round, replacing what a killed process may have left."""
        write_compact(self._path(record["round"]), record)

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
