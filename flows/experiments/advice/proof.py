"""Prove the winner of a race on fresh seeds and test rows, which took no part in the choice.

Besides the winner, FedAvg and training alone, one policy may be proved: FedAvg without the silos that lose by it. These
silos train alone.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from flows.core.console.safe_text import duration
from flows.experiments.advice.candidates import POOLED, SHARED
from flows.experiments.advice.race import Candidate, Leg, Pace, Race
from flows.experiments.comparison.client_gains import ALONE
from flows.project.project import Project
from flows.project.project_workers import plain_runner
from flows.training.paired_runs import (
    client_strata,
    means_by_client,
    scales_of_headline,
    strata_of_pairs,
)
from models.metrics.paired_difference import Difference, Stratum, difference
from models.metrics.task_metrics import TaskMetrics
from silos.errors import UserError
from tasks.paired_outcomes import Outcomes
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.result_types.advice_result import RunCost

_MARGIN = 0.8  # of the time, in which a suggested number of rounds should fit: rounds do not all take as long
_RACING = 0.6  # share of the minutes for the race; the rest is for the proof
SEEDS = range(3, 6)
"""The possible numbers of fresh seeds; with two, intervals would be five times as wide."""
_LEVEL = 0.05  # of all intervals of a proof

OutcomesOf = Mapping[str, Sequence[Outcomes]]
"""The outcomes of each proved method's runs, by seed."""


def seconds_needed(one_run: float, at_once: int = 1) -> float:
    """Return the seconds of the shortest advice: two methods race to the end, and three are proved on three seeds.

    `at_once` runs train at the same time.
    """
    return one_run * (math.ceil(2 / at_once) + math.ceil(3 * SEEDS.start / at_once))


def check_minutes(budget: float, before: float, leg: Leg, pace: Pace, method: str, at_once: int = 1) -> None:
    """Raise UserError if the budget does not suffice for the shortest advice.

    Args:
        budget: The seconds of the command.
        before: Those that it took before the race.
        leg: What the first candidate has trained.
        pace: What a run takes, as that leg suggests.
        method: The candidate's method.
        at_once: How many runs train at the same time.
    """
    needed = before + seconds_needed(pace.run, at_once)
    if needed <= budget:
        return
    affordable = _MARGIN * (budget - before) / seconds_needed(1.0, at_once) - leg.seconds
    fewer = leg.rounds + math.floor(affordable / max(pace.round, 1e-9))
    raise UserError(
        f"minutes: got {budget / 60:g}, expected at least {math.ceil(needed / 60)}, since one run of "
        f"{method} takes about {duration(pace.run)}, and the shortest advice needs eleven runs. Run the "
        f"command with `--minutes {math.ceil(needed / 60)} --resume`"
        f"{f', or with `--set training.rounds={fewer}`' if fewer > 0 else ''}."
    )


def race_seconds(race: Race, budget: float, at_once: int = 1) -> float:
    """Return the seconds of the race, so that the budget also suffices for a proof of its leader on three seeds.

    While a rung is trained, its leader may change: a run takes the race's pace. Once it is complete, whole runs of FedAvg,
    training alone and the leader take as long as their rounds so far suggest.
    """
    one_run, last = race.pace.run if race.pace else 0.0, race.rungs[-1]
    is_complete = not race.waiting()
    leaders = [race.best_of(SHARED), race.best_of(ALONE), *race.ranking()[:1]] if is_complete else []
    legs = {leader.method: race.legs[leader.name] for leader in leaders if leader is not None}
    runs = [leg.seconds / leg.rounds * last for leg in legs.values()] + [one_run] * (3 - len(legs))
    proof = _wall_seconds(SEEDS.start * runs, at_once)
    return max(min(budget * _RACING, budget - proof), one_run * math.ceil(2 / at_once))


def seeds_that_fit(seconds: float, costs: Sequence[float], at_once: int = 1) -> int:
    """Return how many seeds a proof has, at least three; `costs` are the seconds of its runs of one seed."""
    fitting = [count for count in SEEDS if _wall_seconds(count * [*costs], at_once) <= seconds]
    return max(fitting, default=SEEDS.start)


def _wall_seconds(runs: Sequence[float], at_once: int) -> float:
    """Return when the last of the runs ends, if each starts as soon as one of `at_once` processes is free."""
    free = [0.0] * at_once
    for seconds in runs:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


class Cost(NamedTuple):
    """What a run of a method costs, the mean over seeds.

    Attributes:
        sent: Bytes that a silo sends.
        received: Bytes that a silo receives.
        seconds: Seconds of the whole run on this machine.
        keeps_state: Whether silos keep tensors of their own between rounds.
    """

    sent: float
    received: float
    seconds: float
    keeps_state: bool

    def as_json(self) -> RunCost:
        """Return the record of the cost."""
        return {
            "sent": self.sent,
            "received": self.received,
            "seconds": self.seconds,
            "keeps_state": self.keeps_state,
        }


class ProofPlan(NamedTuple):
    """The methods of a proof, its seeds, and whether FedAvg is also trained without the silos that lose by it."""

    methods: list[str]
    seeds: list[int]
    excludes: bool = False


