"""Measure how often intervals of comparisons and of advice cover a known truth, and how often their sentences err.

Each simulated comparison draws what `compare` measures: on a row, a method is right where the sum of normal effects is
positive. Effects belong to the row, the seed, the client, the partition and their combinations. So the true difference
is a difference of two normal probabilities.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from flows.experiments.advice.advice_text import NAMES
from flows.experiments.advice.candidates import POOLED, SHARED
from flows.experiments.advice.decide_advice import decide
from flows.experiments.advice.proof import Proof, pair_differences
from flows.experiments.comparison.client_gains import ALONE, LEVEL, Measured, gain_sentences, gains_of_methods
from flows.training.paired_runs import MeasuredPair, paired_records
from models.metrics.paired_difference import (
    ACCURACY,
    Difference,
    Stratum,
    difference,
    difference_over_partitions,
    difference_over_silos,
    holm_intervals,
)
from tasks.tracking.result_types.comparison_result import ComparisonConclusions, MethodGains

TIMES = 600  # simulated comparisons of each setting
ADVICES = 300  # simulated comparisons whose sentences are read
_MEAN, _GAP = 0.9, 0.2  # of the scores; the first method is better by the gap
_ROW, _OWN, _NOISE = 1.0, 0.5, 0.5  # standard deviations: of a row, of a row for one method, of a row in one run
_SIZES = {"9 clients of 50 rows": [50] * 9, "6 clients of 5 to 160 rows": [5, 10, 20, 40, 80, 160]}
_SPREADS = (0.05, 0.2)  # of seeds in the scores: 1 and 5 points of accuracy; rows alone give about 2
_METHODS = 4  # of the simulations of Holm's correction; the first is the reference
_RESAMPLES = 999

Interval = tuple[float, float]


def interval_coverage(say: Callable[[str], None], times: int = TIMES) -> dict[str, Any]:
    """Simulate comparisons, as plain JSON: coverage of each interval, Holm's errors, and three intervals over silos."""
    say("rows and seeds")
    rows = [
        _rows_and_seeds(name, sizes, seeds, spread, times)
        for name, sizes in _SIZES.items()
        for spread in _SPREADS
        for seeds in (3, 5)
    ]
    say("silos")
    silos = [_silos(count, seeds, times) for count in (8, 12, 20, 30) for seeds in (3, 5)]
    say("partitions")
    partitions = [_partitions(shared, seeds, times) for shared in (0.0, 0.25, 1.0) for seeds in (3, 5)]
    say("Holm's correction")
    families = [
        _family(equal, seeds, spread, times)
        for spread, equals in zip(_SPREADS, ((3, 2, 1), (3,)), strict=True)
        for equal in equals
        for seeds in (3, 5, 10)
    ]
    say("three intervals over silos")
    over_silos = [_three_intervals(kind, count, times) for kind in _SILOS for count in (8, 12, 20, 30)]
    say("sentences of advise and compare")
    return {
        "times": times,
        "rows": rows,
        "silos": silos,
        "partitions": partitions,
        "holm": families,
        "over_silos": over_silos,
        "sentences": _sentences(min(times, ADVICES)),
    }


def _accuracy(gap: float, *variances: float) -> float:
    """Return a true accuracy, from the variances of the scores beyond those of rows and noise."""
    scale = (_ROW**2 + _OWN**2 + _NOISE**2 + sum(variances)) ** 0.5
    return NormalDist().cdf((_MEAN + gap) / scale)


def _truth(*variances: float) -> float:
    """Return the true difference of accuracies of two methods, of which the first is better by the gap."""
    return _accuracy(_GAP, *variances) - _accuracy(0.0, *variances)


def _share(covered: Iterable[bool], times: int) -> float:
    return sum(covered) / times


def _covers(found: Difference, truth: float) -> bool:
    return found.low <= truth <= found.high


