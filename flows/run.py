"""The flow `run`: one method, one seed, one data version. It owns the loop, once for every method."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flows.console import screen
from flows.console.ctrl_c import heed, interruption
from flows.console.run_news import say_notes, say_result, say_round, say_warnings
from flows.doors.forms import MethodName, Overrides, Seed, Text
from flows.doors.verb import verb
from flows.experiment.baseline import baseline
from flows.experiment.calls.sampling import Called, called
from flows.experiment.evaluation import for_scored, last_scores, scored_model, scores_of, scores_of_others
from flows.experiment.flow_parameters import admitted
from flows.experiment.one_run import records
from flows.experiment.one_run.commits import Commits
from flows.experiment.one_run.identity import identity_of
from flows.experiment.one_run.mlflow_run import finish, ticket
from flows.experiment.one_run.run_folder import NO_RANK, Kept, RunFolder, run_name
from flows.experiment.project import Project, new_experiment, newest_experiment
from flows.experiment.scaling.agreed import Agreed, agreed
from flows.experiment.scaling.run_notes import Note, notes_of_best, notes_of_rows, notes_of_scores, notes_of_training
from flows.experiment.scene import Scene, drawn
from flows.experiment.user_method import error_of_plugin
from flows.method import Method, start
from flows.plugins import METHODS
from flows.round import Problem, Round, play
from models.model import Model
from models.networks.registry import to_learn
from models.state import State
from silos.machine.locks import alone
from silos.names import plain
from silos.private import PrivateStore
from tasks.recording.checkpoint import Checkpoint, load_state
from tasks.recording.json_files import write_json
from tasks.recording.mlflow_store.delivery import Delivery
from tasks.running.process_memory import resident, tidy
from tasks.running.runner import PrefectRunner


@verb(run_name="run {method}-seed{seed}")
def run(
    method: MethodName,
    seed: Seed = 0,
    overrides: Overrides = (),
    resume: bool = False,
    experiment: Text = "",
    cell: str = "",
    derived: bool = False,
) -> dict[str, Any]:
    """One run of a method; answers with its result as plain JSON.

    Args:
        method: The method that trains.
        seed: Of training; the partition has its own in params.yaml.
        overrides: Values over those of params.yaml, each as section.key=value, for example training.rounds=20.
        resume: Go on after the last whole round of the newest such run.
        experiment: The folder in runs/ that the run is put into; a new one if none is named.
        cell: What the name of the run begins with, where that folder has several runs of the method with the seed.
        derived: Take the partition that params describe from the cache of partitions, instead of data/.
    """
    project = Project.open(admitted(overrides or []), derived=derived)
    page = project.params.page(method, project.root)
    name = run_name(method, seed, cell)
    if experiment:
        plain(experiment, "the experiment")
    with project.working(name):
        if not experiment and resume:
            experiment = newest_experiment(project, "run", inside=name)
        if not experiment:
            about = {"methods": [method], "seeds": [seed], "data_version": project.silos.version}
            experiment = new_experiment(project, "run", about)
        return _within(project, page, method, seed, RunFolder(project.runs / experiment / name), resume)


def probe(project: Project, method: str, seed: int) -> dict[str, Any]:
    """A run inside another flow, of a project that keeps in a scratch folder what it leaves."""
    folder = RunFolder(project.runs / new_experiment(project, "run", {}) / run_name(method, seed))
    return _within(project, project.params.page(method, project.root), method, seed, folder, resume=False)


def _within(project: Project, page: Method, method: str, seed: int, folder: RunFolder, resume: bool) -> dict[str, Any]:
    lock = project.working(f"{folder.path.parent.name}/{folder.name}")
    with lock, alone(folder.path), project.workers() as workers:
        return _Run(project, page, method, seed, folder, PrefectRunner(workers)).result(resume)


@dataclass
class _Run:
    """What the loop works with."""

    project: Project
    page: Method
    method: str
    seed: int
    folder: RunFolder
    runner: PrefectRunner
    began: float = field(default_factory=time.perf_counter)

    def result(self, resume: bool) -> dict[str, Any]:
        """The finished run's JSON, from disk if it was finished before and is delivered."""
        problem = self.project.problem(self.seed)
        identity = identity_of(self.project, problem, self.page, self.method)
        identity = self.folder.identify(identity, resume, self.project.same_rows)
        done = self.folder.finished()
        if done is not None and done["mlflow_run_id"] is not None:
            return done
        private = self.project.private(self.folder.path)
        agreement = agreed(self.project, problem, self.folder, self.runner)
        if agreement.scaling != self.project.scaling:
            self.project = replace(self.project, scaling=agreement.scaling)
            problem = self.project.problem(self.seed)
        begun = load_state(self.folder.checkpoint) or Checkpoint(start(self.page, problem), 0, {})
        for _ in self.folder.journal.each(begun.round):
            pass  # a damaged one is told now, not after the rounds that are left
        delivery = Delivery(self.folder.path, ticket(self.project, self.page, identity, self.folder))
        screen.current().begin(self.folder.name, begun.round, self.project.params.training.rounds)
        try:
            delivery.round_done(begun.round)
            asked = notes_of_rows(self.project, problem, self.runner, private)
            notes = [*notes_of_scores(self.project, self.page), *agreement.notes, *asked]
            say_notes(notes)
            state, last = self._loop(problem, private, begun, delivery, agreement)
            return self._conclude(problem, private, state, last, begun.round, delivery, notes)
        except BaseException as error:
            delivery.abandon("FAILED" if interruption(error) is None else "KILLED")
            files = {str(self.project.root / file): file for file in self.project.params.plugins}
            page = self.project.plugins.of(METHODS).get(self.method)
            complaint = error_of_plugin(error, self.method, files, page.file if page else "")
            if complaint is not None:
                raise complaint from error
            raise

    def _loop(
        self, problem: Problem, private: PrivateStore, begun: Checkpoint, delivery: Delivery, agreement: Agreed
    ) -> tuple[State, int]:
        """Rounds until the budget is spent or the method ends itself; each is on disk before it counts."""
        params, quantity, (state, number, memory) = self.project.params, self.project.quantity, begun
        sampler = self.page.sampler(self.project.sampler)
        keep_best = params.evaluation.report == "best"
        say_warnings(self.folder.name, sampler.warnings(problem))
        best = self.folder.best_round(number, quantity) if keep_best else (NO_RANK, 0)
        reached = number > 0 and self._reached(self.folder.journal.read(number))
        with Commits(self.folder, Kept.of(state, best[1])) as commits:
            while number < params.training.rounds and not state.finished and not reached:
                heed()
                began, number = time.perf_counter(), number + 1
                there = called(sampler, problem, number, memory)
                round = self._round(problem, private, number, there, f"round {number}")
                round = replace(round, validation={} if sampler.asks_validation else None)
                if number == 1:
                    agreement.count(round.tally)
                state, report = play(self.page, state, round)
                memory = sampler.remember(memory, round, report) if round.clients else memory
                last = number == params.training.rounds or bool(state.finished)
                score = last or number % params.evaluation.every == 0
                if score:
                    commits.settle()  # what follows may take long, and a person waits to hear of the round before
                scores = scores_of(self.project, self._scored(self._model(state, round)), round) if score else []
                record = records.round_record(round, report, scores, self.project.silos, quantity)
                if score:
                    record["metrics"] |= scores_of_others(self.project, self.page, state, round)
                validation = quantity.rank(record["metrics"], "validation/")
                if keep_best and validation > best[0]:
                    best = (validation, number)
                    self.folder.save_best(state, number)
                reached = self._reached(record)
                tidy()
                record["memory"] = {"resident": resident()}
                record["seconds"] = {"round": time.perf_counter() - began, **round.tally.seconds}
                commits.put(record, state, memory, best[1], partial(self._counts, record, report.said, delivery))
                self.folder.forget(private, commits.kept)
            commits.settle()
            self.folder.forget(private, commits.kept)
        return state, number

    def _counts(self, record: dict[str, Any], said: Sequence[str], delivery: Delivery) -> None:
        """A round is on disk: MLflow and the screen are told of it."""
        delivery.round_done(record["round"])
        say_round(self.folder.name, record, self.project.quantity, said, self.project.params.training.rounds)

    def _conclude(
        self,
        problem: Problem,
        private: PrivateStore,
        state: State,
        last: int,
        resumed_from: int,
        delivery: Delivery,
        notes: list[Note],
    ) -> dict[str, Any]:
        """The reported model is scored once more, each client keeping its outcomes, and everything is written down."""
        project, quantity, silos = self.project, self.project.quantity, self.project.silos
        rounds, reported = self.folder.rounds(last), last
        if project.params.evaluation.report == "best":
            state, reported, _ = self.folder.the_best(last, quantity) or Checkpoint(state, last, {})
        round = self._round(problem, private, reported, Called(problem.silos.clients), "result")
        model = self._model(state, round)
        metrics, doubts = last_scores(project, self._scored(model), round, self.folder)
        metrics |= scores_of_others(project, self.page, state, round)
        result: dict[str, Any] = {
            "method": self.method,
            "seed": self.seed,
            "model": self.page.tested_model,
            "task": silos.manifest.task,
            "data_version": problem.silos.version,
            "rounds": last,
            "reported_round": reported,
            "ended_by": state.finished or ("evaluation.stop_at" if self._reached(rounds[-1]) else "training.rounds"),
            "resumed_from_round": resumed_from,
            **records.totals_of(rounds),
            "parameters": to_learn(model.network),
            "metrics": metrics,
            "baseline": baseline(project),
            "doubts": doubts,
            "notes": [
                *notes,
                *notes_of_training(self.folder, last, metrics, quantity),
                *notes_of_best(self.folder, reported, last, quantity),
            ],
            "weights_sha256": state.sha256(),
            "folder": str(self.folder.path.relative_to(project.root)),
        }
        means = records.means_of(doubts, silos)
        final = {"round": reported, "time_ms": rounds[-1]["time_ms"], "metrics": means}
        each, personal = self.folder.journal.each, project.params.tracking.personal_models
        scene = Scene(self.folder.path, model, silos, round, rounds, lambda: each(last), quantity, personal)
        pictures = drawn([*self.page.pictures(), *project.figures], scene)
        once = finish(project, self.page, problem, private, model, self.folder, result, final, pictures)
        result["mlflow_run_id"] = delivery.finish(once)
        if delivery.notice:
            screen.current().say_once(f"{delivery.notice}.")
        result["seconds"] = {"total": time.perf_counter() - self.began, **records.seconds_of(rounds)}
        write_json(self.folder.result, result)
        say_result(self.folder.name, result, quantity, delivery.problem)
        return result

    def _reached(self, record: dict[str, Any]) -> bool:
        target = self.project.params.evaluation.stop_at
        return target is not None and self.project.quantity.reaches(record["metrics"], target)

    def _round(self, problem: Problem, private: PrivateStore, number: int, called: Called, when: str) -> Round:
        """`when`: what the names of its tasks' runs say."""
        there, device, runner = (called.clients, called.dropped), self.project.device, replace(self.runner, when=when)
        return Round(number, problem, *there, runner, private, device, leaving=called.leaving)

    def _model(self, state: State, round: Round) -> Model:
        return scored_model(self.page, self.project.silos, state, round)

    def _scored(self, model: Model) -> Model:
        return for_scored(self.project, self.page, model)
