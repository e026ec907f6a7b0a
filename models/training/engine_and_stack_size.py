"""Selects the engine's form and the number of clients in one stack.

Both come from a table, and depend on the network, the batch and the device alone. They depend neither on the number of
workers nor on a timing, which on a busy machine would change a run's bits. `siloflow bench --tune` measures the table.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..networks.network import Network
from ..networks.network_factory import kind_of, size
from .execution_plan import Kind, forms

_MAX_STACK = 512  # clients, however small their networks are


@dataclass(frozen=True)
class Kernel:
    """The form, and the maximum number of clients in one stack."""

    kind: Kind
    stack: int


class _TableRow(NamedTuple):
    kind: Kind
    megabytes: float  # limit for the weights and one layer's activations of a stack


_TABLE: dict[tuple[str, str], _TableRow] = {
    ("mlp", "cpu"): _TableRow("batched", 4),
    ("cnn", "cpu"): _TableRow("batched", 8),
    ("cnn_bn", "cpu"): _TableRow("batched", 8),
    ("residual", "cpu"): _TableRow("batched", 8),
    ("vgg16_bn", "cpu"): _TableRow("batched", 8),
    ("resnet18", "cpu"): _TableRow("batched", 8),
    ("mlp", "cuda"): _TableRow("batched", 1024),
    ("cnn", "cuda"): _TableRow("batched", 1024),
    ("cnn_bn", "cuda"): _TableRow("batched", 1024),
    ("residual", "cuda"): _TableRow("batched", 1024),
    ("vgg16_bn", "cuda"): _TableRow("batched", 1024),
    ("resnet18", "cuda"): _TableRow("batched", 1024),
}
_DEFAULT = _TableRow("vmap", 4)


def pick_kernel(
    network: Network,
    batch: int,
    device: str,
    kind: Kind | Literal["auto"] = "auto",
    stack: int | Literal["auto"] = "auto",
) -> Kernel:
    """Choose the form and stack size that are `auto` from the table.

    Args:
        network: The network that is trained.
        batch: Rows in a batch.
        device: "cpu" or "cuda".
        kind: The form, or auto.
        stack: The clients in one stack, or auto.

    Raises:
        ValueError: If the network has no form of the given kind.
    """
    row = _TABLE.get((kind_of(network.single_networks[0].network), device), _DEFAULT)
    if kind != "auto" and kind not in forms(network):
        raise ValueError(
            f"engine.kind: got {kind}, which the network {kind_of(network)} does not support, "
            "expected vmap or auto. Use one of these."
        )
    chosen: Kind = kind if kind != "auto" else row.kind if network.maps else "sequential"
    return Kernel(chosen, fitting(network, batch, row.megabytes) if stack == "auto" else stack)


def fitting(network: Network, batch: int, megabytes: float) -> int:
    """Return how many clients' weights and activations fit into the megabytes, at least one.

    Args:
        network: The network that is trained.
        batch: Rows in a batch.
        megabytes: Memory for the weights and one layer's activations of a stack, in float32.
    """
    footprint = 4 * (size(network) + batch * network.max_width)
    return int(min(_MAX_STACK, max(1, megabytes * 2**20 // footprint)))


def even_stack_size(clients: int, most: int) -> int:
    """Return the size of the fewest equal stacks of at most `most` clients.

    9 clients at most 5 a stack give stacks of 5 and 4.
    """
    stacks = -(-clients // most)
    return -(-clients // stacks)
