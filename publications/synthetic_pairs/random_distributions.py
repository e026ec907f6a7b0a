"""Laws of random tables: features that are tied to each other, and then a class that depends on some of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from publications.synthetic_pairs.generators import Rows
from publications.synthetic_pairs.marginals import Codes, Margin, random_margin


@dataclass(frozen=True, eq=False)
class Effect:
    """What a feature adds to the logits of the classes: by category, or times its score or the size of its score (`bent`).

    weights: (levels, classes), one level of a number and K of categories.
    """

    weights: np.ndarray
    bent: bool = False

    def logits(self, margin: Margin, x: np.ndarray) -> np.ndarray:
        """(rows, classes)."""
        if isinstance(margin, Codes):
            return self.weights[x.astype(np.int64) - 1]
        scores = margin.scores(x)
        return np.outer(np.abs(scores) - 1 if self.bent else scores, self.weights[0])


@dataclass(frozen=True, eq=False)
class RandomLaw:
    """A Gaussian copula with one factor, and a multinomial logistic law of the class.

    ties: (features,) how much of the factor is in each; effects: by the places of the features that say something of the
    class. keeps: (classes,) how likely a row of each class stays among the rows, which moves P(Y) and leaves P(X | Y).
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
        """Standard normal numbers, (rows, features), of which those of one row go together."""
        own, factor = rng.normal(size=(rows, len(self.margins))), rng.normal(size=(rows, 1))
        return self.ties * factor + np.sqrt(1 - self.ties**2) * own

    def features(self, latent: np.ndarray) -> np.ndarray:
        """x: (rows, features)."""
        return np.stack([margin.values(latent[:, at]) for at, margin in enumerate(self.margins)], -1)

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Of all effects together, without the intercepts: (rows, classes)."""
        total = np.zeros((len(x), len(self.intercepts)))
        for at, effect in self.effects.items():
            total += effect.logits(self.margins[at], x[:, at])
        return total

    def chances(self, x: np.ndarray) -> np.ndarray:
        """P(Y | X) before rows are kept or not: (rows, classes)."""
        return np.asarray(softmax(self.intercepts + self.logits(x), axis=-1))

    def with_shares(self, x: np.ndarray, shares: np.ndarray) -> "RandomLaw":
        """The same with the intercepts at which these rows have the classes in these shares."""
        logits = self.logits(x)

        def apart(intercepts: np.ndarray) -> tuple[float, np.ndarray]:
            """The mean log of what normalises, less what the shares take of it: convex, and least where they are met."""
            logs = logsumexp(logits + intercepts, axis=-1, keepdims=True)
            chances = np.exp(logits + intercepts - logs)
            return float(logs.mean() - shares @ intercepts), chances.mean(0) - shares

        found = minimize(apart, self.intercepts, jac=True, method="BFGS", options={"gtol": 1e-5})
        return replace(self, intercepts=found.x)


FEATURES, CLASSES, INFORMATIVE = (2, 20), (2, 10), (1, 5)
"""The fewest and the most of a law."""

KINDS = ("numeric", "discrete", "mixed")


def random_law(rng: np.random.Generator, kind: str) -> RandomLaw:
    """Of one of KINDS; correlations are up to 0.36, and the logits of the classes have standard deviations near 1.5."""
    count, classes = (int(rng.integers(low, high + 1)) for low, high in (FEATURES, CLASSES))
    discrete = {"numeric": np.zeros(count, bool), "discrete": np.ones(count, bool)}.get(kind, np.arange(count) % 2 == 1)
    margins = tuple(random_margin(rng, bool(one)) for one in discrete)
    informative = rng.choice(count, rng.integers(INFORMATIVE[0], min(INFORMATIVE[1], count) + 1), replace=False)
    scale = 1.5 / np.sqrt(len(informative))
    effects = {int(at): random_effect(rng, margins[at], classes, scale) for at in informative}
    law = RandomLaw(margins, rng.uniform(-0.6, 0.6, count), effects, np.zeros(classes), np.ones(classes))
    return law.with_shares(law.features(law.latent(rng, 2000)), rng.dirichlet(np.full(classes, 4.0)))


def random_effect(rng: np.random.Generator, margin: Margin, classes: int, scale: float) -> Effect:
    """Weights with this standard deviation."""
    return Effect(rng.normal(0, scale, (max(1, margin.categories), classes)), bool(rng.random() < 1 / 3))
