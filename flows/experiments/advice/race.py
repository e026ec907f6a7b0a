"""Successive halving (Jamieson and Talwalkar 2016) over methods and their settings, within a budget of seconds.

All candidates train a few rounds; the better third trains on, and so on to the full budget of rounds. Scores are those
of validation rows. What trains on continues its own run, so no round is trained twice. A candidate that a paired
interval shows to be behind the leader is dropped as behind; others are dropped to save time, which says less.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from flows.experiments.comparison.tuner import Score
from models.metrics.paired_difference import Difference
from tasks.tracking.result_types.advice_result import RaceRecord

KEPT = 3
"""One in this number of candidates trains on."""
ALPHA = 0.05
"""The chance, over all looks and pairs, that a candidate as good as the leader is dropped as behind.

It counts the draw of rows, not of the seed: a race has one seed, so a candidate may be behind on this seed only.
"""


@dataclass(frozen=True)
class Candidate:
    """A method with settings, each as section.key=value.

    `index` distinguishes the settings of a method. A `bound` can neither win nor be ahead of others.
    """

    method: str
    settings: tuple[str, ...]
    index: int
    bound: bool = False

    @property
    def name(self) -> str:
        """Return the name in texts and records."""
        return f"{self.method} {self.index}"


@dataclass(frozen=True)
class Leg:
    """The outcome of training a candidate up to some round: its score, or why there is none, and its seconds."""

    rounds: int
    score: Score | None
    seconds: float
    failure: str = ""


class Trained(NamedTuple):
    """A leg that has ended. `elapsed` is the seconds by the clock since the previous leg ended.

    If several train at once, this is less than the leg's own seconds.
    """

    candidate: Candidate
    leg: Leg
    elapsed: float


TrainAll = Callable[[Iterator[Candidate], int], Iterator[Trained]]
"""Trains candidates up to a round, and yields each when it ends; reads the next one when it can start."""


def in_turn(train: Callable[[Candidate, int], Leg]) -> TrainAll:
    """Return what trains candidates one after another with `train`."""

    def train_all(candidates: Iterator[Candidate], rounds: int) -> Iterator[Trained]:
        for candidate in candidates:
            leg = train(candidate, rounds)
            yield Trained(candidate, leg, leg.seconds)

    return train_all


class Pace(NamedTuple):
    """The seconds of a run of the first candidate, and of one of its rounds, by which the race and the proof are planned."""

    run: float
    round: float


@dataclass
class Race:
    """The state of a race, which JSON can hold.

    Attributes:
        rungs: The rounds after which candidates are compared, ascending; the last is the full budget.
        alive: The candidates that train on.
        legs: The last leg of each candidate, by name.
        dropped: Why each other candidate was dropped, by name: `behind`, `time` or the reason of its failure.
        rung: The number of rungs that are complete.
        seconds: The time spent.
        before: The seconds of the command before the race, for the diagnosis.
        minutes: The time that the command was given when it began or went on last.
        pace: What a run takes; None until the first candidate has trained to the first rung.
    """

    rungs: list[int]
    alive: list[Candidate]
    legs: dict[str, Leg] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    rung: int = 0
    seconds: float = 0.0
    before: float = 0.0
    minutes: float = 0.0
    pace: Pace | None = None

    def as_json(self) -> RaceRecord:
        """Return plain JSON, which `from_json` reads."""
        return {
            "rungs": self.rungs,
            "alive": [(c.method, list(c.settings), c.index, c.bound) for c in self.alive],
            "legs": {
                n: (
                    leg.rounds,
                    None if leg.score is None else (leg.score.value, leg.score.loss),
                    leg.seconds,
                    leg.failure,
                )
                for n, leg in self.legs.items()
            },
            "dropped": self.dropped,
            "rung": self.rung,
            "seconds": self.seconds,
            "before": self.before,
            "minutes": self.minutes,
            "pace": None if self.pace is None else (self.pace.run, self.pace.round),
        }

    @classmethod
    def from_json(cls, saved: RaceRecord) -> "Race":
        """Return the race that `as_json` described."""
        legs = {
            name: Leg(rounds, None if score is None else _score_from_json(*score), seconds, failure)
            for name, (rounds, score, seconds, failure) in saved["legs"].items()
        }
        alive = [Candidate(m, tuple(settings), index, bound) for m, settings, index, bound in saved["alive"]]
        pace = Pace(*saved["pace"]) if saved["pace"] else None
        dropped, rung, seconds = dict(saved["dropped"]), saved["rung"], saved["seconds"]
        return cls(saved["rungs"], alive, legs, dropped, rung, seconds, saved["before"], saved["minutes"], pace)

    def add(self, trained: Trained) -> None:
        """Add a leg that has ended, whose seconds come on top of those of the candidate's earlier legs."""
        candidate, leg, elapsed = trained
        spent = self.legs[candidate.name].seconds if candidate.name in self.legs else 0.0
        self.legs[candidate.name] = replace(leg, seconds=spent + leg.seconds)
        self.seconds += elapsed
        if leg.score is None:
            _drop(self, candidate, leg.failure or "diverged")

    def left(self, budget: float) -> float:
        """Return the seconds of the command that remain, after those before and in the race."""
        return budget - self.before - self.seconds

    def forget(self, is_trained: Callable[[Candidate], bool]) -> None:
        """Forget the legs of candidates whose runs were deleted, as `siloflow clean` does; they train again."""
        for candidate in self.alive:
            if not is_trained(candidate):
                self.legs.pop(candidate.name, None)

    def waiting(self) -> list[Candidate]:
        """Return the candidates that have not trained to the end of the current rung."""
        rounds = self.rungs[self.rung]
        return [c for c in self.alive if c.name not in self.legs or self.legs[c.name].rounds < rounds]

    def ranking(self) -> list[Candidate]:
        """Return the candidates that can win, are alive and have a score, best first."""
        return self._ranked([c for c in self.alive if not c.bound])

    def best_of(self, method: str) -> Candidate | None:
        """Return the best candidate of a method that is alive; None if none has a score."""
        return next(iter(self._ranked([c for c in self.alive if c.method == method])), None)

    def _ranked(self, some: Sequence[Candidate]) -> list[Candidate]:
        scored = [c for c in some if c.name in self.legs and self.legs[c.name].score is not None]
        return sorted(scored, key=lambda c: _rank(self.legs[c.name]), reverse=True)


