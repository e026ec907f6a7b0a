"""Where a value is missing stands the mean of the client's own training rows, and of no other row."""

from pathlib import Path

import numpy as np
import pytest

from silos.dataset import SPLITS
from silos.errors import UserError
from silos.storage.manifest import read_manifest
from silos.storage.partition_store import open_client, open_common_rows, open_missing, write

N = 240
MEANS = [{"name": "number"}, {"name": "a", "missing": {"fill": "mean"}}, {"name": "b", "missing": {"fill": 0.5}}]
SHARES = {"validation": 0.2, "test": 0.2}


@pytest.fixture
def table(tmp_path):
    """Writes own.npz: rows whose first value is their number; `never` misses every value of the second, `few` most."""

    def saved(**values):
        rng = np.random.default_rng(3)
        x = np.column_stack([np.arange(N), rng.normal(50, 20, size=(N, 2))])
        x[:, 1:][rng.random((N, 2)) < 0.3] = np.nan
        client = np.array(["east", "west", "few", "never"])[np.arange(N) % 4]
        x[client == "never", 1] = np.nan
        x[np.flatnonzero(client == "few")[9:], 1] = np.nan
        np.savez(tmp_path / "own.npz", x=x, y=np.arange(N) % 3, client=client)
        return x

    return saved


@pytest.fixture
def build(tmp_path, params):
    def built(scheme=(), split=SHARES, features=MEANS, say=None) -> Path:
        steps = [{"kind": "column", "column": "client"}, *scheme]
        asked = params(source={"kind": "npz", "path": "own.npz"}, scheme=steps, split=split, features=features)
        write(tmp_path / "data" / "small", asked, tmp_path, say)
        return tmp_path / "data" / "small"

    return built


def opened(folder):
    """Each client's rows by split, as written and as they were in the source, and where values are missing."""
    manifest = read_manifest(folder)
    return {
        entry.name: {
            split: (open_client(folder, entry, split)[0], open_missing(folder, entry, split)) for split in SPLITS
        }
        for entry in manifest.clients
    }


def source_of(table, rows):
    return table[rows[:, 0].astype(int)]


@pytest.mark.parametrize("scheme", [[], [{"kind": "subsample", "classes": [1], "ratio": 4}]], ids=["all", "fewer"])
def test_it_is_numpys_mean_of_the_clients_training_rows_in_every_split(table, build, scheme):
    truth, lines = table(), list[str]()
    found = opened(build(scheme, say=lines.append))
    kept = {name: source_of(truth, splits["train"][0])[:, 1] for name, splits in found.items()}
    several = np.concatenate([kept[name] for name in ("east", "west")])
    seen = 0
    for name, splits in found.items():
        mean = np.nanmean(several if name == "never" else kept[name])  # nine values of `few` are not told of
        for x, mask in splits.values():
            np.testing.assert_allclose(x[mask[:, 1], 1], mean, rtol=1e-6)
            assert (x[mask[:, 2], 2] == 0.5).all()
            np.testing.assert_array_equal(x[~mask], source_of(truth, x)[~mask].astype(np.float32))
            seen += int(mask[:, 1].sum())
    assert seen > 60
    note = "missing: a has no value in training rows of never; the mean over federated clients with at least 10 values"
    assert f"{note} is filled in" in lines


def test_held_out_clients_are_filled_by_their_own_mean_and_are_in_nobodys(table, build, tmp_path):
    truth = table()
    client = np.array(["east", "west", "few", "never"])[np.arange(N) % 4]
    np.savez(tmp_path / "own.npz", x=truth, y=np.arange(N) % 3, client=client, domain=client)
    found = opened(build([{"kind": "hold_out", "domains": ["west"]}]))
    means = {name: np.nanmean(source_of(truth, found[name]["train"][0])[:, 1]) for name in ("east", "west")}
    for name, of in (("east", "east"), ("west", "west"), ("never", "east")):
        x, mask = found[name]["test"]
        np.testing.assert_allclose(x[mask[:, 1], 1], means[of], rtol=1e-6)


def test_rows_that_no_client_owns_have_the_mean_of_those_that_told(table, build):
    truth = table()
    folder = build(split=SHARES | {"test_rows": "common"})
    trained = [source_of(truth, opened(folder)[name]["train"][0])[:, 1] for name in ("east", "west")]
    x, _ = open_common_rows(folder, read_manifest(folder), "test")
    missing = np.isnan(source_of(truth, x)[:, 1])
    assert missing.any()
    np.testing.assert_allclose(x[missing, 1], np.nanmean(np.concatenate(trained)), rtol=1e-6)


def test_where_nobody_has_ten_values_it_is_zero(table, build, tmp_path):
    x = np.full((N, 3), np.nan)
    x[:, 0], x[:, 2], x[0, 1] = np.arange(N), 1, 700
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(N) % 3, client=np.arange(N) % 2, split=np.repeat("train", N))
    found = opened(build(split={"validation": 0, "test": 0}))
    assert (found["0"]["train"][0][:, 1] == 700).all()
    assert (found["1"]["train"][0][:, 1] == 0).all()


def test_codes_have_no_mean_and_truths_have(table, build):
    table()
    coded = {"name": "a", "kind": "categorical", "categories": [1, 2], "missing": {"fill": "mean"}}
    with pytest.raises(
        UserError, match=r"own\.npz: 'a': got missing: \{fill: mean\}, expected a number, since the categories are"
    ):
        build(features=[MEANS[0], coded, MEANS[2]])
    build(features=[MEANS[0], coded | {"categories": [0, 1]}, MEANS[2]])


def test_ten_values_of_a_client_are_enough_for_the_mean_of_others(table, build, tmp_path):
    x = np.ones((N, 3))
    client = np.array(["ten", "nine", "never", "full"])[np.arange(N) % 4]
    for name, known, value in (("ten", 10, 5), ("nine", 9, 700), ("never", 0, 0), ("full", 10, 7)):
        rows = np.flatnonzero(client == name)
        x[rows, 1] = np.nan
        x[rows[:known], 1] = value
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(N) % 3, client=client, split=np.repeat("train", N))
    found = opened(build(split={"validation": 0, "test": 0}))
    assert (found["never"]["train"][0][:, 1] == 6).all()
