"""Strategies that choose a method for a federation, replayed from the table of its runs.

A strategy sees validation rows of the seed of the race, and the proof of `siloflow advise` test rows of other seeds. What
it chose is scored on test rows of seeds that no strategy saw.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.advice.run_table import RunTable, paired, strata_of
from flows.experiments.advice.candidates import SHARED
from flows.experiments.advice.choose_method import advised_method
from flows.experiments.advice.proof import pair_differences, race_seconds, seeds_that_fit
from flows.experiments.advice.race import Candidate, Leg, Pace, Race, in_turn, run_race
from flows.experiments.comparison.client_gains import ALONE
from models.metrics.paired_difference import Difference

RACE_SEED, PROOF_SEEDS, REPORT_SEEDS = 0, (1, 2, 3, 4, 5), (10, 11)
TRIALS, POPULATION = 8, 4  # of the genetic search: runs, and those of them that are random
DRAWS = 5  # seeds of a strategy that draws


class Choice(NamedTuple):
    """A setting that a strategy chose, and the seconds that it trained."""

    candidate: Candidate
    seconds: float


@dataclass(frozen=True)
class Contest:
    """A federation for strategies.

    Attributes:
        table: Its runs.
        plain: The settings of all methods, in the order of a race without a diagnosis.
        preferred: These and FedAvg's with aligned features, in the order of a race with the diagnosis and the gains
            on similar federations.
        types: The types of shift that the diagnosis found.
        overhead: Seconds that a leg of a live race takes beyond training.
    """

    table: RunTable
    plain: Sequence[Candidate]
    preferred: Sequence[Candidate]
    types: Sequence[str]
    overhead: float

    @property
    def methods(self) -> list[str]:
        """Return the methods that can be chosen."""
        return list(dict.fromkeys(c.method for c in self.plain if not c.bound))

    def whole(self, candidate: Candidate, seed: int = RACE_SEED) -> Leg:
        """Return a whole run, as the last leg of a race."""
        rounds = self.table.rungs[-1]
        leg = self.table.run(candidate, seed, rounds).leg(rounds)
        return replace(leg, seconds=leg.seconds + self.overhead)

    def best(self, tried: Sequence[Candidate]) -> Choice | None:
        """Return the setting whose whole run is best on validation rows; None if none has a score."""
        legs = [self.whole(candidate) for candidate in tried]
        scored = [(leg.score.rank, -place) for place, leg in enumerate(legs) if leg.score is not None]
        return Choice(tried[-max(scored)[1]], sum(leg.seconds for leg in legs)) if scored else None

    def tuned(self, *methods: str) -> Choice | None:
        """Return the best of all settings of some methods; None if none has a score."""
        return self.best([c for c in self.plain if c.method in methods])

    def value(self, candidate: Candidate) -> float:
        """Return the mean over clients of outcomes on the report's test rows, more is better; NaN if it diverged."""
        quantity, rounds = self.table.project.quantity, self.table.rungs[-1]
        tests = [self.table.run(candidate, seed, rounds).test for seed in REPORT_SEEDS]
        if not all(tests):
            return math.nan
        return quantity.gain(float(np.mean([[rows.mean() for rows in test.values()] for test in tests])))


class Replay(NamedTuple):
    """A replayed race, and the advice; None if no setting that the race trained to the end has a score."""

    race: Race
    choice: Choice | None


def replay(contest: Contest, budget: float, candidates: Sequence[Candidate]) -> Replay:
    """Replay `siloflow advise` on a budget of seconds: the race, and the simplest method that the proof supports."""
    table, quantity = contest.table, contest.table.project.quantity
    race, spent = Race(list(table.rungs), list(candidates)), dict[str, float]()

    def train(candidate: Candidate, rounds: int) -> Leg:
        leg, before = table.run(candidate, RACE_SEED, rounds).leg(rounds), spent.get(candidate.name, 0.0)
        spent[candidate.name] = leg.seconds
        return replace(leg, seconds=leg.seconds - before + contest.overhead)

    def compare(first: Candidate, second: Candidate, level: float) -> Difference | None:
        rounds = race.rungs[race.rung]
        one, other = (table.run(c, RACE_SEED, rounds).at(rounds) for c in (first, second))
        return None if one is None or other is None else paired([one.validation], [other.validation], quantity, level)

    one_run = contest.whole(candidates[0]).seconds
    race.pace = Pace(one_run, one_run / race.rungs[-1])
    run_race(
        race,
        partial(race_seconds, budget=budget),
        (SHARED, ALONE),
        in_turn(train),
        compare,
        quantity.gain,
        lambda _: None,
    )
    ranking = race.ranking()
    if not ranking:
        return Replay(race, None)
    chosen = {m: race.best_of(m) for m in (SHARED, ALONE, ranking[0].method)}
    proved = {m: c for m, c in chosen.items() if c is not None}
    costs = [race.legs[c.name].seconds for c in proved.values()]
    count = seeds_that_fit(budget - race.seconds, costs)
    tests = {m: [table.run(c, s, table.rungs[-1]).test for s in PROOF_SEEDS[:count]] for m, c in proved.items()}
    whole = [m for m in proved if all(tests[m])]
    differences = pair_differences(ranking[0].method, whole, lambda a, b: strata_of(tests[a], tests[b]), quantity)
    advised = advised_method(ranking[0].method, differences, quantity, matters=quantity.least_that_matters(None))
    return Replay(race, Choice(proved[advised], race.seconds + count * sum(costs)) if advised in proved else None)


