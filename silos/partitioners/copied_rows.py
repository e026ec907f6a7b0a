"""Notes on silos with many rows that equal rows of another silo, as copies do."""

import numpy as np

from silos.dataset import Clients
from silos.errors import some

_LEAST_SHARE, _LEAST_ROWS = 0.1, 10
_TIMES = 4  # as many rows as agree by chance, as often as two rows of one silo do: there may be few categories
_MOST_SILOS = 5  # that hold a row: of more, it is common rather than copied
_NAMES = 3  # pairs that the note lists at most


def copied_row_notes(clients: Clients) -> list[str]:
    """Return a note if a tenth or more of a silo's rows equal another silo's, label included; x: (rows, features)."""
    rows = np.column_stack([clients.x, clients.y]).astype(np.float64) + 0.0  # no negative zeros, which have other bytes
    keys = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    key = np.unique(keys, return_inverse=True)[1].ravel()
    (pairs, counts), silos = np.unique(np.stack([key, clients.owner]), axis=1, return_counts=True), len(clients.names)
    size, repeated = np.bincount(clients.owner, minlength=silos), np.bincount(pairs[1], counts - 1, silos)
    held_by = np.bincount(pairs[0])[pairs[0]]
    first, second = [], []
    for step in range(1, _MOST_SILOS):  # ascending by key, so that the silos of a key are neighbours
        start = np.flatnonzero((held_by[:-step] <= _MOST_SILOS) & (pairs[0, :-step] == pairs[0, step:]))
        first.append(start)
        second.append(start + step)
    both = np.stack([np.concatenate(first), np.concatenate(second)], 1)
    owners, equal = pairs[1, both], counts[both]
    of_pair, which = np.unique(owners, axis=0, return_inverse=True)
    different = np.bincount(which.ravel(), minlength=len(of_pair))  # copies of one guess would confirm it
    found = []
    for side, partner in ((0, 1), (1, 0)):
        rows_of = np.bincount(which.ravel(), equal[:, side], len(of_pair)).astype(int)
        silo, other_silo = of_pair[:, side], of_pair[:, partner]
        alike = 2 * np.maximum(repeated[silo] / size[silo] ** 2, repeated[other_silo] / size[other_silo] ** 2)
        by_chance = alike * size[silo] * size[other_silo]
        least = np.maximum(_LEAST_ROWS, np.maximum(_LEAST_SHARE * size[silo], _TIMES * by_chance))
        for index in np.flatnonzero((rows_of >= least) & (different >= _LEAST_ROWS)).tolist():
            name, other = (clients.names[of_pair[index, at]] for at in (side, partner))
            found.append(f"{rows_of[index]:,} of {size[silo[index]]:,} rows of {name} at {other}")
    return [f"equal rows at two silos, perhaps copies: {some(found, _NAMES)}; keep each in one silo"] if found else []