def _outcomes(
    rng: np.random.Generator, row: np.ndarray, own: np.ndarray, shift: np.ndarray, gaps: Sequence[float]
) -> np.ndarray:
    """Return which rows each method gets right in each seed, (methods, seeds, rows).

    Args:
        rng: Draws the noise of each run.
        row: The effects of rows, (rows,).
        own: Their effects for one method, (methods, rows).
        shift: What a method's score shifts by in each seed, (methods, seeds).
        gaps: What each method is better by.
    """
    noise = rng.normal(0, _NOISE, (*shift.shape, len(row)))
    scores = _MEAN + np.array(gaps)[:, None, None] + shift[..., None] + (row + own)[:, None] + noise
    return (scores > 0).astype(float)


def _rows_of(rng: np.random.Generator, rows: int, methods: int = 2) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(0, _ROW, rows), rng.normal(0, _OWN, (methods, rows))


def _client(rng: np.random.Generator, rows: int, shift: np.ndarray, gaps: Sequence[float] = (_GAP, 0.0)) -> np.ndarray:
    """Return the outcomes on one client's own rows, (methods, seeds, rows)."""
    return _outcomes(rng, *_rows_of(rng, rows, len(gaps)), shift, gaps)


def _rows_and_seeds(name: str, sizes: Sequence[int], seeds: int, seed_sd: float, times: int) -> dict[str, Any]:
    rng, cell_sd = np.random.default_rng(1), seed_sd / 2
    truth = _truth(seed_sd**2, cell_sd**2)

    def covered() -> Iterator[bool]:
        for _ in range(times):
            of_seed = rng.normal(0, seed_sd, (2, seeds))
            right = [_client(rng, n, of_seed + rng.normal(0, cell_sd, (2, seeds))) for n in sizes]
            yield _covers(difference([Stratum.from_differences(r[0] - r[1]) for r in right]), truth)

    return {"data": name, "seeds": seeds, "seed_sd": seed_sd, "covered": _share(covered(), times)}


def _silos(count: int, seeds: int, times: int) -> dict[str, Any]:
    rng, silo_sd, seed_sd, cell_sd = np.random.default_rng(2), 0.4, 0.1, 0.05
    truth = _truth(silo_sd**2, seed_sd**2, cell_sd**2)

    def measured() -> Iterator[tuple[bool, bool]]:
        for _ in range(times):
            of_seed = rng.normal(0, seed_sd, (2, seeds))
            shifts = [
                of_seed + rng.normal(0, silo_sd, (2, 1)) + rng.normal(0, cell_sd, (2, seeds)) for _ in range(count)
            ]
            right = [_client(rng, 50, shift) for shift in shifts]
            strata = [Stratum.from_differences(r[0] - r[1]) for r in right]
            yield _covers(difference_over_silos(strata), truth), _covers(difference(strata), truth)

    found = list(measured())
    return {
        "silos": count,
        "seeds": seeds,
        "covered": _share([a for a, _ in found], times),
        "rows_only": _share([b for _, b in found], times),
    }


def _partitions(shared: float, seeds: int, times: int, count: int = 5) -> dict[str, Any]:
    """Simulate partitions that each test on 450 rows at 9 silos; a share of these rows is tested in other ones too."""
    rng, silo_sd, seed_sd, cell_sd, tested = np.random.default_rng(3), 0.3, 0.1, 0.05, 450
    partition_sd = 0.1
    truth = _truth(silo_sd**2, seed_sd**2, cell_sd**2, partition_sd**2)
    source = round(tested / shared) if shared else tested * count

    def measured() -> Iterator[tuple[bool, bool]]:
        for _ in range(times):
            row, own = _rows_of(rng, source)
            of_seed = rng.normal(0, seed_sd, (2, seeds))
            partitions = []
            for index in range(count):
                chosen = rng.permutation(source)[:tested] if shared else np.arange(index * tested, (index + 1) * tested)
                shift = of_seed + rng.normal(0, partition_sd, (2, 1))
                strata = []
                for rows in np.array_split(chosen, 9):
                    at_silo = shift + rng.normal(0, silo_sd, (2, 1)) + rng.normal(0, cell_sd, (2, seeds))
                    right = _outcomes(rng, row[rows], own[:, rows], at_silo, (_GAP, 0.0))
                    strata.append(Stratum.from_differences(right[0] - right[1]))
                partitions.append(strata)
            yield (
                _covers(difference_over_partitions(partitions, shared), truth),
                _covers(difference(partitions[0]), truth),
            )

    found = list(measured())
    return {
        "shared": shared,
        "seeds": seeds,
        "partitions": count,
        "covered": _share([a for a, _ in found], times),
        "first_only": _share([b for _, b in found], times),
    }


