"""The laws that pairs are drawn from have the shift that they say: against the laws' own integrals, on many rows."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import kstest, norm

from publications.synthetic_pairs.fixed_pairs import ONE_FEATURE, SIX_CATEGORIES, SIX_FEATURES, SixFeatures
from publications.synthetic_pairs.generators import Bump, Logistic, Normals, drawn, with_outlier

ROWS = 40000
CLOSE = 4 * 0.5 / np.sqrt(ROWS)  # four standard errors of a share


def test_within_a_class_normals_are_normal_and_classes_have_their_shares():
    x, y = Normals(0.3, (-1, 2), (0.7, 1.4))(np.random.default_rng(0), ROWS)
    assert y.mean() == pytest.approx(0.3, abs=CLOSE)
    for name, (mean, sd) in enumerate([(-1, 0.7), (2, 1.4)]):
        assert kstest(x[y == name, 0], norm(mean, sd).cdf).pvalue > 0.001


@pytest.mark.parametrize(
    ("law", "chance"),
    [
        (Logistic(1, 2, -0.5, 1.5), lambda x: expit(-0.5 + 1.5 * x)),
        (Bump(1, 0.6745), lambda x: np.where(np.abs(x) < 0.6745, 0.95, 0.05)),
    ],
)
def test_given_x_the_class_has_the_laws_chance_at_every_x(law, chance):
    x, y = law(np.random.default_rng(1), ROWS)
    x = x[:, 0]
    assert kstest(x, norm(law.mean, getattr(law, "sd", 1)).cdf).pvalue > 0.001
    expected = chance(x)
    for low, high in zip(
        *(np.quantile(x, np.linspace(0, 1, 9)[place]) for place in (slice(0, 8), slice(1, 9))), strict=True
    ):
        among = (x >= low) & (x <= high)
        error = np.sqrt((expected[among] * (1 - expected[among])).sum()) / among.sum()
        assert y[among].mean() == pytest.approx(expected[among].mean(), abs=4 * error)


def test_an_outlier_is_one_row_more_and_noise_changes_no_row():
    plain = drawn(Normals(), Normals(), np.random.default_rng(2), (50, 50))
    far = drawn(Normals(), with_outlier(Normals()), np.random.default_rng(2), (50, 50))
    noisy = drawn(
        Normals(), Normals(), np.random.default_rng(2), (50, 50), lambda rng, rows: rng.normal(size=(rows, 2))
    )
    np.testing.assert_array_equal(far[1][0], np.append(plain[1][0], [[100]], 0))
    assert far[1][1][-1] == 1
    for (x, y), (wide, labels) in zip(plain, noisy, strict=True):
        np.testing.assert_array_equal(x, wide[:, :1])
        np.testing.assert_array_equal(y, labels)


def law_of_x_and_y(law) -> tuple[float, np.ndarray]:
    """P(Y = 1), and P(X <= x | Y = 0 and 1) at some x, by integrals of the law's densities: (2, points)."""
    points = np.linspace(-3, 3, 5)
    if isinstance(law, Normals):
        return law.positive, np.array([norm.cdf(points, *moments) for moments in zip(law.means, law.sds, strict=True)])
    jumps = [-law.within, law.within] if isinstance(law, Bump) else None
    sd = getattr(law, "sd", 1.0)

    def joint(name: int, upper: float) -> float:
        def density(x: float) -> float:
            one = (0.95 if abs(x) < law.within else 0.05) if jumps else expit(law.intercept + law.slope * x)
            return norm.pdf(x, law.mean, sd) * (one if name else 1 - one)

        inside = [jump for jump in jumps or [] if jump < upper]
        return quad(density, law.mean - 12, upper, points=inside or None, limit=200)[0]

    whole = np.array([joint(name, law.mean + 12) for name in (0, 1)])
    return float(whole[1]), np.array([[joint(name, x) / whole[name] for x in points] for name in (0, 1)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_FEATURE)
def test_of_every_pair_of_the_first_table_p_y_and_p_x_differ_or_not_as_its_types_say(name):
    """Label shift alone leaves P(X | Y). P(Y) may move under feature shift, not where concept stands without label."""
    kind = ONE_FEATURE[name]
    for first, second in kind.laws:
        (share, within), (other_share, other_within) = law_of_x_and_y(first), law_of_x_and_y(second)
        x, other_x = (
            (1 - p) * of_class[0] + p * of_class[1] for p, of_class in ((share, within), (other_share, other_within))
        )
        moved = {
            "classes": abs(share - other_share) > 1e-4,
            "x": np.abs(x - other_x).max() > 1e-6,
            "x within classes": np.abs(within - other_within).max() > 1e-6,
        }
        if kind.truth == set():
            assert not any(moved.values())
        elif kind.truth == {"label"}:
            assert moved == {"classes": True, "x": True, "x within classes": False}
        else:
            assert moved["x within classes"]
            assert "feature" not in kind.truth or moved["x"]
            assert moved["x"] or kind.truth == {"concept"}
            assert "label" not in kind.truth or moved["classes"]
            assert kind.truth not in ({"concept"}, {"feature", "concept"}) or not moved["classes"]


def test_a_pair_of_the_first_table_is_one_of_its_kinds():
    kind = ONE_FEATURE["feature"]
    drawings = [kind.draw(np.random.default_rng(seed), (50, 50))[1][0] for seed in range(30)]
    assert all(x.shape == (50, 1) for x in drawings)
    wide = np.mean([x.std() > 1.7 for x in drawings])
    assert 0 < wide < 1


def test_of_the_second_table_classes_follow_the_logits_and_features_what_they_are_called():
    x, y = SixFeatures()(np.random.default_rng(0), ROWS)
    of_code = 0.8 * (x[:, 4] - 2)
    logits = np.stack([0 * y, 2 * x[:, 0] - x[:, 1] + of_code, 2 * x[:, 1] - x[:, 0] - of_code], -1)
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for name in range(3):
        assert (y == name).mean() == pytest.approx(chances[:, name].mean(), abs=CLOSE)
        likely = chances[:, name] > 0.6
        assert (y[likely] == name).mean() == pytest.approx(
            chances[likely, name].mean(), abs=4 * 0.5 / np.sqrt(likely.sum())
        )
    assert set(x[:, 4]) == {1, 2, SIX_CATEGORIES[4]}
    assert np.corrcoef(x[:, 0], x[:, 2])[0, 1] == pytest.approx(np.sqrt(0.5), abs=0.02)
    assert kstest(np.log(x[:, 3]), norm(0, 0.8).cdf).pvalue > 0.001


def test_priors_are_met_and_leave_every_class_its_rows():
    """P(X | Y), which label shift keeps."""
    truth, law = SIX_FEATURES["label 0.6, 0.2, 0.2"]
    x, y = SixFeatures()(np.random.default_rng(0), ROWS)
    other, labels = law(np.random.default_rng(1), ROWS)
    assert truth == {"label"}
    np.testing.assert_allclose(np.bincount(labels) / ROWS, [0.6, 0.2, 0.2], atol=CLOSE)
    for name in range(3):
        for feature in (0, 1, 5):
            assert kstest(x[y == name, feature], other[labels == name, feature]).pvalue > 0.001


@pytest.mark.parametrize("name", SIX_FEATURES)
def test_of_the_second_table_p_y_moves_where_its_types_say_label_and_elsewhere_with_x0_and_x1_or_a_rule(name):
    truth, law = SIX_FEATURES[name]
    (_, y), (_, other) = SixFeatures()(np.random.default_rng(2), ROWS), law(np.random.default_rng(3), ROWS)
    moved = np.abs(np.bincount(y) - np.bincount(other)).max() / ROWS > 2 * CLOSE
    of_features = law.added[0] != 0 or law.width != 1 or law.codes[0] > 0.5
    of_rule = law.renamed == (1, 2, 0) or law.strength != SixFeatures().strength
    assert moved == ("label" in truth or of_features or of_rule)


@pytest.mark.parametrize("name", ["classes cycled", "weights 0.3"])
def test_another_rule_of_the_second_table_leaves_the_inputs_as_they_are(name):
    truth, law = SIX_FEATURES[name]
    (x, _), (other, _) = SixFeatures()(np.random.default_rng(2), ROWS), law(np.random.default_rng(3), ROWS)
    assert truth == {"concept"}
    assert all(kstest(x[:, feature], other[:, feature]).pvalue > 0.001 for feature in range(x.shape[1]))
