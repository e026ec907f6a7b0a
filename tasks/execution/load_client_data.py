"""Load, at the client, the rows and the private state that a task refers to."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.prng import client_streams
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Rows, broadcast_weights
from silos.client_store import ClientStore, StateKind
from silos.cohort import Cohort, Silos, Stack, open_common, open_stack
from silos.errors import RefusalError, shown
from silos.privacy.owner_file import policy_of_run
from silos.storage.partition_store import open_units
from tasks.messages.message_policy import LEAST_ROWS


class LoadedStack(NamedTuple):
    """A stack with its clients' rows, and their weights and context of a model, all (stack size, ...)."""

    stack: Stack
    rows: Rows
    weights: dict[str, Tensor]
    context: dict[str, Tensor]


def load_stacks(cohort: Cohort, model: Model, private: ClientStore, split: str, device: str) -> Iterator[LoadedStack]:
    """Load the cohort's stacks one after another; one is in memory at a time."""
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, split, device)
        yield LoadedStack(stack, rows, *load_weights(model, stack, private, device))


def load_streams(stack: Stack, seed: int, round: int, purpose: str, device: str) -> Tensor:
    """Return a random stream for each client of the stack, padding included: (stack size,) int64.

    Args:
        stack: The clients.
        seed: The seed of the run.
        round: The round of the run.
        purpose: Tells apart the streams of one round, such as "local_train".
        device: Where the streams are used, such as "cpu".
    """
    padding = [""] * (stack.size - len(stack.clients))
    return client_streams(seed, [*stack.clients, *padding], round, purpose).to(device)


def load_rows(silos: Silos, stack: Stack, split: str, device: str, keep: bool = True) -> Rows:
    """Load the padded rows of a stack's clients to the device; rows of a common split are the same for every client.

    Args:
        silos: The silos of the clients.
        stack: The clients.
        split: train, validation or test.
        device: Where the rows are used, such as "cpu".
        keep: Whether they are needed again, as in each round.
    """
    if silos.common(split):
        x, y = (torch.from_numpy(a).to(device) for a in open_common(silos, split))
        counts = torch.tensor([len(y)] * len(stack.clients) + [0] * (stack.size - len(stack.clients)), device=device)
        return Rows(x.expand(stack.size, *x.shape), y.expand(stack.size, *y.shape), counts)
    opened = open_stack(silos, stack, split, keep)
    return Rows(*(torch.from_numpy(a).to(device) for a in (opened.x, opened.y, opened.rows)))


def number_different_rows(x: Tensor) -> np.ndarray:
    """Return the number of each row among a client's different rows, from 0: (rows,); x: (rows, *shape)."""
    _, index = np.unique(x.flatten(1).cpu().numpy(), axis=0, return_inverse=True)
    return np.asarray(index).ravel()


def least_rows(stack: Stack, private: ClientStore) -> list[int]:
    """Return the least rows of each client's policy, and LEAST_ROWS of padding: (stack size,)."""
    least = [policy_of_run(Path(private.folder), client).least_rows for client in stack.clients]
    return least + [LEAST_ROWS] * (stack.size - len(stack.clients))


def may_report(silos: Silos, stack: Stack, split: str, rows: Rows, private: ClientStore) -> Tensor:
    """Return whether each client has as many different rows of a split, and units, as its policy requires.

    Args:
        silos: The silos.
        stack: The clients.
        split: The split.
        rows: The clients' rows of the split.
        private: The clients' stores, each with its policy.

    Returns:
        (stack size,) bool. The units of common rows, which no client owns, do not count.
    """
    least = least_rows(stack, private)
    parts = zip(rows.x, rows.counts.tolist(), least, strict=True)
    enough = torch.tensor([_at_least(x[:count], own) for x, count, own in parts])
    for index, client in enumerate(stack.clients if not silos.common(split) else ()):
        unit = open_units(Path(silos.folder), silos.entries(client), split)
        if unit is None:  # none of the clients has units
            break
        enough[index] &= len(np.unique(unit)) >= least[index]
    return enough


def has_enough_of_class(rows: Rows, classes: int, least: Sequence[int]) -> Tensor:
    """Mark the rows that may be reported by class: (clients, rows, classes) float64, on the CPU because sums of it leave.

    A row has 1 at its class if its client has enough different rows of that class, else 0; `least` is by client.
    """
    mask = torch.zeros(*rows.y.shape, classes, dtype=torch.float64)
    for i, (count, own) in enumerate(zip(rows.counts.tolist(), least, strict=True)):
        labels = rows.y[i, :count].cpu()
        for c in labels.unique().tolist():
            indices = (labels == c).nonzero()[:, 0]
            mask[i, indices, c] = float(_at_least(rows.x[i, indices], own))
    return mask