def _family(equal: int, seeds: int, seed_sd: float, times: int) -> dict[str, Any]:
    """Simulate a reference and three methods, of which `equal` are as good as it: an error is a winner among equals."""
    rng, cell_sd = np.random.default_rng(4), seed_sd / 2
    gaps = (0.0, *[0.0] * equal, *[0.5] * (_METHODS - 1 - equal))

    def measured() -> Iterator[tuple[bool, bool]]:
        for _ in range(times):
            of_seed = rng.normal(0, seed_sd, (_METHODS, seeds))
            right = [_client(rng, 50, of_seed + rng.normal(0, cell_sd, (_METHODS, seeds)), gaps) for _ in range(9)]
            plain = [
                difference([Stratum.from_differences(r[method] - r[0]) for r in right]) for method in range(1, _METHODS)
            ]
            errors = [any(d.distinguishable for d in each[:equal]) for each in (plain, holm_intervals(plain))]
            yield errors[0], errors[1]

    found = list(measured())
    return {
        "methods": _METHODS - 1,
        "equal": equal,
        "seeds": seeds,
        "seed_sd": seed_sd,
        "plain": _share([a for a, _ in found], times),
        "corrected": _share([b for _, b in found], times),
    }


_CELL_SD = 0.03  # of a client in a seed, where sentences are read
_NAMES = (SHARED, ALONE, "cfl", "ditto", "ifca", POOLED)
_IS_BETTER = re.compile(r"(\S+) − (\S+) .*: (\S+) is better\.?")
_GAINS = re.compile(r"(\S+) (gains|loses) [\d.]+ points on average (?:over|against) training alone;")
_BETTER_THAN = re.compile(r"(.+) is better than (.+): [+−][\d.]+ points")
_POOLED_GAINS = "Training on pooled rows would gain"

_METHOD_OF = {name.lower(): method for method, name in NAMES.items()}

Claims = set[tuple[str, str]]
"""Pairs of methods, of which sentences say that the first is better than the second."""


class _Read(NamedTuple):
    """The claims of sentences, those that a corrected interval supports, and the true accuracies."""

    claims: Claims
    supported: Claims
    truths: Mapping[str, float]

    @property
    def errs(self) -> bool:
        """Return whether a claim is false."""
        return any(self.truths[better] <= self.truths[worse] for better, worse in self.claims)


def claims_of(sentences: Iterable[str], advised: str = "") -> Claims:
    """Return what sentences of `advise` and `compare` claim; `advised` is what pooled training would gain over."""
    found: Claims = set()
    for sentence in sentences:
        if match := _IS_BETTER.match(sentence):
            first, second, better = match.groups()
            found.add((better, second if better == first else first))
        elif (match := _BETTER_THAN.match(sentence)) and not sentence.startswith("Whether"):
            better, worse = (_METHOD_OF.get(name.lower(), name) for name in match.groups())
            found.add((better, worse))
        elif match := _GAINS.match(sentence):
            method, verb = match.groups()
            found.add((method, ALONE) if verb == "gains" else (ALONE, method))
        elif sentence.startswith(_POOLED_GAINS):
            found.add((POOLED, advised))
    return found


