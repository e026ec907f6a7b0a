"""Right answers by class against a count by hand."""

import numpy as np

from silos.private import PrivateStore
from tasks.by_class import by_class
from tasks.evaluate import OUTCOMES

LABELS = {"a": [0, 0, 1, 2], "b": [2, 2, 1, 2]}
RIGHT = {"a": [1, 0, 1, 1], "b": [0, 1, 0, 1]}


def test_counts_are_sums_over_clients_and_padding_is_not_counted(write_silos, tmp_path):
    def rows_of(client, total):
        y = np.concatenate([[0, 1], LABELS[client]])
        return np.zeros((total, 2)), y

    silos = write_silos({"a": 2, "b": 2}, validation=0, test=4, rows_of=rows_of)
    store = PrivateStore(str(tmp_path / "own"))
    kept = np.array([[*RIGHT["b"], 1, 1], [*RIGHT["a"], 1, 1]], np.uint8)  # two of padding
    refs = store.save(OUTCOMES, ["b", "a"], {"correct": kept})
    found = by_class.fn(silos, (store, refs))
    assert (found.rows, found.right) == ((2, 2, 4), (1, 1, 3))