def plan_proof(
    file: Path,
    race: Race,
    proved: Mapping[str, Candidate],
    seed: int,
    seconds: float,
    excludes: bool = False,
    at_once: int = 1,
) -> ProofPlan:
    """Return the methods and seeds of a proof: as many seeds as fit, but at least three.

    FedAvg without silos, and pooled training, are only part of it if they fit.

    Args:
        file: Where the plan is kept, so that a resumed proof has the methods and seeds it began with.
        race: The race, whose seconds estimate those of the proof.
        proved: The methods with their settings.
        seed: The seed of the race, which the proof does not use.
        seconds: The time for the proof.
        excludes: Whether there are silos that FedAvg may be trained without.
        at_once: How many runs train at the same time.
    """
    saved = read_json(file, keys=("seeds", "methods", "excludes"))
    if saved is None:
        cost = {m: race.legs[c.name].seconds for m, c in proved.items()}

        methods = [method for method in proved if method != POOLED]

        def fits(further: Iterable[str]) -> bool:
            runs = [cost[method] for method in (*methods, *further)]
            return _wall_seconds(SEEDS.start * runs, at_once) <= seconds

        # before pooled training, which is a bound: advice may be to leave silos out, but never to pool rows
        without = [SHARED] if excludes and fits([SHARED]) else []
        methods += [POOLED] if POOLED in proved and fits([*without, POOLED]) else []
        count = seeds_that_fit(seconds, [cost[method] for method in (*methods, *without)], at_once)
        seeds = [seed + 1 + index for index in range(count)]
        saved = {"seeds": seeds, "methods": methods, "excludes": bool(without)}
        write_json(file, saved)
    return ProofPlan(saved["methods"], saved["seeds"], saved["excludes"])


def proved_pairs(choice: str, methods: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of proved methods whose difference the advice needs, each once."""
    wanted = [(choice, SHARED), (choice, ALONE), (SHARED, ALONE), *((POOLED, m) for m in (choice, SHARED, ALONE))]
    first = {frozenset(pair): pair for pair in reversed(wanted)}  # ALONE that won is in two pairs with SHARED
    return [
        pair for pair in dict.fromkeys(first[frozenset(p)] for p in wanted if p[0] != p[1]) if {*pair} <= {*methods}
    ]


@dataclass(frozen=True)
class Exclusion:
    """FedAvg without `silos`, which train alone, less each proved method, over all silos."""

    silos: Sequence[str]
    differences: Mapping[str, Difference]


class Proof(NamedTuple):
    """The differences of proved methods, first minus second, and of FedAvg without losing silos, if there are any."""

    differences: Mapping[tuple[str, str], Difference]
    exclusion: Exclusion | None = None


def pair_differences(
    choice: str,
    methods: Sequence[str],
    strata_of: Callable[[str, str], Sequence[Stratum]],
    quantity: TaskMetrics,
    others: int = 0,
) -> dict[tuple[str, str], Difference]:
    """Return the differences of the pairs that the advice needs, with intervals that hold at once (Bonferroni).

    Args:
        choice: The method that won the race.
        methods: The proved methods.
        strata_of: Returns the sums of two methods, first minus second; none if no rows are theirs.
        quantity: The metric.
        others: The number of other intervals that hold at once with these.
    """
    pairs = proved_pairs(choice, methods)
    level = _level(len(pairs) + others)
    return {
        pair: difference(strata, level, quantity.bound, quantity.alike)
        for pair in pairs
        if (strata := strata_of(*pair))
    }


def _level(intervals: int) -> float:
    """Return the level of each of so many intervals that hold at once."""
    return 1 - _LEVEL / max(intervals, 1)


def measure(
    project: Project, choice: str, outcomes: OutcomesOf, losers: Sequence[str] = (), without: Sequence[Outcomes] = ()
) -> Proof:
    """Return the paired differences that the advice rests on, with intervals that hold at once (Bonferroni).

    Args:
        project: The project.
        choice: The method that won the race.
        outcomes: Of each proved method's runs, by seed; all methods have the same seeds.
        losers: The silos that FedAvg was also trained without.
        without: The outcomes of these runs, by seed; none if there are no such silos.
    """
    silos, quantity, runner = project.scored.federated(), project.quantity, plain_runner(project)
    against = [m for m in dict.fromkeys((choice, SHARED, ALONE)) if m in outcomes] if without else []

    def strata_of(first: str, second: str) -> list[Stratum]:
        return strata_of_pairs(runner, silos, outcomes[first], outcomes[second], quantity)

    found = pair_differences(choice, list(outcomes), strata_of, quantity, len(against))
    if not without or ALONE not in outcomes:
        return Proof(found)
    rest = silos.select([client for client in silos.clients if client not in losers])
    level = _level(len(proved_pairs(choice, list(outcomes))) + len(against))
    policies = ((rest, without), (silos.select(list(losers)), outcomes[ALONE]))
    differences = {}
    for method in against:
        against_method = [(runner, some_silos, own, outcomes[method], quantity) for some_silos, own in policies]
        means = {client: of for args in against_method for client, of in means_by_client(*args).items()}
        scales = scales_of_headline(quantity, means)
        strata = [s for args in against_method for s in client_strata(*args, scales=scales).values()]
        if strata:
            # silos that train alone in both have no variance, so the silos' variances differ
            differences[method] = difference(strata, level, quantity.bound, pooled_variance=False)
    return Proof(found, Exclusion(losers, differences))
