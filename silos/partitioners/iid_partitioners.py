"""Steps that make clients without looking at labels, and the functions that all such steps share."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from silos.data_params import Column, Equal, Quantity
from silos.dataset import At, Rows, default_client_name, distinct_values
from silos.row_units import number_units, order_by_unit


@dataclass(frozen=True)
class Owners:
    """The owner of each row: owner: (n,) int64, indices into `names`, and -1 for a row that no client gets.

    `labels` are appended to the name of each client's domain, "" for nothing; `notes` are sentences for the user.
    """

    owner: np.ndarray
    names: list[str]
    labels: list[str]
    notes: Sequence[str] = ()

    @classmethod
    def counted(
        cls, owner: np.ndarray, clients: int, labels: list[str] | None = None, notes: Sequence[str] = ()
    ) -> "Owners":
        """Create owners with default names."""
        return cls(
            owner, [default_client_name(index, clients) for index in range(clients)], labels or [""] * clients, notes
        )


def column(step: Column, rows: Rows, at: At) -> Owners:
    """Make a client of each value of a column of the source."""
    values = rows.client if step.column == "client" else rows.domain
    if values is None:
        raise at.error(
            f"column: got `{step.column}`, expected a column of the source. Add it to the source, or use `equal` "
            "or `dirichlet`."
        )
    names, owner = distinct_values(values)
    return Owners(owner, names, [""] * len(names))


def equal(step: Equal, rows: Rows, at: At) -> Owners:
    """Deal rows at random to clients whose sizes differ by at most one row, in each split of the source.

    Units stay whole: the next goes to the client with fewest rows.
    """
    check_enough_rows(rows, step.clients, 1, at)
    rng = at.stream()
    owner = np.empty(len(rows.y), np.int64)
    for indices in rows.split_indices():
        if rows.unit is not None:
            smallest = [(0, client) for client in range(step.clients)]
            for unit in units_in_order(indices, rows.unit, rng):
                size, client = smallest[0]
                heapq.heapreplace(smallest, (size + len(unit), client))
                owner[unit] = client
            continue
        for client, dealt in enumerate(np.array_split(rng.permutation(indices), step.clients)):
            owner[dealt] = client
    return Owners.counted(owner, step.clients)


def quantity(step: Quantity, rows: Rows, at: At) -> Owners:
    """Deal rows at random to clients, in shares that are one draw from Dirichlet(beta, ..., beta).

    Each client gets one training row and its share of the other n - clients; test rows of the source are dealt in the
    same shares. Quantity skew as in Li et al., "Federated Learning on Non-IID Data Silos" (2022), section 4.3. Units
    stay whole. Each client gets one, and a further unit goes to the client that owns the share of its middle row.
    """
    check_enough_rows(rows, step.clients, 1, at)
    rng = at.stream()
    shares = dirichlet_shares(rng, step.beta, step.clients)
    owner = np.empty(len(rows.y), np.int64)
    for index, indices in enumerate(rows.split_indices()):
        if rows.unit is not None:
            units = units_in_order(indices, rows.unit, rng)
            first = step.clients if index == 0 else 0
            sizes = np.array([len(unit) for unit in units[first:]])
            middle = (np.cumsum(sizes) - sizes / 2) / max(sizes.sum(), 1)
            clients = np.minimum(np.searchsorted(np.cumsum(shares), middle, side="right"), step.clients - 1)
            for unit, client in zip(units, [*range(first), *clients.tolist()], strict=True):
                owner[unit] = client
            continue
        guaranteed = step.clients if index == 0 else 0
        order = rng.permutation(indices)
        owner[order[:guaranteed]] = np.arange(guaranteed)
        owner[order[guaranteed:]] = owners_by_share(len(indices) - guaranteed, shares)
    return Owners.counted(owner, step.clients)


def units_in_order(indices: np.ndarray, unit: np.ndarray, rng: np.random.RandomState) -> list[np.ndarray]:
    """Return the row indices of each unit, in a random order of units."""
    ordered = order_by_unit(indices, unit, rng)
    return np.split(ordered, np.flatnonzero(np.diff(number_units(unit[ordered]))) + 1) if len(ordered) else []


def dirichlet_shares(rng: np.random.RandomState, alpha: float, clients: int) -> np.ndarray:
    """Draw once from the symmetric Dirichlet(alpha): (clients,) float64 that add up to 1.

    Logarithms are used, with gamma(alpha) = gamma(alpha + 1) * u^(1/alpha): for a small alpha the plain ratio of gammas
    is 0/0.

    Args:
        rng: The random stream of the step.
        alpha: The concentration, above 0; the smaller, the more unequal are shares.
        clients: The number of shares.
    """
    logs = np.log(rng.standard_gamma(alpha + 1, clients)) + np.log1p(-rng.random_sample(clients)) / alpha
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def owners_by_share(count: int, shares: np.ndarray) -> np.ndarray:
    """Return the owners of `count` rows, one run a client, each within one row of its share: (count,) int64.

    shares: (clients,), adding up to 1.
    """
    ends = np.cumsum(shares)[:-1]
    cuts = np.floor(ends * count + 0.5).astype(np.int64)
    sizes = np.diff(np.concatenate([[0], cuts, [count]]))
    return np.repeat(np.arange(len(shares)), sizes)


def check_enough_rows(rows: Rows, clients: int, min_rows: int, at: At) -> None:
    """Raise UserError if the training rows cannot give each client `min_rows`.

    Args:
        rows: The rows to deal.
        clients: The number of clients.
        min_rows: The least training rows of each.
        at: The step, for its error.
    """
    train = rows.split_indices()[0]
    count = len(train)
    if rows.unit is not None and clients > (units := len(np.unique(rows.unit[train]))):
        raise at.error(f"clients: got {clients}, expected at most the {units} units to deal. Lower clients.")
    if clients * min_rows > count:
        raise at.error(
            f"clients: got {clients} with at least {min_rows} row{'s' * (min_rows > 1)} each, expected fewer, "
            f"since client {default_client_name(count // min_rows, clients)} would get too few of the {count} "
            f"rows. Lower clients{' or min_rows' if at.kind == 'dirichlet' else ''}."
        )
