"""Steps that make clients without looking at labels, and what all such steps share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from silos.data_params import Column, Equal, Quantity
from silos.dataset import At, Rows, numbered, quantized_codes


@dataclass(frozen=True)
class Owners:
    """Who owns which row: owner: (n,) int64, positions in `names`, and -1 for a row that nobody gets.

    `labels` are what a step adds to the name of each client's domain, "" for nothing; `notes` are sentences for a person.
    """

    owner: np.ndarray
    names: list[str]
    labels: list[str]
    notes: Sequence[str] = ()

    @classmethod
    def counted(
        cls, owner: np.ndarray, clients: int, labels: list[str] | None = None, notes: Sequence[str] = ()
    ) -> "Owners":
        """Owners without names of their own."""
        return cls(owner, [numbered(index, clients) for index in range(clients)], labels or [""] * clients, notes)


def column(step: Column, rows: Rows, at: At) -> Owners:
    """Each value of a column of the source is a client."""
    values = rows.client if step.column == "client" else rows.domain
    if values is None:
        raise at.error(
            f"takes its clients from the column `{step.column}`, which the source does not have; add it to the "
            "source, or use `equal` or `dirichlet`."
        )
    names, owner = quantized_codes(values)
    return Owners(owner, names, [""] * len(names))


def equal(step: Equal, rows: Rows, at: At) -> Owners:
    """Rows dealt at random to clients whose sizes differ by one row at most, in each split of the source."""
    enough_rows(rows, step.clients, 1, at)
    rng = at.stream()
    owner = np.empty(len(rows.y), np.int64)
    for part in rows.parts():
        for client, dealt in enumerate(np.array_split(rng.permutation(part), step.clients)):
            owner[dealt] = client
    return Owners.counted(owner, step.clients)


def quantity(step: Quantity, rows: Rows, at: At) -> Owners:
    """Rows dealt at random to clients whose shares are one draw from Dirichlet(beta, ..., beta).

    A client has one training row and its share of the other n - clients; of the source's test rows it has the
    same share. Quantity skew as in Li et al., "Federated Learning on Non-IID Data Silos" (2022), section 4.3.
    """
    enough_rows(rows, step.clients, 1, at)
    rng = at.stream()
    shares = dirichlet_shares(rng, step.beta, step.clients)
    owner = np.empty(len(rows.y), np.int64)
    for index, part in enumerate(rows.parts()):
        sure = step.clients if index == 0 else 0
        order = rng.permutation(part)
        owner[order[:sure]] = np.arange(sure)
        owner[order[sure:]] = by_share(len(part) - sure, shares)
    return Owners.counted(owner, step.clients)


def dirichlet_shares(rng: np.random.RandomState, alpha: float, clients: int) -> np.ndarray:
    """One draw from the symmetric Dirichlet(alpha): (clients,) float64 that add up to 1.

    In logarithms, as gamma(alpha) = gamma(alpha + 1) * u^(1/alpha): for a small alpha the plain ratio of
    gammas is 0/0.
    """
    logs = np.log(rng.standard_gamma(alpha + 1, clients)) + np.log1p(-rng.random_sample(clients)) / alpha
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def by_share(count: int, shares: np.ndarray) -> np.ndarray:
    """The owners of `count` rows in a run each: (count,) int64; sizes are off their share by one row at most.

    shares: (clients,), adding up to 1.
    """
    ends = np.cumsum(shares)[:-1]
    cuts = np.floor(ends * count + 0.5).astype(np.int64)
    sizes = np.diff(np.concatenate([[0], cuts, [count]]))
    return np.repeat(np.arange(len(shares)), sizes)


def enough_rows(rows: Rows, clients: int, min_rows: int, at: At) -> None:
    """Raises UserError where the training rows cannot give each client min_rows."""
    count = len(rows.parts()[0])
    if clients * min_rows > count:
        raise at.error(
            f"asks for {clients} clients with at least {min_rows} row{'s' * (min_rows > 1)} each, and there are {count} "
            f"rows to deal: client {numbered(count // min_rows, clients)} would get too few; ask for fewer clients"
            f"{' or lower min_rows' if at.kind == 'dirichlet' else ''}."
        )
