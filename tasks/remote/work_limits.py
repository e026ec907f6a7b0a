"""Refuse steps that would take a place's processor or memory for longer than commands of siloflow do."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial

from torch import Tensor

from silos import param_limits
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos
from silos.errors import RefusalError
from silos.io.memory_and_disk import free_bytes, size
from silos.privacy.owner_file import MOST_BINS

MOST_REPEATS = 10_000
"""The most epochs, passes, codes or boosting iterations of one step; a round has a few."""

LIMITS: Mapping[str, int] = {
    **dict.fromkeys(
        ("epochs", "head_epochs", "passes", "again", "words", "room", "iterations", "leaves", "draws"), MOST_REPEATS
    ),
    **dict.fromkeys(("members", "depth"), param_limits.COPIES),
    "bins": MOST_BINS,
    "classes": MOST_REPEATS,
    "seed": param_limits.SEED,
}
"""Arguments and fields of whole numbers that repeat work, by name; others are sizes of layers, rows and counts."""

MOST_SIZE = param_limits.WIDTH
_COPIES = 4  # of weights that a step of training holds: with gradients and the optimiser's state


def check_work(arguments: Mapping[str, object], free: int | None = None) -> None:
    """Raise RefusalError for arguments of a step that repeat work too often, or need more memory than is free.

    Args:
        arguments: The arguments of the step, by name.
        free: The free bytes; by default those of this machine.
    """
    for name, number in _numbers("", arguments):
        most = LIMITS.get(name, MOST_SIZE)
        if abs(number) > most:
            raise RefusalError(
                f"{name}: got {number:,}, expected at most {most:,} at a place. Choose less, or train in more rounds."
            )
    stacks = [stack.size for value in arguments.values() if isinstance(value, Cohort) for stack in value.stacks]
    needed = _COPIES * max(stacks, default=1) * sum(t.numel() * t.element_size() for t in _tensors(arguments))
    available = free_bytes() if free is None else free
    if needed > available:
        raise RefusalError(
            f"weights: got {size(needed)} for the clients of one stack, expected at most {size(available)}, which are free "
            "at this place. Choose a smaller model, or a smaller engine.stack."
        )


def _numbers(name: str, value: object) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers in a value with the names of their arguments or fields."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield name, value
    else:
        for key, inner in _parts(name, value):
            yield from _numbers(key, inner)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    else:
        for _, inner in _parts("", value):
            yield from _tensors(inner)


def _parts(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Cohort | Silos | ClientStore):  # opened by the place itself
        return
    if isinstance(value, partial):
        yield from value.keywords.items()
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield field.name, getattr(value, field.name)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield name or key, inner
    elif isinstance(value, tuple | list):
        for inner in value:
            yield name, inner
