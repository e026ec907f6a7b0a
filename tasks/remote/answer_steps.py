"""Run the steps that a coordinator asks of this place, and encode what they report or why they fail."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from silos.cohort import Cohort, Silos
from silos.errors import DivergedError, MethodError, RefusalError, UserError, shown
from tasks.places.sessions import PlaceFailedError
from tasks.remote.codec import NotPlainError, Place, pack, unpack, unpack_call
from tasks.remote.step_list import client_steps, offered_functions, parameters_of

_ERRORS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (UserError, RefusalError, DivergedError, MethodError, NotPlainError, ValueError, TypeError)
}
"""The errors that arrive as what they are; the runner repeats a step for all others."""

MOST_TEXT = 2000  # characters of an error

_DONE, _FAILED = "done", "failed"


def pack_call(step: str, args: tuple[object, ...], options: Mapping[str, object]) -> bytes:
    """Encode a call of a step, for `answer_step`."""
    bound = inspect.signature(inspect.unwrap(client_steps()[step].fn)).bind(*args, **options)
    return pack(dict(bound.arguments), offered_functions())


def answer_step(
    step: str, content: bytes, place: Place, check: Callable[[str, Silos], None] = lambda *_: None
) -> bytes:
    """Run a step at this place; return its messages, or its error, encoded for `read_answer`.

    Args:
        step: The name of the step.
        content: What `pack_call` encoded.
        place: What its cohort, stores and functions are opened in.
        check: Raises RefusalError if the owner of the silos does not allow the step.
    """

    def run() -> object:
        if step not in client_steps():
            raise RefusalError(f"{shown(step, 40)}: got no step of this place's list, expected one.")
        arguments = unpack_call(content, parameters_of(step), place)
        cohort = arguments.get("cohort")
        if not isinstance(cohort, Cohort):
            raise NotPlainError("cohort: got none, expected one.")
        check(step, cohort.silos)
        return client_steps()[step].fn(**arguments)

    return answer(run)


def answer(make: Callable[[], object]) -> bytes:
    """Encode what a function returns, or the error that it raises."""
    try:
        return pack((_DONE, make()))
    except Exception as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        return pack((_FAILED, type(error).__name__, f"{error} {notes}".strip()[:MOST_TEXT]))


def read_answer(content: bytes, returned: object, place: str) -> Any:
    """Return what a place returned, of this type; raise its error, with the place's name."""
    found = unpack(content, tuple[Literal["done"], returned] | tuple[Literal["failed"], str, str])  # type: ignore[valid-type]
    if found[0] == _DONE:
        return found[1]
    raise _ERRORS.get(found[1], PlaceFailedError)(f"place {place}: {found[2]}")
