"""The server's state between rounds, in a form that is saved and compared independently of the method."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class ClientStateRefs:
    """The server's view of private client state: a hash for each client that has stored state.

    `start` is the initial state of clients that have stored none yet: names to tensors without a client axis.
    """

    section: str
    refs: Mapping[str, str]
    start: Weights = field(default_factory=dict)


@dataclass(frozen=True)
class ServerState:
    """Named sections of tensors, plain numbers, references to private client state, and why the method finished.

    Names are sorted on construction, because their order affects sums, files and hashes. Ragged per-client tensors are
    stored as a table of rows with an owner column, not as a list of tensors.
    """

    tensors: Mapping[str, Weights] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    private: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    finished: str | None = None

    def __post_init__(self) -> None:
        ordered = {section: dict(sorted(tensors.items())) for section, tensors in sorted(self.tensors.items())}
        object.__setattr__(self, "tensors", ordered)
        object.__setattr__(self, "numbers", dict(sorted(self.numbers.items())))
        refs = {section: dict(sorted(clients.items())) for section, clients in sorted(self.private.items())}
        object.__setattr__(self, "private", refs)

    def with_tensors(self, **sections: Weights) -> "ServerState":
        """Return the state with these sections replaced."""
        return replace(self, tensors={**self.tensors, **sections})

    def with_numbers(self, **numbers: Any) -> "ServerState":
        """Return the state with these numbers replaced."""
        return replace(self, numbers={**self.numbers, **numbers})

    def with_private(self, section: str, refs: Mapping[str, str]) -> "ServerState":
        """Return the state with these clients' references replaced; the others stay."""
        return replace(self, private={**self.private, section: {**self.private.get(section, {}), **refs}})

    def without_private(self, section: str, clients: Collection[str]) -> "ServerState":
        """Return the state without these clients' references."""
        refs = {client: ref for client, ref in self.private[section].items() if client not in clients}
        return replace(self, private={**self.private, section: refs})

    def sha256(self) -> str:
        """Hash everything in the state; private client state enters by the hashes of its contents."""
        digest = hashlib.sha256()
        for section, tensors in self.tensors.items():
            for name, tensor in tensors.items():
                head = f"{section}/{name} {tensor.dtype} {tuple(tensor.shape)}\n"
                digest.update(head.encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        rest = {
            "sections": list(self.tensors),
            "numbers": self.numbers,
            "private": self.private,
            "finished": self.finished,
        }
        digest.update(json.dumps(rest, sort_keys=True).encode())
        return digest.hexdigest()
