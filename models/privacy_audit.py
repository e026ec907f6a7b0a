"""Lower bounds of what answers reveal, from scores of canaries: made rows of which a coin each decided who is inside.

A canary's score measures how far its own gradient is contained in what was sent. Two bounds are computed of the scores of
one run. Guesses (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846) assume nothing of the scores: if so many of the
surest guesses of the coins are right, epsilon is hardly below the bound. Few canaries can show little that way. Scores
that are normal, as those of Gaussian noise, show more: the distance of their two means in deviations is an estimate of μ,
of which `models.privacy_accounting` says the epsilon.
"""

import math
from dataclasses import dataclass

import numpy as np

_CONFIDENCE = 0.05
_Z = 1.6449  # of a normal number above which 5 % lie
_Z_OF_FAULT = 3.0902  # 0.1 %
_GUESSED = 10  # one in so many canaries at either end of the order of scores is guessed
_LEAST_GUESSED = 5
_MOST_EPSILON = 64.0


@dataclass(frozen=True)
class MeasuredMu:
    """The μ of Gaussian differential privacy that scores show.

    Attributes:
        value: The distance between the mean scores of canaries inside and outside, in deviations.
        error: Its standard error.
    """

    value: float
    error: float

    @classmethod
    def of(cls, scores: np.ndarray, inside: np.ndarray) -> "MeasuredMu":
        """Estimate it from scores, (canaries,), and from which canaries are inside, (canaries,) bool."""
        with_row, without = scores[inside], scores[~inside]
        counts = len(with_row), len(without)
        if min(counts) < 2:
            raise ValueError(f"canaries: got {counts[0]} inside and {counts[1]} outside, expected two of each")
        variance = ((counts[0] - 1) * with_row.var(ddof=1) + (counts[1] - 1) * without.var(ddof=1)) / (sum(counts) - 2)
        value = float((with_row.mean() - without.mean()) / math.sqrt(variance))
        # of a standardised difference of means (Hedges 1981)
        return cls(value, math.sqrt(1 / counts[0] + 1 / counts[1] + value**2 / (2 * sum(counts))))

    @property
    def least(self) -> float:
        """Return the least μ, in 95 % of runs at most the true one."""
        return max(self.value - _Z * self.error, 0.0)

    def exceeds(self, claimed: float) -> bool:
        """Return whether μ is above a claimed one, by more than 999 of 1,000 runs of a right mechanism show."""
        return self.value - _Z_OF_FAULT * self.error > claimed


@dataclass(frozen=True)
class Guesses:
    """Guesses of coins: the canaries with the highest scores are inside, and those with the lowest outside.

    Attributes:
        canaries: The number of all canaries.
        made: The guesses.
        right: How many of them are right.
    """

    canaries: int
    made: int
    right: int

    @classmethod
    def of(cls, scores: np.ndarray, inside: np.ndarray) -> "Guesses":
        """Guess a tenth of the coins at either end of the order of scores; the number depends on no score."""
        each = min(max(_LEAST_GUESSED, len(scores) // _GUESSED), len(scores) // 2)
        order = np.argsort(scores, kind="stable")
        right = int((~inside[order[:each]]).sum() + inside[order[-each:]].sum())
        return cls(len(scores), 2 * each, right)

    def least_epsilon(self, delta: float) -> float:
        """Return the largest epsilon under which so many right guesses have a chance below 5 %; 0 if there is none."""
        low, high = 0.0, _MOST_EPSILON
        if self.chance(low, delta) >= _CONFIDENCE:
            return 0.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (middle, high) if self.chance(middle, delta) < _CONFIDENCE else (low, middle)
        return low

    @property
    def ceiling(self) -> "Guesses":
        """Return guesses of which all are right: they show the most that so many can."""
        return Guesses(self.canaries, self.made, self.made)

    def chance(self, epsilon: float, delta: float) -> float:
        """Return the largest chance of so many right guesses, or more, if answers are (epsilon, delta)-private.

        Theorem 5.2 of Steinke et al.: with f(v) the chance that at least v of the guesses are right if each is with
        e^ε / (1 + e^ε), it is f(right) + 2 canaries δ max_i (f(right − i) − f(right)) / i.
        """
        from scipy.special import bdtrc  # imported here, because it is slow

        if not self.right:
            return 1.0
        right = np.arange(self.right, -1, -1)  # right - i for i from 0
        p = 1 / (1 + math.exp(-epsilon))
        tail = np.where(right > 0, bdtrc(np.maximum(right - 1, 0), self.made, p), 1.0)
        steps = (tail[1:] - tail[0]) / np.arange(1, len(tail))
        return float(min(1.0, tail[0] + 2 * self.canaries * delta * steps.max(initial=0.0)))
