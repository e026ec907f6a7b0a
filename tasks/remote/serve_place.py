"""What a place answers: its part of the data without rows, steps on its rows, and which private state to keep."""

import json
import platform
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.diagnosis.client_summaries.query import Query
from models.training.engine import Training
from silos.client_store import OF_COORDINATOR, ClientStore
from silos.cohort import Silos
from silos.errors import RefusalError, UserError, shown, some
from silos.io.atomic_io import write_bytes
from silos.privacy.owner_file import OWNER_FILE, check_command, check_training, read_owner_file
from silos.standardizer import NO_STANDARDIZATION, Standardization
from silos.storage.manifest import COLUMNS, read_manifest, schema_of, to_json
from silos.storage.places import described, part_digest
from tasks.execution.steps import is_report
from tasks.places.envelopes import Header
from tasks.remote.answer_steps import answer, run_step
from tasks.remote.codec import OpenedPlace, unpack, unpack_call
from tasks.remote.step_list import client_steps, is_training, offered_functions
from tasks.remote.work_limits import check_work

PART, KEEP, STATUS, MODEL = "part", "keep", "status", "model"
"""The subjects that are no steps."""

MODEL_FILE = "model.safetensors"
"""The model that the coordinator sent last, below the folder of what belongs to it in a place's store."""


@dataclass(frozen=True)
class PartOfData:
    """A place's part of the data: its manifest and columns as bytes, and what its owner's file allows, by silo.

    manifest, columns: uint8. How the source is read stays at the place: its path, and columns that are no features.
    machine: As `machine_of` returns it.
    """

    digest: str
    manifest: Tensor
    columns: Tensor
    policies: Mapping[str, Mapping[str, str | int | float | bool | tuple[str, ...]]]
    machine: Mapping[str, str]


def machine_of() -> dict[str, str]:
    """Return what the last bits of results depend on besides data and settings: torch's version, and the processor."""
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {"torch": str(torch.__version__), "processor": processor}


@dataclass(frozen=True)
class SentModel:
    """A finished model, with which a place predicts rows of its own clients.

    Attributes:
        name: What users know it by.
        method: The name of its method.
        settings: The options of the method, as JSON.
        version: The number of its version in the coordinator's registry; empty if it has none.
        run: The folder of its run at the coordinator.
        scaling: How rows are scaled.
        model: The shared weights, and references to what this place's clients keep.
        private: Where they keep it.
    """

    name: str
    method: str
    settings: str
    version: str
    run: str
    scaling: Standardization
    model: Model
    private: ClientStore


