"""Define what may leave a client: the fields of messages, and nothing else.

No message can hold a row, a private weight or a private statistic; private state is named by hash only. Every field of
numbers declares how many there are per client, and how many rows each stands for at least. A method with a message of
its own extends `Message`, and the same rules apply.
"""

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Literal, TypeVar

import numpy as np
from torch import Tensor

LEAST_ROWS = 10
"""Different rows that each number of a client must stand for, if a record has as many numbers as a row.

The mean of one row is that row, and the mean and variance of two rows give both rows. Equal rows count as one.
"""


@dataclass(frozen=True)
class Numbers:
    """The numbers that a field has of each client.

    Attributes:
        size: "few" is one number, or one per measure, model, seed or statistic: as many for every client, whatever
            the size of a row. "several" is as many as a row has, or more. "learned" are weights, which can reveal
            training rows however they are sent.
        least: The different rows of the client that each number stands for; a client that has fewer reports none.
        added: Whether the field is a sum over the stack's clients; each of them sends as many numbers.
        again: Whether the numbers are already sent in another field.
    """

    size: Literal["few", "several", "learned"]
    least: int = 1
    added: bool = False
    again: bool = False

    def __post_init__(self) -> None:
        sizes = typing.get_args(typing.get_type_hints(Numbers)["size"])
        if self.size not in sizes:
            raise ValueError(f"Numbers: size: got {self.size!r}, expected one of {', '.join(sizes)}")


@dataclass(frozen=True, init=False)
class Axes:
    """The type and the axes of a field's tensors, which an answer from another machine must have.

    Attributes:
        dtypes: The types that the tensors may have.
        names: The axes: "clients" has an entry for each client of the message; others have any length.
        finite: Whether all numbers must be finite.
        like_model: Whether tensors have the names and shapes of the model's weights; then axes precede those of a weight.
    """

    dtypes: tuple[str, ...]
    names: tuple[str, ...]
    finite: bool
    like_model: bool

    def __init__(self, dtypes: str, *names: str, finite: bool = True, like_model: bool = False) -> None:
        given = {"dtypes": tuple(dtypes.split()), "names": names, "finite": finite, "like_model": like_model}
        for name, value in given.items():
            object.__setattr__(self, name, value)


class UnderPrivacy(Enum):
    """How a field keeps the guarantee of `training.privacy`; a field without a rule must be empty under it."""

    NOISED = "computed from noisy gradients"
    PUBLIC = "public by the owner"
    WITHHELD = "withheld"
    OTHER_ROWS = "of rows that are not trained on"
    MASKED = "masked or encrypted: only a noisy sum over silos can be read"


FEW, SEVERAL = Numbers("few"), Numbers("several", LEAST_ROWS)

FEW_ADDED, SEVERAL_ADDED = Numbers("few", added=True), Numbers("several", LEAST_ROWS, added=True)

LEARNED_ADDED = Numbers("learned", added=True)

LEARNED = Numbers("learned")

FLOAT_BYTES = 4

_WORDS = {str, tuple[str, ...], Mapping[str, str], Mapping[str, Mapping[str, str]]}


@dataclass(frozen=True)
class Message:
    """The result of a step for one stack of clients; the fields that a subclass adds are the list of what leaves them.

    A field is names, hashes, or numbers (tensors, arrays, a mapping or a tuple of these) of type `Annotated[...,
    Numbers(...)]`.
    """

    travels: ClassVar[bool] = True
    """Whether the message counts as training traffic; messages for scores and figures do not."""
    of_training_rows: ClassVar[bool] = False
    """Whether its numbers follow from training rows, though its step gets no training settings."""
    with_model: ClassVar[bool] = True
    """Whether sending the model to the clients counts here; False if another message of the round counts it."""

    clients: tuple[str, ...]
    seconds: float = field(default=0.0, kw_only=True)  # of the task, for the whole cohort; on its first stack only

    @property
    def bytes_up(self) -> int:
        """Return the bytes that these clients send if each sends its own, with four bytes per number."""
        count = 0
        for name, numbers in numbers_of(type(self)).items():
            if not numbers.again:
                count += _count(getattr(self, name)) * (len(self.clients) if numbers.added else 1)
        return FLOAT_BYTES * count


SentMessage = TypeVar("SentMessage", bound=Message)


