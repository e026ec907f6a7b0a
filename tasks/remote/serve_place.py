"""What a place answers: its part of the data without rows, steps on its rows, and which private state to keep."""

import typing
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import torch
from torch import Tensor

from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import RefusalError, UserError
from silos.privacy.owner_file import OWNER_FILE, check_command, check_training, read_owner_file
from silos.storage.manifest import COLUMNS, read_manifest, to_json
from silos.storage.places import described, part_digest
from tasks.places.envelopes import Header
from tasks.remote.answer_steps import answer, answer_step
from tasks.remote.codec import Place, unpack_call
from tasks.remote.step_list import client_steps, offered_functions

PART, KEEP, STATUS = "part", "keep", "status"
"""The subjects that are no steps."""

_ASKS_ITSELF = "tasks.diagnosis"  # its steps ask the owner's file for the command that they are told


@dataclass(frozen=True)
class PartOfData:
    """A place's part of the data: its manifest and columns as bytes, and what its owner's file allows, by silo.

    manifest, columns: uint8. How the source is read stays at the place: its path, and columns that are no features.
    """

    digest: str
    manifest: Tensor
    columns: Tensor
    policies: Mapping[str, Mapping[str, str | int | float | bool | tuple[str, ...]]]


@dataclass(frozen=True)
class PlaceServer:
    """Answers a coordinator's requests.

    Attributes:
        data: The folder of the place's silos.
        store: The store of its silos, with the owner's file.
        working: Protects data/ from changes while a request is answered.
        say: Receives a line a request.
    """

    data: Path
    store: Path
    working: Callable[[], AbstractContextManager[None]]
    say: Callable[[str], None]

    def respond(self, header: Header, body: bytes) -> bytes:
        """Return the encoded answer to an authentic request."""
        self.say(header.subject)
        with self.working():
            if header.subject == PART:
                return answer(self._part)
            if header.subject == STATUS:
                return answer(lambda: described(read_manifest(self.data)))
            place = self.open()
            if header.subject == KEEP:
                return answer(lambda: self._keep(cast(Any, unpack_call(body, _KEEP_HINTS, place))))
            return answer_step(header.subject, body, place, self._check)

    def open(self) -> Place:
        """Open the place's rows and store by reference; rows are compared with the manifest when a step reads them."""
        return Place(Silos.open(self.data, "at this place"), part_digest(self.data), self.store, offered_functions())

    def _check(self, step: str, silos: Silos) -> None:
        """Raise RefusalError if the owner's file does not allow a step that trains, scores or scales."""
        if not client_steps()[step].fn.__module__.startswith(_ASKS_ITSELF):
            check_command(self.store, "run", silos.clients)
            check_training(self.store, None, silos.rows("train").items())

    def _keep(self, kept: "Kept") -> str:
        """Delete the private state of a run that does not stay; RefusalError outside of a run's folder: ledgers are there."""
        if Path(kept["private"].folder).parent.parent != self.store:
            raise RefusalError(f"{kept['private'].folder}: got no folder of a run, expected one.")
        kept["private"].keep(kept["section"], kept["refs"])
        return ""

    def _part(self) -> PartOfData:
        path = self.store / OWNER_FILE
        if not path.is_file():
            raise RefusalError(f"{path} is missing, so that these silos report nothing. `siloflow partition` makes it.")
        owner, manifest = read_owner_file(path), read_manifest(self.data)
        if manifest.places:
            raise UserError("data: got data whose rows lie at other places, expected a place's own.")
        check_command(self.store, "partition", manifest.names)
        return PartOfData(
            part_digest(self.data),
            _bytes(to_json(replace(manifest, params={}, raw=None))),
            _bytes((self.data / COLUMNS).read_bytes()),
            {client: owner.of(client).model_dump(exclude_defaults=True) for client in manifest.names},
        )


class Kept(TypedDict):
    """Which private state of a run stays: of a section, what these references name."""

    private: ClientStore
    section: str
    refs: tuple[str, ...]


_KEEP_HINTS = typing.get_type_hints(Kept)


def _bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())
