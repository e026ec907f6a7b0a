"""Make functions steps, which free memory in the process that runs them and check what leaves a client.

Running a step twice gives the same message, as private state is written under its hash. A client's step receives a
cohort, through which rows and private state can be opened. A server's step receives what clients sent, and nothing else.
Steps know no Prefect, which a place does without; `prefect_runner` makes them tasks.
"""

import functools
import inspect
import multiprocessing
import time
import traceback
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeAlias, TypeVar
from uuid import uuid4

import numpy as np
import torch

from models.client_model import Model
from models.server_state import ClientStateRefs
from models.training.engine import Training
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos
from silos.errors import RefusalError, UserError
from silos.privacy.owner_file import check_command, check_messages, must_be_private
from tasks.execution.process_memory import collect_garbage, tune_malloc
from tasks.messages.message_policy import Message, SentMessage, numbers_of, unprotected

DATA_TYPES = (Cohort, Silos, ClientStore)
"""The types through which rows and private state are opened."""


Returned = TypeVar("Returned")

Call = tuple[tuple[object, ...], dict[str, object]]
"""Positional and keyword arguments of a step."""

Value = TypeVar("Value")

OF_CLIENTS = "of clients"
ByClient: TypeAlias = Annotated[Mapping[str, Value], OF_CLIENTS]
"""The type of a client step's argument with something for each client: a cohort receives what is its clients'."""


class Step(Generic[Returned]):
    """A function with a name, which runs in any thread of any process.

    Attributes:
        fn: What runs; `inspect.unwrap` returns the function as it was written.
        name: Its name, also on Prefect's page.
    """

    def __init__(self, fn: Callable[..., Returned], name: str) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.name = fn, name

    def __call__(self, *args: Any, **options: Any) -> Returned:
        """Run it here."""
        return self.fn(*args, **options)


class ClientStep(Step[list[SentMessage]], Generic[SentMessage]):
    """A step that runs at clients, with access to their rows: `Runner.map_cohorts` accepts no other."""


class ServerStep(Step[Returned], Generic[Returned]):
    """A step that receives what clients sent, and nothing else: `Runner.run_on_server` accepts no other."""


def step(function: Callable[..., list[SentMessage]], name: str | None = None) -> ClientStep[SentMessage]:
    """Make a function, whose first parameter is a Cohort, a client's step of this name or its own."""
    hints = typing.get_type_hints(function)
    first = next(iter(inspect.signature(function).parameters), "")
    if hints.get(first) is not Cohort:
        raise TypeError(
            f"{function.__name__}: got no Cohort as the first parameter, expected one in a client step; a step of "
            "the server is a server_step"
        )
    for kind in _parts(hints.get("return")):
        if isinstance(kind, type) and issubclass(kind, Message):
            numbers_of(kind)
    return ClientStep(_run_in_worker(function, name), name or function.__name__)


def server_step(function: Callable[..., Returned]) -> ServerStep[Returned]:
    """Make a function a server's step.

    TypeError if its parameters could hold rows, and at every call that passes a way to open them.
    """
    hints = typing.get_type_hints(function)
    for name in inspect.signature(function).parameters:
        if name not in hints:
            raise TypeError(f"{function.__name__}: {name}: got no type, expected one in a server step")
        if _may_open(hints[name], set()):
            raise TypeError(
                f"{function.__name__}: {name}: got a type that could open clients' rows, expected none in a server step"
            )

    @functools.wraps(function)
    def refusing(*args: object, **options: object) -> Returned:
        if _can_open([*args, *options.values()]):
            raise TypeError(
                f"{function.__name__}: got an argument that can open clients' rows, expected none in a server step"
            )
        return function(*args, **options)

    return ServerStep(_run_in_worker(refusing), function.__name__)


class OpaqueArgument:
    """Wraps an argument of a step so that Prefect and Dask pass it on unread.

    Prefect would search it for futures, at 6 µs per element of a container; Dask would take it apart and hash it.
    """

    __slots__ = ("content",)

    def __init__(self, content: object) -> None:
        self.content = content

    def __dask_tokenize__(self) -> str:
        return uuid4().hex


def _parts(hint: object) -> list[object]:
    """Return a type and all types that it is composed of."""
    return [hint, *(part for inner in typing.get_args(hint) for part in _parts(inner))]


def _may_open(kind: object, seen: set[object]) -> bool:
    """Return whether a value of this type may hold one of DATA_TYPES."""
    if kind in DATA_TYPES or kind is Any:
        return True
    if is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        return any(_may_open(inner, seen) for inner in typing.get_type_hints(kind).values())
    return any(_may_open(inner, seen) for inner in typing.get_args(kind) if not isinstance(inner, str))