def messages_of(kind: type[SentMessage], messages: Iterable[Message]) -> list[SentMessage]:
    """Return the messages of a step that may report several kinds; TypeError if one is not of this kind."""
    checked: list[SentMessage] = []
    for message in messages:
        if not isinstance(message, kind):
            raise TypeError(f"got a {type(message).__name__} from a client step, expected a {kind.__name__}")
        checked.append(message)
    return checked


def numbers_of(kind: type[Message]) -> dict[str, Numbers]:
    """Return the `Numbers` of each field of a message that has numbers.

    TypeError for a message that could reveal more than it declares. It has a field of another type, can be changed, or
    a number of a field as large as a row stands for fewer than LEAST_ROWS different rows.
    """
    params = vars(kind).get("__dataclass_params__")  # not inherited: fields added without the decorator do not count
    if params is None or not params.frozen:
        raise TypeError(f"{kind.__name__}: got a message that is no frozen dataclass, expected one")
    declared = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Numbers)]
        if notes:
            declared[name] = notes[0]
        elif name != "seconds" and hint not in _WORDS and typing.get_origin(hint) is not ClassVar:
            raise TypeError(
                f"{kind.__name__}.{name}: got no numbers in the annotation, expected Annotated[..., Numbers(...)]"
            )
    for name, numbers in declared.items():
        if numbers.size == "several" and numbers.least < LEAST_ROWS:
            raise TypeError(
                f"{kind.__name__}.{name}: got numbers as large as a row, expected that they stand for at least "
                f"{LEAST_ROWS} rows"
            )
    return declared


def axes_of(kind: type[Message]) -> dict[str, Axes]:
    """Return the `Axes` of each field of a message that declares some."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = {
        name: [n for n in getattr(hint, "__metadata__", ()) if isinstance(n, Axes)] for name, hint in hints.items()
    }
    return {name: notes[0] for name, notes in found.items() if notes}


def privacy_rules_of(kind: type[Message]) -> dict[str, UnderPrivacy]:
    """Return the rule of each field of a message that declares one."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = {
        name: [n for n in getattr(hint, "__metadata__", ()) if isinstance(n, UnderPrivacy)]
        for name, hint in hints.items()
    }
    return {name: notes[0] for name, notes in found.items() if notes}


def unprotected(message: Message, is_private: bool = True, of_kept: bool = False) -> str:
    """Return the field of a message that would break the guarantee of training rows; empty if none would.

    Args:
        message: The message of a step that was given training settings.
        is_private: Whether the step's training adds noise.
        of_kept: Whether the numbers are those of weights that clients keep, which follow from rows without noise.
    """
    rules, of_training_rows = privacy_rules_of(type(message)), getattr(message, "split", "") == "train"
    harmless = {UnderPrivacy.PUBLIC: True, UnderPrivacy.NOISED: is_private, UnderPrivacy.MASKED: is_private}
    harmless[UnderPrivacy.OTHER_ROWS] = not of_training_rows and not of_kept
    for name in numbers_of(type(message)):
        rule = rules.get(name, UnderPrivacy.WITHHELD)
        if not harmless.get(rule, False) and _count(getattr(message, name)):
            return f"{type(message).__name__}.{name}"
    return ""


def check_few(messages: Sequence[Message]) -> None:
    """Raise TypeError if a "few" field of one step's messages has not as many numbers for every client.

    Such a field would grow with the client's rows. It cannot be checked if all clients have as many rows, or are in one
    stack.
    """
    sizes: dict[str, float] = {}
    fields = {kind: numbers_of(kind).items() for kind in set(map(type, messages))}
    for message in (m for m in messages if m.clients):
        for name, has in fields[type(message)]:
            if has.size != "few":
                continue
            clients = 1 if has.added else len(message.clients)
            field, size = f"{type(message).__name__}.{name}", _count(getattr(message, name)) / clients
            if sizes.setdefault(field, size) != size:
                some = f"{sizes[field]:g} numbers for some clients and {size:g} for others"
                raise TypeError(f"{field}: got {some}, expected equally many for all")


def _count(numbers: object) -> int:
    """Return how many numbers a field's value holds."""
    if numbers is None:
        return 0
    if isinstance(numbers, Mapping):
        return sum(map(_count, numbers.values()))
    if isinstance(numbers, Tensor):
        return numbers.numel()
    if isinstance(numbers, np.ndarray):
        return numbers.size
    if isinstance(numbers, Iterable) and not isinstance(numbers, str | bytes):
        return sum(map(_count, numbers))
    if not isinstance(numbers, int | float | np.number):
        raise TypeError(f"message: got a {type(numbers).__name__}, expected numbers, as the field declares")
    return 1
