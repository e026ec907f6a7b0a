"""The store of clients' private tensors, which the server knows by hash only."""

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, get_args

import numpy as np

from silos.errors import RefusalError, UserError
from silos.io.atomic_io import file_stamp, unfinished, write_bytes
from silos.param_types import is_plain
from silos.privacy.owner_file import secret_of_run
from silos.privacy.secret import Secret

StateKind = Literal["weights", "sendable", "optimiser", "variates", "duals", "sites", "statistics", "outcomes"]
"""What a private section holds: weights that stay, whole models that may be sent later, and what steps keep for later."""

STATE_KINDS: tuple[StateKind, ...] = get_args(StateKind)
OF_COORDINATOR = "of-coordinator"
"""Below a place's store, the folder of what its silos keep of the coordinator's runs; its own runs lie above it."""


_KINDS = ".kinds"  # the folder with the kind of each section
_KEYED = "k"  # the first letter of a keyed hash
_STALE = 3600.0  # seconds after which an unfinished file is taken for a dead process's


@dataclass(frozen=True)
class ClientStore:
    """A folder of private tensors, in sections ("weights", "statistics", ...), outside the versioned data/.

    A reference is "<hash of the file>/<row in it>". References lie in runs/, so the hash of data of one's own is keyed with
    the silos' secret and starts with `k`: an unkeyed hash would confirm guesses, such as the outcomes of a few test rows.
    """

    folder: str

    def save(
        self, section: str, clients: Sequence[str], tensors: Mapping[str, np.ndarray], kind: StateKind = "weights"
    ) -> dict[str, str]:
        """Store tensors with a leading client axis in one file; return each client's reference.

        Saving the same tensors again changes nothing and returns the same references.

        Args:
            section: The private section, a plain folder name.
            clients: The clients, each once.
            tensors: Names to (clients, ...).
            kind: What they are. A section holds one kind.

        Raises:
            ValueError: If a tensor has another first axis, a client is listed twice, or the section is no plain name.
            RefusalError: If the section holds another kind.
        """
        from safetensors.numpy import save

        for name, tensor in tensors.items():
            if tensor.ndim == 0 or len(tensor) != len(clients):
                raise ValueError(f"{name}: got shape {tensor.shape}, expected a first axis of {len(clients)} clients")
        if len(set(clients)) != len(clients):
            raise ValueError(f"clients: got a client twice in {clients}, expected each client once")
        if not clients:
            return {}
        if (found := self._kind(section)) != kind:
            self._refuse_kind(section, found, [kind])
            write_bytes(Path(self.folder) / _KINDS / section, kind.encode())
        data = save({name: np.ascontiguousarray(tensor) for name, tensor in sorted(tensors.items())})
        # named by its hash, so that a step that is run again writes the same file
        digest = self._digest(data, secret_of_run(Path(self.folder)))
        path = self._path(section, digest)
        if not _has_content(path, data):
            write_bytes(path, data)
        _mark_verified(path)
        return {client: f"{digest}/{row}" for row, client in enumerate(clients)}

    def load(self, section: str, refs: Mapping[str, str], client: str, *kinds: StateKind) -> dict[str, np.ndarray]:
        """Return one client's tensors, without the client axis; arguments and errors as of `load_stack`."""
        self._refuse_kind(section, self._kind(section), kinds or STATE_KINDS)
        digest, row = self._ref(section, refs, client)
        return {name: tensor[0] for name, tensor in self._read(section, digest, [row], client).items()}

    def load_stack(
        self, section: str, refs: Mapping[str, str], clients: Sequence[str], *kinds: StateKind
    ) -> dict[str, np.ndarray]:
        """Return the tensors of several clients, (clients, ...) in this order; their shapes must be equal.

        Args:
            section: The private section.
            refs: The references of clients, as `save` returned them.
            clients: The clients.
            kinds: The kinds that the section may hold; any if none is given.

        Raises:
            UserError: If a client has no reference, or its file is missing or damaged.
            RefusalError: If the section holds another kind.
        """
        if not clients:
            return {}
        self._refuse_kind(section, self._kind(section), kinds or STATE_KINDS)
        locations = [self._ref(section, refs, client) for client in clients]
        if len({digest for digest, _ in locations}) == 1:
            return self._read(section, locations[0][0], [row for _, row in locations], clients[0])
        parts = [
            self._read(section, digest, [row], client) for client, (digest, row) in zip(clients, locations, strict=True)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def keep(self, section: str, refs_to_keep: Iterable[str]) -> None:
        """Delete the files of a section that none of these references points into."""
        stems = {ref.partition("/")[0] for ref in refs_to_keep}
        folder = self._folder(section)
        for path in folder.glob("*.safetensors"):
            if path.stem not in stems:
                path.unlink(missing_ok=True)
                _verified.pop(str(path), None)
        for path in unfinished(folder):
            # another worker may still be writing a younger file
            if path.stat().st_mtime < time.time() - _STALE:
                path.unlink(missing_ok=True)

    def sections(self) -> list[str]:
        """Return the names of the sections that hold tensors."""
        return sorted({path.parent.name for path in Path(self.folder).glob("*/*.safetensors")})

    def _kind(self, section: str) -> str:
        """Return the kind of what a section holds; nothing for a new section, and for one of an earlier version."""
        try:
            return (Path(self.folder) / _KINDS / self._folder(section).name).read_text(encoding="ascii")
        except FileNotFoundError:
            return ""

    def _refuse_kind(self, section: str, found: str, kinds: Collection[StateKind]) -> None:
        if found and found not in kinds:
            raise RefusalError(
                f"private section {section}: got {found} that clients keep, expected {' or '.join(kinds)}. Each section "
                "holds one kind, so that a step reads only what was kept for it: use another section."
            )

    def _digest(self, data: bytes, secret: Secret | None) -> str:
        if secret is None:
            return hashlib.blake2b(data, digest_size=16).hexdigest()
        return f"{_KEYED}{secret.seal(data)[:32]}"

    def _folder(self, section: str) -> Path:
        if not is_plain(section):
            raise ValueError(f"section: got {section!r}, expected a plain folder name")
        return Path(self.folder) / section

    def _path(self, section: str, digest: str) -> Path:
        return self._folder(section) / f"{digest}.safetensors"

    def _ref(self, section: str, refs: Mapping[str, str], client: str) -> tuple[str, int]:
        if client not in refs:
            raise UserError(
                f"client {client}: got no private tensors in the section {section}, expected those of "
                f"an earlier round. {_WAY_OUT}"
            )
        digest, _, row = refs[client].partition("/")
        return digest, int(row)

    def _read(self, section: str, digest: str, rows: list[int], client: str) -> dict[str, np.ndarray]:
        """Return some rows of a file: (rows, ...)."""
        from safetensors import SafetensorError, safe_open

        path = self._path(section, digest)
        description = f"{path}, the private section {section} of client {client},"
        try:
            if _verified.get(str(path)) != file_stamp(path):
                secret = secret_of_run(Path(self.folder)) if digest.startswith(_KEYED) else None
                if self._digest(path.read_bytes(), secret) != digest:
                    raise UserError(f"{description} is damaged. {_WAY_OUT}")
                _mark_verified(path)
            with safe_open(path, framework="numpy") as file:
                return {name: _read_rows(file, name, rows) for name in sorted(file.keys())}
        except FileNotFoundError:
            raise UserError(f"{description} is missing. {_WAY_OUT}") from None
        except (OSError, SafetensorError) as error:
            raise UserError(f"{description} is damaged ({error}). {_WAY_OUT}") from error


_WAY_OUT = "Start the run again without --resume, or restore the folder from a copy."

# verified files, with their size, times and inode: contents are compared with the name once a process
_verified: dict[str, tuple[int, ...]] = {}
_lock = Lock()
_MAX_VERIFIED = 4096  # verified files that are remembered; another process may delete files


def _mark_verified(path: Path) -> None:
    with _lock:  # no thread may look for the oldest entry while another adds one
        _verified.pop(str(path), None)
        _verified[str(path)] = file_stamp(path)
        while len(_verified) > _MAX_VERIFIED:
            _verified.pop(next(iter(_verified)), None)


def _has_content(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


def _read_rows(file: Any, name: str, rows: list[int]) -> np.ndarray:
    shape = file.get_slice(name).get_shape()
    if rows == list(range(shape[0])):
        return file.get_tensor(name)
    if len(rows) == 1 and 0 not in shape:  # a slice of an empty tensor is refused
        return file.get_slice(name)[rows[0] : rows[0] + 1]
    return file.get_tensor(name)[rows]
