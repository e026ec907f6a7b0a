"""Which worker handles which stacks of clients, and what it is given of what clients hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from models.client_model import Model
from models.server_state import ClientStateRefs
from silos.cohort import Cohort, Silos, Stack
from tasks.execution.worker_backends import Call


@dataclass(frozen=True)
class Broadcast:
    """An argument of a step that every cohort is given whole, whoever's it is: what clients show to others."""

    content: Any


def assign_stacks(silos: Silos, stacks: Sequence[Stack], workers: int) -> list[Cohort]:
    """Whole stacks in contiguous runs, at most `workers` and none empty.

    The largest run has as few training rows as a contiguous dealing can give it.
    """
    rows = silos.rows("train")
    weights = [sum(rows[name] for name in stack.clients) for stack in stacks]
    low, high = max(weights, default=0), sum(weights)
    while low < high:
        limit = (low + high) // 2
        if len(_runs(weights, limit)) <= workers:
            high = limit
        else:
            low = limit + 1
    return [Cohort(silos, tuple(stacks[first:last])) for first, last in _runs(weights, low)]


def bind_arguments(cohort: Cohort, args: tuple[Any, ...], options: Mapping[str, Any]) -> Call:
    """A step's call for a cohort: itself, and of each argument what is held by its own clients, or by members of a pooled.

    Held by client are a Model, a Private and a mapping whose keys are all clients of the data; also inside of lists, tuples
    and other mappings.
    """
    own = {name: _own_part(value, cohort) for name, value in options.items()}
    return (cohort, *(_own_part(value, cohort) for value in args)), own


def _runs(weights: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """(first, past the last) of the fewest contiguous runs whose weights add up to `limit` at most."""
    runs: list[tuple[int, int]] = []
    total = 0
    for at, weight in enumerate(weights):
        if runs and total + weight <= limit:
            runs[-1] = (runs[-1][0], at + 1)
            total += weight
        else:
            runs.append((at, at + 1))
            total = weight
    return runs


def _own_part(value: Any, cohort: Cohort) -> Any:
    if isinstance(value, Broadcast):
        return value.content
    if isinstance(value, Model):
        return value.select(cohort.clients)
    if isinstance(value, ClientStateRefs):
        return replace(value, refs=_of_clients(value.refs, cohort))
    if isinstance(value, Mapping):
        own, names = cohort.clients, cohort.silos.manifest.names
        if all(key in names or key in own for key in value):
            return _of_clients(value, cohort)
        return {key: _own_part(inner, cohort) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_own_part(inner, cohort) for inner in value)
    return value


def _of_clients(held: Mapping[str, Any], cohort: Cohort) -> dict[str, Any]:
    return {client: held[client] for client in (*cohort.clients, *cohort.silos.members) if client in held}
