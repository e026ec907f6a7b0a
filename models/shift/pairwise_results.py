"""Results for all pairs of clients, computed a number of them at a time: verdicts, alignment, and inconclusive pairs."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from models.shift.chi_square import chance, effect
from models.shift.classify import FEWEST, Verdicts, among, classify_pairs
from models.shift.client_summaries.client_summary import LEAST_ROWS, Layout, Summaries, joined, without_each
from models.shift.moment_tests import ROWS, mean_and_spread, scaled_at_prior, standard
from models.shift.nested_tests import ALPHA, LEAST_EFFECT, Evidence, evidence, harmonic, priors
from models.shift.pairwise_tables import Pairs, guessed, most_untold, side_by_side

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


WHY = ("rows", "untold", "apart", "rough", "constant")
"""Too few rows; a client that may tell nothing of its rows; no class that both tell; none with as many rows as the verdict
needs; no feature that varies within such a class."""


def is_conclusive(pairs: Pairs) -> np.ndarray:
    """Whether each client tells more than its number of rows: (pairs, 2) bool."""
    return np.isfinite(pairs.moments[..., ROWS]).any((1, 3))


def reason(pairs: Pairs, least: int = LEAST_ROWS) -> np.ndarray:
    """The first of WHY that holds, the last where none does, if a pair is undetermined: (pairs,) places.

    least: rows of a class that the verdict needs on both sides.
    """
    rows = np.nan_to_num(pairs.moments[..., :-1, ROWS]).min(2)
    most = rows.max((1, 2), initial=0)
    reasons = [(pairs.rows < FEWEST).any(-1), ~is_conclusive(pairs).all(-1), most < LEAST_ROWS, most < least]
    return np.select(reasons, range(len(reasons)), len(reasons))


DISCOVERIES = 0.05
"""Share of false ones among the pairs that are said to differ (Benjamini and Hochberg 1995)."""

_AT_ONCE = 2**27  # bytes of one table of a number of pairs; some ten such are held


@dataclass(frozen=True, eq=False)
class Findings:
    """Of pairs, in the order asked for, (pairs,) or (pairs, features).

    chance: of labels and features as different where nothing differs, for all hypotheses of the pair together: P(Y) and
    P(X | Y), or P(X) where no class is compared; labels, moved: whether P(Y) and any feature's P(X) differ, as margins also
    do under other types of shift; parts: φ of what the verdict names, by feature: of the odds ratios under concept shift,
    else of P(X) under one prior, which `inputs` has of every pair; overlap: what shares of rows lie in the same bins, of the
    worst feature, NaN where no counts were told; tells: (pairs, 2) bool, whether a client told more than its number of rows;
    why: a place in unclear.WHY, of what stands in the way where nothing is said.
    """

    first: np.ndarray
    second: np.ndarray
    rows: np.ndarray
    verdicts: Verdicts
    chance: np.ndarray
    labels: np.ndarray
    moved: np.ndarray
    parts: np.ndarray
    inputs: np.ndarray
    overlap: np.ndarray
    tells: np.ndarray
    why: np.ndarray


Look = Callable[[Pairs], Evidence]


def findings(
    told: Summaries,
    layout: Layout,
    first: np.ndarray,
    second: np.ndarray,
    lossy: bool = False,
    look: Look = evidence,
    least: int = LEAST_ROWS,
    say: Callable[[int], None] | None = None,
) -> Findings:
    """Of the pairs of places first[i] and second[i]; `say` hears how many pairs are done.

    `look` finds the evidence, of classes of `least` rows on both sides.
    """
    step = max(1, _AT_ONCE // max(16 * told.counts[0].size, 1))
    parts = []
    for at in range(0, max(len(first), 1), step):
        pairs = side_by_side(told, layout, first[at : at + step], second[at : at + step])
        parts.append(_of(pairs, look(pairs), lossy, least, bool(layout.targets)))
        if say:
            say(min(at + step, len(first)))
    columns = [np.concatenate(column) for column in zip(*(columns for _, columns in parts), strict=True)]
    named = Verdicts(*(np.concatenate([getattr(v, f.name) for v, _ in parts]) for f in fields(Verdicts)))
    return Findings(first, second, columns[0], among(named, find_differences(columns[1])), *columns[1:])


def find_differences(chances: np.ndarray) -> np.ndarray:
    """Which pairs differ at all, so that of those that are said to, few do not."""
    from scipy.stats import false_discovery_control

    return false_discovery_control(chances) <= DISCOVERIES if len(chances) else np.zeros(0, bool)


def against_the_rest(told: Summaries) -> Summaries:
    """Each client, and behind them for each the others together: (2 clients)."""
    rows = told.rows.sum() - told.rows
    rest = Summaries(
        rows,
        _labels_of_others(told, rows),
        told.counts.sum(0) - told.counts,
        without_each(told.moments),
        None if told.noise is None else told.noise.sum(0) - told.noise,
    )
    return joined([told, rest])


def _labels_of_others(told: Summaries, rows: np.ndarray) -> np.ndarray:
    """(clients, classes), NaN where none of the others tells a class.

    Those that do not tell it are taken to have together as many as make the class as frequent as with the client itself, as
    far as that can be. If they counted as none, a class that is rare everywhere would seem to be missing from the others.
    """
    known, silent = np.nan_to_num(told.labels), np.isnan(told.labels)
    least, quiet = known.sum(0) - known, silent.sum(0) - silent
    share = np.divide(known, told.rows[:, None], out=np.zeros_like(known), where=told.rows[:, None] > 0)
    most = most_untold(told.labels, told.rows)
    left = np.maximum(rows - least.sum(-1), 0)
    more = guessed(share * rows[:, None] - least, most.sum(0) - most, left)
    return np.where(quiet < len(rows) - 1, least + more, np.nan)


def alike(first: np.ndarray, second: np.ndarray, differ: np.ndarray, clients: int) -> list[list[int]]:
    """Groups of clients most of whose pairs do not differ, by average linkage; places in ascending order."""
    from scipy.cluster import hierarchy

    if clients < 2:
        return [[at] for at in range(clients)]
    apart = np.zeros((clients, clients))
    apart[first, second] = apart[second, first] = differ
    cut = hierarchy.fcluster(hierarchy.linkage(apart[np.triu_indices(clients, 1)], "average"), 0.5, "distance")
    return sorted(np.flatnonzero(cut == group).tolist() for group in np.unique(cut))


def _chance(found: Evidence) -> np.ndarray:
    features = found.bins.shape[1]
    compared = np.where(found.tested[:, None], found.chances["bins_in_classes"], found.chances["bins"])
    least = compared.min(-1, initial=1.0) * features
    return np.minimum(2 * np.minimum(found.chances["labels"], least), 1.0)


def _of(
    pairs: Pairs, found: Evidence, lossy: bool, least: int, numbers: bool
) -> tuple[Verdicts, tuple[np.ndarray, ...]]:
    """The verdicts, and what Findings has besides."""
    named = classify_pairs(found, pairs.rows, Alignment(pairs, lossy), numbers)
    concept = named.types[:, 2:]
    moved: np.ndarray = np.any(found.bins, axis=-1)
    inputs = np.minimum(found.effects["at_mean"], found.effects["bins"])
    parts = np.where(concept, found.effects["interaction"], inputs)
    parts = np.where(found.tested[:, None], parts, found.effects["bins"])
    cells = np.maximum(pairs.counts.sum(-1), 0)  # under noise there may be less than none
    total = cells.sum(-1, keepdims=True)
    shares = np.divide(cells, total, out=np.zeros_like(cells), where=total > 0)
    overlap = np.where(total.any((1, 2, 3)), shares.min(2).sum(-1).min(-1, initial=1.0), np.nan)
    return named, (
        pairs.rows,
        _chance(found),
        found.labels,
        moved,
        parts,
        inputs,
        overlap,
        is_conclusive(pairs),
        reason(pairs, least),
    )
