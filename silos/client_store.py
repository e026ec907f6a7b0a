"""What a client keeps to itself: tensors beside its rows, which the server knows by hash only."""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from silos.errors import UserError
from silos.io.atomic_io import unfinished, write_bytes
from silos.param_types import is_plain

_STALE = 3600.0  # seconds after which an unfinished file is a dead process's


@dataclass(frozen=True)
class ClientStore:
    """A folder of private tensors, in sections ("weights", "statistics", ...), outside the versioned data/.

    A reference is "<hash of the file>/<row in it>": it tells nothing of the contents.
    """

    folder: str

    def save(self, section: str, clients: Sequence[str], tensors: Mapping[str, np.ndarray]) -> dict[str, str]:
        """Stores tensors with a leading client axis in one file; returns each client's reference.

        Saving the same tensors again changes nothing and gives the same references.
        """
        from safetensors.numpy import save

        for name, tensor in tensors.items():
            if tensor.ndim == 0 or len(tensor) != len(clients):
                raise ValueError(f"{name} has shape {tensor.shape} for {len(clients)} clients")
        if len(set(clients)) != len(clients):
            raise ValueError(f"clients are named twice in {clients}")
        if not clients:
            return {}
        data = save({name: np.ascontiguousarray(tensor) for name, tensor in sorted(tensors.items())})
        digest = _digest(data)
        path = self._path(section, digest)
        if not _holds(path, data):
            write_bytes(path, data)
        _remember(path)
        return {client: f"{digest}/{row}" for row, client in enumerate(clients)}

    def load(self, section: str, refs: Mapping[str, str], client: str) -> dict[str, np.ndarray]:
        """One client's tensors, without the client axis."""
        digest, row = self._ref(section, refs, client)
        return {name: tensor[0] for name, tensor in self._read(section, digest, [row], client).items()}

    def load_stack(self, section: str, refs: Mapping[str, str], clients: Sequence[str]) -> dict[str, np.ndarray]:
        """The tensors of several clients, (clients, ...) in the order given; they must have equal shapes."""
        if not clients:
            return {}
        places = [self._ref(section, refs, client) for client in clients]
        if len({digest for digest, _ in places}) == 1:
            return self._read(section, places[0][0], [row for _, row in places], clients[0])
        parts = [
            self._read(section, digest, [row], client) for client, (digest, row) in zip(clients, places, strict=True)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def keep(self, section: str, refs_to_keep: Iterable[str]) -> None:
        """Deletes the files of a section that none of these references points into."""
        stems = {ref.partition("/")[0] for ref in refs_to_keep}
        folder = self._folder(section)
        for path in folder.glob("*.safetensors"):
            if path.stem not in stems:
                path.unlink(missing_ok=True)
                _sound.pop(str(path), None)
        for path in unfinished(folder):
            # a younger one is another worker's, still being written
            if path.stat().st_mtime < time.time() - _STALE:
                path.unlink(missing_ok=True)

    def _folder(self, section: str) -> Path:
        if not is_plain(section):
            raise ValueError(f"section {section!r} is no plain folder name")
        return Path(self.folder) / section

    def _path(self, section: str, digest: str) -> Path:
        return self._folder(section) / f"{digest}.safetensors"

    def _ref(self, section: str, refs: Mapping[str, str], client: str) -> tuple[str, int]:
        if client not in refs:
            raise UserError(f"Client {client} keeps nothing under {section}; {_WAY_OUT}")
        digest, _, row = refs[client].partition("/")
        return digest, int(row)

    def _read(self, section: str, digest: str, rows: list[int], client: str) -> dict[str, np.ndarray]:
        """Some rows of a file: (rows, ...)."""
        from safetensors import SafetensorError, safe_open

        path = self._path(section, digest)
        what = f"{path}, what client {client} keeps under {section},"
        try:
            if _sound.get(str(path)) != _stamp(path):
                if _digest(path.read_bytes()) != digest:
                    raise UserError(f"{what} is damaged; {_WAY_OUT}")
                _remember(path)
            with safe_open(path, framework="numpy") as file:
                return {name: _rows(file, name, rows) for name in sorted(file.keys())}
        except FileNotFoundError:
            raise UserError(f"{what} is missing; {_WAY_OUT}") from None
        except (OSError, SafetensorError) as error:
            raise UserError(f"{what} is damaged ({error}); {_WAY_OUT}") from error


_WAY_OUT = "start the run anew, or bring back the folder from a copy."

# files whose contents were found to agree with their name, with their size, times and inode: checked once a process
_sound: dict[str, tuple[int, ...]] = {}
_lock = Lock()
_MOST = 4096  # of them; another process may delete what this one knows


def _remember(path: Path) -> None:
    with _lock:  # threads of several workers: none may look for the oldest while another adds one
        _sound.pop(str(path), None)
        _sound[str(path)] = _stamp(path)
        while len(_sound) > _MOST:
            _sound.pop(next(iter(_sound)), None)


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


def _rows(file: Any, name: str, rows: list[int]) -> np.ndarray:
    shape = file.get_slice(name).get_shape()
    if rows == list(range(shape[0])):
        return file.get_tensor(name)
    if len(rows) == 1 and 0 not in shape:  # a slice of an empty tensor is refused
        return file.get_slice(name)[rows[0] : rows[0] + 1]
    return file.get_tensor(name)[rows]