def _sentences(times: int) -> dict[str, Any]:
    """Simulate comparisons of six methods that differ little or not at all, and read the sentences on them.

    Clients have 10 to 120 rows. What wins on half as many validation rows of another seed is proved.
    """
    rng = np.random.default_rng(6)
    of_advice, of_compare = list[_Read](), list[_Read]()
    covered, gains = list[bool](), list[bool]()
    for _ in range(times):
        seed_sd = float(rng.choice([0.0, 0.05, 0.1]))
        gaps = np.where(rng.random(len(_NAMES)) < 0.5, 0.0, rng.normal(0, 0.15, len(_NAMES)))
        truths = {m: _accuracy(gap, seed_sd**2, _CELL_SD**2) for m, gap in zip(_NAMES, gaps.tolist(), strict=True)}
        sizes = rng.integers(10, 120, int(rng.integers(3, 13))).tolist()
        validated = [right.mean(2)[:, 0] for right in _right(rng, [size // 2 for size in sizes], 1, seed_sd, gaps)]
        choice = max(zip(np.mean(validated, 0)[:-1], _NAMES, strict=False))[1]
        right = _right(rng, sizes, int(rng.integers(3, 6)), seed_sd, gaps)
        strata = {
            pair: [Stratum.from_differences(of[_NAMES.index(pair[0])] - of[_NAMES.index(pair[1])]) for of in right]
            for pair in itertools.permutations(_NAMES, 2)
        }
        proved = list(dict.fromkeys((SHARED, ALONE, choice, POOLED)))
        found, advised, differences = _advice(choice, proved, strata, truths)
        of_advice.append(found)
        of_compare.append(_comparison(strata, right[0].shape[1], truths))
        covered.append(all(_covers(d, truths[a] - truths[b]) for (a, b), d in differences.items()))
        gains += [_covers(d, truths[a] - truths[b]) for (a, b), d in differences.items() if advised == a]
    return {
        "times": times,
        "covered": _share(covered, times),
        "gain_covered": _share(gains, len(gains)),
        **{
            name: {
                "claims": sum(len(read.claims) for read in every),
                "unsupported": sum(len(read.claims - read.supported) for read in every),
                "false": _share((read.errs for read in every), times),
            }
            for name, every in (("advise", of_advice), ("compare", of_compare))
        },
    }


def _right(
    rng: np.random.Generator, sizes: Sequence[int], seeds: int, seed_sd: float, gaps: np.ndarray
) -> list[np.ndarray]:
    """Return the outcomes of each client, (methods, seeds, rows)."""
    of_seed = rng.normal(0, seed_sd, (len(gaps), seeds))
    return [_client(rng, size, of_seed + rng.normal(0, _CELL_SD, of_seed.shape), gaps.tolist()) for size in sizes]


def _advice(
    choice: str,
    methods: Sequence[str],
    strata: Mapping[tuple[str, str], Sequence[Stratum]],
    truths: Mapping[str, float],
) -> tuple[_Read, str, dict[tuple[str, str], Difference]]:
    """Return what the sentences of an advice claim, what it advises, and the differences of its proof."""
    differences = pair_differences(choice, methods, lambda a, b: strata[a, b], ACCURACY)
    gains = _gains([m for m in methods if m != ALONE], strata)
    comparison: ComparisonConclusions = {
        "table": [],
        "baseline": None,
        "paired": [],
        "over": {"draws": "rows", "silos": len(next(iter(strata.values()))), "partitions": 1},
        "not_published_for": [],
        "clients": [],
        "gains": {"against": ALONE, "level": LEVEL, "methods": gains, "sentences": []},
        "ensembles": [],
    }
    advice = decide(ACCURACY, choice, {}, Proof(differences), comparison)
    supported = {(a, b) if d.mean > 0 else (b, a) for (a, b), d in differences.items() if d.distinguishable}
    return _Read(claims_of(advice["lines"], advice["advised"]), supported, truths), advice["advised"], differences


def _comparison(strata: Mapping[tuple[str, str], Sequence[Stratum]], seeds: int, truths: Mapping[str, float]) -> _Read:
    """Return what the sentences of a comparison of all methods with FedAvg claim."""
    pairs = [MeasuredPair(m, SHARED, range(seeds), [strata[m, SHARED]]) for m in _NAMES if m != SHARED]
    records = paired_records(pairs, "rows", 0.0, ACCURACY)
    supported = {(r["better"], SHARED if r["better"] != SHARED else r["method"]) for r in records if r["better"]}
    against = [m for m in _NAMES if m != ALONE]
    sentences = gain_sentences(_gains(against, strata), SHARED)
    corrected = holm_intervals([difference(strata[m, ALONE]) for m in against])
    supported |= {
        (m, ALONE) if d.mean > 0 else (ALONE, m) for m, d in zip(against, corrected, strict=True) if d.distinguishable
    }
    return _Read(claims_of([*(r["sentence"] for r in records), *sentences]), supported, truths)


def _gains(methods: Sequence[str], strata: Mapping[tuple[str, str], Sequence[Stratum]]) -> dict[str, MethodGains]:
    of_clients = {m: {f"c{number:02d}": stratum for number, stratum in enumerate(strata[m, ALONE])} for m in methods}
    return gains_of_methods({m: Measured(of_method, ({}, {})) for m, of_method in of_clients.items()}, ACCURACY)


_SILOS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, count: rng.normal(size=count),
    "skewed": lambda rng, count: rng.exponential(size=count) - 1,
}
"""How the differences of silos are distributed, with mean 0 and variance 1."""


def _three_intervals(kind: str, count: int, times: int) -> dict[str, Any]:
    """Compare Student's interval over silos and seeds with two bootstraps over silos, with 3 seeds."""
    rng, seeds = np.random.default_rng(5), 3
    covered: dict[str, int] = {"student": 0, "bca": 0, "studentised": 0}
    for _ in range(times):
        table = _SILOS[kind](rng, count) + rng.normal(0, 0.3, (seeds, 1)) + rng.normal(0, 0.3, (seeds, count))
        found = difference([Stratum.from_differences(table)], bound=np.inf)
        intervals = {
            "student": (found.low, found.high),
            "bca": bca_interval(table.mean(0), rng),
            "studentised": studentised_interval(table.mean(0), found.error, rng),
        }
        for name, (low, high) in intervals.items():
            covered[name] += bool(low <= 0 <= high)
    return {"differences": kind, "silos": count, **{name: number / times for name, number in covered.items()}}


def bca_interval(values: np.ndarray, rng: np.random.Generator) -> Interval:
    """Return the bias-corrected and accelerated bootstrap interval of the mean (Efron 1987)."""
    normal, count = NormalDist(), len(values)
    means = np.sort(values[rng.integers(0, count, (_RESAMPLES, count))].mean(1))
    bias = normal.inv_cdf(min(max(float((means < values.mean()).mean()), 0.001), 0.999))
    left_out = (values.sum() - values) / (count - 1)
    deviation = left_out.mean() - left_out
    acceleration = (deviation**3).sum() / (6 * (deviation**2).sum() ** 1.5)
    bounds = []
    for quantile in (0.025, 0.975):
        z = bias + normal.inv_cdf(quantile)
        bounds.append(float(np.quantile(means, normal.cdf(bias + z / (1 - acceleration * z)))))
    return bounds[0], bounds[1]


def studentised_interval(values: np.ndarray, error: float, rng: np.random.Generator) -> Interval:
    """Return the bootstrap-t interval of the mean, with the standard error over silos and seeds."""
    count, mean = len(values), float(values.mean())
    drawn = values[rng.integers(0, count, (_RESAMPLES, count))]
    errors = np.maximum(drawn.std(1, ddof=1) / count**0.5, 1e-12)
    low, high = np.quantile((drawn.mean(1) - mean) / errors, [0.025, 0.975])
    return mean - float(high) * error, mean - float(low) * error
