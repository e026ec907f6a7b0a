"""What a place answers: its part of the data without rows, steps on its rows, and which private state to keep."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

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
from tasks.remote.answer_steps import answer, run_step
from tasks.remote.codec import OpenedPlace, unpack_call
from tasks.remote.step_list import client_steps, offered_functions

PART, KEEP, STATUS = "part", "keep", "status"
"""The subjects that are no steps."""


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
        note: Receives the subject of each request, and why it failed; nothing if it did not.
    """

    data: Path
    store: Path
    working: Callable[[], AbstractContextManager[None]]
    note: Callable[[str, str], None]

    def respond(self, header: Header, body: bytes) -> bytes:
        """Return the encoded answer to an authentic request."""
        faults: list[str] = []
        content = answer(lambda: self._respond(header.subject, body), self.store.parents[1], faults.append)
        self.note(header.subject, faults[0] if faults else "")
        return content

    def open(self) -> OpenedPlace:
        """Open the place's rows and store by reference; rows are compared with the manifest when a step reads them."""
        silos = Silos.open(self.data, "at this place")
        return OpenedPlace(silos, part_digest(self.data), self.store, offered_functions())

    def _respond(self, subject: str, body: bytes) -> object:
        with self.working():
            if subject == PART:
                return self._part()
            if subject == STATUS:
                return described(read_manifest(self.data))
            place = self.open()
            if subject == KEEP:
                return self._keep(**cast(Any, unpack_call(body, _KEEP, place)))
            return run_step(subject, body, place, self._check)

    def _check(self, step: str, silos: Silos) -> None:
        """Raise RefusalError if the owner's file does not allow a step: those of a diagnosis, or those of training."""
        if client_steps()[step].fn.__module__.startswith("tasks.diagnosis."):
            check_command(self.store, "diagnose", silos.clients)
        else:
            check_command(self.store, "run", silos.clients)
            check_training(self.store, None, silos.federated().rows("train").items())

    def _keep(self, private: ClientStore, section: str, refs: tuple[str, ...]) -> str:
        """Delete the private state of a run that no reference names; RefusalError in other folders: ledgers are there."""
        if Path(private.folder).parent.parent != self.store:
            raise RefusalError(f"{private.folder}: got no folder of a run, expected one.")
        private.keep(section, refs)
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


_KEEP: Mapping[str, object] = {"private": ClientStore, "section": str, "refs": tuple[str, ...]}


def _bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())
