"""Which form of the engine a run uses, and how many clients stand in one stack.

Both are read from a table and follow from the network, the batch and the device alone: never from the number of workers,
and never from a timing, which on a busy machine would change a run's bits. `siloflow bench --tune` measures the table.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..networks.network import Network
from ..networks.network_factory import kind_of, size
from .execution_plan import Kind, forms

_MOST = 512  # clients in a stack, however small they are


@dataclass(frozen=True)
class Kernel:
    """The engine's form and the most clients of one stack."""

    kind: Kind
    stack: int


class _Line(NamedTuple):
    kind: Kind
    megabytes: float  # that the weights and one layer's activations of a stack may take


_TABLE: dict[tuple[str, str], _Line] = {
    ("mlp", "cpu"): _Line("batched", 4),
    ("cnn", "cpu"): _Line("batched", 8),
    ("cnn_bn", "cpu"): _Line("batched", 8),
    ("residual", "cpu"): _Line("batched", 8),
    ("vgg16_bn", "cpu"): _Line("batched", 8),
    ("resnet18", "cpu"): _Line("batched", 8),
    ("mlp", "cuda"): _Line("batched", 1024),
    ("cnn", "cuda"): _Line("batched", 1024),
    ("cnn_bn", "cuda"): _Line("batched", 1024),
    ("residual", "cuda"): _Line("batched", 1024),
    ("vgg16_bn", "cuda"): _Line("batched", 1024),
    ("resnet18", "cuda"): _Line("batched", 1024),
}
_OTHERWISE = _Line("vmap", 4)


def pick_kernel(
    network: Network,
    batch: int,
    device: str,
    kind: Kind | Literal["auto"] = "auto",
    stack: int | Literal["auto"] = "auto",
) -> Kernel:
    """The table's choice for what is `auto`; ValueError if the network has no form of the kind that is asked for."""
    line = _TABLE.get((kind_of(network.single_networks[0].network), device), _OTHERWISE)
    if kind != "auto" and kind not in forms(network):
        raise ValueError(f"the network {kind_of(network)} has no {kind} form; use vmap or auto.")
    chosen: Kind = kind if kind != "auto" else line.kind if network.maps else "sequential"
    return Kernel(chosen, fitting(network, batch, line.megabytes) if stack == "auto" else stack)


def fitting(network: Network, batch: int, megabytes: float) -> int:
    """The clients whose weights and activations fit, at least one."""
    footprint = 4 * (size(network) + batch * network.max_width)
    return int(min(_MOST, max(1, megabytes * 2**20 // footprint)))


def even_stack_size(clients: int, most: int) -> int:
    """The size of the fewest equal stacks that hold so many clients: 9 clients at most 5 to a stack are 5 and 4."""
    stacks = -(-clients // most)
    return -(-clients // stacks)
