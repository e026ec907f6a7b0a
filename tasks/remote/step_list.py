"""The steps and functions that a place offers by name: those of siloflow's own tasks, and no others."""

import functools
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any

import tasks
from tasks import report_evidence
from tasks.execution.steps import ClientStep
from tasks.messages.message_policy import Message, numbers_of

_NOT_OFFERED = ("report_stats", "pooled_train")  # exact statistics without a ledger; rows of several silos
_WITHOUT_STEPS = ("tasks.tracking", "tasks.execution", "tasks.places", "tasks.remote")


@functools.cache
def client_steps() -> Mapping[str, ClientStep[Any]]:
    """Return all client steps of tasks/, by name."""
    found: dict[str, ClientStep[Any]] = {}
    for module in pkgutil.walk_packages(tasks.__path__, "tasks."):
        if module.name.startswith(_WITHOUT_STEPS):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, ClientStep) and value.fn.__module__ == module.name and value.name not in _NOT_OFFERED:
                assert value.name not in found, f"{value.name}: two steps have this name"
                found[value.name] = value
    return MappingProxyType(found)


@functools.cache
def offered_functions() -> Mapping[str, Callable[..., Any]]:
    """Return the functions that a step may be passed, by name: the evidence by which clients are clustered."""
    return MappingProxyType(
        {
            name: value
            for name, value in vars(report_evidence).items()
            if isinstance(value, FunctionType)
            and not name.startswith("_")
            and report_evidence.EvidenceQuery in typing.get_type_hints(value).values()
        }
    )


@functools.cache
def parameters_of(step: str) -> Mapping[str, object]:
    """Return the types of a step's parameters, by name."""
    function = inspect.unwrap(client_steps()[step].fn)
    hints = typing.get_type_hints(function)
    return MappingProxyType({name: hints[name] for name in inspect.signature(function).parameters})


@functools.cache
def is_training(step: str) -> bool:
    """Return whether a step's messages have numbers that training learned, such as weights."""
    return any(
        numbers.size == "learned" for kind in message_types(returned_by(step)) for numbers in numbers_of(kind).values()
    )


def message_types(hint: object) -> list[type[Message]]:
    """Return the classes that a step's return type names."""
    inner = typing.get_args(hint)
    return [kind for part in inner for kind in message_types(part)] if inner else [typing.cast(type[Message], hint)]


@functools.cache
def returned_by(step: str) -> object:
    """Return the type of a step's messages."""
    return typing.get_type_hints(inspect.unwrap(client_steps()[step].fn))["return"]
