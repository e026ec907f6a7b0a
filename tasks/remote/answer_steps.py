"""Run the steps that a coordinator asks of this place, and encode what they report or why they fail."""

import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from silos.cohort import Cohort, Silos
from silos.errors import DivergedError, MethodError, RefusalError, UserError, shown
from tasks.places.sessions import PlaceFailedError
from tasks.remote.codec import NotPlainError, OpenedPlace, pack, unpack, unpack_call
from tasks.remote.step_list import client_steps, offered_functions, parameters_of

_SENTENCES: Mapping[str, type[UserError]] = {
    kind.__name__: kind for kind in (UserError, RefusalError, DivergedError, MethodError, NotPlainError)
}
"""The errors with a sentence for the user, which travels; the text of others may quote a row, and stays."""

_NOT_REPEATED = (ValueError, TypeError)
MOST_TEXT = 2000  # characters of an error

_DONE, _FAILED = "done", "failed"

_log = logging.getLogger(__name__)


def pack_call(step: str, args: tuple[object, ...], options: Mapping[str, object]) -> bytes:
    """Encode a call of a step, for `answer_step`."""
    bound = inspect.signature(inspect.unwrap(client_steps()[step].fn)).bind(*args, **options)
    return pack(dict(bound.arguments), offered_functions())


Check = Callable[[str, Silos, Mapping[str, object]], None]
"""Raises RefusalError for a step, its silos and its arguments that the owner does not allow."""


def run_step(step: str, content: bytes, place: OpenedPlace, check: Check = lambda *_: None) -> object:
    """Run a step at this place; return its messages.

    Args:
        step: The name of the step.
        content: What `pack_call` encoded.
        place: What its cohort, stores and functions are opened in.
        check: Raises RefusalError if the owner of the silos does not allow the step.

    Raises:
        RefusalError: If the place has no such step.
        NotPlainError: If the arguments are not those of the step's signature.
    """
    if step not in client_steps():
        raise RefusalError(f"{shown(step, 40)}: got no step of this place's list, expected one.")
    arguments = unpack_call(content, parameters_of(step), place)
    cohort = arguments.get("cohort")
    if not isinstance(cohort, Cohort):
        raise NotPlainError("cohort: got none, expected one.")
    check(step, cohort.silos, arguments)
    return client_steps()[step].fn(**arguments)


def answer(
    make: Callable[[], object], home: Path = Path("/nowhere"), note: Callable[[str], None] = lambda _: None
) -> bytes:
    """Encode what a function returns, or the error that it raises.

    Args:
        make: The function.
        home: The place's folder, which sentences name relative to itself.
        note: Receives the sentence of an error.
    """
    try:
        return pack((_DONE, make()))
    except UserError as error:
        sentence = str(error).replace(f"{home}/", "")[:MOST_TEXT]
        note(sentence)
        kind = type(error) if type(error).__name__ in _SENTENCES else UserError
        return pack((_FAILED, kind.__name__, sentence))
    except Exception as error:
        _log.exception("a step failed")
        note(f"failed with {type(error).__name__}")
        kind_name = next((kind.__name__ for kind in _NOT_REPEATED if isinstance(error, kind)), type(error).__name__)
        return pack((_FAILED, kind_name, f"{type(error).__name__}; the place's own screen says where"))


def read_answer(content: bytes, returned: object, place: str) -> Any:
    """Return what a place returned, of this type; raise its error, with the place's name."""
    found = unpack(content, tuple[Literal["done"], returned] | tuple[Literal["failed"], str, str])  # type: ignore[valid-type]
    if found[0] == _DONE:
        return found[1]
    kinds: Mapping[str, type[Exception]] = {**_SENTENCES, **{kind.__name__: kind for kind in _NOT_REPEATED}}
    sentence = "".join(letter if letter.isprintable() else "?" for letter in found[2])
    raise kinds.get(found[1], PlaceFailedError)(f"place {place}: {shown(sentence, MOST_TEXT)}")
