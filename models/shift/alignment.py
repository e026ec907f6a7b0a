"""Whether a gain and an offset of the inputs make two clients alike, and whether their classes still belong together."""

from dataclasses import dataclass

import numpy as np

from models.shift.class_moments import ROWS, scaled_at_prior, standard
from models.shift.guarded import ALPHA, LEAST_EFFECT, harmonic, priors
from models.shift.moment_tests import mean_and_spread
from models.shift.pairs import Pairs
from models.shift.tables import chance, effect
from models.shift.told.summaries import LEAST_ROWS

_FLOOR = 0.1  # of a class's deviation, in deviations of all rows: pixels that never vary say nothing


@dataclass(frozen=True, eq=False)
class Alignment:
    """Asked of pairs by the verdict; `lossy` where a feature is a projection that tells less than the row does."""

    pairs: Pairs
    lossy: bool = False
    least: int = LEAST_ROWS

    def transforms(self, places: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Whether class means and deviations agree once each client's feature is scaled: (places,) bool.

        features: (places, features) which have to; the scale is the mixture's under one prior for both. Gains are positive:
        a negative one is the same as two classes that changed names. Categories have none: their numbers are places.
        """
        scaled, kept = self._scaled(places)
        statistic = np.where(kept, mean_and_spread(np.moveaxis(scaled, -3, -2)), 0.0).sum(-1)
        classes = kept.sum(-1)
        free = np.maximum(2 * classes - 2, 0)
        size = harmonic(np.where(kept[:, :, None], scaled[..., ROWS], 0.0).sum(-1))
        tested = (statistic, free)
        apart = (chance(tested) * self.pairs.counts.shape[1] < ALPHA) & (effect(tested, size) >= LEAST_EFFECT)
        return (~apart & (classes > 1) & self.pairs.numeric | ~features).all(-1)

    def broken(self, places: np.ndarray) -> np.ndarray | None:
        """How much closer classes are under the best renaming than under their names, in [0, 1]: (places,)."""
        if not self.lossy:
            return None
        from scipy.optimize import linear_sum_assignment

        scaled, kept = self._scaled(places)
        shares = np.zeros(len(places))
        for at in range(len(places)):
            there = np.flatnonzero(kept[at].all(0))
            if len(there) < 2:
                continue
            cost = _apart(scaled[at, :, 0][:, there], scaled[at, :, 1][:, there])
            named, best = np.trace(cost), cost[linear_sum_assignment(cost)].sum()
            shares[at] = (named - best) / named if named > 0 else 0.0
        return shares

    def _scaled(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Class moments in deviations of the mixture, (places, features, 2, classes, 5), and which are kept."""
        told = standard(self.pairs.moments[places])[..., :-1, :]
        kept: np.ndarray = np.all(told[..., ROWS] >= self.least, axis=-2)
        prior = priors(self.pairs.labels[places], kept)[0]
        return scaled_at_prior(np.where(kept[:, :, None, :, None], told, 0.0), prior), kept


def _apart(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """How little normals of classes overlap, summed over features: (classes, classes); each (features, classes, 5)."""
    mean, other = first[:, :, None, 1], second[:, None, :, 1]
    spread, wide = np.maximum(first[:, :, None, 2], _FLOOR), np.maximum(second[:, None, :, 2], _FLOOR)
    both = spread**2 + wide**2
    overlap = np.sqrt(2 * spread * wide / both) * np.exp(-((mean - other) ** 2) / (4 * both))
    return (1 - overlap).sum(0)
