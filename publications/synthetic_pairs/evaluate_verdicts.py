"""Judge pairs with a known shift: the verdicts, the ranks of shifted features, and the verdict after a second look."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from models.diagnosis import guarded_tests, wald_tests
from models.diagnosis.client_summaries.client_summary import (
    Layout,
    Summaries,
    assign_columns,
    concatenate_summaries,
    effective_rows,
    summarize,
)
from models.diagnosis.client_summaries.gaussian_mechanism import (
    add_noise,
    clip_negative,
    counts_sensitivity,
    summaries_from_counts,
    with_effective_rows,
)
from models.diagnosis.client_summaries.model_predictions import (
    Design,
    classes_in_both_halves,
    distribute_runs,
    fit_halves,
    predict_classes,
    predicted_counts,
)
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.client_summaries.rank_correlations import (
    Correlations,
    concatenate_correlations,
    correlate_features,
    select_features,
)
from models.diagnosis.correlation_tests import refine_findings
from models.diagnosis.diagnose_pairs import EvidenceFunction, Findings, diagnose_pairs, explaining_products
from models.diagnosis.fomichev_distances import Readings, distance_at_equal_priors, statistics_from_rows
from models.diagnosis.guarded_tests import TYPES
from models.diagnosis.name_shift_types import check_covariates, judge_pairs
from models.privacy_accounting import rho, sigma
from publications.synthetic_pairs.generators import KnownPair
from silos.row_units import unit_weights

LOOKS: Mapping[str, EvidenceFunction] = {
    "guarded": guarded_tests.count_evidence,
    "moments": wald_tests.moment_evidence,
}
BY_ROW = "by row"
"""The verdict that takes rows for independent, of pairs whose rows belong to units."""

READINGS = Readings(one_row="absent")
"""How the printed rule is read, as in its published measurements: a class with one row has no posterior."""

_BINS, _REACH = 32, 3.0  # bins of a number, within _REACH standard deviations of the mean of both clients
_NOISY_BINS, _DELTA = 8, 1e-5  # for counts with noise, which grows with the bins


@dataclass(frozen=True)
class Opinion:
    """The verdicts on a pair.

    Attributes:
        verdicts: By judge the names of the types, joined, or `none` or `undetermined`.
        distances: The distances of the printed rule by name, the largest over features.
        ranked: Whether `guarded` ranks all shifted features before all others, and whether it ranks one of them first; None
            if no feature is known to be shifted.
        hedged: The judges that name label shift and add that another threshold fits about as well.
    """

    verdicts: Mapping[str, str]
    distances: Mapping[str, float]
    ranked: tuple[bool, bool] | None
    hedged: tuple[str, ...] = ()


def opinion(pair: KnownPair) -> Opinion:
    """Judge one pair, as in a diagnosis of two clients."""
    layout = layout_of(pair)
    summaries = concatenate_summaries([summarize(x, y, different(x), layout) for x, y in pair.clients])
    one, other = np.array([0]), np.array([1])
    found = {name: diagnose_pairs(summaries, layout, one, other, collect_evidence=look) for name, look in LOOKS.items()}
    found["guarded"] = refine_findings(found["guarded"], summaries, layout, correlations_of(pair, summaries, layout))[0]
    if pair.units is not None:
        found |= {
            BY_ROW: found["guarded"],
            "guarded": diagnose_pairs(summaries_by_unit(pair, layout), layout, one, other),
        }
    verdicts = {name: verdict_of(of_one) for name, of_one in found.items()}
    statistics = statistics_from_rows(pair.clients, pair.classes, pair.categories)
    both = np.array([[0, 1]])
    printed = judge_pairs(statistics, both, READINGS)
    equal = distance_at_equal_priors(statistics.select(slice(0, 1)), both, READINGS, classes="own")
    distances = {
        "D_X": printed.features.largest,
        "D_Y": printed.labels,
        "D_Y|X": printed.concepts.largest,
        "D_Y|X, mean": printed.concepts.mean,
        "D_Y|X, equal priors": equal[:, 0],  # of the first feature
    }
    return Opinion(
        {**verdicts, "paper": named(printed.types[0])},
        {name: float(values[0]) for name, values in distances.items()},
        _ranked(found["guarded"].parts[0], pair.shifted),
        tuple(name for name, of_one in found.items() if of_one.verdicts.label_or_concept[0]),
    )


def summaries_by_unit(pair: KnownPair, layout: Layout) -> Summaries:
    """Return the summaries of clients that know the unit of each row, such as its patient, as in a diagnosis."""
    assert pair.units is not None, "the pair has units"
    summaries = []
    for (x, y), named in zip(pair.clients, pair.units, strict=True):
        unit = np.unique(named, return_inverse=True)[1].ravel()
        effective = effective_rows(x, y, unit, layout)
        row_ids = np.stack([different(x), unit], 1)
        summaries.append(summarize(x, y, row_ids, layout, unit_weights(unit, effective)))
    return concatenate_summaries(summaries)


def federation_opinion(federation: KnownPair) -> Opinion:
    """Judge all pairs of a federation, as in a diagnosis of its clients; return the types that any pair is given."""
    layout = layout_of(federation)
    summaries = concatenate_summaries([summarize(x, y, different(x), layout) for x, y in federation.clients])
    one, other = np.triu_indices(len(federation.clients), 1)
    verdicts = diagnose_pairs(summaries, layout, one, other).verdicts
    return Opinion({"guarded": named((verdicts.types & ~verdicts.undetermined[:, None]).any(0))}, {}, None)


def correlations_of(pair: KnownPair, summaries: Summaries, layout: Layout) -> Correlations:
    """Return the rank correlations that both clients report."""
    features, parts = select_features(summaries, layout, np.zeros(len(layout.names))), []
    for x, y in pair.clients:
        row_ids = different(x)
        parts.append(correlate_features(x, assign_columns(y, row_ids, layout), row_ids, layout, features))
    return concatenate_correlations(parts)


def opinion_under_noise(pair: KnownPair, epsilon: float, rng: np.random.Generator) -> Opinion:
    """Judge one pair from counts with noise.

    Args:
        pair: The pair.
        epsilon: The privacy of the noise of both clients.
        rng: The random stream of the noise.

    Returns:
        The guarded verdict, and `unaware`, which ignores the noise.
    """
    layout = layout_of(pair, _NOISY_BINS)
    size = sigma(counts_sensitivity(len(layout.names)), rho(epsilon, _DELTA))
    counts = np.stack([layout.counts(x, y) for x, y in pair.clients]).astype(np.int64)
    summaries = summaries_from_counts(add_noise(counts, size, rng), layout, size)
    one, other = np.array([0]), np.array([1])
    aware = diagnose_pairs(with_effective_rows(summaries, layout), layout, one, other)
    unaware = diagnose_pairs(replace(clip_negative(summaries), noise=None), layout, one, other)
    return Opinion({"guarded": verdict_of(aware), "unaware": verdict_of(unaware)}, {}, None)


def verdict_of(found: Findings) -> str:
    """Return the verdict on the first pair."""
    return "undetermined" if found.verdicts.undetermined[0] else named(found.verdicts.types[0])


def named(types: np.ndarray) -> str:
    """Join the names of a verdict's types, (3,): `none`, `label`, `feature+concept`."""
    return "+".join(name for name, there in zip(TYPES, types, strict=True) if there) or "none"


