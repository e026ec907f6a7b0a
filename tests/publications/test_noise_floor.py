"""The floor of the conditional linear model, against simulation and against the figures that were published for it."""

import numpy as np
import pytest
import torch

from models.statistics.feature_vector import compute, make
from publications.noise_floor import covariance_floor, least_squares_floor
from silos.sources.source_params import Synthetic
from silos.sources.synthetic import coefficients

ROWS, FEATURES, NOISE = 100, 10, 0.1


def draws(clusters: int, count: int = 20) -> list[np.ndarray]:
    """theta of each cluster, uniform in [-10, 10], for so many seeds."""
    source = Synthetic(kind="synthetic", task="linear", clusters=clusters, features=FEATURES)
    return [coefficients(source, seed) for seed in range(count)]


@pytest.mark.parametrize(
    ("clusters", "constant", "mean", "spread"),
    [(3, False, 3.57, 0.29), (8, False, 4.97, 0.25), (3, True, 2.92, 0.25), (8, True, 4.70, 0.25)],
)
def test_over_20_draws_of_theta_the_floor_is_the_known_one(clusters, constant, mean, spread):
    floors = [covariance_floor(thetas, ROWS, NOISE, constant) for thetas in draws(clusters)]
    assert np.mean(floors) == pytest.approx(mean, abs=spread / 2)
    assert np.std(floors, ddof=1) == pytest.approx(spread, rel=0.4)


@pytest.mark.parametrize(
    ("clusters", "rows", "floor"), [(3, 1000, 1.15), (3, 10000, 0.38), (8, 1000, 1.70), (8, 10000, 0.56)]
)
def test_the_floor_falls_with_the_root_of_the_rows(clusters, rows, floor):
    found = np.mean([covariance_floor(thetas, rows, NOISE) for thetas in draws(clusters)])
    assert found == pytest.approx(floor, rel=0.04)


def test_for_equal_clusters_the_floor_has_the_closed_form():
    size, clusters = 10.0, 4
    thetas = np.eye(FEATURES)[:clusters] * np.sqrt(size * clusters)
    s, r = size * clusters + NOISE**2, (clusters + 1) / (ROWS - 1)
    assert covariance_floor(thetas, ROWS, NOISE) == pytest.approx(np.sqrt(NOISE**2 + s * r / (1 + r)), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [3, 8])
@pytest.mark.parametrize("constant", [False, True])
def test_simulated_clients_fitted_together_stand_on_the_floor(clusters, constant):
    """W is fitted on one half of the clients and judged on the other, whose thetas it has seen."""
    ratios = []
    for seed, thetas in enumerate(draws(clusters, 3)):
        c, cluster = simulated(thetas, seed, each=1200 // clusters)
        given = np.column_stack([c, np.ones(len(c))]) if constant else c
        half = np.arange(len(c)) % 2 == 0
        w = np.linalg.lstsq(given[half], thetas[cluster[half]], rcond=None)[0]
        missed = thetas[cluster[~half]] - given[~half] @ w
        rmse = np.sqrt((missed**2).sum(1).mean() + NOISE**2)  # of new rows x ~ N(0, I)
        ratios.append(rmse / covariance_floor(thetas, ROWS, NOISE, constant))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.03)


@pytest.mark.slow
def test_the_statistics_themselves_taken_for_coefficients_are_far_above_the_floor():
    for thetas in draws(3, 3):
        c, cluster = simulated(thetas, 0, each=200)
        rmse = np.sqrt(((thetas[cluster] - c) ** 2).sum(1).mean() + NOISE**2)
        size = (thetas**2).sum(1).mean()
        assert rmse == pytest.approx(np.sqrt(size * (FEATURES + 1) / (ROWS - 1)), rel=0.06)
        assert rmse > 1.5 * covariance_floor(thetas, ROWS, NOISE)


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [3, 8])
def test_least_squares_of_each_client_stands_on_its_own_floor(clusters):
    assert least_squares_floor(FEATURES, ROWS, NOISE) == pytest.approx(0.106, abs=5e-4)
    (thetas,) = draws(clusters, 1)
    fitted, cluster = simulated(thetas, 0, each=900 // clusters, kind="least_squares")
    missed = ((thetas[cluster] - fitted[:, :-1]) ** 2).sum(1) + fitted[:, -1] ** 2
    assert np.sqrt(missed.mean() + NOISE**2) == pytest.approx(least_squares_floor(FEATURES, ROWS, NOISE), rel=0.01)


def simulated(thetas: np.ndarray, seed: int, each: int, kind: str = "covariance_xy") -> tuple[np.ndarray, np.ndarray]:
    """A statistic of so many clients of each cluster, (clients, length), and their clusters."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(len(thetas)), each)
    rng.shuffle(cluster)
    found = []
    for k in cluster:
        x = rng.standard_normal((ROWS, FEATURES))
        y = x @ thetas[k] + NOISE * rng.standard_normal(ROWS)
        found.append(compute([make({"kind": kind})], torch.from_numpy(x), torch.from_numpy(y), 0).vector.numpy())
    return np.array(found), cluster
