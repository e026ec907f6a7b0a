"""Run the steps that a coordinator asks of this place, and encode what they report or why they fail."""

import inspect
from collections.abc import Mapping

from silos.errors import DivergedError, MethodError, RefusalError, UserError
from tasks.remote.codec import NotPlainError, Place, pack, unpack, unpack_call
from tasks.remote.step_list import client_steps, offered_functions, parameters_of, returned_by

_ERRORS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (UserError, RefusalError, DivergedError, MethodError, NotPlainError, ValueError, TypeError)
}
"""The errors that arrive as what they are; the runner repeats a step for all others."""

MOST_TEXT = 2000  # characters of an error


class PlaceFailedError(RuntimeError):
    """A step failed at a place in a way that may pass."""


def pack_call(step: str, args: tuple[object, ...], options: Mapping[str, object]) -> bytes:
    """Encode a call of a step, for `answer_step`."""
    bound = inspect.signature(inspect.unwrap(client_steps()[step].fn)).bind(*args, **options)
    return pack(dict(bound.arguments), offered_functions())


def answer_step(step: str, content: bytes, place: Place) -> bytes:
    """Run a step at this place; return its messages, or its error, encoded for `read_answer`.

    Args:
        step: The name of the step.
        content: What `pack_call` encoded.
        place: What its cohort, stores and functions are opened in.
    """
    try:
        if step not in client_steps():
            raise RefusalError(f"{step[:40]!r}: got no step of this place's list, expected one.")
        return pack(("done", client_steps()[step].fn(**unpack_call(content, parameters_of(step), place))))
    except Exception as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        return pack(("failed", type(error).__name__, f"{error} {notes}".strip()[:MOST_TEXT]))


def read_answer(step: str, content: bytes, place: str) -> list[object]:
    """Return the messages of a step that ran at a place; raise its error, with the place's name."""
    answer = unpack(content, tuple[str, returned_by(step)] | tuple[str, str, str])  # type: ignore[misc]
    if answer[0] == "done" and len(answer) == 2:
        messages: list[object] = answer[1]
        return messages
    _, kind, text = answer
    raise _ERRORS.get(kind, PlaceFailedError)(f"place {place}: {text}")