@dataclass(frozen=True)
class PlaceServer:
    """Answers a coordinator's requests.

    Attributes:
        data: The folder of the place's silos.
        store: The store of its silos, with the owner's file.
        working: Protects data/ from changes while a request is answered.
        note: Receives the subject of each request, and why it failed; nothing if it did not.
        earlier: Opens the silos in an earlier version, by the digest of that part; UserError if there is none.
    """

    data: Path
    store: Path
    working: Callable[[], AbstractContextManager[None]]
    note: Callable[[str, str], None]
    earlier: Callable[[str], AbstractContextManager[Silos]] | None = None

    def respond(self, header: Header, body: bytes) -> bytes:
        """Return the encoded answer to an authentic request."""
        faults, asked = list[str](), [header.subject]
        content = answer(
            lambda: self._respond(header.subject, body, asked.append), self.store.parents[1], faults.append
        )
        self.note(" ".join(asked), faults[0] if faults else "")
        return content

    def open(self) -> OpenedPlace:
        """Open the place's rows and store by reference; rows are compared with the manifest when a step reads them."""
        silos = Silos.open(self.data, "at this place")
        return OpenedPlace(silos, part_digest(self.data), self.store, offered_functions())

    def _respond(self, subject: str, body: bytes, add_to_log: Callable[[str], None]) -> object:
        with self.working(), ExitStack() as opened:
            if subject == STATUS:
                return described(read_manifest(self.data))
            if not (path := self.store / OWNER_FILE).is_file():
                raise RefusalError(
                    f"{path} is missing, so that these silos report nothing. `siloflow partition` makes it."
                )
            if subject == PART:
                return self._part()
            place = self.open()
            if subject == MODEL:
                return self._take_model(body, place)
            if subject == KEEP:
                return self._keep(**cast(Any, unpack_call(body, _KEEP, place)))
            earlier = self.earlier
            if earlier is not None and _is_report(subject):  # training reads present rows only
                place = replace(place, earlier=cache(lambda digest: opened.enter_context(earlier(digest))))

            def check(step: str, silos: Silos, arguments: Mapping[str, object]) -> None:
                add_to_log(_described(silos, arguments))
                self._check(step, silos, arguments)

            return run_step(subject, body, place, check)

    def _check(self, step: str, silos: Silos, arguments: Mapping[str, object]) -> None:
        """Raise RefusalError if the owner's file does not allow a step: those of a diagnosis, or those of training.

        What silos report of their rows is of rows as they are, and in the features that they have. A step that sends what
        training learned is training, also of silos that only score: each has the least rows that the owner wants.
        """
        check_work(arguments)
        is_report = _is_report(step)
        if (is_report or step == "report_moments") and silos.scaling != NO_STANDARDIZATION:
            raise RefusalError(f"{step}: got rows that are scaled, expected rows as they are.")
        if is_report:
            check_command(self.store, "diagnose", silos.clients)
            _check_features(arguments, silos)
        else:
            check_command(self.store, "run", silos.clients)
            rows = (silos if is_training(step) else silos.federated()).rows("train")
            check_training(self.store, None, ((client, own) for client, own in rows.items() if own))

    def _keep(self, private: ClientStore, section: str, refs: tuple[str, ...]) -> str:
        """Delete the private state of a run that no reference names; RefusalError in other folders: ledgers are there."""
        if Path(private.folder).resolve().parent.parent != (self.store / OF_COORDINATOR).resolve():
            raise RefusalError(f"{private.folder}: got no folder of a run, expected one.")
        private.keep(section, refs)
        for folder in (Path(private.folder) / section, Path(private.folder)):
            with suppress(OSError):  # it is not empty, or was never made
                folder.rmdir()
        return ""

    def _take_model(self, body: bytes, place: OpenedPlace) -> str:
        """Keep a model that can be read; `siloflow place predict` opens it."""
        sent: SentModel = unpack(body, SentModel, place)
        check_command(self.store, "run", sent.model.clients)
        if not _is_json_object(sent.settings):
            raise RefusalError(f"settings: got {shown(sent.settings, 40)}, expected an object of JSON.")
        write_bytes(self.store / OF_COORDINATOR / MODEL_FILE, body)
        return f"has {shown(sent.run)}"

    def _part(self) -> PartOfData:
        owner, manifest = read_owner_file(self.store / OWNER_FILE), read_manifest(self.data)
        if manifest.places:
            raise UserError("data: got data whose rows lie at other places, expected a place's own.")
        check_command(self.store, "partition", manifest.names)
        return PartOfData(
            part_digest(self.data),
            _bytes(to_json(replace(manifest, params={}, raw=None))),
            _bytes((self.data / COLUMNS).read_bytes()),
            {client: owner.of(client).model_dump(exclude_defaults=True) for client in manifest.names},
            machine_of(),
        )


_KEEP: Mapping[str, object] = {"private": ClientStore, "section": str, "refs": tuple[str, ...]}


def _described(silos: Silos, arguments: Mapping[str, object]) -> str:
    """Return what the log of requests says of a step: its silos, its run, and whether answers have noise."""
    stores = (Path(value.folder).parts for value in arguments.values() if isinstance(value, ClientStore))
    run = next(("/".join(parts[-2:]) for parts in stores if OF_COORDINATOR in parts[:-1]), "")
    noise = {
        bool(v.privacy if isinstance(v, Training) else v.rho)
        for v in arguments.values()
        if isinstance(v, Training | Query)
    }
    words = [f"of {some(silos.clients, 3)}", f"for {run}" if run else ""]
    words += [f"with{'' if each else 'out'} noise" for each in noise]
    return " ".join(filter(None, words))


def _is_report(step: str) -> bool:
    """Return whether a step reports to a diagnosis, through the ledgers of the silos."""
    return step in client_steps() and is_report(client_steps()[step].fn)


def _check_features(arguments: Mapping[str, object], silos: Silos) -> None:
    """Raise RefusalError for a question about other features than the silos have: bins are remembered by their names."""
    schema = schema_of(silos.manifest)
    for value in arguments.values():
        query = value if isinstance(value, Query) else getattr(value, "query", None)
        if isinstance(query, Query) and query.schema != schema.id:
            raise RefusalError(
                f"query: got the schema {shown(query.schema)}, expected {schema.id}, that of these silos."
            )
        names = list(query.layout.names) if isinstance(query, Query) and schema.features and not query.pictures else []
        if names[: len(schema.features)] != [feature.name for feature in schema.features][: len(names)]:
            raise RefusalError(f"query: got features {shown(str(names))}, expected those of these silos.")


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())
