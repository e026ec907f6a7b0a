"""Encode the arguments and messages of client steps as JSON and safetensors, for silos in other places.

What arrives is decoded into the types that the step's own signature names, and into nothing else: there is no pickle, no
import by name, and no path or class from the wire. A class is found by its name among the loaded subclasses of the type in
the signature, and a function among those that the step list offers. Rows and private state are opened by the receiver.
"""

import functools
import json
import math
import struct
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from models.client_model import GroupedWeights
from models.metrics.client_metrics import ClientMetric
from models.networks.exported_network import ExportedNetwork
from models.networks.network import Network
from models.networks.torch_module import TorchModule
from models.training.objectives import CrossEntropy, Focal, Objective, SquaredError
from models.training.optimizers import SGD, Adam, Optimizer
from silos.client_store import OF_COORDINATOR, ClientStore
from silos.cohort import Cohort, Silos, Stack
from silos.errors import UserError, shown
from silos.param_types import is_plain
from silos.standardizer import Standardization

MOST_DEPTH = 24  # of nested values
MOST_NAMES = 2  # folders of a client store's name: a run's below those of its set, where the owner's file is found
_MOST_TREE = 2**26  # bytes of names and numbers besides tensors
_PRIVATE = "private"
_PACKAGES = ("models", "silos", "tasks")  # of the classes that travel

_OF_PROTOCOL: dict[object, tuple[type, ...]] = {
    Objective: (CrossEntropy, Focal, SquaredError),
    Optimizer: (SGD, Adam),
}
"""The classes of a type that has no subclasses, because it is a protocol."""

_OPENED = (ClientStore, Cohort, Silos, Stack)
"""What a place opens by reference: with fields from a message, folders and rows would be those that the sender names."""

_PROGRAMS = (ExportedNetwork, TorchModule)
"""Networks that run code from their own fields: torch would unpickle a program, and a module is built by a function."""


class NotPlainError(UserError):
    """A value cannot travel to a place, or did not arrive as the step's signature says."""


@dataclass(frozen=True)
class OpenedPlace:
    """What a receiver of steps opens by name.

    Attributes:
        silos: The place's own clients and rows.
        part: The digest of the place's part of the data; other parts are refused.
        store: The folder of its clients' ledgers and private state.
        functions: The functions that steps may be passed, by name.
        earlier: Opens the place's clients in an earlier part, by its digest; None if no step may read one.
    """

    silos: Silos
    part: str
    store: Path
    functions: Mapping[str, Callable[..., Any]]
    earlier: Callable[[str], Silos] | None = None


def pack(value: object, functions: Mapping[str, Callable[..., Any]] = types.MappingProxyType({})) -> bytes:
    """Encode a value; NotPlainError for one that is no plain data.

    Args:
        value: Numbers, text, tensors, arrays, lists, tuples, mappings, records of these, cohorts and client stores.
        functions: The functions that may travel, by name.
    """
    from safetensors.torch import save

    encoder = _Encoder({function: name for name, function in functions.items()})
    tree = encoder.tree(value)
    return save(encoder.tensors, {"tree": json.dumps(tree, allow_nan=False, separators=(",", ":"))})


def unpack(content: bytes, hint: object, place: OpenedPlace | None = None) -> Any:
    """Decode what `pack` wrote into the type that `hint` names; NotPlainError for anything else.

    Args:
        content: The bytes, of a size that was checked before.
        hint: The type, as in a signature.
        place: What cohorts, client stores and functions are opened in; without one they are refused.
    """
    tree, tensors = _open(content)
    return _Decoder(tensors, place).value(tree, hint, "value", 0)


def unpack_call(content: bytes, hints: Mapping[str, object], place: OpenedPlace) -> dict[str, object]:
    """Decode the arguments of a step, which are packed as a mapping from its parameters' names; see `unpack`."""
    tree, tensors = _open(content)
    decoder = _Decoder(tensors, place)
    named = decoder.pairs(tree, "arguments")
    unknown = [name for name, _ in named if name not in hints]
    if unknown:
        raise NotPlainError(f"arguments: got {shown(str(unknown[0]))}, expected some of {', '.join(hints)}.")
    return {name: decoder.value(part, hints[name], name, 0) for name, part in named}


