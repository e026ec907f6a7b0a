"""How rows become clients: one small function a step of `data.scheme`."""

import re
from dataclasses import dataclass, replace

import numpy as np

from silos.errors import UserError
from silos.params import Column, Dirichlet, Equal, Rotation, Step, check_scheme
from silos.rotation import rotate
from silos.sources import Rows
from silos.streams import stream

ATTEMPTS = 100  # draws of a Dirichlet scheme before giving up on its min_rows


@dataclass(frozen=True)
class ClientRows:
    """The rows of one client, in the order of the source.

    x: (rows, *shape) uint8 or float32; y: (rows,) int64; split: (rows,) str where the source gives one.
    `domain` is "" where there are none, and the domains joined by "+" where the client has several.
    """

    name: str
    domain: str
    x: np.ndarray
    y: np.ndarray
    split: np.ndarray | None = None


def assign(rows: Rows, steps: tuple[Step, ...], seed: int) -> list[ClientRows]:
    """The clients that a scheme makes of `rows`, sorted by name (numbers in it by value)."""
    check_scheme(tuple(steps))
    for index, step in enumerate(steps):
        rows = apply(step, rows, stream(seed, "scheme", index, step.kind))
    return [_client(rows, name) for name in client_names(rows)]


def apply(step: Step, rows: Rows, rng: np.random.RandomState) -> Rows:
    """One step of a scheme: the rows with their clients, or their contents, changed."""
    match step:
        case Equal():
            return equal(step, rows, rng)
        case Column():
            return column(step, rows)
        case Dirichlet():
            return dirichlet(step, rows, rng)
        case Rotation():
            return rotation(step, rows)


def equal(step: Equal, rows: Rows, rng: np.random.RandomState) -> Rows:
    """Rows dealt at random to clients whose sizes differ by one row at most."""
    _enough_rows(rows, step.clients, 1)
    owner = np.empty(len(rows.y), np.int64)
    for client, dealt in enumerate(np.array_split(rng.permutation(len(rows.y)), step.clients)):
        owner[dealt] = client
    return _owned(rows, owner, step.clients)


def column(step: Column, rows: Rows) -> Rows:
    """Each value of a column of the source is a client."""
    values = rows.client if step.column == "client" else rows.domain
    if values is None:
        raise UserError(
            f"params.yaml: data.scheme[0] takes its clients from the column `{step.column}`, which the "
            "source does not have; add it to the .npz, or use `equal` or `dirichlet`."
        )
    return replace(rows, client=values)


def dirichlet(step: Dirichlet, rows: Rows, rng: np.random.RandomState) -> Rows:
    """Each class shared among the clients by a draw from Dirichlet(alpha, ..., alpha).

    Drawn anew, up to ATTEMPTS times, until every client has min_rows. Hsu, Qi and Brown, "Measuring the
    Effects of Non-Identical Data Distribution" (2019); per class as in Yurochkin et al. (2019).
    """
    _enough_rows(rows, step.clients, step.min_rows)
    members = [np.flatnonzero(rows.y == label) for label in range(len(rows.classes))]
    for _ in range(ATTEMPTS):
        owner = np.empty(len(rows.y), np.int64)
        for of_class in members:
            ends = np.cumsum(dirichlet_shares(rng, step.alpha, step.clients))[:-1]
            cuts = np.floor(ends * len(of_class) + 0.5).astype(np.int64)
            for client, dealt in enumerate(np.split(rng.permutation(of_class), cuts)):
                owner[dealt] = client
        if np.bincount(owner, minlength=step.clients).min() >= step.min_rows:
            return _owned(rows, owner, step.clients)
    raise UserError(
        f"params.yaml: data.scheme[0] found no partition in {ATTEMPTS} draws that gives each of "
        f"{step.clients} clients min_rows = {step.min_rows} at alpha = {step.alpha:g}; raise alpha, or lower "
        "clients or min_rows."
    )


def dirichlet_shares(rng: np.random.RandomState, alpha: float, clients: int) -> np.ndarray:
    """One draw from the symmetric Dirichlet(alpha): (clients,) float64 that add up to 1.

    In logarithms, as gamma(alpha) = gamma(alpha + 1) * u^(1/alpha): for a small alpha the plain ratio of
    gammas is 0/0.
    """
    logs = np.log(rng.standard_gamma(alpha + 1, clients)) + np.log1p(-rng.random_sample(clients)) / alpha
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def rotation(step: Rotation, rows: Rows) -> Rows:
    """The images of contiguous blocks of clients turned by one angle each; the angle names the domain."""
    if rows.x.ndim not in (3, 4):
        raise UserError(
            "params.yaml: data.scheme: `rotation` turns images, and the rows of the source have the shape "
            f"{rows.x.shape[1:]}, not (height, width) or (height, width, channels); drop the step or change "
            "the source."
        )
    names = client_names(rows)
    if len(names) < len(step.angles):
        raise UserError(
            f"params.yaml: data.scheme: `rotation` has {len(step.angles)} angles for {len(names)} clients; "
            "give at most one a client."
        )
    assert rows.client is not None
    x = rows.x.copy()
    domain = np.full(len(rows.y), "", dtype=object) if rows.domain is None else rows.domain.astype(object)
    for position, name in enumerate(names):
        angle = step.angles[position * len(step.angles) // len(names)]
        mine = rows.client == name
        x[mine] = rotate(rows.x[mine], angle)
        label = f"rot{angle + 0.0:g}"  # + 0.0: no domain "rot-0"
        domain[mine] = [f"{old}-{label}" if old else label for old in domain[mine]]
    return replace(rows, x=x, domain=domain.astype(str))


def client_names(rows: Rows) -> list[str]:
    """The names of the clients that own rows, sorted, with numbers in them by value (c2 before c10)."""
    assert rows.client is not None
    return sorted(np.unique(rows.client).tolist(), key=natural)


def natural(name: str) -> tuple[list[str | int], str]:
    """A sort key by which c2 comes before c10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)], name


def _enough_rows(rows: Rows, clients: int, min_rows: int) -> None:
    if clients * min_rows > len(rows.y):
        raise UserError(
            f"params.yaml: data.scheme[0] asks for {clients} clients with at least {min_rows} "
            f"row{'s' * (min_rows > 1)} each, and the source has {len(rows.y)} rows: client "
            f"{_name(len(rows.y) // min_rows, clients)} would get too few; ask for fewer clients"
            f"{' or lower min_rows' * (min_rows > 1)}."
        )


def _owned(rows: Rows, owner: np.ndarray, clients: int) -> Rows:
    names = np.array([_name(index, clients) for index in range(clients)])
    return replace(rows, client=names[owner])


def _name(index: int, clients: int) -> str:
    return f"c{index:0{max(2, len(str(clients - 1)))}d}"


def _client(rows: Rows, name: str) -> ClientRows:
    mine = rows.client == name
    domains = [] if rows.domain is None else sorted(np.unique(rows.domain[mine]).tolist(), key=natural)
    return ClientRows(
        name=name,
        domain="+".join(domains),
        x=rows.x[mine],
        y=rows.y[mine],
        split=None if rows.split is None else rows.split[mine],
    )
