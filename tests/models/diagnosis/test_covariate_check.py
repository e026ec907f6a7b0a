"""Whether models foresee how two clients' odds ratios differ: tables with known odds, SciPy's fit, laws that are known."""

from collections import Counter

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import chi2, chi2_contingency
from sklearn.linear_model import LogisticRegression

from models.diagnosis import chi_square
from models.diagnosis.client_summaries.client_summary import Layout, Summaries
from models.diagnosis.name_shift_types import check_covariates
from publications.synthetic_pairs.evaluate_verdicts import named_types, opinion, second_opinion
from publications.synthetic_pairs.families import FAMILIES, PairRequest
from publications.synthetic_pairs.generators import KnownPair


def poisson_fit(table, start):
    """The counts with the margins of two that are as near to the table as they can be, with this start, by SciPy."""
    clients, bins, classes = (index.ravel() for index in np.indices(table.shape))
    hot = [np.eye(table.shape[at])[index] for at, index in enumerate((clients, bins, classes))]
    both = [(hot[a][:, :, None] * hot[b][:, None]).reshape(table.size, -1) for a, b in ((0, 1), (0, 2), (1, 2))]
    design, offset, seen = np.concatenate(both, 1), np.log(start.ravel()), table.ravel()

    def loss(weights):
        logs = offset + design @ weights
        rates = np.exp(logs)
        return (rates - seen * logs).sum(), design.T @ (rates - seen)

    found = minimize(loss, np.zeros(design.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-6, "maxiter": 5000})
    return np.exp(offset + design @ found.x).reshape(table.shape)


def test_counts_fitted_from_a_start_are_the_poisson_regression_with_its_logarithm_as_offset():
    rng = np.random.default_rng(0)
    table, start = rng.integers(20, 90, (2, 4, 3)).astype(float), rng.uniform(5, 50, (2, 4, 3))
    np.testing.assert_allclose(
        chi_square.fit_margins(table[None], start[None])[0], poisson_fit(table, start), rtol=1e-3
    )


def told_of(counts, categories=None):
    """Two clients' counts of one feature, (2, cells, classes), as they tell them; the last cell is of missing values."""
    classes = counts.shape[-1]
    cells = np.concatenate([counts, np.zeros((2, 1, classes))], 1)
    cells = np.concatenate([cells, np.zeros((*cells.shape[:2], 1))], -1)[:, None]
    labels = counts.sum(1)
    summaries = Summaries(labels.sum(-1), labels, cells, np.full((2, 1, classes + 1, 5), np.nan))
    layout = Layout(("a",), (categories,), np.array([0.0]), np.array([1.0]), counts.shape[1], classes)
    return summaries, layout


def asked(counts, by_first, by_second):
    """By models that each foresee (2, cells, classes)."""
    told, layout = told_of(counts)
    models = np.stack([by_first, by_second], 1)[:, :, None]
    models = np.concatenate([models, np.zeros((*models.shape[:3], 1, models.shape[-1]))], -2)
    return [bool(of[0]) for of in check_covariates(told, layout, models, np.array([0]), np.array([1]))]


RULE = np.array([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6], [0.2, 0.8]])
OTHER = RULE[::-1]
ROWS = np.array([[300, 300, 300, 300], [100, 300, 500, 300]])[..., None]


def test_odds_that_differ_as_both_models_foresee_are_explained_and_so_are_labels_that_do():
    counts = ROWS * np.stack([RULE, OTHER])
    assert asked(counts, counts, counts) == [True, True]


@pytest.mark.parametrize("place", [0, 1])
def test_what_one_model_alone_foresees_is_not_explained(place):
    counts, flat = ROWS * np.stack([RULE, OTHER]), ROWS * np.stack([RULE, RULE])
    models = [counts, counts]
    models[place] = flat
    assert asked(counts, *models) == [False, False]


def test_odds_that_do_not_differ_are_none_to_be_explained():
    counts = ROWS * np.stack([RULE, RULE])
    assert asked(counts, counts, counts) == [False, False]