def _open(content: bytes) -> tuple[object, dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size]) if size < min(len(content), _MOST_TREE) else {}
        return json.loads(header["__metadata__"]["tree"]), load(content)
    except (struct.error, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise NotPlainError(
            f"message: got bytes that cannot be read ({type(error).__name__}), expected a step's."
        ) from None


class _Encoder:
    """Makes a tree of JSON values, and collects tensors."""

    def __init__(self, names: Mapping[Callable[..., Any], str]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names = names

    def tree(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, np.generic):
            return self.tree(value.item())
        if isinstance(value, Tensor | np.ndarray):
            return self._tensor(value)
        if isinstance(value, Cohort):
            stacks = [[list(stack.clients), stack.size] for stack in value.stacks]
            return {"cohort": {**self._silos(value.silos), "stacks": stacks}}
        if isinstance(value, Silos):
            return {"silos": self._silos(value)}
        if isinstance(value, ClientStore):
            return {"store": _store_name(value)}
        if isinstance(value, ClientMetric):
            return {"metric": type(value).__name__, "name": value.name}
        if isinstance(value, GroupedWeights):
            return {"grouped": self.tree(value.groups), "of": list(value.group_of)}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._record(value, value._fields)
        if is_dataclass(value) and not isinstance(value, type):
            return self._record(value, [field.name for field in fields(value) if field.init])
        if isinstance(value, Mapping):
            return {"map": [[self.tree(key), self.tree(inner)] for key, inner in value.items()]}
        if isinstance(value, list | tuple):
            return {"list" if isinstance(value, list) else "tuple": [self.tree(inner) for inner in value]}
        if isinstance(value, set | frozenset):
            return {"set": sorted(cast(set[str], value))}
        return self._function(value)

    def _tensor(self, value: Tensor | np.ndarray) -> dict[str, str]:
        key, kind = str(len(self.tensors)), "tensor" if isinstance(value, Tensor) else "array"
        if isinstance(value, np.ndarray):
            try:
                value = torch.from_numpy(np.array(value, order="C"))  # a copy, because torch wants to write
            except TypeError:
                raise NotPlainError(f"message: got an array of {value.dtype}, expected numbers.") from None
        # tensors of one memory would be refused
        self.tensors[key] = value.detach().to("cpu", copy=True).contiguous()
        return {kind: key}

    def _silos(self, silos: Silos) -> dict[str, object]:
        if silos.pooled:  # what an owner allows is said of silos
            raise NotPlainError(
                f"client {shown(silos.clients[0])}: got pooled silos, expected single ones. Methods that pool rows do "
                "not run over places: choose another method."
            )
        place = silos.only_place()
        return {
            "place": place,
            "part": silos.manifest.places[place].digest if place else "",
            "version": silos.version,
            "clients": list(silos.clients),
            "scaling": silos.scaling.as_json(),
        }

    def _record(self, value: object, names: Sequence[str]) -> dict[str, object]:
        kind = type(value).__name__
        if not _is_own(type(value)):
            raise NotPlainError(
                f"got {shown(kind)}, expected siloflow's own class. What a plugin defines does not travel to places: leave "
                "the plugin out, or use another runner.kind."
            )
        try:
            return {"record": kind, "fields": {name: self.tree(getattr(value, name)) for name in names}}
        except NotPlainError as error:
            raise NotPlainError(f"{kind}: {error}") from None

    def _function(self, value: object) -> dict[str, object]:
        if isinstance(value, functools.partial) and not value.args:
            return {**self._function(value.func), "with": self.tree(value.keywords)}
        name = self._names.get(cast(Any, value)) if isinstance(value, types.FunctionType) else None
        if name is None:
            raise NotPlainError(
                f"got {shown(repr(value))}, expected plain data. What a plugin defines does not travel to places: leave the "
                "plugin out, or use another runner.kind."
            )
        return {"function": name}


@dataclass(frozen=True)
class _Decoder:
    """Makes values of the types that hints name."""

    tensors: Mapping[str, Tensor]
    place: OpenedPlace | None

    def value(self, tree: object, hint: object, where: str, depth: int) -> object:
        if depth > MOST_DEPTH:
            raise NotPlainError(f"{shown(where)}: got values nested more than {MOST_DEPTH} deep, expected fewer.")
        arms = [*arms_of(hint)]
        if tree is None or isinstance(tree, bool | int | float | str):
            if any(_is_plain(tree, arm) for arm in arms):
                return tree
            raise _unfit(tree, hint, where)
        if not isinstance(tree, dict) or not tree:
            raise _unfit(tree, hint, where)
        kind = next(iter(tree))
        decode = _DECODERS.get(kind)
        if decode is not None:
            for arm in arms:
                found = decode(self, tree, arm, where, depth + 1)
                if found is not _OTHER:
                    return found
        raise _unfit(tree, hint, where)

    def pairs(self, tree: object, where: str) -> list[tuple[str, object]]:
        """Return the items of a packed mapping from text."""
        listed = tree.get("map") if isinstance(tree, dict) else None
        if isinstance(listed, list) and all(
            isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in listed
        ):
            return [(pair[0], pair[1]) for pair in listed]
        raise NotPlainError(f"{where}: got {shown(repr(tree))}, expected a mapping from names.")

    def opened(self) -> OpenedPlace:
        if self.place is None:
            raise NotPlainError("message: got a reference to rows or a function, expected plain data.")
        return self.place

    # Each returns _OTHER if the arm of the hint is of another type.

    def number(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        if arm is not float or tree["float"] not in ("nan", "inf", "-inf"):
            return _OTHER
        return float(tree["float"])

    def tensor(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        found = self.tensors.get(str(tree["tensor"])) if arm is Tensor else None
        return _OTHER if found is None else found

    def array(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        found = self.tensors.get(str(tree["array"])) if (typing.get_origin(arm) or arm) is np.ndarray else None
        return _OTHER if found is None else found.numpy()

    def sequence(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        kind = next(iter(tree))
        of, inner = typing.get_origin(arm) or arm, typing.get_args(arm)
        if of not in (list, tuple, Sequence) or not isinstance(tree[kind], list):
            return _OTHER
        if of in (list, tuple) and kind != of.__name__:
            return _OTHER
        items = tree[kind]
        if of is tuple and inner and inner[-1] is not Ellipsis:
            if len(items) != len(inner):
                return _OTHER
            hints: Sequence[object] = inner
        else:
            hints = [inner[0] if inner else object] * len(items)
        values = [self.value(item, hint, where, depth) for item, hint in zip(items, hints, strict=True)]
        return values if kind == "list" else tuple(values)

    def names(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        of, inner = typing.get_origin(arm), typing.get_args(arm)
        if of not in (set, frozenset) or not isinstance(tree["set"], list):
            return _OTHER
        return of(self.value(item, inner[0], where, depth) for item in tree["set"])

    def mapping(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        of, inner = typing.get_origin(arm), typing.get_args(arm)
        if of not in (dict, Mapping) or not isinstance(tree["map"], list):
            return _OTHER
        found = {}
        for pair in tree["map"]:
            if not isinstance(pair, list) or len(pair) != 2:
                return _OTHER
            key = self.value(pair[0], inner[0], where, depth)
            found[key] = self.value(pair[1], inner[1], f"{where}.{key}", depth)
        return found

    def grouped(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        if typing.get_origin(arm) is not Mapping or typing.get_args(arm) != (str, Tensor):
            return _OTHER
        groups = self.value(tree["grouped"], arm, where, depth)
        of = tree.get("of")
        if not isinstance(of, list) or not all(type(index) is int for index in of):
            return _OTHER
        return GroupedWeights(cast(Mapping[str, Tensor], groups), tuple(of))

    def record(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        kind = alternatives(arm).get(str(tree["record"])) if isinstance(arm, type) else None
        parts = tree.get("fields")
        if kind is None or not isinstance(parts, dict):
            return _OTHER
        hints = field_hints(kind)
        if unknown := [name for name in parts if name not in hints]:
            raise NotPlainError(f"{where}: got {shown(unknown[0])}, expected fields of {kind.__name__}.")
        values = {n: self.value(part, hints[n], f"{where}.{n}", depth) for n, part in parts.items()}
        try:
            return kind(**values)
        except (TypeError, ValueError) as error:
            raise NotPlainError(f"{where}: got a {kind.__name__} that cannot be made ({error}).") from None

    def metric(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        kind = alternatives(arm).get(str(tree["metric"])) if arm is ClientMetric else None
        name = tree.get("name")
        return _OTHER if kind is None or not isinstance(name, str) else kind().named(name)

    def store(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        names = tree["store"]
        if arm is not ClientStore or not isinstance(names, list) or len(names) > MOST_NAMES:
            return _OTHER
        if not all(isinstance(name, str) and is_plain(name) for name in names):
            raise NotPlainError(f"{where}: got {shown(repr(names))}, expected plain names of folders.")
        store = self.opened().store
        return ClientStore(str(store.joinpath(OF_COORDINATOR, *names) if names else store))

    def function(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        if (typing.get_origin(arm) or arm) is not Callable:
            return _OTHER
        function = self.opened().functions.get(str(tree["function"]))
        if function is None:
            raise NotPlainError(
                f"{where}: got {shown(repr(tree['function']))}, expected a function of this place's list."
            )
        if "with" not in tree:
            return function
        hints = typing.get_type_hints(function)
        options = self.pairs(tree["with"], where)
        if unknown := [name for name, _ in options if name not in hints]:
            raise NotPlainError(f"{where}: got {shown(unknown[0])}, expected parameters of {tree['function']}.")
        return functools.partial(
            function, **{n: self.value(part, hints[n], f"{where}.{n}", depth) for n, part in options}
        )

    def silos(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        return self._open_silos(tree["silos"], where) if arm is Silos else _OTHER

    def cohort(self, tree: dict[str, Any], arm: object, where: str, depth: int) -> object:
        if arm is not Cohort or not isinstance(tree["cohort"], dict):
            return _OTHER
        place = self.opened()
        silos, listed = self._open_silos(tree["cohort"], where), tree["cohort"].get("stacks")
        stacks = cast(list[tuple[list[str], int]], self.value({"list": _tuples(listed)}, list[_STACK], where, depth))
        for clients, size in stacks:
            if not 0 < len(clients) <= size <= len(place.silos.clients) or set(clients) - set(silos.clients):
                raise NotPlainError(
                    f"{where}: got a stack of {len(clients)} clients padded to {size}, expected the cohort's clients, and "
                    f"no more than the {len(place.silos.clients)} silos of this place."
                )
        return Cohort(silos, tuple(Stack(tuple(clients), size) for clients, size in stacks))

    def _open_silos(self, tree: object, where: str) -> Silos:
        place = self.opened()
        if not isinstance(tree, dict) or not isinstance(tree.get("version"), str):
            raise NotPlainError(f"{where}: got no data version, expected one.")
        part, opened = tree.get("part"), place.silos
        if part != place.part and place.earlier is not None and isinstance(part, str):
            opened = place.earlier(part)
        elif part != place.part:
            raise NotPlainError(
                f"{where}: got another part of the data than this place holds. Make the coordinator's data again with "
                "`siloflow partition`, or bring the place's data/ back."
            )
        clients = tuple(cast(list[str], self.value({"list": tree.get("clients")}, list[str], where, 1)))
        for client in clients:
            opened.index(client)
        if len({*clients}) != len(clients):
            raise NotPlainError(f"{where}: got a client twice, expected each once.")
        try:
            scaling = Standardization.from_json(cast(Any, tree.get("scaling")))
        except (TypeError, KeyError, ValueError, AttributeError):
            raise NotPlainError(f"{where}: got a scaling that cannot be read, expected one.") from None
        return replace(opened, clients=clients, version=tree["version"], scaling=scaling)


_OTHER = object()
_STACK = tuple[list[str], int]

_DECODERS: dict[str, Callable[[_Decoder, dict[str, Any], object, str, int], object]] = {
    "float": _Decoder.number,
    "tensor": _Decoder.tensor,
    "array": _Decoder.array,
    "list": _Decoder.sequence,
    "tuple": _Decoder.sequence,
    "set": _Decoder.names,
    "map": _Decoder.mapping,
    "grouped": _Decoder.grouped,
    "record": _Decoder.record,
    "metric": _Decoder.metric,
    "store": _Decoder.store,
    "function": _Decoder.function,
    "silos": _Decoder.silos,
    "cohort": _Decoder.cohort,
}


@functools.cache
def alternatives(hint: type) -> dict[str, type]:
    """Return the classes that a value of this type may have, by name: siloflow's own dataclasses, named tuples and metrics.

    None for `object`, which all classes are.
    """
    found: dict[str, type] = {}
    if hint is object:
        return found
    for kind in filter(_is_record, _OF_PROTOCOL.get(hint) or _subclasses(hint)):
        if found.setdefault(kind.__name__, kind) is not kind:
            raise TypeError(f"{kind.__name__}: got two classes of this name below {hint.__name__}, expected one")
    return found


def _is_record(kind: type) -> bool:
    if not _is_own(kind) or issubclass(kind, (*_PROGRAMS, *_OPENED)):
        return False
    named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return is_dataclass(kind) or named_tuple or issubclass(kind, ClientMetric)


def _is_own(kind: type) -> bool:
    """Return whether a class is siloflow's own: a plugin's does not travel, whatever its name."""
    return kind.__module__.partition(".")[0] in _PACKAGES


def _subclasses(kind: type) -> Iterator[type]:
    yield kind
    for inner in cast(list[type], type.__subclasses__(kind)):
        yield from _subclasses(inner)


@functools.cache
def field_hints(kind: type) -> dict[str, object]:
    """Return the types of the fields that make a record, by name."""
    hints = typing.get_type_hints(kind)
    if issubclass(kind, Network):  # its type checker knows no abilities of an inner network
        hints = {name: Network if hint is Any else hint for name, hint in hints.items()}
    names = (
        kind._fields if hasattr(kind, "_fields") else [field.name for field in fields(cast(Any, kind)) if field.init]
    )
    return {name: hints[name] for name in names}


def arms_of(hint: object) -> Iterator[object]:
    """Yield the types of a union, or the type."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for arm in typing.get_args(hint):
            yield from arms_of(arm)
    elif origin is typing.Annotated:
        yield from arms_of(typing.get_args(hint)[0])
    else:
        yield hint


def _is_plain(value: object, arm: object) -> bool:
    if typing.get_origin(arm) is typing.Literal:
        return value in typing.get_args(arm)
    if arm is float:
        return type(value) in (float, int)
    return type(value) is (type(None) if arm is None else arm)


def _unfit(tree: object, hint: object, where: str) -> NotPlainError:
    name = getattr(hint, "__name__", None) or str(hint)
    return NotPlainError(f"{shown(where)}: got {shown(repr(tree))}, expected {shown(name)}.")


def _tuples(listed: object) -> object:
    """Write the pairs of a list as tuples and lists, as `value` reads them."""
    if not isinstance(listed, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in listed):
        return None
    return [{"tuple": [{"list": clients}, size]} for clients, size in listed]


def _store_name(store: ClientStore) -> list[str]:
    """Return the folders below private/<store>/ that lead to this store; NotPlainError for a store elsewhere."""
    parts = Path(store.folder).parts
    if _PRIVATE not in parts:
        raise NotPlainError(f"{store.folder}: got a store outside of private/, expected one that places have.")
    index = len(parts) - 1 - parts[::-1].index(_PRIVATE)
    return list(parts[index + 2 :])
