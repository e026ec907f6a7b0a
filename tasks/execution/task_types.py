"""What makes a function a step: a Prefect task that is retried, keeps no result and is not cached.

Steps are pure, so running one twice gives the same message; a user's mistake is not retried. A client's step is given a
cohort, where rows and what clients keep can be opened; a server's is given what clients sent, and cannot be given more.

What a process holds, and what it can let go.
"""

import ctypes
import functools
import gc
import inspect
import multiprocessing
import sys
import time
import traceback
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import psutil
import torch
from prefect import Task
from prefect.cache_policies import NO_CACHE

from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos
from silos.errors import UserError
from tasks.messages.message_policy import Message, numbers_of

_modules = 0
_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_KEPT, _LARGEST, _OLDER = 2**28, 2**26, 2**25  # bytes; older versions take no more than the last: mallopt(3)
_PAUSE, _GROWTH = 0.5, 2**25  # seconds, and bytes, between two looks
_looked = (-_PAUSE, 0)


@cache
def tune_malloc() -> None:
    """Lets this process keep up to 256 MiB that it freed, in pieces of up to 64 MiB (older: 32), for its next tensors.

    Else glibc gives a step's activations back to the system, which hands them out again page by page and zeroed. Where there
    is another allocator, nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        hold(mallopt)


def hold(mallopt: Callable[[int, int], int]) -> None:
    """Sets both, or neither: one alone ends glibc's own rule, by which pieces that are freed are kept later."""
    if mallopt(_MAP, _LARGEST) or mallopt(_MAP, _OLDER):
        mallopt(_TRIM, _KEPT)


def resident_bytes() -> int:
    """Bytes of this process in memory."""
    return int(psutil.Process().memory_info().rss)


def collect_garbage() -> None:
    """Frees what Prefect leaves in reference cycles: the arguments and the answer of every task that was submitted.

    What imports made stays for good and is set aside, so that looking through the rest costs little. Between short rounds
    nobody looks before the process has grown, or half a second has passed.
    """
    global _modules, _looked
    if len(sys.modules) == _modules:
        when, held = _looked
        if time.monotonic() - when < _PAUSE and resident_bytes() - held < _GROWTH:
            return
    gc.collect()
    if len(sys.modules) != _modules:
        gc.freeze()
        _modules = len(sys.modules)
    _looked = time.monotonic(), resident_bytes()


DOORS = (Cohort, Silos, ClientStore)
"""What rows, and what clients keep, are opened with."""


class ClientStep(Task):
    """A step that runs beside clients' rows: `Runner.each` takes no other."""


class ServerStep(Task):
    """A step that sees what clients sent, and nothing else: `Runner.once` takes no other."""


def step(function: Callable) -> ClientStep:
    """A client's step: the function, which takes a Cohort first, as a Prefect task of the same name."""
    hints = typing.get_type_hints(function)
    first = next(iter(inspect.signature(function).parameters), "")
    if hints.get(first) is not Cohort:
        raise TypeError(
            f"{function.__name__} takes no Cohort first, as a client's step does; a server's is a server_step"
        )
    for kind in _parts(hints.get("return")):
        if isinstance(kind, type) and issubclass(kind, Message):
            numbers_of(kind)
    return ClientStep(_anywhere(function), **_SETTINGS)


def server_step(function: Callable) -> ServerStep:
    """A server's step; TypeError for one that could be given rows, and whenever it is given a way to open them."""
    hints = typing.get_type_hints(function)
    for name in inspect.signature(function).parameters:
        if name not in hints:
            raise TypeError(f"{function.__name__} does not say what its {name} is; a server's step does")
        if _opens(hints[name], set()):
            raise TypeError(f"{function.__name__} is a server's step, and its {name} could open clients' rows")

    @functools.wraps(function)
    def refusing(*args: Any, **options: Any) -> Any:
        if _holds([*args, *options.values()]):
            raise TypeError(f"{function.__name__} is a server's step, and was given a way to open clients' rows")
        return function(*args, **options)

    return ServerStep(_anywhere(refusing), **_SETTINGS)


class OpaqueArgument:
    """An argument of a step that is nobody's business on its way.

    Prefect would look for futures in it, at 6 µs for every element of a container; Dask would take it apart and hash it.
    """

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __dask_tokenize__(self) -> str:
        return uuid4().hex


def _parts(hint: Any) -> list[Any]:
    """A type, and all that it is made of."""
    return [hint, *(part for inner in typing.get_args(hint) for part in _parts(inner))]


def _opens(kind: Any, seen: set[Any]) -> bool:
    """Whether a value of this type may hold one of DOORS."""
    if kind in DOORS or kind is Any:
        return True
    if is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        return any(_opens(inner, seen) for inner in typing.get_type_hints(kind).values())
    return any(_opens(inner, seen) for inner in typing.get_args(kind) if not isinstance(inner, str))


def _holds(value: Any) -> bool:
    if isinstance(value, str | bytes | np.ndarray | torch.Tensor):
        return False
    if isinstance(value, DOORS):
        return True
    if isinstance(value, Mapping):
        return any(map(_holds, value.values()))
    if is_dataclass(value):
        return any(_holds(getattr(value, field.name)) for field in fields(value))
    return isinstance(value, Collection) and any(map(_holds, value))


def _anywhere(function: Callable) -> Callable:
    """The function, fit to run in any thread of any process."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        tune_malloc()
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # bits must not depend on how many threads share a sum
        if multiprocessing.parent_process() is not None:
            collect_garbage()  # a worker process: what its task before this one left
        args, options = tuple(map(_opened, args)), {name: _opened(value) for name, value in options.items()}
        start = time.perf_counter()
        try:
            return _timed(function(*args, **options), start)
        except UserError as error:
            error.raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
            raise
        except Exception as error:
            error.add_note(_where(function.__name__, args, error))
            raise

    return run


def _timed(answer: Any, start: float) -> Any:
    """A step's messages, the first of which says how long all of them took; TypeError for what may not leave a client."""
    if isinstance(answer, list):
        messages = [one for one in answer if isinstance(one, Message)]
        for kind in {type(message) for message in messages}:
            numbers_of(kind)  # also of a step that does not say what it returns
        if messages and messages[0] is answer[0]:
            answer[0] = replace(messages[0], seconds=time.perf_counter() - start)
    return answer


def _opened(argument: Any) -> Any:
    return argument.content if isinstance(argument, OpaqueArgument) else argument


def _where(name: str, args: tuple, error: Exception) -> str:
    """Which step, whose, and the line: a traceback does not travel between processes."""
    clients = getattr(args[0], "clients", ()) if args else ()
    some = ", ".join(clients[:3]) + (f" and {len(clients) - 3} more" if len(clients) > 3 else "")
    of = f" of {'client' if len(clients) == 1 else 'clients'} {some}" if clients else ""
    line = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {name}{of} ({Path(line.filename).name}, line {line.lineno})"


def _worth_a_retry(task: Any, run: Any, state: Any) -> bool:
    error = state.data if isinstance(state.data, BaseException) else state.result(raise_on_failure=False)
    return not isinstance(error, UserError | ValueError | TypeError)


_SETTINGS: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": 0.5,
    "retry_condition_fn": _worth_a_retry,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
