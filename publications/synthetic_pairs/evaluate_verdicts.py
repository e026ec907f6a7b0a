"""What verdicts say of a pair whose shift is known, and whether the features that carry the shift are ranked first.

What is said of a pair whose shift is known once inputs and rule that both seem to differ are looked at again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from models.shift import moment_tests, nested_tests
from models.shift.classify import check_covariates
from models.shift.client_summaries.client_summary import Layout, Summaries, columns, joined, summary
from models.shift.client_summaries.gaussian_mechanism import (
    as_precise,
    counts_sensitivity,
    drawable,
    from_noisy,
    noisy,
    rho,
    sigma,
)
from models.shift.client_summaries.model_predictions import (
    Design,
    apportioned,
    fitted_halves,
    in_both_halves,
    predicted_counts,
    predictions_on,
)
from models.shift.client_summaries.query import Query
from models.shift.fomichev_distances import Readings, distance_at_equal_priors, statistics_of
from models.shift.fomichev_verdict import judged
from models.shift.nested_tests import TYPES
from models.shift.pairwise_results import Findings, Look, findings
from publications.synthetic_pairs.generators import KnownPair

LOOKS: Mapping[str, Look] = {"guarded": nested_tests.evidence, "moments": moment_tests.moment_evidence}
JUDGES = (*LOOKS, "paper")

READINGS = Readings(one_row="absent")
"""Of the printed rule, as in the published measurements of it: a class with one row has no posterior."""

_BINS, _REACH = 32, 3.0  # bins of numbers, within so many standard deviations of the mean of both clients
_NOISY_BINS, _DELTA = 8, 1e-5  # of what is told with noise, which grows with the bins


@dataclass(frozen=True)
class Opinion:
    """said: by each judge the names of the types, joined, `none` or `undetermined`.

    distances: of the printed rule, by name, the largest over features. ranked: whether `guarded` ranks all features that
    carry the shift before all others, and whether its first one does; None of pairs where no feature is said to.
    """

    said: Mapping[str, str]
    distances: Mapping[str, float]
    ranked: tuple[bool, bool] | None


def opinion(pair: KnownPair) -> Opinion:
    """Of one pair alone, as two clients would hear it."""
    layout = layout_of(pair)
    told = joined([summary(x, y, different(x), layout) for x, y in pair.clients])
    one, other = np.array([0]), np.array([1])
    found = {name: findings(told, layout, one, other, look=look) for name, look in LOOKS.items()}
    said = {name: verdict_of(of_one) for name, of_one in found.items()}
    statistics = statistics_of(pair.clients, pair.classes, pair.categories)
    both = np.array([[0, 1]])
    printed = judged(statistics, both, READINGS)
    equal = distance_at_equal_priors(statistics.of(slice(0, 1)), both, READINGS, classes="own")
    distances = {
        "D_X": printed.features.largest,
        "D_Y": printed.labels,
        "D_Y|X": printed.concepts.largest,
        "D_Y|X, mean": printed.concepts.mean,
        "D_Y|X, equal priors": equal[:, 0],  # of the first feature
    }
    return Opinion(
        {**said, "paper": named(printed.types[0])},
        {name: float(values[0]) for name, values in distances.items()},
        _ranked(found["guarded"].parts[0], pair.shifted),
    )


def opinion_under_noise(pair: KnownPair, epsilon: float, rng: np.random.Generator) -> Opinion:
    """The same where both tell counts with noise from rng; `unaware` is a guarded verdict that knows of none."""
    layout = layout_of(pair, _NOISY_BINS)
    size = sigma(counts_sensitivity(len(layout.names)), rho(epsilon, _DELTA))
    counts = np.stack([layout.counts(x, y) for x, y in pair.clients]).astype(np.int64)
    told = from_noisy(noisy(counts, size, rng), layout, size)
    one, other = np.array([0]), np.array([1])
    aware = findings(as_precise(told, layout), layout, one, other)
    unaware = findings(replace(drawable(told), noise=None), layout, one, other)
    return Opinion({"guarded": verdict_of(aware), "unaware": verdict_of(unaware)}, {}, None)


def verdict_of(found: Findings) -> str:
    """What is said of the first pair."""
    return "undetermined" if found.verdicts.undetermined[0] else named(found.verdicts.types[0])


def named(types: np.ndarray) -> str:
    """The names of a verdict, (3,), joined: `none`, `label`, `feature+concept`."""
    return "+".join(name for name, there in zip(TYPES, types, strict=True) if there) or "none"


def named_types(truth: frozenset[str]) -> str:
    """The same of a set of names."""
    return named(np.isin(TYPES, list(truth)))


def layout_of(pair: KnownPair, bins: int = _BINS) -> Layout:
    """Bins within agreed bounds, else three standard deviations of the mean of both clients; and the codes of categories."""
    x = np.concatenate([x for x, _ in pair.clients])
    middle, reach = x.mean(0), _REACH * np.where(x.std(0) > 0, x.std(0), 1.0)
    low, high = (middle - reach, middle + reach) if pair.bounds is None else np.full((x.shape[1], 2), pair.bounds).T
    codes = tuple(tuple(np.arange(1.0, count + 1).tolist()) if count else None for count in pair.categories.tolist())
    names = tuple(f"x{at}" for at in range(x.shape[1]))
    return Layout(names, codes, low, high, bins, pair.classes)


def different(x: np.ndarray) -> np.ndarray:
    """Which of a client's different rows each is: (rows,)."""
    return np.unique(x, axis=0, return_inverse=True)[1].ravel()