def _can_open(value: object) -> bool:
    """Return whether the value holds one of DATA_TYPES."""
    if isinstance(value, str | bytes | np.ndarray | torch.Tensor):
        return False
    if isinstance(value, DATA_TYPES):
        return True
    if isinstance(value, Mapping):
        return any(map(_can_open, value.values()))
    if is_dataclass(value):
        return any(_can_open(getattr(value, field.name)) for field in fields(value))
    return isinstance(value, Collection) and any(map(_can_open, value))


def _run_in_worker(function: Callable[..., Returned], name: str | None = None) -> Callable[..., Returned]:
    """Wrap the function to run in any thread of any process; errors name it, or the step if that has another name."""

    @functools.wraps(function)
    def run(*args: object, **options: object) -> Returned:
        tune_malloc()
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # bits must not depend on how many threads share a sum
        if multiprocessing.parent_process() is not None:
            collect_garbage()  # left by the previous task of this worker process
        args, options = tuple(map(_unwrap, args)), {name: _unwrap(value) for name, value in options.items()}
        start = time.perf_counter()
        try:
            result = _timed(function(*args, **options), start)
            if isinstance(result, list):
                _check_may_leave(result, [*args, *options.values()], is_report(function))
            return result
        except UserError as error:
            error.raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
            raise
        except Exception as error:
            error.add_note(_where(name or function.__name__, args, error))
            raise

    return run


def _timed(result: Returned, start: float) -> Returned:
    """Add the duration of the step to its first message; TypeError for a message that may not leave a client."""
    if isinstance(result, list):
        messages = [item for item in result if isinstance(item, Message)]
        for kind in {type(message) for message in messages}:
            numbers_of(kind)  # also of a step that does not say what it returns
        if messages and messages[0] is result[0]:
            result[0] = replace(messages[0], seconds=time.perf_counter() - start)
    return result


def is_report(function: Callable[..., object]) -> bool:
    """Return whether a step reports to a diagnosis, through the ledgers of the silos; others train or score."""
    return function.__module__.startswith("tasks.diagnosis.")


def _check_may_leave(result: list[object], arguments: Sequence[object], of_diagnosis: bool) -> None:
    """Raise RefusalError for a message that the owner's file does not let leave, or that breaks training's privacy.

    A report to a diagnosis has checked its command. Others need one of training or scores, also to compare outcomes of
    runs that have ended.
    """
    store = next((store for argument in arguments for store in _find(argument, ClientStore)), None)
    training = [each for argument in arguments for each in _find(argument, Training)]
    is_private = any(each.privacy for each in training)
    models = [each for argument in arguments for each in _find(argument, Model)]
    kept = any(isinstance(part, ClientStateRefs) for each in models for part in (each.personal, each.context))

    def demands_noise(message: Message) -> bool:
        trains = training or message.of_training_rows
        return bool(trains) and store is not None and must_be_private(Path(store.folder), message.clients)

    for message in result:
        # these say nothing of rows; by a refusal a client declines
        if not isinstance(message, Message) or type(message).__name__ in ("Refusal", "PrivacyCost"):
            continue
        if store is not None:
            check_messages(Path(store.folder), message.clients, type(message).__name__)
            if not of_diagnosis:
                check_command(Path(store.folder), "run", message.clients, "evaluate")
        demanded = demands_noise(message)
        field = unprotected(message, is_private, demanded and kept) if is_private or demanded else ""
        if field:
            why = "as the owner has set under private_training" if demanded else "with training.privacy"
            raise RefusalError(
                f"{field}: got numbers of training rows without noise, expected none, {why}. Use a method that adds "
                "noise, and training.privacy.epsilon: docs/privacy.md."
            )


Found = TypeVar("Found")


def _find(value: object, kind: type[Found]) -> Iterator[Found]:
    """Yield the values of a type among an argument and its parts."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, tuple | list) and not (value and isinstance(value[0], str)):  # names are many
        for part in value:
            yield from _find(part, kind)
    elif is_dataclass(value) and not isinstance(value, (type, *DATA_TYPES)):
        for field in fields(value):
            yield from _find(getattr(value, field.name), kind)


def _unwrap(argument: object) -> object:
    return argument.content if isinstance(argument, OpaqueArgument) else argument


def _where(name: str, args: tuple[object, ...], error: Exception) -> str:
    """Return the step, the clients and the line of an error, because a traceback is not sent between processes."""
    clients = getattr(args[0], "clients", ()) if args else ()
    some = ", ".join(clients[:3]) + (f" and {len(clients) - 3} more" if len(clients) > 3 else "")
    of = f" of {'client' if len(clients) == 1 else 'clients'} {some}" if clients else ""
    line = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {name}{of} ({Path(line.filename).name}, line {line.lineno})"
