"""Rows drawn from what clients report, and regressions on them: whether inputs explain a rule, and what a model loses.

A class's rows have the reported share of each bin and the reported rank correlations (a Gaussian copula). No row of a
client is needed or restored.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from models.diagnosis.client_summaries.client_summary import LEAST_ROWS, Layout, Summaries
from models.diagnosis.client_summaries.common_cells import spread_counts
from models.diagnosis.client_summaries.model_predictions import Design
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.client_summaries.rank_correlations import Correlations, index_pairs, positions, rank_correlations
from models.diagnosis.guarded_tests import effective_size

_ROWS, _LEAST_DRAWN = 4000, 400  # pseudo-rows of a client, and of one of its classes
_CORRECTIONS = 2  # of the latent correlations, so that bounds and skewed values do not weaken them
_LARGEST = 0.98  # latent correlation
_LEAST_CHANCE = 1e-6
_PENALTY, _TOLERANCE, _STEPS = 10.0, 1e-4, 200


class PseudoRows(NamedTuple):
    """Rows of one client: x (rows, features), NaN if missing; y (rows,) classes; weight (rows,), adding up to its rows."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray


def draw_rows(summaries: Summaries, layout: Layout, correlations: Correlations, client: int) -> PseudoRows:
    """Draw rows of a client from its counts by class; classes that it does not report have none."""
    counts = np.maximum(summaries.counts[client], 0.0)
    labels = np.nan_to_num(summaries.labels[client])
    shown = np.flatnonzero((labels >= LEAST_ROWS) & counts[..., :-1].any((0, 1)))
    parts = []
    for label in shown.tolist():
        size = max(_LEAST_DRAWN, round(_ROWS * labels[label] / labels[shown].sum()))
        rng = np.random.default_rng([label, size])  # equal clients have equal rows
        target = _correlation_matrix(correlations, client, label)
        x = _draw_class(counts[..., label], layout, target, rng, size)
        parts.append(PseudoRows(x, np.full(size, label), np.full(size, labels[label] / size)))
    if not parts:
        return PseudoRows(np.zeros((0, counts.shape[0])), np.zeros(0, np.int64), np.zeros(0))
    return PseudoRows(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _correlation_matrix(correlations: Correlations, client: int, label: int) -> np.ndarray:
    """Return the correlations of a class, or of all rows if the class has too few: (selected, selected)."""
    values, count = correlations.values[client], len(correlations.features)
    values = np.where(np.isfinite(values[:, label]), values[:, label], np.nan_to_num(values[:, -1]))
    matrix = np.eye(count)
    first, second = index_pairs(count)
    matrix[first, second] = matrix[second, first] = values
    return matrix


def _draw_class(
    counts: np.ndarray, layout: Layout, target: np.ndarray, rng: np.random.Generator, size: int
) -> np.ndarray:
    """Draw (size, features) from counts (features, cells) and rank correlations (features, features)."""
    base, missing = rng.normal(size=(size, len(counts))), rng.random((size, len(counts)))
    base = base - base.mean(0)
    base = base @ np.linalg.inv(np.linalg.cholesky(base.T @ base / size)).T
    latent, features = 2 * np.sin(np.pi / 6 * target), np.arange(len(counts))
    x = _to_values(base @ _root(latent).T, counts, layout)
    for _ in range(_CORRECTIONS):
        reached = rank_correlations(positions(x, layout, features))[0]
        latent = np.clip(latent + np.nan_to_num(target - reached), -_LARGEST, _LARGEST)
        np.fill_diagonal(latent, 1.0)
        x = _to_values(base @ _root(latent).T, counts, layout)
    total = np.maximum(counts.sum(-1), 1e-12)
    return np.where(missing < counts[:, -1] / total, np.nan, x)


def _root(matrix: np.ndarray) -> np.ndarray:
    """Return a root of the nearest correlation matrix."""
    values, vectors = np.linalg.eigh(matrix)
    root = vectors * np.sqrt(np.maximum(values, 1e-6))
    return root / np.sqrt((root**2).sum(1, keepdims=True))


def _to_values(normals: np.ndarray, counts: np.ndarray, layout: Layout) -> np.ndarray:
    """Map normals to values with the shares of the cells, by ranks; values lie evenly within a bin."""
    size, values = len(normals), np.zeros(normals.shape)
    ranks = normals.argsort(0).argsort(0)
    position = (ranks + 0.5) / size
    for i, categories in enumerate(layout.categories):
        cells = counts[i, : layout.bins] if categories is None else counts[i, : len(categories) + 1]
        if not cells.any():
            continue
        bounds = np.concatenate([[0.0], np.cumsum(cells) / cells.sum()])
        cell = np.clip(np.searchsorted(bounds, position[:, i], side="right") - 1, 0, len(cells) - 1)
        if categories is None:
            share = np.maximum(bounds[cell + 1] - bounds[cell], 1e-12)
            inside = np.clip((position[:, i] - bounds[cell]) / share, 0.0, 1 - 1e-9)
            values[:, i] = layout.low[i] + (cell + inside) * (layout.high[i] - layout.low[i]) / layout.bins
        else:
            values[:, i] = np.append(categories, max(categories) + 1.0)[cell]
    return values


def select_for_pseudo_rows(
    summaries: Summaries, layout: Layout, correlations: Correlations
) -> tuple[Summaries, Layout, Correlations]:
    """Restrict all to the features that have correlations; others would be independent, and seem more informative."""
    chosen = correlations.features
    cut = replace(
        layout,
        names=tuple(layout.names[i] for i in chosen),
        categories=tuple(layout.categories[i] for i in chosen),
        low=layout.low[chosen],
        high=layout.high[chosen],
        missing=tuple(layout.missing[i] for i in chosen) if layout.missing else (),
    )
    counts, last = spread_counts(summaries, layout)[:, chosen], layout.cells - 1
    counts = np.concatenate([counts[..., : cut.cells - 1, :], counts[..., -1:, :]], -2)
    counted_in = None
    if summaries.counted_in is not None:
        kept = np.append(np.arange(cut.cells - 1), last)
        counted_in = summaries.counted_in[:, chosen][..., kept]
        counted_in = np.where(counted_in == last, cut.cells - 1, counted_in)
    reduced = replace(summaries, counts=counts, moments=summaries.moments[:, chosen], counted_in=counted_in)
    return reduced, cut, replace(correlations, features=np.arange(len(chosen)))


class SharedModelLoss(NamedTuple):
    """Accuracy that a shared model loses at a client against the client's own, with a 95 % interval, and log loss.

    log_loss: nats a row that the shared model loses, without what the own model gains by chance; log_loss_error: its
    standard error if both clients are alike.
    """

    loss: float
    low: float
    high: float
    own: float
    shared: float
    log_loss: float
    log_loss_error: float


@dataclass(frozen=True, eq=False)
class PseudoClients:
    """Pseudo-rows and regressions of clients, each computed once; products: as in `Design`."""

    summaries: Summaries
    layout: Layout
    correlations: Correlations
    products: tuple[tuple[int, int], ...] = ()

    @cached_property
    def _drawn(self) -> dict[int, PseudoRows]:
        return {}

    @cached_property
    def _designed(self) -> dict[int, np.ndarray]:
        return {}

    @cached_property
    def _models(self) -> dict[tuple[int, ...], np.ndarray]:
        return {}

    @cached_property
    def _design(self) -> Design:
        """Standardize by the counts of all clients, within the bounds, so that no single value decides the unit."""
        layout = self.layout
        counts = np.maximum(self.summaries.counts.sum((0, -1))[:, : layout.bins], 0.0)
        middles = (np.arange(layout.bins) + 0.5) / layout.bins * (layout.high - layout.low)[:, None]
        middles = middles + layout.low[:, None]
        total = np.maximum(counts.sum(-1), 1.0)
        centre = (counts[:, : layout.bins] * middles).sum(-1) / total
        spread = np.sqrt((counts * (middles - centre[:, None]) ** 2).sum(-1) / total)
        return Design(Query("", layout), centre, np.where(spread > 0, spread, 1.0), self.products)

    def rows(self, client: int) -> PseudoRows:
        """Return the pseudo-rows of a client."""
        if client not in self._drawn:
            self._drawn[client] = draw_rows(self.summaries, self.layout, self.correlations, client)
        return self._drawn[client]

    def matrix(self, client: int) -> np.ndarray:
        """Return the design matrix of a client's pseudo-rows."""
        if client not in self._designed:
            self._designed[client] = self._design.matrix(self.rows(client).x)
        return self._designed[client]

    def model(self, clients: Sequence[int]) -> np.ndarray:
        """Fit a regression to all rows of these clients: (classes, columns), -inf for classes that none reports."""
        key = tuple(clients)
        if key not in self._models:
            rows = [self.rows(client) for client in clients]
            self._models[key] = _fit(
                np.concatenate([self.matrix(client) for client in clients]),
                np.concatenate([part.y for part in rows]),
                np.concatenate([part.weight for part in rows]),
                self.layout.classes,
            )
        return self._models[key]

    def predicted(self, client: int, models: np.ndarray) -> np.ndarray:
        """Return the rows that a model expects at a client, (features, cells, classes), as in `check_covariates`."""
        rows, layout = self.rows(client), self.layout
        chances = _probabilities(self.matrix(client), models) * rows.weight[:, None]
        cells = layout.cells_of(rows.x)
        table = np.zeros((cells.shape[1], layout.cells, layout.classes))
        for feature in range(cells.shape[1]):
            for label in range(layout.classes):
                table[feature, :, label] = np.bincount(cells[:, feature], chances[:, label], layout.cells)
        return table

    def rule_effects(self, clients: tuple[int, int]) -> np.ndarray:
        """Return φ of letting the effect of each feature on the labels differ between two clients, (features,).

        These are score tests of the model of both clients with an intercept of each, so that all other features, and other
        inputs, are accounted for. The class that shows most counts. NaN without two classes.
        """
        rows = [self.rows(client) for client in clients]
        y, weight = (np.concatenate([getattr(part, name) for part in rows]) for name in ("y", "weight"))
        features = len(self.layout.names)
        if any(len(np.unique(part.y)) < 2 for part in rows):
            return np.full(features, np.nan)
        matrix = np.concatenate([self.matrix(client) for client in clients])
        side = np.repeat([-0.5, 0.5], [len(part.y) for part in rows])[:, None]
        owner = self._design.features
        columns = matrix[:, : len(owner)]
        nuisance = np.concatenate([matrix, side], -1)
        chances, best = _probabilities(matrix, self.model(clients)), np.zeros(features)
        for label in np.unique(y).tolist():
            residual, spread = weight * ((y == label) - chances[:, label]), weight * chances[:, label]
            spread = spread * (1 - chances[:, label])
            inverse = np.linalg.pinv(nuisance.T @ (nuisance * spread[:, None]))
            tested = side * columns
            cross = tested.T @ (nuisance * spread[:, None]) @ inverse
            scores = tested.T @ residual - cross @ (nuisance.T @ residual)
            information = tested.T @ (tested * spread[:, None]) - cross @ (nuisance.T @ (tested * spread[:, None]))
            for feature in range(features):
                own = owner == feature
                statistic = scores[own] @ np.linalg.pinv(information[np.ix_(own, own)], hermitian=True) @ scores[own]
                best[feature] = max(best[feature], statistic - own.sum())
        size = effective_size(np.array([part.weight.sum() for part in rows]))
        return np.sqrt(np.maximum(best, 0.0) / size)

    def loss(self, client: int, clients: Sequence[int]) -> SharedModelLoss | None:
        """Estimate what a model of all rows of `clients` loses at a client; None without two classes to tell apart."""
        rows = self.rows(client)
        if len(np.unique(rows.y)) < 2:
            return None
        matrix, models = self.matrix(client), (self.model((client,)), self.model(tuple(clients)))
        chances = [_probabilities(matrix, model) for model in models]
        own, shared = ((chance.argmax(-1) == rows.y).astype(np.float64) for chance in chances)
        count, total = rows.weight.sum(), sum(self.rows(of).weight.sum() for of in clients)
        share = rows.weight / count
        loss = float(share @ (own - shared))
        half = 1.96 * np.sqrt(max(float(share @ (own - shared) ** 2) - loss**2, 0.0) / count)
        own_fit, shared_fit = (
            float(share @ np.log(np.maximum(chance[np.arange(len(rows.y)), rows.y], _LEAST_CHANCE)))
            for chance in chances
        )
        # twice the log likelihood ratio is chi-squared if both are alike
        free = matrix.shape[1] * (len(np.unique(rows.y)) - 1)
        scale = (1 - count / total) / (2 * count)
        return SharedModelLoss(
            loss,
            loss - half,
            loss + half,
            float(share @ own),
            float(share @ shared),
            own_fit - shared_fit - free * scale,
            np.sqrt(2 * free) * scale,
        )


def _fit(matrix: np.ndarray, y: np.ndarray, weight: np.ndarray, classes: int) -> np.ndarray:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    weights = np.full((classes, matrix.shape[1]), np.nan)
    known = np.unique(y)
    if len(known) < 2:
        weights[known] = 0.0
        return weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of classes that inputs separate
        model = LogisticRegression(C=_PENALTY, tol=_TOLERANCE, max_iter=_STEPS).fit(matrix[:, :-1], y, weight)
    fitted = np.column_stack([model.coef_, model.intercept_])
    weights[known] = np.concatenate([np.zeros_like(fitted), fitted]) if len(fitted) == 1 else fitted
    return weights


def _probabilities(matrix: np.ndarray, weights: np.ndarray) -> np.ndarray:
    known = ~np.isnan(weights).any(-1)
    chances = np.zeros((len(matrix), len(weights)))
    chances[:, known] = softmax(matrix @ weights[known].T, axis=-1)
    return chances
