"""Builds networks by kind, converts them to and from JSON, and counts their parameters.

Importing this module registers the kinds that siloflow contains. Matrices are stored as (in, out): with torch's (out,
in) the stacked gradient comes back transposed, which costs a copy per step.
"""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, cast

from torch import Tensor

from ..model_card import NetworkSpec
from ..prng import Sketch
from ..server_state import Weights
from . import __path__ as _here
from .network import Network, learned, registered


def build(kind: str, shape: Sequence[int], outputs: int, options: Mapping[str, object]) -> Network:
    """Build the network of this kind for rows of this shape."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    return registered()[kind].for_rows(shape, outputs, **options)


def to_json(network: Network) -> NetworkSpec:
    """Describe a network by kind and sizes, from which `from_json` rebuilds it without pickle."""
    values = {f.name: getattr(network, f.name) for f in fields(cast(Any, network))}
    inner = {name: to_json(part) for name, part in values.items() if isinstance(part, Network)}
    return {"kind": kind_of(network), **asdict(cast(Any, network)), **inner}


def kind_of(network: Network) -> str:
    """Return the network's kind, or the name of its class if it is not registered."""
    return network.kind or type(network).__name__


def is_bundled(network: Network) -> bool:
    """Whether all its parts belong to `models/`, which is packed into logged models, and none to a plugin."""
    if type(network).__module__.split(".")[0] != __name__.split(".")[0] or not network.portable:
        return False
    values = [getattr(network, f.name) for f in fields(cast(Any, network))]
    return all(is_bundled(part) for part in values if isinstance(part, Network))


def from_json(spec: NetworkSpec) -> Network:
    """Rebuild the network that `to_json` described; KeyError if its kind is not registered."""
    options = {k: _from_json(v) for k, v in spec.items() if k != "kind"}
    return registered()[spec["kind"]](**options)


def _from_json(value: object) -> object:
    if isinstance(value, dict):
        return from_json(value)
    return tuple(value) if isinstance(value, list) else value


def size(network: Network) -> int:
    """Count the network's weights and buffers from their shapes, without allocating them."""
    first, *others = network.single_networks
    return (1 + len(others)) * num_parameters(first.network.init(cast(Tensor, Sketch())))


def num_trainable(network: Network) -> int:
    """Count the network's trainable parameters."""
    first, *others = network.single_networks
    return (1 + len(others)) * num_parameters(learned(first.network, first.network.init(cast(Tensor, Sketch()))))


def num_parameters(weights: Weights) -> int:
    """Count the elements of the tensors."""
    return sum(w.numel() for w in weights.values())


# at the end, because some of these modules import this one
for _module in pkgutil.walk_packages(_here, f"{__package__}."):
    importlib.import_module(_module.name)
