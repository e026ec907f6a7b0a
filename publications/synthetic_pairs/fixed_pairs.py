"""Define pairs of clients with a known shift, with one, five and six features.

Every pair has the names of its true types, from models.diagnosis.guarded_tests.TYPES; no name is no shift.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from publications.synthetic_pairs.generators import Bump, Law, Logistic, Noise, Normals, Rows, drawn


@dataclass(frozen=True)
class Kinds:
    """The pairs of laws from which a row of the table is drawn, with equal chances."""

    truth: frozenset[str]
    laws: tuple[tuple[Law, Law], ...]
    noise: Noise | None = None

    def draw(self, rng: np.random.Generator, rows: tuple[int, int]) -> tuple[Rows, Rows]:
        """Draw one of the pairs, and these numbers of rows of its clients."""
        return drawn(*self.laws[rng.integers(len(self.laws))], rng, rows, self.noise)


def _one_feature() -> dict[str, Kinds]:
    normals, logistic, bump = Normals(), Logistic(), Bump()
    narrow = Normals(sds=(0.7, 1.4))
    signs, shares = (-1, 1), (0.25, 0.75)
    half = 0.6745  # half of a standard normal's rows are within this distance of 0
    laws: dict[str, list[tuple[Law, Law]]] = {
        "none": [(normals, normals), (logistic, logistic), (bump, bump)],
        "feature": [
            *((logistic, Logistic(mean=sign)) for sign in signs),
            *[(logistic, Logistic(sd=2))] * 2,  # as likely as both signs of another kind
            *((bump, Bump(mean=sign)) for sign in signs),
            *((normals, Normals(means=(sign - 1, sign + 1))) for sign in signs),
        ],
        "label": [(law, replace(law, positive=share)) for law in (normals, narrow) for share in shares],
        "concept": [
            (normals, Normals(means=(1, -1))),
            (logistic, Logistic(slope=0)),
            (logistic, Bump(within=half)),
        ],
        "label+feature": [(normals, Normals(share, (0.5, 2.5))) for share in shares],
        "label+concept": [(normals, Normals(share, (1, -1))) for share in shares],
        "feature+concept": [(logistic, Logistic(sign, 1, 2 * sign, -2)) for sign in signs],
    }
    return {name: Kinds(_types(name), tuple(pairs)) for name, pairs in laws.items()}


def _types(name: str) -> frozenset[str]:
    return frozenset(name.split("+")) - {"none"}


ONE_FEATURE: Mapping[str, Kinds] = _one_feature()
"""Truth table 1, by the names of its rows; two classes."""


def _four_normals(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.normal(size=(rows, 4))


FIVE_FEATURES: Mapping[str, Kinds] = {
    name: Kinds(_types(name), ((Normals(), law),), _four_normals)
    for name, law in [
        ("none", Normals()),
        ("feature", Normals(means=(0, 2))),
        ("label", Normals(0.75)),
        ("concept", Normals(means=(1, -1))),
    ]
}
"""Pairs for counts with noise, by the names of rows: two classes, and four features that do not depend on the class."""

FIVE_BOUNDS = (-3.0, 3.0)
"""The agreed bounds of each of the five features; rows beyond them are counted in the outer bins."""


@dataclass(frozen=True)
class SixFeatures:
    """Three classes; X0 and X1 normal, X2 tied to X0, X3 lognormal, X4 with the codes 1 to 3, X5 with heavy tails.

    The class depends on X0, X1 and X4. `added` (to X0 and X5) and `width` (of X1) apply before the class is drawn,
    `gain` (of X0 and X1) and `offset` (of X0) after it. `priors` are the class priors that are drawn.
    Class m becomes `renamed[m]`.
    """

    added: tuple[float, float] = (0.0, 0.0)
    width: float = 1.0
    codes: tuple[float, float, float] = (1 / 3, 1 / 3, 1 / 3)
    gain: tuple[float, float] = (1.0, 1.0)
    offset: float = 0.0
    exchanged: bool = False
    strength: float = 1.0
    priors: tuple[float, float, float] | None = None
    renamed: tuple[int, int, int] = (0, 1, 2)

    def __call__(self, rng: np.random.Generator, rows: int) -> Rows:
        x, y = self._labelled(rng, rows) if self.priors is None else self._to_priors(rng, rows, self.priors)
        x[:, 0] = self.gain[0] * x[:, 0] + self.offset
        x[:, 1] *= self.gain[1]
        return x, np.array(self.renamed)[y]

    def _labelled(self, rng: np.random.Generator, rows: int) -> Rows:
        noise = rng.normal(size=(rows, 4))
        x0, x1 = noise[:, 0] + self.added[0], self.width * noise[:, 1]
        code = rng.choice(3, rows, p=self.codes) + 1.0
        tails = rng.standard_t(3, rows) + self.added[1]
        x = np.stack([x0, x1, 0.7 * x0 + 0.7 * noise[:, 2], np.exp(0.8 * noise[:, 3]), code, tails], -1)
        first, second = (x1, x0) if self.exchanged else (x0, x1)
        of_code = 0.8 * (code - 2)
        logits = np.stack([0 * x0, 2 * first - second + of_code, 2 * second - first - of_code], -1)
        return x, (self.strength * logits + rng.gumbel(size=logits.shape)).argmax(-1)

    def _to_priors(self, rng: np.random.Generator, rows: int, priors: tuple[float, float, float]) -> Rows:
        """Draw classes by the priors, and the rows of each class by rejection."""
        y = rng.choice(3, rows, p=priors)
        x = np.empty((rows, 6))
        for name in range(3):
            among = np.flatnonzero(y == name)
            filled = 0
            while filled < len(among):
                candidates, classes = self._labelled(rng, rows)
                found = candidates[classes == name][: len(among) - filled]
                x[among[filled : filled + len(found)]] = found
                filled += len(found)
        return x, y


SIX_CATEGORIES = np.array([0, 0, 0, 0, 3, 0])

_SKEWED, _SWAPPED = (0.6, 0.2, 0.2), (0, 2, 1)

SIX_FEATURES: Mapping[str, tuple[frozenset[str], SixFeatures]] = {
    name: (_types(truth), law)
    for name, truth, law in [
        ("none", "none", SixFeatures()),
        ("x0 + 1", "feature", SixFeatures(added=(1, 0))),
        ("x1 sd 1.8", "feature", SixFeatures(width=1.8)),
        ("codes 0.6, 0.2, 0.2", "feature", SixFeatures(codes=_SKEWED)),
        ("x5 + 1", "feature", SixFeatures(added=(0, 1))),
        ("1.5 x0 + 0.5 after labelling", "feature", SixFeatures(gain=(1.5, 1), offset=0.5)),
        ("2 x0, 2 x1 after labelling", "feature", SixFeatures(gain=(2, 2))),
        ("label 0.6, 0.2, 0.2", "label", SixFeatures(priors=_SKEWED)),
        ("label 0.1, 0.45, 0.45", "label", SixFeatures(priors=(0.1, 0.45, 0.45))),
        ("classes 1 and 2 swapped", "concept", SixFeatures(renamed=_SWAPPED)),
        ("weights of x0 and x1 exchanged", "concept", SixFeatures(exchanged=True)),
        ("classes cycled", "concept", SixFeatures(renamed=(1, 2, 0))),
        ("label and swap", "label+concept", SixFeatures(priors=_SKEWED, renamed=_SWAPPED)),
        ("x0 + 1 and swap", "feature+label+concept", SixFeatures(added=(1, 0), renamed=_SWAPPED)),
        ("label and x5 + 1", "feature+label", SixFeatures(priors=_SKEWED, added=(0, 1))),
        ("weights 0.3", "concept", SixFeatures(strength=0.3)),
    ]
}
"""Truth table 2: the second client's law, where the first has SixFeatures(), and the types by which they differ.

Where P(X) is equal, another rule is all that differs, although P(Y) moves with it.
"""