def _score_from_json(value: float, loss: float | None) -> Score:
    """Return the score; a loss that is not finite, which JSON has as null, is the worst."""
    return Score(value, math.inf if loss is None else loss)


def rungs_of(rounds: int) -> list[int]:
    """Return the rounds at which candidates are compared: a ninth, a third, and all of them."""
    return sorted({max(1, math.ceil(rounds / KEPT**power)) for power in (2, 1, 0)})


def run_race(
    race: Race,
    budget: Callable[[Race], float],
    always: Sequence[str],
    train: TrainAll,
    compare: Callable[[Candidate, Candidate, float], Difference | None],
    gain: Callable[[float], float],
    save: Callable[[Race], None],
    at_once: int = 1,
) -> Race:
    """Run the race to its end, or on from where it was saved; the seconds may exceed the budget by the longest leg.

    Args:
        race: Its state, which is changed.
        budget: Returns the seconds for training, which may depend on what its leader takes; the leader and the best
            candidate of each `always` method train to the end whatever it takes, except a bound.
        always: The methods whose best candidate is never dropped, except a bound for whose rounds no time is left.
        train: Trains candidates up to a round; a round that was trained is not trained again.
        compare: Returns the paired difference of two candidates, first minus second, at a level such as 0.95.
        gain: Gives a difference the sign by which more is better.
        save: Writes the state; called after every leg.
        at_once: How many candidates train at the same time.
    """

    def starting(rounds: int) -> Iterator[Candidate]:
        """Yield the candidates that train up to a round, and drop those for which it is too late."""
        for candidate in _in_order_of_start(race, rounds, at_once):
            # later rungs hold what `_halve` has found time for
            if race.rung == 0 and _is_late(race, candidate, budget(race), always, running):
                _drop(race, candidate, "time")
                save(race)
            else:
                running.add(candidate)
                yield candidate

    running: set[Candidate] = set()
    while race.rung < len(race.rungs):
        rounds = race.rungs[race.rung]
        for trained in train(starting(rounds), rounds):
            running.remove(trained.candidate)
            race.add(trained)
            save(race)
        if race.rung + 1 < len(race.rungs):
            _halve(race, budget(race), always, compare, gain, at_once)
        race.rung += 1
        save(race)
    return race


