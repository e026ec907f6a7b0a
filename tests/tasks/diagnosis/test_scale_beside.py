"""What clients tell for a mean and scale and what they tell in a diagnosis are no sum over a few rows when subtracted."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.client_model import Model
from silos.client_store import ClientStore
from tasks.fit_scale import report_moments

BOUNDED = [{"name": "a", "low": -4, "high": 4}, {"name": "b", "low": -4, "high": 4, "missing": {"fill": 0}}]
SIZES = st.lists(st.integers(0, 14), min_size=2, max_size=5).filter(lambda sizes: sum(sizes) > 0)


def rows(sizes, missing=0.0):
    """Rows of a class by their number, the same in every version."""
    of_class = [np.random.default_rng(c).normal(size=(20, 2)) + c for c in range(len(sizes))]
    lost = [np.random.default_rng(100 + c).random(20) < missing for c in range(len(sizes))]
    for x, gaps in zip(of_class, lost, strict=True):
        x[gaps, 1] = np.nan
    return np.concatenate([x[:n] for x, n in zip(of_class, sizes, strict=True)]), np.repeat(
        np.arange(len(sizes)), sizes
    )


@pytest.fixture
def scale(make_problem, make_round, tmp_path):
    """What the client `a` of silos tells for a mean and scale: counts and sums (columns,), and the version in the way."""

    def tell(silos, keeps):
        private = ClientStore(str(tmp_path / "private" / keeps))
        setup = replace(make_problem({"z": 12}), silos=silos)
        round = make_round(setup, private=private)
        asked = {"inputs": True, "targets": silos.manifest.task == "regression"}
        (told,) = round.map_clients(report_moments, Model(setup.network, {}, clients=silos.clients), **asked)
        return told.counts[0].numpy(), told.sums[0].numpy(), told.earlier.get("a", "")

    return tell


@pytest.mark.slow
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(SIZES, st.sampled_from([0.0, 0.4, 0.9]), st.booleans())
def test_of_the_same_rows_nobody_is_refused_and_what_is_left_are_ten_rows_or_none(
    silos_of, asked, scale, sizes, missing, diagnosed_first
):
    silos = silos_of({"a": rows(sizes, missing)}, features=BOUNDED, classes=len(sizes))
    keeps = f"{silos.version}/own"
    if diagnosed_first:
        found = asked(silos, keeps=keeps)
        counts, _, earlier = scale(silos, keeps)
    else:
        counts, _, earlier = scale(silos, keeps)
        found = asked(silos, keeps=keeps)
    assert (found.answers.refusals, earlier) == ({}, "")
    (told,) = found.answers.messages
    of_class = np.nan_to_num(told.moments[0].numpy()[..., 0])  # (features, classes + 1): rows with a value
    for feature in range(2):
        left = counts[feature] - of_class[feature].sum()
        assert left == 0 or left >= 10


def test_a_class_of_seven_rows_is_not_what_remains(silos_of, asked, scale):
    x, y = rows([14, 7])
    silos = silos_of({"a": (x, y)}, features=BOUNDED)
    counts, sums, _ = scale(silos, "own")
    (told,) = asked(silos, keeps="own").answers.messages
    of_class = told.moments[0].numpy()[:, 0]  # rows, mean, ...
    np.testing.assert_allclose(sums, of_class[:, 0] * of_class[:, 1], rtol=1e-6)
    np.testing.assert_allclose(sums, x[:14].astype(np.float32).sum(0), rtol=1e-6)
    assert counts.tolist() == [14, 14]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_after_a_diagnosis_of_nearly_the_same_rows_nothing_is_told(task, silos_of, asked, scale):
    def version(count):
        x, y = rows([20, 20])
        order = np.random.default_rng(0).permutation(40)[:count]
        return silos_of({"a": (x[order], y[order] + (0.5 if task == "regression" else 0))}, task)

    asked(version(31), keeps=task)
    counts, _, earlier = scale(version(32), task)
    assert not counts.any()
    assert earlier
    assert scale(version(31), task)[0].tolist() == [31] * (3 if task == "regression" else 2)


def test_a_diagnosis_of_nearly_the_same_rows_is_refused_after_a_scale(silos_of, asked, scale):
    x, y = rows([20, 20])
    scale(silos_of({"a": rows([20, 15]), "b": (-x, y)}).select(["a"]), "own")
    found = asked(silos_of({"a": rows([20, 16]), "b": (-x, y)}), keeps="own")
    assert [*found.answers.refusals] == ["a"]
