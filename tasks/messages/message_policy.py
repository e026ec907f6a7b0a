"""What may leave a client: the fields of these records, and nothing else.

No record here can hold a row, a private weight or a private statistic; private state is named by hash only. Every field
that has numbers says how many of them there are of a client, and how many of its rows each stands for at least. A page
with a message of its own extends `Message`, and is held to the same.
"""

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

LEAST_ROWS = 10
"""Different rows of a client that a number must stand for where a record has as many of the client as a row has.

The mean of one row is that row, and mean and variance of two rows are both rows. Rows that are equal count as one.
"""


@dataclass(frozen=True)
class Numbers:
    """What a field has of each client.

    few: one number, or one for each measure, model, seed or statistic, whatever the size of a row and as many of every
    client; several: as many as a row, or more; learned: weights, which can tell of the rows that they were trained on,
    however they are sent. `added`: the field is a sum over the stack's clients, each of which sends as many numbers;
    `again`: they are sent in another field already.
    """

    size: Literal["few", "several", "learned"]
    least: int = 1  # different rows of the client that each stands for; a client that has fewer tells none
    added: bool = False
    again: bool = False

    def __post_init__(self) -> None:
        sizes = typing.get_args(typing.get_type_hints(Numbers)["size"])
        if self.size not in sizes:
            raise ValueError(f"Numbers: the size is {self.size!r}; it is one of {', '.join(sizes)}")


FEW, SEVERAL = Numbers("few"), Numbers("several", LEAST_ROWS)

SEVERAL_ADDED, LEARNED_ADDED = Numbers("several", LEAST_ROWS, added=True), Numbers("learned", added=True)

LEARNED = Numbers("learned")

FLOAT_BYTES = 4

_WORDS = {str, tuple[str, ...], Mapping[str, str], Mapping[str, Mapping[str, str]]}


@dataclass(frozen=True)
class Message:
    """What a step answers of one stack of clients; the fields that a subclass adds are the list of what leaves them.

    A field is names, hashes, or numbers (tensors, arrays, a mapping or a tuple of such) whose type is
    `Annotated[..., Numbers(...)]`.
    """

    travels: ClassVar[bool] = True
    """Whether it is traffic of training; what is asked for scores and pictures is not."""
    with_model: ClassVar[bool] = True
    """Whether the clients were sent the model for it; not where another message of the round has counted that."""

    clients: tuple[str, ...]
    seconds: float = field(default=0.0, kw_only=True)  # inside the task, for the whole cohort; on its first stack only

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own, every number as four bytes."""
        count = 0
        for name, about in numbers_of(type(self)).items():
            if not about.again:
                count += _count(getattr(self, name)) * (len(self.clients) if about.added else 1)
        return FLOAT_BYTES * count


def numbers_of(kind: type[Message]) -> dict[str, Numbers]:
    """What each field of a message that has numbers says of them.

    TypeError for a message that could tell more than it says: fields of other types, numbers as large as a row of which one
    stands for fewer than LEAST_ROWS different rows, or a record that can be changed.
    """
    params = vars(kind).get("__dataclass_params__")  # its own: what a class adds without the decorator is no field
    if params is None or not params.frozen:
        raise TypeError(f"{kind.__name__} is a message, and must be a frozen dataclass")
    numbers = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Numbers)]
        if notes:
            numbers[name] = notes[0]
        elif name != "seconds" and hint not in _WORDS and typing.get_origin(hint) is not ClassVar:
            raise TypeError(f"{kind.__name__}.{name} does not say what numbers it has: Annotated[..., Numbers(...)]")
    for name, about in numbers.items():
        if about.size == "several" and about.least < LEAST_ROWS:
            raise TypeError(
                f"{kind.__name__}.{name} has numbers as large as a row, which stand for {LEAST_ROWS} rows at least"
            )
    return numbers


def check_few(messages: Sequence[Message]) -> None:
    """TypeError where a field of one step's messages that has few numbers has not as many of every client.

    They would grow with the client's rows. Of clients that all have as many rows, or are all in one stack, nobody can tell.
    """
    sizes: dict[str, float] = {}
    few = {
        kind: [n for n, about in numbers_of(kind).items() if about.size == "few"] for kind in set(map(type, messages))
    }
    for message in (m for m in messages if m.clients):
        for name in few[type(message)]:
            field, size = f"{type(message).__name__}.{name}", _count(getattr(message, name)) / len(message.clients)
            if sizes.setdefault(field, size) != size:
                some = f"{sizes[field]:g} numbers of some clients and {size:g} of others"
                raise TypeError(f"{field} has {some}; what is few is as many of all")


def _count(numbers: Any) -> int:
    """How many numbers a field's value holds."""
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
        raise TypeError(f"a message holds a {type(numbers).__name__} where its field says that it holds numbers")
    return 1
