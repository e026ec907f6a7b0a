"""Right answers by class against a count by hand."""

import numpy as np
import pytest

from flows.training.paired_runs import count_correct_by_class, predictions_by_class
from silos.client_store import ClientStore
from silos.cohort import open_common
from silos.privacy.owner_file import OWNER_FILE
from tasks.evaluate import OUTCOMES
from tasks.execution.task_runner import PlainRunner

LABELS = {"a": [0, 0, 1, 2] * 3, "b": [2, 2, 1, 2] * 3, "few": [1, 1, 2, 0] * 3}
RIGHT = {"a": [1, 0, 1, 1] * 3, "b": [0, 1, 0, 1] * 3, "few": [1] * 12}


@pytest.mark.parametrize("workers", [1, 2])
def test_counts_are_sums_over_clients_without_padding_and_without_those_of_few_rows(workers, write_silos, tmp_path):
    """A client with four different rows, three times each, would tell their labels."""

    def rows_of(client, total):
        x = np.random.default_rng(0).normal(size=(4 if client == "few" else total, 2))
        return np.resize(x, (total, 2)), np.concatenate([[0, 1], LABELS[client]])

    silos = write_silos(dict.fromkeys(LABELS, 2), validation=0, test=12, rows_of=rows_of)
    store = ClientStore(str(tmp_path / "own"))
    kept = np.array([[*RIGHT[client], 1, 1] for client in ("b", "a", "few")], np.uint8)  # two of padding
    refs = store.save(OUTCOMES, ["b", "a", "few"], {"correct": kept}, "outcomes")
    found = count_correct_by_class(PlainRunner(workers), silos, (store, refs))
    assert found == {"0": [3, 6], "1": [3, 6], "2": [9, 12]}


@pytest.mark.parametrize("workers", [1, 2])
def test_predictions_are_counted_by_class_over_clients_with_enough_rows_and_over_seeds(workers, write_silos, tmp_path):
    def rows_of(client, total):
        x = np.random.default_rng(0).normal(size=(4 if client == "few" else total, 2))
        return np.resize(x, (total, 2)), np.concatenate([[0, 1], LABELS[client]])

    silos = write_silos(dict.fromkeys(LABELS, 2), validation=0, test=12, rows_of=rows_of)
    rng, runs, expected = np.random.default_rng(0), [], np.zeros((2, 3, 4), int)
    for method, seeds in enumerate((2, 1)):
        runs.append([])
        for seed in range(seeds):
            predicted = rng.integers(-1, 3, (3, 14)).astype(np.int32)  # two of padding
            store = ClientStore(str(tmp_path / f"{method}{seed}"))
            refs = store.save(OUTCOMES, ["b", "a", "few"], {"predicted": predicted}, "outcomes")
            runs[-1].append((store, refs))
            for of_client, client in zip(predicted, ("b", "a"), strict=False):
                for label, code in zip(LABELS[client], of_client, strict=False):
                    expected[method, label, code if code >= 0 else 3] += 1
    earlier = ClientStore(str(tmp_path / "earlier"))
    runs.append(
        [(earlier, earlier.save(OUTCOMES, ["b", "a", "few"], {"correct": np.ones((3, 14), np.uint8)}, "outcomes"))]
    )
    found = predictions_by_class(PlainRunner(workers), silos, runs)
    assert (found[:2] == expected).all()
    assert not found[2].any()


@pytest.mark.parametrize(
    ("least", "counted"),
    [
        (10, [0, 1, 2]),
        (11, [2]),  # without class 1, too: else the rows of no counted class would be the 10 of class 0
        (13, [2]),
        (31, []),
        (53, []),  # more than the client's rows
    ],
)
def test_a_stricter_policy_holds_for_each_class_of_the_client(least, counted, write_silos, tmp_path):
    """Of two clients with the same labels, one has the policy; the other counts all, whatever its classes' sizes."""
    labels = np.repeat([0, 1, 2], (10, 12, 30))

    def rows_of(client, total):
        return np.random.default_rng(0).normal(size=(total, 2)), np.concatenate([[0, 1], labels])

    silos = write_silos({"a": 2, "b": 2}, validation=0, test=52, rows_of=rows_of)
    store = ClientStore(str(tmp_path / "own"))
    refs = store.save(
        OUTCOMES,
        ["a", "b"],
        {"correct": np.ones((2, 52), np.uint8), "predicted": np.zeros((2, 52), np.int32)},
        "outcomes",
    )
    (tmp_path / "own" / OWNER_FILE).write_text(f"silos: {{b: {{least_rows: {least}}}}}\n")
    rows = np.bincount(labels) + np.bincount(labels[np.isin(labels, counted)], minlength=3)
    assert count_correct_by_class(PlainRunner(), silos, (store, refs)) == {str(c): [n, n] for c, n in enumerate(rows)}
    assert predictions_by_class(PlainRunner(), silos, [[(store, refs)]])[0, :, 0].tolist() == rows.tolist()


@pytest.mark.parametrize("least", [10, 11])
def test_common_rows_count_once_for_every_client_also_in_small_classes_since_no_client_owns_them(
    least, write_silos, tmp_path
):
    silos = write_silos({"a": 2, "b": 2}, validation=0, test=6, common=["test"])
    store = ClientStore(str(tmp_path / "own"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / OWNER_FILE).write_text(f"least_rows: {least}\n")
    right = np.random.default_rng(0).integers(0, 2, (2, 12)).astype(np.uint8)
    refs = store.save(OUTCOMES, ["a", "b"], {"correct": right}, "outcomes")
    labels = open_common(silos, "test")[1]
    by_hand = {str(c): [int(right[:, labels == c].sum()), 2 * int((labels == c).sum())] for c in range(3)}
    assert count_correct_by_class(PlainRunner(1), silos, (store, refs)) == by_hand