def _ranked(parts: np.ndarray, shifted: tuple[int, ...]) -> tuple[bool, bool] | None:
    """parts: (features,)."""
    if not shifted:
        return None
    carries = np.isin(np.arange(len(parts)), shifted)
    all_first = bool(parts[carries].min() > parts[~carries].max(initial=-np.inf))
    return all_first, bool(parts[carries].max() > parts[~carries].max(initial=-np.inf))


def second_opinion(pair: KnownPair, rng: np.random.Generator) -> str:
    """As two clients would hear it; halves and rounding, which follow from clients' secrets, are drawn."""
    layout, (one, other) = layout_of(pair), (np.array([0]), np.array([1]))
    same = [different(x) for x, _ in pair.clients]
    told = joined([summary(x, y, which, layout) for (x, y), which in zip(pair.clients, same, strict=True)])
    found = findings(told, layout, one, other)
    types = found.verdicts.types
    if types[0, 0] and types[0, 2]:
        takes = check_covariates(
            told, layout, _foreseen(pair, same, told, Design.of(Query("", layout), told), rng), one, other
        )
        found = replace(found, verdicts=replace(found.verdicts, types=takes.left(types)))
    return verdict_of(found)


def _foreseen(
    pair: KnownPair, same: list[np.ndarray], told: Summaries, design: Design, rng: np.random.Generator
) -> np.ndarray:
    """(clients, models, features, cells, classes)."""
    layout = design.question.layout
    own = [columns(y, which, layout) for (_, y), which in zip(pair.clients, same, strict=True)]
    second = [rng.random(which.max() + 1)[which] < 0.5 for which in same]
    seen = [design.seen(x) for x, _ in pair.clients]
    models = []
    for at, column in enumerate(own):
        known = in_both_halves(column, same[at], second[at])
        models.append(fitted_halves(seen[at], column.of, second[at], known))
    tables = []
    for at, (x, _) in enumerate(pair.clients):
        ends = rng.random((x.shape[1], layout.cells, layout.classes))
        column, classes = own[at], in_both_halves(own[at], same[at], second[at], len(models))
        chances = np.stack(
            [
                predictions_on(seen[at], column.of, classes, weights, second[at] if of == at else None)
                for of, weights in enumerate(models)
            ]
        )
        expected = predicted_counts(x, column, same[at], second[at], layout, chances, ends)
        tables.append(apportioned(expected, told.counts[at]))
    return np.array(tables)
