"""Accuracy by each client's own law, from one run on common rows, against counts by hand."""

import numpy as np
import pytest

from flows.training.paired_runs import prior_shift_by_client
from silos.client_store import ClientStore
from tasks.evaluate import OUTCOMES
from tasks.execution.task_runner import PlainRunner

TEST = {"a": [0, 0], "b": [0, 0], "c": [1, 1], "few": []}  # and nobody owns them
RIGHT = [1, 1, 1, 0, 1, 0]
# nobody can tell what c is worth on a class that is not there, and a client of few different rows does not
TRAIN = {"a": [0, 0, 0] * 4, "b": [0, 1, 1] * 4, "c": [2, 2, 2] * 4, "few": [0, 1, 1] * 4}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_class_counts_as_the_client_trains_on_it(workers, write_silos, tmp_path):
    def rows_of(client, total):
        x = np.random.default_rng(0).normal(size=(4 if client == "few" else total, 2))
        return np.resize(x, (total, 2)), np.array([*TRAIN[client], *TEST[client], 0, 0])[:total]

    silos = write_silos(dict.fromkeys(TRAIN, 12), validation=0, test=2, common=["test"], rows_of=rows_of)
    store = ClientStore(str(tmp_path / "own"))
    refs = store.save(OUTCOMES, list(TRAIN), {"correct": np.array([[*RIGHT, 1, 1]] * len(TRAIN), np.uint8)}, "outcomes")
    found = prior_shift_by_client(PlainRunner(workers), silos, (store, refs))
    assert found == {"a": pytest.approx(5 / 6), "b": pytest.approx((5 / 6 + 2 * 1 / 2) / 3)}
