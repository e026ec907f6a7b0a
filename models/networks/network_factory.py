"""Networks by the names of their kinds: those that come with siloflow register themselves as this is imported.

Matrices are kept as (in, out): with torch's (out, in) the stacked gradient comes back transposed, which costs a copy a step.
"""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, cast

from torch import Tensor

from ..prng import Sketch
from ..server_state import Weights
from . import __path__ as _here
from .network import Network, learned, registered


def build(kind: str, shape: Sequence[int], outputs: int, options: Mapping[str, Any]) -> Network:
    """The network of this kind for rows of this shape."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    return registered()[kind].for_rows(shape, outputs, **options)


def to_json(network: Network) -> dict[str, Any]:
    """Kind and sizes, from which `from_json` makes the same network (no pickle)."""
    held = {f.name: getattr(network, f.name) for f in fields(cast(Any, network))}
    inner = {name: to_json(one) for name, one in held.items() if isinstance(one, Network)}
    return {"kind": kind_of(network), **asdict(cast(Any, network)), **inner}


def kind_of(network: Network) -> str:
    """The name of the network's kind, that of its class if it is not registered."""
    return network.kind or type(network).__name__


def is_bundled(network: Network) -> bool:
    """Whether every part of it is of `models/`, which goes with a logged model, and not of somebody's page."""
    if type(network).__module__.split(".")[0] != __name__.split(".")[0] or not network.portable:
        return False
    inner = [getattr(network, f.name) for f in fields(cast(Any, network))]
    return all(is_bundled(one) for one in inner if isinstance(one, Network))


def from_json(spec: Mapping[str, Any]) -> Network:
    """The network that `to_json` described; KeyError if nothing is registered under its kind."""
    options = {k: _from_json(v) for k, v in spec.items() if k != "kind"}
    return registered()[spec["kind"]](**options)


def _from_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_json(value)
    return tuple(value) if isinstance(value, list) else value


def size(network: Network) -> int:
    """How many numbers the network's weights hold, told from their shapes: nothing of that size is made."""
    first, *others = network.single_networks
    return (1 + len(others)) * num_parameters(first.network.init(cast(Tensor, Sketch())))


def num_trainable(network: Network) -> int:
    """How many of them are learned."""
    first, *others = network.single_networks
    return (1 + len(others)) * num_parameters(learned(first.network, first.network.init(cast(Tensor, Sketch()))))


def num_parameters(weights: Weights) -> int:
    """How many numbers the weights hold."""
    return sum(w.numel() for w in weights.values())


# at the end, since some of them import this file
for _module in pkgutil.walk_packages(_here, f"{__package__}."):
    importlib.import_module(_module.name)
