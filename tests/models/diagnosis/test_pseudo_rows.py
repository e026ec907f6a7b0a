"""Rows drawn from reports have the reported shares and correlations, and what regressions on them say is checked apart."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

from models.diagnosis.client_summaries.client_summary import Layout, Summaries, concatenate_summaries, summarize
from models.diagnosis.client_summaries.rank_correlations import Correlations
from models.diagnosis.pseudo_rows import PseudoClients, draw_rows, select_for_pseudo_rows

LAYOUT = Layout(
    ("age", "dose", "ward"), (None, None, (0.0, 2.0)), np.full(3, -4.0), np.full(3, 4.0), 16, 2, missing=(False, True, False)
)  # fmt: skip


def told(*clients, correlation=0.0):
    """What clients of (x, y) report; of every class age and dose have this correlation, and wards none."""
    summaries = concatenate_summaries([summarize(x, y, np.arange(len(y)), LAYOUT) for x, y in clients])
    values = np.zeros((len(clients), 3, 3))
    values[:, 0] = correlation
    return summaries, LAYOUT, Correlations(np.arange(3), values, np.full(values.shape, 0.001))


def patients(seed, rows=2000, weights=(1.0, 0.0), ill=0.0, missing=0.0):
    rng = np.random.default_rng(seed)
    x = np.clip(rng.normal(size=(rows, 3)), -3.9, 3.9)
    x[:, 2] = 2.0 * (rng.random(rows) < 0.3)
    y = (rng.random(rows) < 1 / (1 + np.exp(-ill - x[:, :2] @ weights))).astype(int)
    x[rng.random(rows) < missing, 1] = np.nan
    return x, y


@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.5])
def test_rows_of_a_class_have_its_shares_of_cells_its_missing_values_and_its_correlations(correlation):
    summaries, layout, correlations = told(patients(0, ill=-1.0, missing=0.2), correlation=correlation)
    rows = draw_rows(summaries, layout, correlations, 0)
    assert np.bincount(rows.y, rows.weight) == pytest.approx(summaries.labels[0])
    for label in (0, 1):
        own = rows.y == label
        cells = layout.cells_of(rows.x[own])
        for feature in range(3):
            drawn = np.bincount(cells[:, feature], minlength=layout.cells) / own.sum()
            counts = summaries.counts[0, feature, :, label]
            assert np.abs(drawn - counts / counts.sum()).max() < 0.03
        both = rows.x[own][~np.isnan(rows.x[own]).any(1)]
        assert stats.spearmanr(both[:, 0], both[:, 1]).statistic == pytest.approx(correlation, abs=0.08)


def test_rows_are_only_of_classes_that_a_client_reports_and_equal_clients_have_equal_rows():
    x, y = patients(1, 600)
    y[:] = 0
    y[:9] = 1
    summaries, layout, correlations = told((x, y), (x, y), patients(2))
    first, second, other = (draw_rows(summaries, layout, correlations, client) for client in range(3))
    assert np.unique(first.y).tolist() == [0]
    assert first.weight.sum() == pytest.approx(591)
    assert (first.x.tobytes(), first.y.tobytes()) == (second.x.tobytes(), second.y.tobytes())
    assert np.unique(other.y).tolist() == [0, 1]
    nothing = Summaries(
        *(part[:1] * 0 for part in (summaries.rows, summaries.labels, summaries.counts, summaries.moments))
    )
    assert [len(part) for part in draw_rows(nothing, layout, correlations, 0)] == [0, 0, 0]


def test_a_model_expects_as_many_rows_of_each_class_as_it_was_fitted_to_in_the_cells_where_rows_are():
    clients = PseudoClients(*told(patients(3), patients(4, weights=(-1.0, 0.0))))
    own, other = (clients.predicted(0, clients.model((client,))) for client in (0, 1))
    rows = clients.rows(0)
    for feature in range(3):
        np.testing.assert_allclose(own[feature].sum(0), clients.summaries.labels[0], rtol=1e-3)
        held = np.bincount(LAYOUT.cells_of(rows.x)[:, feature], rows.weight, LAYOUT.cells)
        for table in (own, other):
            np.testing.assert_allclose(table[feature].sum(-1), held)
    old = np.flatnonzero(own[0].sum(-1))[-3:]  # of high age
    assert own[0, old, 1].sum() > own[0, old, 0].sum()
    assert other[0, old, 1].sum() < other[0, old, 0].sum()


def test_the_effect_of_a_feature_on_the_rule_is_that_of_a_likelihood_ratio_test_with_all_others_in_the_model():
    clients = PseudoClients(*told(patients(5), patients(6, weights=(1.0, 0.25))))
    found = clients.rule_effects((0, 1))
    rows = [clients.rows(client) for client in (0, 1)]
    y, weight = (np.concatenate([getattr(part, name) for part in rows]) for name in ("y", "weight"))
    matrix = np.concatenate([clients.matrix(client)[:, :-1] for client in (0, 1)])
    side = np.repeat([-0.5, 0.5], [len(part.y) for part in rows])[:, None]

    def log_likelihood(columns):
        model = LogisticRegression(C=1e6, tol=1e-8, max_iter=1000).fit(columns, y, weight)
        return float(weight @ model.predict_log_proba(columns)[np.arange(len(y)), y])

    without, size = log_likelihood(np.hstack([matrix, side])), 1000  # n m / (n + m)
    owner = clients._design.features
    for feature in range(3):
        own = matrix[:, owner[: matrix.shape[1]] == feature]
        ratio = 2 * (log_likelihood(np.hstack([matrix, side, side * own])) - without)
        expected = np.sqrt(max(ratio - own.shape[1], 0) / size)
        assert found[feature] == pytest.approx(expected, abs=0.02)
    assert found.argmax() == 1
    one_class = patients(7, 300)[0], np.zeros(300, int)
    assert np.isnan(PseudoClients(*told(patients(5), one_class)).rule_effects((0, 1))).all()


def test_a_shared_model_of_equal_clients_loses_nothing_but_what_the_own_model_gains_by_chance():
    x, y = patients(8)
    clients = PseudoClients(*told((x, y), (x, y), (x, y)))
    loss, free = clients.loss(0, (0, 1, 2)), clients.matrix(0).shape[1]
    others = 2 / 3  # of the rows
    assert abs(loss.loss) < 0.002
    assert loss.log_loss == pytest.approx(-free * others / 4000, abs=2e-5)
    assert loss.log_loss_error == pytest.approx(np.sqrt(2 * free) * others / 4000)


def test_a_shared_model_loses_what_both_models_say_of_the_rows_of_a_client():
    clients = PseudoClients(*told(patients(9), patients(10, weights=(-1.0, 0.0))))
    rows, loss = clients.rows(0), clients.loss(0, (0, 1))
    matrix = clients.matrix(0)
    own, shared = ((np.diff((matrix @ clients.model(of).T), axis=1)[:, 0] > 0) == rows.y for of in ((0,), (0, 1)))
    share = rows.weight / rows.weight.sum()
    assert (loss.own, loss.shared) == pytest.approx((share @ own, share @ shared))
    assert loss.loss == pytest.approx(loss.own - loss.shared)
    assert loss.loss > 0.1
    difference = own.astype(float) - shared
    error = np.sqrt(share @ (difference - loss.loss) ** 2 / 2000)
    assert (loss.low, loss.high) == pytest.approx((loss.loss - 1.96 * error, loss.loss + 1.96 * error))
    assert loss.log_loss > 0.05


def test_rows_are_of_the_features_that_have_correlations_with_missing_values_last():
    summaries, layout, correlations = told(patients(11, missing=0.2))
    chosen = Correlations(np.array([1, 2]), correlations.values[:, 2:], correlations.variances[:, 2:])
    reduced, cut, renumbered = select_for_pseudo_rows(summaries, layout, chosen)
    assert (cut.names, cut.categories, cut.missing) == (("dose", "ward"), (None, (0.0, 2.0)), (True, False))
    assert renumbered.features.tolist() == [0, 1]
    np.testing.assert_array_equal(reduced.counts[..., -1, :], summaries.counts[:, [1, 2], -1])
    np.testing.assert_array_equal(reduced.counts.sum(-2), summaries.counts[:, [1, 2]].sum(-2))
    wide = replace(layout, categories=(None, None, tuple(map(float, range(20)))))  # more cells than bins
    of_wide = summarize(patients(12)[0], patients(12)[1], np.arange(2000), wide)
    numbers = Correlations(np.arange(2), correlations.values[:, :1], correlations.variances[:, :1])
    reduced, cut, _ = select_for_pseudo_rows(of_wide, wide, numbers)
    assert reduced.counts.shape[2] == cut.cells < wide.cells
    np.testing.assert_array_equal(reduced.counts.sum(-2), of_wide.counts[:, :2].sum(-2))
    np.testing.assert_array_equal(reduced.counts[..., -1, :], of_wide.counts[:, :2, -1])