def _in_order_of_start(race: Race, rounds: int, at_once: int) -> list[Candidate]:
    """Return the candidates that have not trained up to a round.

    If several train at once, those whose next leg takes longest start first, so that none is left alone at the end; in
    the first rung no candidate has a leg, and the order stays.
    """
    legs, waiting = race.legs, race.waiting()
    if at_once == 1:
        return waiting
    return sorted(waiting, key=lambda c: -_seconds_to(legs[c.name], rounds) if c.name in legs else 0.0)


def _halve(
    race: Race,
    budget: float,
    always: Sequence[str],
    compare: Callable[[Candidate, Candidate, float], Difference | None],
    gain: Callable[[float], float],
    at_once: int,
) -> None:
    """Drop what is behind the leader, and then all but the better third, or as many as the time allows."""
    ranked = race.ranking()
    if not ranked:
        return
    leader, anchors = ranked[0], {c.name: c for c in filter(None, map(race.best_of, always))}
    pairs = max(len(ranked) * (len(ranked) - 1) / 2, 1)  # all, since the leader is known only afterwards
    level = 1 - ALPHA / ((len(race.rungs) - 1) * pairs)
    for candidate in ranked[1:]:
        if candidate.name not in anchors:
            measured = compare(candidate, leader, level)
            if measured is not None and measured.distinguishable and gain(measured.mean) < 0:
                _drop(race, candidate, "behind")
    rounds, kept = race.rungs[race.rung + 1], math.ceil(len(ranked) / KEPT)
    cost = {c.name: _seconds_to(race.legs[c.name], rounds) / at_once for c in race.alive}
    certain = {leader.name, *(name for name, anchor in anchors.items() if not anchor.bound)}
    to_the_end = {c.name: _seconds_to(race.legs[c.name], race.rungs[-1]) for c in race.alive}
    for name in anchors.keys() - certain:  # a bound cannot win, and its rounds may take as long as those of all others
        shared = sum(to_the_end[other] for other in (*certain, name)) / at_once
        if max(to_the_end[name], shared) <= budget - race.seconds:
            certain.add(name)
    left = (budget - race.seconds) / (len(race.rungs) - 1 - race.rung) - sum(cost[name] for name in certain)
    places = {c.name: place for place, c in enumerate(race.ranking())}
    for candidate in sorted(race.alive, key=lambda c: places.get(c.name, len(places))):
        if candidate.name in certain:
            continue
        is_late = cost[candidate.name] > left or cost[candidate.name] * at_once > budget - race.seconds
        if candidate.bound or places[candidate.name] >= kept or is_late:
            _drop(race, candidate, "time")
        else:
            left -= cost[candidate.name]


def _is_late(
    race: Race, candidate: Candidate, budget: float, always: Sequence[str], running: Collection[Candidate]
) -> bool:
    """Return whether the first rung has used its share of the budget; `always` methods still start their first setting.

    A bound of these starts only within the budget.
    """
    started = {c.method for c in race.alive if c.name in race.legs or c in running}
    if candidate.bound and race.seconds > budget:
        return True
    return race.seconds > budget / len(race.rungs) and not (
        candidate.method in always and candidate.method not in started
    )


def _seconds_to(leg: Leg, rounds: int) -> float:
    return leg.seconds / leg.rounds * (rounds - leg.rounds)


def _rank(leg: Leg) -> tuple[float, float]:
    assert leg.score is not None, "only candidates with a score are ranked"
    return leg.score.rank


def _drop(race: Race, candidate: Candidate, reason: str) -> None:
    race.dropped[candidate.name] = reason
    race.alive.remove(candidate)