def test_a_model_that_says_nothing_explains_nothing():
    counts = ROWS * np.stack([RULE, OTHER])
    assert asked(counts, counts, np.zeros_like(counts)) == [False, False]


def test_where_odds_are_as_foreseen_and_labels_are_more_frequent_than_that_the_rule_alone_is_explained():
    expected = ROWS * np.stack([RULE, OTHER])
    counts = expected.copy()
    counts[1, :, 1] *= 2
    assert asked(counts, expected, expected) == [True, False]


def test_where_a_class_is_compared_that_models_do_not_know_the_pair_stays_as_it_was():
    """Its rule may have changed, whatever those of the others did."""
    small = np.full((2, 4, 1), 3.0)
    small[0, 0], small[1, 3] = 30.0, 30.0
    counts = ROWS * np.stack([RULE, OTHER])
    silent = np.concatenate([counts, np.zeros_like(small)], -1)
    assert asked(np.concatenate([counts, small], -1), silent, silent) == [False, False]
    assert asked(np.concatenate([counts, np.zeros_like(small)], -1), silent, silent) == [True, True]


def a_curved_rule(seed, rows, widened, inside):
    """Class 1 with this chance where x0 is near 0, else with the other one: no linear regression sees it."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2)) * [widened, 1]
    near = np.abs(x[:, 0]) < 0.6745 * widened
    return x, (rng.random(rows) < np.where(near, inside, 1 - inside)).astype(int)


def score_test_accepts(pair, rng):
    """Of bins of a regression's logit and Y on both clients, as reference 6.6 has it: by scikit-learn and SciPy alone."""
    (x, y), _ = pair.clients
    half = rng.random(len(y)) < 0.5
    model = LogisticRegression(C=10).fit(x[half], y[half])
    clients = [(x[~half], y[~half]), pair.clients[1]]
    scores = [model.decision_function(x) for x, _ in clients]
    cuts = np.quantile(np.concatenate(scores), np.linspace(0, 1, 11)[1:-1])
    chi_square = [
        [np.bincount(np.searchsorted(cuts, s)[y == c], minlength=10) for c in (0, 1)]
        for s, (_, y) in zip(scores, clients, strict=True)
    ]
    statistic = sum(
        chi2_contingency(np.array(chi_square)[:, :, cell], correction=False).statistic for cell in range(10)
    )
    return chi2.sf(statistic, 10) > 0.01


def test_a_changed_rule_that_no_linear_regression_sees_stays_one_and_to_a_test_of_scores_it_would_be_none():
    clients = (a_curved_rule(1, 2000, 1.0, 0.9), a_curved_rule(2, 1000, 1.6, 0.1))
    pair = KnownPair(clients, 2, np.zeros(2, np.int64), frozenset({"feature", "concept"}))
    assert score_test_accepts(pair, np.random.default_rng(0))
    assert opinion(pair).verdicts["guarded"] == second_opinion(pair, np.random.default_rng(0))[0] == "feature+concept"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "pairs", "first", "then"),
    [("x1 sd 1.8", 12, 12, 12), ("x0 + 1 and swap", 4, 4, 4), ("none", 8, 8, 8)],
)
def test_the_second_look_names_inputs_that_go_together_and_leaves_a_changed_rule_and_what_is_alike(
    row, pairs, first, then
):
    """Of the first pairs of 2,000 and 1,000 rows of table 2; docs/results/shift-types.json has the figures of all."""
    family = FAMILIES["six_features"]
    truth = named_types(family.truths[row])
    right = Counter(before=0, after=0)
    for number in range(pairs):
        pair = family.draw(PairRequest(row, (2000, 1000)), 22, number)
        said = opinion(pair).verdicts["guarded"], second_opinion(pair, np.random.default_rng([9, number]))[0]
        right.update(before=said[0] == truth, after=said[1] == truth)
    assert right == {"before": first, "after": then}
