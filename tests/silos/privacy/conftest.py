"""What reports stand for, of rows by class."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from silos.privacy.differencing import Values
from silos.raw_cells import hash_numbers, join_cells


@pytest.fixture
def of_rows() -> Callable[[Mapping[str, np.ndarray]], Values]:
    """Makes the record of rows (rows, columns) by group, without columns of cells."""

    def make(groups: Mapping[str, np.ndarray]) -> Values:
        rows = join_cells(hash_numbers(np.concatenate([*groups.values()])))
        group = np.repeat(np.arange(len(groups)), [len(part) for part in groups.values()])
        none = np.zeros((len(rows), 0), np.uint32)
        return Values.of((), none, none.astype(bool), group, [*groups], rows)

    return make