def named_types(truth: frozenset[str]) -> str:
    """Join a set of names in the order of TYPES."""
    return named(np.isin(TYPES, list(truth)))


def layout_of(pair: KnownPair, bins: int = _BINS) -> Layout:
    """Return bins within agreed bounds, else within three standard deviations of the mean, and the codes of categories."""
    x = np.concatenate([x for x, _ in pair.clients])
    middle, sd = np.nanmean(x, 0), np.nanstd(x, 0)  # NaN is a missing value
    reach = _REACH * np.where(sd > 0, sd, 1.0)
    low, high = (middle - reach, middle + reach) if pair.bounds is None else np.full((x.shape[1], 2), pair.bounds).T
    codes = tuple(tuple(np.arange(1.0, count + 1).tolist()) if count else None for count in pair.categories.tolist())
    names = tuple(f"x{at}" for at in range(x.shape[1]))
    return Layout(names, codes, low, high, bins, pair.classes)


def different(x: np.ndarray) -> np.ndarray:
    """Return the number of each of a client's rows among its distinct rows: (rows,)."""
    return np.unique(x, axis=0, return_inverse=True)[1].ravel()


def _ranked(parts: np.ndarray, shifted: tuple[int, ...]) -> tuple[bool, bool] | None:
    """Return whether all shifted features rank first, and whether one does; parts has a value a feature."""
    if not shifted:
        return None
    carries = np.isin(np.arange(len(parts)), shifted)
    all_first = bool(parts[carries].min() > parts[~carries].max(initial=-np.inf))
    return all_first, bool(parts[carries].max() > parts[~carries].max(initial=-np.inf))


