"""Opening, on the client's side, what a task was sent references to."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.prng import client_streams
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Rows, broadcast_weights
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack, open_common, open_stack
from tasks.messages.message_policy import LEAST_ROWS


class Opened(NamedTuple):
    """A stack with its clients' rows, and their weights and context of a model, all (stack size, ...)."""

    stack: Stack
    rows: Rows
    weights: dict[str, Tensor]
    context: dict[str, Tensor]


def load_stacks(cohort: Cohort, model: Model, private: ClientStore, split: str, device: str) -> Iterator[Opened]:
    """The cohort's stacks, one in memory after another."""
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, split, device)
        yield Opened(stack, rows, *load_weights(model, stack, private, device))


def load_streams(stack: Stack, seed: int, round: int, purpose: str, device: str) -> Tensor:
    """A stream for each client of the stack, dummies too: (stack size,) int64."""
    dummies = [""] * (stack.size - len(stack.clients))
    return client_streams(seed, [*stack.clients, *dummies], round, purpose).to(device)


def load_rows(silos: Silos, stack: Stack, split: str, device: str) -> Rows:
    """The rows of a stack's clients, padded, on the device; a split that is common is the same rows for every client."""
    if silos.common(split):
        x, y = (torch.from_numpy(a).to(device) for a in open_common(silos, split))
        counts = torch.tensor([len(y)] * len(stack.clients) + [0] * (stack.size - len(stack.clients)), device=device)
        return Rows(x.expand(stack.size, *x.shape), y.expand(stack.size, *y.shape), counts)
    opened = open_stack(silos, stack, split)
    return Rows(*(torch.from_numpy(a).to(device) for a in (opened.x, opened.y, opened.rows)))


def different(x: Tensor) -> np.ndarray:
    """Which of a client's different rows each of its rows (rows, *shape) is: (rows,) numbers from 0, the same for equals."""
    _, place = np.unique(x.flatten(1).cpu().numpy(), axis=0, return_inverse=True)
    return np.asarray(place).ravel()


def has_enough_rows(rows: Rows, least: int = LEAST_ROWS) -> Tensor:
    """Whether each client, dummies too, has so many different rows: (clients,) bool."""
    return torch.tensor([_at_least(x[:count], least) for x, count in zip(rows.x, rows.counts.tolist(), strict=True)])


def has_enough_of_class(rows: Rows, classes: int, least: int = LEAST_ROWS) -> Tensor:
    """Which rows may be told of by class: (clients, rows, classes) float64, on the CPU, since sums of it leave.

    1 at a row's class if its client has so many different rows of that class, else 0.
    """
    mask = torch.zeros(*rows.y.shape, classes, dtype=torch.float64)
    for at, count in enumerate(rows.counts.tolist()):
        labels = rows.y[at, :count].cpu()
        for c in labels.unique().tolist():
            places = (labels == c).nonzero()[:, 0]
            mask[at, places, c] = float(_at_least(rows.x[at, places], least))
    return mask


def _at_least(x: Tensor, least: int) -> bool:
    """Looks at the first few before at all: they are enough as a rule."""
    return any(len(some) >= least and different(some).max() + 1 >= least for some in (x[: 2 * least], x))


def load_weights(
    model: Model, stack: Stack, private: ClientStore, device: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Shared and personal weights together, and the context, both (stack size, ...); dummies repeat the first client."""
    shared = broadcast_weights({n: t.to(device) for n, t in model.shared.items()}, stack.size)
    personal = _open(model, model.personal, stack, private)
    context = _open(model, model.context, stack, private)
    weights = {**shared, **{n: t.to(device) for n, t in personal.items()}}
    return dict(sorted(weights.items())), {n: t.to(device) for n, t in context.items()}


def load_client_state(part: ClientStateRefs, stack: Stack, private: ClientStore, device: str) -> dict[str, Tensor]:
    """What the stack's clients keep in a section, (stack size, ...); dummies repeat the first client."""
    opened = _stored(part, stack.clients, private)
    return {name: _fill(tensor, stack.size).to(device) for name, tensor in opened.items()}


def _open(model: Model, part: Weights | ClientStateRefs, stack: Stack, private: ClientStore) -> dict[str, Tensor]:
    mine = model.select(stack.clients)
    part = mine.personal if part is model.personal else mine.context
    if isinstance(part, ClientStateRefs):
        part = _stored(part, stack.clients, private)
    return {name: _fill(tensor, stack.size) for name, tensor in part.items()}


def _stored(part: ClientStateRefs, clients: tuple[str, ...], private: ClientStore) -> dict[str, Tensor]:
    """What these clients stored; those that stored nothing yet have the start."""
    stored = [c for c in clients if c in part.refs]
    opened = private.load_stack(part.section, part.refs, stored) if stored else {}
    tensors = {name: torch.from_numpy(array) for name, array in opened.items()}
    if len(stored) == len(clients):
        return tensors
    place = torch.tensor([clients.index(c) for c in stored], dtype=torch.int64)
    filled = {}
    for name, begin in part.start.items():
        filled[name] = begin.expand(len(clients), *begin.shape).clone()
        if stored:
            filled[name][place] = tensors[name]
    return filled


def _fill(tensor: Tensor, size: int) -> Tensor:
    missing = size - tensor.shape[0]
    return torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])]) if missing else tensor