def reportable_classes(
    silos: Silos, client: str, split: str, x: Tensor, labels: np.ndarray, classes: int, least: int
) -> list[int]:
    """List the classes in which a client has at least `least` different rows, and as many units.

    The rows of all unlisted classes together follow by subtraction from numbers of all rows. If these rows are some, but
    fewer than `least`, the smallest listed class is left out, too.

    Args:
        silos: The silos.
        client: The client.
        split: The split of the rows.
        x: The client's rows, (rows, ...).
        labels: Their classes, (rows,).
        classes: The number of classes.
        least: The least rows of the client's policy.
    """
    row = number_different_rows(x)
    unit = open_units(Path(silos.folder), silos.entries(client), split)

    def different(chosen: np.ndarray) -> int:
        return min(len(np.unique(number[chosen])) for number in (row, row if unit is None else unit))

    sizes = {label: different(labels == label) for label in range(classes)}
    listed = sorted((label for label, size in sizes.items() if size >= least), key=sizes.__getitem__)
    if 0 < different(~np.isin(labels, listed)) < least:
        listed = listed[1:]
    return listed


def countable_rows(
    silos: Silos, stack: Stack, split: str, private: ClientStore, keep: bool = True
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield each client with the targets of its rows, and which of them count by class: (rows,) each, the second bool.

    A client with fewer different rows than its policy requires is left out. A policy of more than LEAST_ROWS also holds for
    each class of a client's own rows. With LEAST_ROWS sums over clients include smaller classes, so that a class that is
    rare at every client has a recall.

    Args:
        silos: The silos.
        stack: The clients.
        split: The split of the rows.
        private: The clients' stores, each with its policy.
        keep: As of `load_rows`.
    """
    rows, classes = load_rows(silos, stack, split, "cpu", keep), len(silos.manifest.classes)
    reports, least = may_report(silos, stack, split, rows, private).tolist(), least_rows(stack, private)
    for i, client in enumerate(stack.clients):
        if not reports[i]:
            continue
        x, targets = rows.x[i, : rows.counts[i]], rows.y[i, : rows.counts[i]].numpy()
        counted = np.ones(len(targets), bool)
        if classes and least[i] > LEAST_ROWS and not silos.common(split):
            counted = np.isin(targets, reportable_classes(silos, client, split, x, targets, classes, least[i]))
        yield client, targets, counted


def _at_least(x: Tensor, least: int) -> bool:
    """Return whether x has `least` different rows; the first few are checked first, because they usually suffice."""
    return any(len(part) >= least and number_different_rows(part).max() + 1 >= least for part in (x[: 2 * least], x))


_PERSONAL: tuple[StateKind, ...] = ("weights", "sendable")
_CONTEXT: tuple[StateKind, ...] = ("statistics", "sites")


def load_weights(
    model: Model, stack: Stack, private: ClientStore, device: str, *kinds: StateKind
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Load the shared and personal weights together, and the context, both (stack size, ...); padding repeats client 0.

    Args:
        model: The model.
        stack: The clients.
        private: Where clients keep private weights and context.
        device: Where the tensors are used, such as "cpu".
        kinds: The kinds that the section of private weights may hold; by default weights that stay or are sent later.

    Raises:
        RefusalError: If private weights have the name of a shared one, under which they would be sent.
    """
    shared = broadcast_weights({n: t.to(device) for n, t in model.shared.items()}, stack.size)
    personal = _open(model, model.personal, stack, private, kinds or _PERSONAL)
    context = _open(model, model.context, stack, private, _CONTEXT)
    if isinstance(model.personal, ClientStateRefs) and (both := personal.keys() & shared.keys()):
        raise RefusalError(
            f"model: {shown(min(both))}: got a weight that is shared and that clients keep, expected one of the two: shared "
            "weights are sent. Let the method name it once."
        )
    weights = {**shared, **{n: t.to(device) for n, t in personal.items()}}
    return dict(sorted(weights.items())), {n: t.to(device) for n, t in context.items()}


def load_client_state(
    part: ClientStateRefs, stack: Stack, private: ClientStore, device: str, kind: StateKind
) -> dict[str, Tensor]:
    """Load what the stack's clients store in a section, (stack size, ...); padding repeats the first client.

    RefusalError if it is of another kind.
    """
    stored = _stored(part, stack.clients, private, (kind,))
    return {name: _fill(tensor, stack.size).to(device) for name, tensor in stored.items()}


def _open(
    model: Model, part: Weights | ClientStateRefs, stack: Stack, private: ClientStore, kinds: Collection[StateKind]
) -> dict[str, Tensor]:
    selected = model.select(stack.clients)
    part = selected.personal if part is model.personal else selected.context
    if isinstance(part, ClientStateRefs):
        part = _stored(part, stack.clients, private, kinds)
    return {name: _fill(tensor, stack.size) for name, tensor in part.items()}


def _stored(
    part: ClientStateRefs, clients: tuple[str, ...], private: ClientStore, kinds: Collection[StateKind]
) -> dict[str, Tensor]:
    """Load what these clients stored; clients that stored nothing have the start."""
    stored = [c for c in clients if c in part.refs]
    arrays = private.load_stack(part.section, part.refs, stored, *kinds) if stored else {}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if len(stored) == len(clients):
        return tensors
    indices = torch.tensor([clients.index(c) for c in stored], dtype=torch.int64)
    filled = {}
    for name, start in part.start.items():
        filled[name] = start.expand(len(clients), *start.shape).clone()
        if stored:
            filled[name][indices] = tensors[name]
    return filled


def _fill(tensor: Tensor, size: int) -> Tensor:
    missing = size - tensor.shape[0]
    return torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])]) if missing else tensor
