"""Trains the candidates of a race as trials in runs/, compares their outcomes, and keeps the race on disk."""

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from flows.core.console import progress
from flows.core.console.safe_text import duration
from flows.experiments.advice.advice_text import race_line
from flows.experiments.advice.candidates import POOLED, SHARED, candidates, in_order
from flows.experiments.advice.proof import check_minutes, race_seconds
from flows.experiments.advice.race import Candidate, Leg, Pace, Race, Trained, run_race, rungs_of
from flows.experiments.comparison.client_gains import ALONE
from flows.experiments.comparison.run_trials import trial_name
from flows.experiments.comparison.trial_processes import Trial, TrialProcesses
from flows.experiments.comparison.tuner import validation_score
from flows.project.project import Project
from flows.project.project_workers import plain_runner
from flows.training.paired_runs import compare_pairs
from flows.training.run_records.run_folder import RunFolder, run_name
from models.metrics.paired_difference import Difference
from models.metrics.task_metrics import TaskMetrics
from tasks.paired_outcomes import Outcomes
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.result_types.run_files import ValidationRecord

RACE = "race.json"
_SHORTEST = 11  # runs of the shortest advice
_TIMED = 3  # rounds that say whether the minutes can suffice, before silos are diagnosed
_RUN = "race"  # as the screen shows it


@dataclass(frozen=True)
class RaceTrials:
    """Runs the trials of a race.

    Attributes:
        project: The project.
        processes: Where trials run; their experiment is the folder of the race.
        seed: The seed of all trials.
        budget: The seconds of the command.
    """

    project: Project
    processes: TrialProcesses
    seed: int
    budget: float

    def time_rounds(self) -> None:
        """Train FedAvg for a few rounds of the race, in which it starts first.

        Raises:
            UserError: If these show that the budget cannot suffice.
        """
        first, last = candidates(self.project, self.seed, [SHARED])[0], self.project.params.training.rounds
        rounds = min(_TIMED, rungs_of(last)[0])
        progress.say(f"times {rounds} round{'' if rounds == 1 else 's'} of {SHARED}")
        with _quiet():
            (finished,) = self.processes.run([self._trial(first, rounds)])
        if isinstance(finished.outcome, str):  # the race says why
            return
        leg = Leg(rounds, None, finished.seconds)
        pace = pace_of(self._folder(first), leg, last)
        self.processes.start_for(_SHORTEST, pace.run, pace.round)
        check_minutes(self.budget, 0.0, leg, pace, first.method, self.processes.at_once)

    def race(self, began: float, methods: Sequence[str], align: Sequence[str], gains: Mapping[str, float]) -> Race:
        """Race the candidates, or continue the race that was stopped.

        Args:
            began: When the command began, by `time.perf_counter`.
            methods: Those that race besides the references; all if none is named.
            align: Features that some candidates align.
            gains: Predicted gains of methods, which order the candidates.
        """
        race = self._opened(began, methods, align, gains)
        race.minutes = self.budget / 60
        if race.rung >= len(race.rungs):
            return race
        self.plan(race)
        quantity, at_once = self.project.quantity, self.processes.at_once
        time_of = partial(race_seconds, budget=self.budget - race.before, at_once=at_once)
        seconds = time_of(race)
        shown = _RaceProgress(race, seconds, quantity)
        progress.say(
            f"{len(race.alive)} settings of {len({c.method for c in race.alive})} methods race for up to "
            f"{duration(seconds)} on validation rows of seed {self.seed}"
        )

        def save(race: Race) -> None:
            self._write(race)
            shown.step(race)

        references = (SHARED, ALONE, POOLED)
        train = partial(self.train, race)
        run_race(race, time_of, references, train, self.compare, quantity.gain, save, at_once)
        return race

    def _opened(self, began: float, methods: Sequence[str], align: Sequence[str], gains: Mapping[str, float]) -> Race:
        saved = read_json(self.project.store.runs / self.processes.experiment / RACE)
        if saved is not None:
            race = Race.from_json(saved)
            race.forget(lambda candidate: self._folder(candidate).path.is_dir())
            return race
        ordered = in_order(candidates(self.project, self.seed, methods, align), gains, (SHARED, ALONE))
        return Race(rungs_of(self.project.params.training.rounds), ordered, before=time.perf_counter() - began)

    def _write(self, race: Race) -> None:
        write_json(self.project.store.runs / self.processes.experiment / RACE, race.as_json())

    def plan(self, race: Race) -> None:
        """Find the race's pace, and start processes if several runs can train at once.

        The first candidate trains to the first rung, if it has not, since its time says how long a run takes.

        Raises:
            UserError: If the budget does not suffice for the shortest advice. A resumed race has been checked before.
        """
        left, is_known = self.budget - race.before, race.pace is not None
        pace = race.pace or self._measure_pace(race)
        if pace is None:
            return
        self.processes.start_for(len(race.alive), left / max(len(race.alive), 1), pace.round)
        if not is_known:
            first = next(candidate for candidate in race.alive if candidate.name in race.legs)
            leg = race.legs[first.name]
            check_minutes(self.budget, race.before, leg, pace, first.method, self.processes.at_once)
        race.pace = pace

    def _measure_pace(self, race: Race) -> Pace | None:
        """Train the first candidate that can train to the first rung, and return what a run takes; None if none can."""
        self.processes.start_asked(len(race.alive))
        for candidate in [*race.alive]:
            if candidate.name not in race.legs:
                for trained in self.train(race, iter([candidate]), race.rungs[0]):
                    race.add(trained)
                self._write(race)
            leg = race.legs[candidate.name]
            if leg.score is not None:
                return pace_of(self._folder(candidate), leg, race.rungs[-1])
        return None

    def train(self, race: Race, waiting: Iterator[Candidate], rounds: int) -> Iterator[Trained]:
        """Train candidates up to a round, several at once if the budget is worth their start."""
        training: dict[tuple[str, str], Candidate] = {}

        def trials() -> Iterator[Trial]:
            for candidate in waiting:
                trial = self._trial(candidate, rounds)
                training[trial.method, trial.cell] = candidate
                yield trial

        last = time.perf_counter()
        with _quiet():
            for trial, outcome, seconds in self.processes.run(trials()):
                candidate, now = training[trial.method, trial.cell], time.perf_counter()
                if isinstance(outcome, str):
                    leg = Leg(rounds, None, seconds, outcome)
                else:
                    known = race.legs.get(candidate.name)
                    leg = leg_of(self._folder(candidate), rounds, seconds, known, self.project.quantity)
                # the clock since the last end: legs that train at once share its seconds, and are not counted twice
                yield Trained(candidate, leg, now - last)
                last = now

    def compare(self, first: Candidate, second: Candidate, level: float) -> Difference | None:
        """Compare two candidates on the validation rows of the clients that are scored."""
        own, others = [self.outcomes(first)], [self.outcomes(second)]
        silos, quantity = self.project.scored.federated(), self.project.quantity
        return compare_pairs(plain_runner(self.project), silos, own, others, quantity, split="validation", level=level)

    def outcomes(self, candidate: Candidate) -> Outcomes:
        """Return where the clients of a candidate's run store the outcomes of their validation rows."""
        folder = self._folder(candidate)
        return self.project.store.private(folder.path), read_json(folder.validation)["outcomes"]

    def _trial(self, candidate: Candidate, rounds: int) -> Trial:
        settings = self.project.with_overrides(candidate.settings)
        return Trial(settings, candidate.method, self.seed, trial_name(candidate.index), rounds)

    def _folder(self, candidate: Candidate) -> RunFolder:
        name = run_name(candidate.method, self.seed, trial_name(candidate.index))
        return RunFolder(self.project.store.runs / self.processes.experiment / name)


