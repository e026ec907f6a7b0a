"""The federations of the study of `siloflow advise`: 24 that nothing was tuned on, and the cells of the evidence matrix.

The 24 were fixed before the first of them was trained. Twelve have rows of real people, sensors or pictures, from
archives in downloads/; six are tables that scikit-learn holds, split by a column; six are made by scikit-learn's
generators. A cell of the matrix has one kind of shift or a pair of them, at one strength, with one number of rows.
downloads/mnist14.npz has the first 6,000 training pictures of MNIST as means of 2 × 2 pixels: `x` (uint8), and `y`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn import datasets

from silos.errors import UserError

Array = np.ndarray

SOURCES, SIZES, STRENGTHS = ("digits", "table", "mnist"), ("many", "few"), ("strong", "weak")
KINDS = ("none", "label", "feature", "noise", "concept", "quantity", "label+concept", "feature+label")
ROWS = {"few": 60, "many": 180}
"""Rows of each client of a cell, before they are split; digits are too few for twelve clients of 180."""
_CLIENTS, _FRESH = 9, 3


class Rows(NamedTuple):
    """Rows of all clients: inputs (rows, features), labels or targets (rows,), and the client of each row.

    If there is a `unit`, (rows,), all rows of one unit are in one split.
    """

    x: Array
    y: Array
    client: Array
    unit: Array | None = None


class Cell(NamedTuple):
    """A cell of the evidence matrix."""

    source: str
    kind: str
    strength: str
    size: str

    @property
    def name(self) -> str:
        """Return the name in records and texts."""
        return "-".join(part for part in self if not (self.kind == "none" and part == self.strength))


@dataclass(frozen=True)
class Federation:
    """Rows that a function makes, from the arrays of an archive in downloads/ if it names one.

    The last `fresh` clients take no part in training; they are scored as clients that come later.
    """

    name: str
    about: str
    make: Callable[..., Rows]
    archive: str = ""
    regression: bool = False
    cell: Cell | None = None
    fresh: int = 0

    def rows(self, downloads: Path) -> Rows:
        """Return the rows, with inputs and targets as float32.

        Raises:
            UserError: If the archive is not in downloads/.
        """
        if not self.archive:
            x, y, client, unit = self.make()
        else:
            file = downloads / self.archive
            if not file.is_file():
                raise UserError(
                    f"downloads/{self.archive}: got no such file, expected the rows of {self.name}. Add it."
                )
            with np.load(file, allow_pickle=False) as arrays:
                x, y, client, unit = self.make(arrays)
        names = np.array([f"c{int(number):02d}" for number in np.unique(client, return_inverse=True)[1].ravel()])
        return Rows(np.asarray(x, np.float32), y.astype(np.float32 if self.regression else int), names, unit)


def study() -> list[Federation]:
    """Return the 24 federations of the study."""
    return [*_REAL, *_TABLES, *_MADE]


def matrix() -> list[Federation]:
    """Return the cells of the evidence matrix: weak shifts only with many rows, MNIST without noise and quantity.

    Pairs of shifts and MNIST also have three clients that take no part.
    """
    sources, kinds, pairs = SOURCES[:2], KINDS[:6], KINDS[6:]
    cells = [
        *(
            Cell(source, kind, strength, size)
            for size in SIZES
            for strength in STRENGTHS
            for source in sources
            for kind in kinds
            if (strength == "strong" or size == "many") and (kind != "none" or strength == "strong")
        ),
        *(Cell(source, kind, strength, "many") for strength in STRENGTHS for source in sources for kind in pairs),
        *(Cell("mnist", kind, "strong", size) for size in SIZES for kind in ("none", "label", "feature", "concept")),
        *(Cell("mnist", kind, "weak", "many") for kind in ("label", "feature", "concept")),
    ]
    return [_federation(cell) for cell in cells]


# how rows are dealt


def _deal(labels: Array, clients: int, alpha: float, rng: np.random.Generator, least: int = 16) -> Array:
    """Deal rows to clients, each class by shares of a Dirichlet distribution, until each client has the `least` rows."""
    while True:
        client = np.empty(len(labels), int)
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(rows)
            for number, part in enumerate(np.split(rows, cuts.astype(int))):
                client[part] = number
        if np.bincount(client, minlength=clients).min() >= least:
            return client


def _by_rank(column: Array, clients: int) -> Array:
    """Deal rows to clients by the rank of a column, in equal parts."""
    ranks = np.argsort(np.argsort(column, kind="stable"), kind="stable")
    return ranks * clients // len(column)


def _sample(rng: np.random.Generator, client: Array, rows: int) -> Array:
    """Return the indices of at most `rows` random rows of each client."""
    of_each = [rng.permutation(np.flatnonzero(client == number))[:rows] for number in np.unique(client)]
    return np.sort(np.concatenate(of_each))


# real rows


def _activities(arrays: dict[str, Array], people: range, rows: int) -> Rows:
    own = np.flatnonzero(np.isin(arrays["client"], people))
    own = own[_sample(np.random.default_rng(0), arrays["client"][own], rows)]
    return Rows(arrays["x_time"][own, ::4], arrays["y"][own], arrays["client"][own])


def _drawings(arrays: dict[str, Array], writers: range, letters_are_one: bool) -> Rows:
    own = np.isin(arrays["client"], writers)
    y = arrays["y"][own].astype(int)
    pictures = arrays["x"][own].reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(len(y), -1) / 255
    kind = np.where(y < 10, 0, np.where(y < 36, 1, 2))
    return Rows(pictures, np.minimum(kind, 1) if letters_are_one else kind, arrays["client"][own])


def _sensors(arrays: dict[str, Array]) -> Rows:
    number, count = np.unique(arrays["client"], return_counts=True)
    own = np.isin(arrays["client"], number[count >= 16])
    return Rows(arrays["x"][own], arrays["y"][own], arrays["client"][own])


def _domains(arrays: dict[str, Array], rows: int, people: bool) -> Rows:
    own = _sample(np.random.default_rng(1), arrays["domain"], rows)
    y, domain = arrays["y"][own].astype(int), arrays["domain"][own].astype(int)
    x = arrays["x"][own].reshape(len(own), -1) / 255
    if people:
        return Rows(x, (y == y.max()).astype(int), domain)
    half = np.random.default_rng(2).integers(0, 2, len(own))
    return Rows(x, y, 2 * domain + half)


def _signs(arrays: dict[str, Array], classes: range, by_brightness: bool) -> Rows:
    own = np.flatnonzero(np.isin(arrays["y"], np.argsort(-np.bincount(arrays["y"]), kind="stable")[list(classes)]))
    x, y = arrays["x"][own].reshape(len(own), -1) / 255, np.unique(arrays["y"][own], return_inverse=True)[1].ravel()
    track = np.unique(arrays["track"][own], return_inverse=True)[1].ravel()
    brightness = (np.bincount(track, x.mean(1)) / np.bincount(track))[track]
    if by_brightness:
        return Rows(x, y, _by_rank(brightness, 6), track)
    of_track = np.zeros(track.max() + 1, int)
    of_track[track] = y
    return Rows(x, y, _deal(of_track, 10, 0.5, np.random.default_rng(3), 6)[track], track)


def _photographs(arrays: dict[str, Array], alpha: float | None) -> Rows:
    rng = np.random.default_rng(4)
    own = rng.permutation(len(arrays["y"]))[:1800]
    y = arrays["y"][own].astype(int)
    client = np.arange(len(own)) % 6 if alpha is None else _deal(y, 10, alpha, rng)
    return Rows(arrays["x"][own].reshape(len(own), -1) / 255, y, client)


def _inverted(arrays: dict[str, Array]) -> Rows:
    rng = np.random.default_rng(5)
    own = rng.permutation(len(arrays["y"]))[:1600]
    x, client = arrays["x"][own].reshape(len(own), -1) / 255, np.arange(len(own)) % 8
    return Rows(np.where((client % 2 == 1)[:, None], 1 - x, x), arrays["y"][own], client)


_REAL = [
    Federation(
        "people-12",
        "12 people's activities, 66 features of a phone",
        partial(_activities, people=range(1, 13), rows=240),
        "har.npz",
    ),
    Federation(
        "people-few", "18 other people, 50 rows each", partial(_activities, people=range(13, 31), rows=50), "har.npz"
    ),
    Federation(
        "writers-27",
        "27 writers: digit, capital or small letter",
        partial(_drawings, writers=range(1, 28), letters_are_one=False),
        "hnd55.npz",
    ),
    Federation(
        "writers-28",
        "28 other writers: digit or letter",
        partial(_drawings, writers=range(28, 56), letters_are_one=True),
        "hnd55.npz",
    ),
    Federation("vehicle-sensors", "16 sensors of two vehicles", _sensors, "vsn_small.npz"),
    Federation(
        "styles-8",
        "art, cartoons, photographs, sketches; two clients each",
        partial(_domains, rows=500, people=False),
        "pacs16.npz",
    ),
    Federation(
        "styles-4",
        "the same styles, one client each: person or not",
        partial(_domains, rows=300, people=True),
        "pacs16.npz",
    ),
    Federation(
        "signs-dealt",
        "10 traffic signs, their tracks dealt by Dirichlet(0.5)",
        partial(_signs, classes=range(10), by_brightness=False),
        "gtsrb16.npz",
    ),
    Federation(
        "signs-brightness",
        "10 other signs, tracks dealt by brightness",
        partial(_signs, classes=range(10, 20), by_brightness=True),
        "gtsrb16.npz",
    ),
    Federation(
        "photographs-random",
        "small photographs of 10 classes at random",
        partial(_photographs, alpha=None),
        "cifar8.npz",
    ),
    Federation("photographs-dealt", "the same by Dirichlet(0.2)", partial(_photographs, alpha=0.2), "cifar8.npz"),
    Federation("digits-inverted", "written digits, every other client's dark on white", _inverted, "femnist14.npz"),
]


# tables of scikit-learn


def _table(load: Callable[..., tuple[Array, Array]], column: int, clients: int) -> Rows:
    x, y = load(return_X_y=True)
    return Rows(x, y, _by_rank(x[:, column], clients))


def _diabetes(by_age: bool) -> Rows:
    x, y = datasets.load_diabetes(return_X_y=True)
    client = _by_rank(x[:, 0], 6) if by_age else 2 * (x[:, 1] > 0) + (x[:, 2] > np.median(x[:, 2]))
    return Rows(x, y / y.std(), client.astype(int))


_TABLES = [
    Federation(
        "tumours-radius", "breast tumours by mean radius, 6 clients", partial(_table, datasets.load_breast_cancer, 0, 6)
    ),
    Federation("tumours-texture", "the same by mean texture", partial(_table, datasets.load_breast_cancer, 1, 6)),
    Federation("wines", "wines by proline, 4 clients", partial(_table, datasets.load_wine, 12, 4)),
    Federation("irises", "irises by sepal width, 3 clients", partial(_table, datasets.load_iris, 1, 3)),
    Federation("diabetes-age", "progress of diabetes by age, 6 clients", partial(_diabetes, True), regression=True),
    Federation(
        "diabetes-groups", "the same by sex and body mass, 4 clients", partial(_diabetes, False), regression=True
    ),
]


# generators of scikit-learn


def _classification(clients: int, groups: int, rows: int) -> Rows:
    parts = [
        datasets.make_classification(
            rows * clients // groups, 20, n_informative=8, n_redundant=4, n_classes=3, random_state=70 + group
        )
        for group in range(groups)
    ]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    of_group = np.repeat(np.arange(groups), rows * clients // groups)
    return Rows(x, y, of_group + groups * (np.arange(len(y)) % (clients // groups)))


def _moons() -> Rows:
    parts = []
    for client in range(8):
        x, y = datasets.make_moons(120, noise=0.25, random_state=80 + client)
        angle = np.deg2rad(15 * client)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        parts.append((x @ turn, y, np.full(120, client)))
    return Rows(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _mislabelled() -> Rows:
    x, y = datasets.make_gaussian_quantiles(n_samples=1500, n_features=6, n_classes=3, random_state=90)
    client = np.arange(len(y)) % 10
    return Rows(x, np.where(client >= 7, (y + 1) % 3, y), client)


def _units() -> Rows:
    x, y = datasets.make_friedman1(1200, n_features=8, noise=1.0, random_state=91)
    client = np.arange(len(y)) % 6
    x[:, 3] = np.where(client == 5, 40 * x[:, 3] + 20, x[:, 3])
    return Rows(x, y / y.std(), client)


def _blobs() -> Rows:
    x, y = datasets.make_blobs(1500, 10, centers=8, cluster_std=6.0, random_state=92)
    return Rows(x, y, _deal(y, 10, 0.1, np.random.default_rng(93)))


_MADE = [
    Federation("alike", "make_classification, ten clients alike", partial(_classification, 10, 1, 150)),
    Federation(
        "three-rules", "three calls of make_classification, three clients each", partial(_classification, 9, 3, 150)
    ),
    Federation("moons-turned", "make_moons, each client turned by 15 degrees more", _moons),
    Federation("mislabelled", "make_gaussian_quantiles, labels of 3 of 10 clients moved on", _mislabelled),
    Federation("one-unit", "make_friedman1, one of 6 clients has another unit", _units, regression=True),
    Federation("blobs", "make_blobs dealt by Dirichlet(0.1), 10 clients", _blobs),
]


# the matrix

_ABOUT = {
    "none": "nothing differs",
    "label": "classes dealt by Dirichlet(0.5) or Dirichlet(0.1)",
    "feature": "pictures turned by up to 30 or 120 degrees; other units of a third of the features",
    "noise": "noise of up to one or two deviations, a client more than the one before",
    "concept": "two classes swapped at a third of the clients; two at each of two thirds",
    "quantity": "rows by a geometric law, from 1 to 4 or to 16",
}


def _federation(cell: Cell) -> Federation:
    fresh = _FRESH if cell.source == "mnist" or "+" in cell.kind else 0
    about = " and ".join(_ABOUT[kind] for kind in cell.kind.split("+"))
    archive = "mnist14.npz" if cell.source == "mnist" else ""
    return Federation(cell.name, about, partial(_cell, cell, _CLIENTS + fresh), archive, cell=cell, fresh=fresh)


def _cell(cell: Cell, clients: int, arrays: dict[str, Array] | None = None) -> Rows:
    seed = 1000 + KINDS.index(cell.kind) * 10 + SOURCES.index(cell.source)
    rng, strong, count = np.random.default_rng(seed), cell.strength == "strong", ROWS[cell.size] * clients
    if cell.source == "table":
        x, y = _teacher(rng, count)
    else:
        x, y = datasets.load_digits(return_X_y=True) if arrays is None else (arrays["x"], arrays["y"])
        own = rng.permutation(len(y))[:count]
        x, y = x[own] / (16 if arrays is None else 255), y[own].astype(int)
    kinds, client = cell.kind.split("+"), np.arange(len(y)) % clients
    if "label" in kinds:
        client = _deal(y, clients, 0.1 if strong else 0.5, rng)
    if "feature" in kinds:
        x = _rescaled(x, client, strong) if cell.source == "table" else _turned(x, client, 120 if strong else 30)
    if "concept" in kinds:
        y = _swapped(y, client, strong)
    if cell.kind == "noise":
        x = x + rng.normal(size=x.shape) * x.std() * (client / (_CLIENTS - 1) * (2 if strong else 1))[:, None]
    elif cell.kind == "quantity":
        shares = (16 if strong else 4) ** (np.arange(_CLIENTS) / (_CLIENTS - 1))
        cuts = np.cumsum(shares / shares.sum())[:-1] * count
        client = np.searchsorted(cuts, rng.permutation(count), side="right")
    return Rows(x, y, client)


def _teacher(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Draw 12 correlated features, and four classes by the largest output of a random network of one hidden layer."""
    x = rng.normal(size=(rows, 12)) @ (np.eye(12) + 0.3 * rng.normal(size=(12, 12)))
    hidden = np.tanh(x @ rng.normal(size=(12, 16)) / 3)
    return x, (hidden @ rng.normal(size=(16, 4)) + 0.3 * rng.normal(size=(rows, 4))).argmax(1)


def _turned(x: Array, client: Array, most: int) -> Array:
    from scipy.ndimage import rotate

    side = round(x.shape[1] ** 0.5)
    turned = x.reshape(-1, side, side).copy()
    for number in np.unique(client):
        own = client == number
        turned[own] = rotate(turned[own], most * (number % 3) / 2, axes=(1, 2), reshape=False, order=1)
    return turned.reshape(len(x), -1)


def _rescaled(x: Array, client: Array, strong: bool) -> Array:
    changed = x.copy()
    factors = np.array([1.0, 3.0, 0.3] if strong else [1.0, 1.5, 0.7])[client % 3]
    changed[:, :4] = x[:, :4] * factors[:, None] + (factors - 1)[:, None]
    return changed


def _swapped(y: Array, client: Array, strong: bool) -> Array:
    swapped = y.copy()
    for group, (first, second) in ((1, (0, 1)), *(((2, (2, 3)),) if strong else ())):
        of_group = client % 3 == group
        swapped[of_group & (y == first)], swapped[of_group & (y == second)] = second, first
    return swapped
