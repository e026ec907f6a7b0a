"""A sampler: clients take part in turns, as many a round as `clients.fraction` says."""

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import Field

from flows.plugins import register_sampler


@register_sampler("in_turns")
def in_turns(
    clients: Sequence[str], wanted: int, number: int, first: Annotated[int, Field(ge=0)] = 0
) -> Collection[str]:
    """The clients of round `number`, of those that are there; `first` is the place of the first one in round 1."""
    start = first + (number - 1) * wanted
    return [clients[(start + place) % len(clients)] for place in range(wanted)]