def second_opinion(pair: KnownPair, rng: np.random.Generator) -> tuple[str, bool]:
    """Judge a pair with a second look: its verdict, and whether it adds that another threshold fits about as well.

    Halves and rounding, which clients derive from secrets, are drawn from rng.
    """
    layout, (one, other) = layout_of(pair), (np.array([0]), np.array([1]))
    if pair.units is None:
        same = [different(x) for x, _ in pair.clients]
        summaries = concatenate_summaries(
            [summarize(x, y, which, layout) for (x, y), which in zip(pair.clients, same, strict=True)]
        )
        found = diagnose_pairs(summaries, layout, one, other)
        found = refine_findings(found, summaries, layout, correlations_of(pair, summaries, layout), resolve=False)[0]
    else:
        same = [np.unique(unit, return_inverse=True)[1].ravel() for unit in pair.units]
        summaries = summaries_by_unit(pair, layout)
        found = diagnose_pairs(summaries, layout, one, other)
    types = found.verdicts.types
    if types[0, 0] and types[0, 2]:
        design = Design.from_summaries(Query("", layout), summaries, explaining_products(found, one))
        takes = check_covariates(summaries, layout, _foreseen(pair, same, summaries, design, rng), one, other)
        found = replace(found, verdicts=replace(found.verdicts, types=takes.unexplained(types)))
    return verdict_of(found), bool(found.verdicts.label_or_concept[0])


def _foreseen(
    pair: KnownPair, same: list[np.ndarray], summaries: Summaries, design: Design, rng: np.random.Generator
) -> np.ndarray:
    """Return the counts that each client's model predicts: (clients, models, features, cells, classes)."""
    layout = design.query.layout
    own = [assign_columns(y, which, layout) for (_, y), which in zip(pair.clients, same, strict=True)]
    second = [rng.random(which.max() + 1)[which] < 0.5 for which in same]
    seen = [design.matrix(x) for x, _ in pair.clients]
    models = []
    for at, column in enumerate(own):
        known = classes_in_both_halves(column, same[at], second[at])
        models.append(fit_halves(seen[at], column.index, second[at], known))
    tables = []
    for at, (x, _) in enumerate(pair.clients):
        ends = rng.random((x.shape[1], layout.cells, layout.classes))
        column, classes = own[at], classes_in_both_halves(own[at], same[at], second[at], len(models))
        chances = np.stack(
            [
                predict_classes(seen[at], column.index, classes, weights, second[at] if of == at else None)
                for of, weights in enumerate(models)
            ]
        )
        expected = predicted_counts(x, column, same[at], second[at], layout, chances, ends)
        tables.append(distribute_runs(expected, summaries.counts[at]))
    return np.array(tables)