class _RaceProgress:
    """Shows a race: one step a leg, and a line a rung. `step` corrects the number of legs by their pace."""

    def __init__(self, race: Race, seconds: float, quantity: TaskMetrics) -> None:
        # that of the command, since candidates train without one
        self._sink, self._seconds, self._quantity = progress.current(), seconds, quantity
        self._before, self._rung, self._legs = race.seconds, race.rung, 0
        # about a third of the candidates remain at each rung
        self._count = (
            len(race.alive) + math.ceil(len(race.alive) / 3) + math.ceil(len(race.alive) / 9) + len(race.rungs)
        )
        self._sink.plan(1, self._count)
        self._sink.begin(_RUN, 0, self._count, "step")

    def step(self, race: Race) -> None:
        """Show that a leg has ended."""
        self._legs += 1
        pace = max(race.seconds - self._before, 1e-9) / self._legs
        fitting = math.ceil(max(self._seconds - race.seconds, 0.0) / pace)
        self._sink.plan(1, self._legs + min(self._count - self._legs, fitting))
        ranking = race.ranking()
        self._sink.round(_RUN, self._legs, f"{ranking[0].method} leads" if ranking else None)
        if race.rung > self._rung:
            self._rung = race.rung
            self._sink.say(race_line(race, self._quantity))


def leg_of(folder: RunFolder, rounds: int, seconds: float, known: Leg | None, quantity: TaskMetrics) -> Leg:
    """Return the leg after a known one; its seconds include rounds that were trained before a stop."""
    record: ValidationRecord = read_json(folder.validation)
    since = known.rounds if known else 0
    trained = sum(each["seconds"]["round"] for each in folder.rounds(record["round"]) if each["round"] > since)
    return Leg(rounds, validation_score(record["metrics"], quantity), max(seconds, trained))


def pace_of(folder: RunFolder, leg: Leg, last: int) -> Pace:
    """Estimate what a run to the last round takes, from the leg that has been trained."""
    a_round = statistics.median(record["seconds"]["round"] for record in folder.rounds(leg.rounds))
    return Pace(leg.seconds + a_round * (last - leg.rounds), a_round)


@contextmanager
def _quiet() -> Iterator[None]:
    """Show nothing of the run inside, except lines that are shown once."""
    outer = progress.current()
    progress.use(_OnlyNotes(outer))
    try:
        yield
    finally:
        progress.use(outer)


class _OnlyNotes(progress.ProgressSink):
    def __init__(self, outer: progress.ProgressSink) -> None:
        self._outer = outer

    def say_once(self, line: str) -> None:
        self._outer.say_once(line)
