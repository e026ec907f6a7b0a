"""Define laws of random tables: correlated features, and a class that depends on some of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from publications.synthetic_pairs.generators import Rows
from publications.synthetic_pairs.marginals import Codes, Margin, random_margin


@dataclass(frozen=True, eq=False)
class Effect:
    """The contribution of a feature to the logits of the classes.

    Attributes:
        weights: (levels, classes), with one level for a number and K for categories.
        bent: Whether a number contributes by the size of its score, and not by the score.
    """

    weights: np.ndarray
    bent: bool = False

    def logits(self, margin: Margin, x: np.ndarray) -> np.ndarray:
        """Return the contributions: (rows, classes)."""
        if isinstance(margin, Codes):
            return self.weights[x.astype(np.int64) - 1]
        scores = margin.scores(x)
        return np.outer(np.abs(scores) - 1 if self.bent else scores, self.weights[0])


@dataclass(frozen=True, eq=False)
class RandomLaw:
    """A Gaussian copula with one factor, and a multinomial logistic law of the class.

    Attributes:
        margins: The features.
        ties: (features,) loadings on the factor.
        effects: By index of the features on which the class depends.
        intercepts: (classes,) of the logits.
        keeps: (classes,) probability that a row of a class is kept, which shifts P(Y) and leaves P(X | Y).
    """

    margins: tuple[Margin, ...]
    ties: np.ndarray
    effects: Mapping[int, Effect]
    intercepts: np.ndarray
    keeps: np.ndarray

    def __call__(self, rng: np.random.Generator, rows: int) -> Rows:
        parts: list[Rows] = []
        while sum(len(y) for _, y in parts) < rows:
            x = self.features(self.latent(rng, rows))
            logits = self.intercepts + self.logits(x)
            y = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
            stays = rng.random(rows) < self.keeps[y]
            parts.append((x[stays], y[stays]))
        x, y = (np.concatenate(column)[:rows] for column in zip(*parts, strict=True))
        return x, y

    def latent(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        """Draw standard normal numbers, (rows, features), correlated within a row."""
        own, factor = rng.normal(size=(rows, len(self.margins))), rng.normal(size=(rows, 1))
        return self.ties * factor + np.sqrt(1 - self.ties**2) * own

    def features(self, latent: np.ndarray) -> np.ndarray:
        """Return the features of latent numbers: (rows, features)."""
        return np.stack([margin.values(latent[:, at]) for at, margin in enumerate(self.margins)], -1)

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Return the sum of all effects, without the intercepts: (rows, classes)."""
        total = np.zeros((len(x), len(self.intercepts)))
        for at, effect in self.effects.items():
            total += effect.logits(self.margins[at], x[:, at])
        return total

    def chances(self, x: np.ndarray) -> np.ndarray:
        """Return P(Y | X) before rows are dropped: (rows, classes)."""
        return np.asarray(softmax(self.intercepts + self.logits(x), axis=-1))

    def with_shares(self, x: np.ndarray, shares: np.ndarray) -> "RandomLaw":
        """Set the intercepts such that these rows have the classes in these shares."""
        logits = self.logits(x)

        def apart(intercepts: np.ndarray) -> tuple[float, np.ndarray]:
            """Return a convex function of the intercepts, which is least where the shares are met, and its gradient."""
            logs = logsumexp(logits + intercepts, axis=-1, keepdims=True)
            chances = np.exp(logits + intercepts - logs)
            return float(logs.mean() - shares @ intercepts), chances.mean(0) - shares

        found = minimize(apart, self.intercepts, jac=True, method="BFGS", options={"gtol": 1e-5})
        return replace(self, intercepts=found.x)


FEATURES, CLASSES, INFORMATIVE = (2, 20), (2, 10), (1, 5)
"""The fewest and the most in a law."""

KINDS = ("numeric", "discrete", "mixed")


def random_law(rng: np.random.Generator, kind: str) -> RandomLaw:
    """Draw a law of one of KINDS; correlations are up to 0.36, and logits have standard deviations near 1.5."""
    count, classes = (int(rng.integers(low, high + 1)) for low, high in (FEATURES, CLASSES))
    discrete = {"numeric": np.zeros(count, bool), "discrete": np.ones(count, bool)}.get(kind, np.arange(count) % 2 == 1)
    margins = tuple(random_margin(rng, bool(one)) for one in discrete)
    informative = rng.choice(count, rng.integers(INFORMATIVE[0], min(INFORMATIVE[1], count) + 1), replace=False)
    scale = 1.5 / np.sqrt(len(informative))
    effects = {int(at): random_effect(rng, margins[at], classes, scale) for at in informative}
    law = RandomLaw(margins, rng.uniform(-0.6, 0.6, count), effects, np.zeros(classes), np.ones(classes))
    return law.with_shares(law.features(law.latent(rng, 2000)), rng.dirichlet(np.full(classes, 4.0)))


def random_effect(rng: np.random.Generator, margin: Margin, classes: int, scale: float) -> Effect:
    """Draw an effect whose weights have the standard deviation `scale`."""
    return Effect(rng.normal(0, scale, (max(1, margin.categories), classes)), bool(rng.random() < 1 / 3))