def advise(contest: Contest, budget: float, candidates: Sequence[Candidate]) -> Choice | None:
    """Return what a replay of `siloflow advise` on a budget of seconds chooses."""
    return replay(contest, budget, candidates).choice


def genetic_search(contest: Contest, seed: int) -> Choice | None:
    """Search with TRIALS whole runs, as heterogeneity detection does with aggregators (arXiv 2604.08056).

    Half of the trials are random, and so is a quarter of the others. The rest take the method of one of the two best, and
    the place of the other's setting among its method's settings.
    """
    rng, methods = np.random.default_rng(seed), contest.methods
    settings = {m: [c for c in contest.plain if c.method == m] for m in methods}

    def drawn() -> Candidate:
        of_method = settings[methods[rng.integers(len(methods))]]
        return of_method[rng.integers(len(of_method))]

    tried: list[Candidate] = []
    while len(tried) < min(TRIALS, sum(map(len, settings.values()))):
        child = drawn()
        if len(tried) >= POPULATION and rng.random() > 1 / 4:
            first = contest.best(tried)
            second = first and contest.best([c for c in tried if c != first.candidate])
            if first and second:
                parents = [first.candidate, second.candidate]
                rng.shuffle(parents)
                of_method = settings[parents[0].method]
                place = settings[parents[1].method].index(parents[1])
                child = of_method[min(place, len(of_method) - 1)]
        if child not in tried:
            tried.append(child)
    return contest.best(tried)


def published_tree(contest: Contest) -> Choice | None:
    """Choose by the decision tree of FedBench's page: FedAdagrad for label skew, FedBN for feature skew.

    fedopt stands for the adaptive servers. FedBN is FedAvg in a network without batch normalization.
    """
    return contest.tuned("fedopt" if "label" in contest.types and "fedopt" in contest.methods else SHARED)


FIXED = (SHARED, ALONE, "ifca", "finetune")
"""Methods each of which a strategy always chooses."""


def _always(method: str, contest: Contest) -> list[Choice | None]:
    return [contest.tuned(method)]


def strategies(minutes: Sequence[float]) -> dict[str, Callable[[Contest], list[Choice | None]]]:
    """Return the strategies by name; one that draws makes several choices.

    Args:
        minutes: The budgets of `siloflow advise`, and of a race without a diagnosis.
    """

    def timed(number: float, order: str) -> Callable[[Contest], list[Choice | None]]:
        return lambda contest: [advise(contest, number * 60, getattr(contest, order))]

    found: dict[str, Callable[[Contest], list[Choice | None]]] = {}
    for number in minutes:
        found[f"advise, {number:g} minutes"] = timed(number, "preferred")
        found[f"race without diagnosis, {number:g} minutes"] = timed(number, "plain")
    found["genetic search of 8 trials"] = lambda contest: [genetic_search(contest, seed) for seed in range(DRAWS)]
    found["better of FedAvg and alone"] = lambda contest: [contest.tuned(SHARED, ALONE)]
    found["FedBench's tree"] = lambda contest: [published_tree(contest)]
    for method in FIXED:
        found[f"always {method}"] = partial(_always, method)
    found["a random method"] = lambda contest: [
        Choice(first, contest.whole(first).seconds)
        for first in (next(c for c in contest.plain if c.method == m) for m in contest.methods)
    ]
    return found


def hindsight(contest: Contest) -> Mapping[str, float]:
    """Map every method to the value of its best setting on validation rows, among those that ran to the end."""
    values = {}
    for method in contest.methods:
        best = contest.best(list(_known(contest, method)))
        values[method] = math.nan if best is None else contest.value(best.candidate)
    return values


def _known(contest: Contest, method: str) -> Iterator[Candidate]:
    """Iterate over the settings of a method that ran to the end, or over the one that was best after the first rung."""
    first, last = contest.table.rungs[0], contest.table.rungs[-1]
    tried = [(c, contest.table.run(c, RACE_SEED, first)) for c in contest.plain if c.method == method]
    whole = [c for c, run in tried if run.at(last) is not None]
    ranked = [(rung.score, c) for c, run in tried if (rung := run.at(first)) is not None and rung.score is not None]
    yield from whole or [max(ranked, key=lambda pair: pair[0].rank)[1]] if ranked or whole else ()
