"""The flow `run`: one method, one seed, one data version. It owns the loop, once for every method."""

import math
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows.console import screen
from flows.console.ctrl_c import heed, interruption
from flows.experiment import user_method as own_page
from flows.experiment.flow_parameters import admitted
from flows.experiment.mlflow_run import finish, ticket
from flows.experiment.project import Project, new_experiment, newest_experiment
from flows.experiment.run_folder import RunFolder, run_name
from flows.method import Method, MethodError, Report, start
from flows.round import Problem, Round, Tally, draw
from models.assessment.quantities import Quantity
from models.model import Model
from models.networks.deep_ensemble import members_of
from models.networks.pretrained import Pretrained
from models.networks.registry import to_learn
from models.state import State
from models.training.engine_choice import even
from silos.cohort import Silos
from silos.errors import UserError
from silos.locks import alone
from silos.names import plain
from silos.private import PrivateStore
from tasks.evaluate import evaluate
from tasks.messages import Scores
from tasks.projection import plane, projection, shared_words
from tasks.recording.checkpoint import load_state
from tasks.recording.figures import draw_codebook, draw_stages
from tasks.recording.json_files import unwritable, write_json
from tasks.recording.mlflow_names import parts
from tasks.recording.round_metrics import by_client, summary
from tasks.recording.track import Delivery
from tasks.running.process_memory import resident, tidy
from tasks.running.runner import PrefectRunner, Runner
from tasks.running.workers import Workers, open_workers
from tasks.uncertainty_check import uncertainty_check

SPLITS = ("validation", "test")


@flow(name="run", flow_run_name="{method}-seed{seed}", task_runner=ThreadPoolTaskRunner(), validate_parameters=False)  # type: ignore[arg-type]
def run(
    method: str,
    seed: int = 0,
    overrides: list[str] | None = None,
    resume: bool = False,
    experiment: str | None = None,
    cell: str = "",
    derived: bool = False,
) -> dict[str, Any]:
    """One run of a method; answers with its result as plain JSON.

    `overrides` are `section.key=value` over params.yaml of the current folder; `experiment` is the set of runs that this
    one belongs to (a new one if not given) and `cell` its place there; `resume` goes on after the last whole round;
    `derived` takes the partition that params describe from the cache of partitions instead of data/.
    """
    project = Project.open(admitted(overrides or []), derived=derived)
    page = project.params.page(method, project.root)
    name = run_name(method, seed, cell)
    if experiment is not None:
        plain(experiment, "the experiment")
    with project.working(name):
        if experiment is None and resume:
            experiment = newest_experiment(project, "run", inside=name)
        if experiment is None:
            about = {"methods": [method], "seeds": [seed], "data_version": project.silos.version}
            experiment = new_experiment(project, "run", about)
        return _within(project, page, method, seed, RunFolder(project.runs / experiment / name), resume)


def probe(project: Project, method: str, seed: int) -> dict[str, Any]:
    """A run inside another flow, of a project that keeps in a scratch folder what it leaves."""
    folder = RunFolder(project.runs / new_experiment(project, "run", {}) / run_name(method, seed))
    return _within(project, project.params.page(method, project.root), method, seed, folder, resume=False)


def _within(project: Project, page: Method, method: str, seed: int, folder: RunFolder, resume: bool) -> dict[str, Any]:
    own = project.working(f"{folder.path.parent.name}/{folder.name}")
    with own, alone(folder.path), workers_of(project) as workers:
        return _Run(project, page, method, seed, folder, PrefectRunner(workers)).result(resume)


def check_resume(project: Project, method: str, seed: int, experiment: str | None) -> None:
    """UserError if `resume` would have to go on with other settings than the run was started with."""
    if experiment is not None:
        folder = RunFolder(project.runs / experiment / run_name(method, seed))
        folder.check(_asked(project, project.problem(seed), project.params.page(method, project.root), method))


def workers_of(project: Project) -> AbstractContextManager[Workers]:
    """Where the project's params say that tasks run."""
    where = project.params.runner
    return open_workers(where.kind, where.workers, where.address, lambda words: screen.current().say(words))


@dataclass
class _Run:
    """What the loop works with."""

    project: Project
    page: Method
    method: str
    seed: int
    folder: RunFolder
    runner: Runner
    began: float = field(default_factory=time.perf_counter)

    def result(self, resume: bool) -> dict[str, Any]:
        """The finished run's JSON, from disk if it was finished before and is delivered."""
        problem = self.project.problem(self.seed)
        identity = self.folder.identify(_asked(self.project, problem, self.page, self.method), resume)
        done = self.folder.finished()
        if done is not None and done["mlflow_run_id"] is not None:
            return done
        private = self.project.private(self.folder.path)
        state, number = load_state(self.folder.checkpoint) or (start(self.page, problem), 0)
        for _ in self.folder.journal.each(number):
            pass  # a damaged one is told now, not after the rounds that are left
        delivery = Delivery(self.folder.path, ticket(self.project, self.page, identity, self.folder))
        screen.current().begin(self.folder.name, number, self.project.params.training.rounds)
        try:
            delivery.round_done(number)
            state, last = self._loop(problem, private, state, number, delivery)
            return self._conclude(problem, private, state, last, number, delivery)
        except BaseException as error:
            delivery.abandon()
            if self._is_the_users(error):
                raise self._told(error) from error
            raise

    @property
    def quantity(self) -> Quantity:
        """What the run is judged by."""
        return self.project.quantity

    def _is_the_users(self, error: BaseException) -> bool:
        """Whether a page of the user's own raised this."""
        ours = isinstance(error, UserError) or unwritable(error) or interruption(error)
        return self.method in self.project.params.extra_methods and not ours

    def _told(self, error: BaseException) -> MethodError:
        file = self.project.params.extra_methods[self.method]
        line = own_page.line_of(error, str(sys.modules[type(self.page).__module__].__file__))
        notes = getattr(error, "__notes__", ())  # inside a step the step has said where (see tasks.running.step)
        where = f" {notes[0]}" if notes else f" ({Path(file).name}, line {line})" if line else ""
        return MethodError(
            f"{self.method} failed: {type(error).__name__}: {error}{where}; "
            f"mend {file}, and --resume goes on after the last whole round."
        )

    def _loop(
        self, problem: Problem, private: PrivateStore, state: State, number: int, delivery: Delivery
    ) -> tuple[State, int]:
        """Rounds until the budget is spent or the method ends itself; each is on disk before it counts."""
        params = self.project.params
        keep_best = params.evaluation.report == "best"
        best = self.folder.best_round(number, self.quantity) if keep_best else (-math.inf, 0)
        reached = number > 0 and self._reached(self.folder.journal.read(number))
        while number < params.training.rounds and not state.finished and not reached:
            heed()
            start, number = time.perf_counter(), number + 1
            about = params.clients
            clients, dropped = draw(problem, number, about.fraction, about.dropout, about.join)
            round = self._round(problem, private, number, clients, dropped)
            state, report = self.page.one_round(state, round) if clients else (state, Report())
            last = number == params.training.rounds or bool(state.finished)
            score = last or number % params.evaluation.every == 0
            scores = self._evaluate(self._answer(state, round), round) if score else []
            record = _record(round, report, scores, self.project.silos, self.quantity)
            validation = self.quantity.score(record["metrics"], "validation/")
            if keep_best and validation > best[0]:
                best = (validation, number)
                self.folder.save_best(state, number)
            reached = self._reached(record)
            tidy()
            record["memory"] = {"resident": resident()}
            record["seconds"] = {"round": time.perf_counter() - start, **round.tally.seconds}
            self.folder.commit(record, state)
            self.folder.forget(private, state, best[1])
            delivery.round_done(number)
            screen.current().round(number, self.quantity.said(record["metrics"]))
            for words in report.said:
                screen.current().say(f"{self.folder.name}, round {number}: {words}")
        return state, number

    def _conclude(
        self, problem: Problem, private: PrivateStore, state: State, last: int, resumed_from: int, delivery: Delivery
    ) -> dict[str, Any]:
        """The reported model is scored once more, each client keeping its outcomes, and everything is written down."""
        records, reported = self.folder.rounds(last), last
        if self.project.params.evaluation.report == "best":
            state, reported = self.folder.load_best(last, self.quantity) or (state, last)
        round = self._round(problem, private, reported, problem.silos.clients, ())
        model = self._answer(state, round)
        scores = self._evaluate(model, round, keep_outcomes=True)
        write_json(self.folder.outcomes, {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()})
        table = by_client(scores, self.quantity)
        silos, name = self.project.silos, self.quantity.name
        doubts = self._doubts(model, round)
        each = [{"client": c, "role": silos.role(c), name: table.get(c, {}).get(f"test/{name}")} for c in silos.clients]
        result: dict[str, Any] = {
            "method": self.method,
            "seed": self.seed,
            "model": self.page.tests,
            "task": silos.manifest.task,
            "data_version": problem.silos.version,
            "rounds": last,
            "reported_round": reported,
            "ended_by": state.finished or ("evaluation.stop_at" if self._reached(records[-1]) else "training.rounds"),
            "resumed_from_round": resumed_from,
            "bytes": {k: sum(r["metrics"][f"bytes/{k}"] for r in records) for k in ("up", "down")},
            "steps": sum(r["metrics"].get("steps", 0) for r in records),
            "parameters": to_learn(model.network),
            "dropped_out": sum(r["dropped"] for r in records),
            "metrics": {**_metrics(table, silos, self.quantity), **_means(doubts, silos), f"{name}/by_client": each},
            "doubts": doubts,
            "weights_sha256": state.sha256(),
            "folder": str(self.folder.path.relative_to(self.project.root)),
        }
        pictures = self._pictures(model, round, records)
        final = {"round": reported, "time_ms": records[-1]["time_ms"], "metrics": _means(doubts, silos)}
        once = finish(self.project, self.page, problem, private, model, self.folder, last, final, pictures)
        result["mlflow_run_id"] = delivery.finish(once)
        result["seconds"] = {"total": time.perf_counter() - self.began, **_seconds(records)}
        write_json(self.folder.result, result)
        screen.current().end(self.folder.name, self.quantity.said(result["metrics"]), result["seconds"]["total"])
        if delivery.problem:
            screen.current().say(
                f"{self.folder.name}: {delivery.problem}; its metrics are kept in {result['folder']}, "
                "and --resume delivers them."
            )
        if result["dropped_out"]:
            screen.current().say(
                f"{self.folder.name}: clients dropped out {result['dropped_out']} times, the rounds went on"
            )
        return result

    def _reached(self, record: dict[str, Any]) -> bool:
        target = self.project.params.evaluation.stop_at
        return target is not None and self.quantity.reaches(record["metrics"], target)

    def _round(
        self, problem: Problem, private: PrivateStore, number: int, clients: tuple[str, ...], dropped: tuple[str, ...]
    ) -> Round:
        return Round(number, problem, clients, dropped, self.runner, private, self.project.device)

    def _answer(self, state: State, round: Round) -> Model:
        """What every client would use, also those that did not take part."""
        return answer_of(self.page, self.project.silos, state, round)

    def _pictures(self, model: Model, round: Round, records: list[dict[str, Any]]) -> tuple[Path, ...]:
        """The stages, where the method has some; features and words, where there are words and params let them be seen."""
        made = []
        if any("check/entropy" in r["metrics"] for r in records):
            made.append(self.folder.path / "stages.png")
            draw_stages(made[-1], records, self.quantity)
        shared = shared_words(model)
        if shared is not None and self.project.params.tracking.personal_models:
            silos, axes = self.project.silos.select(model.clients), plane(shared)
            options: dict[str, Any] = {"training": round.problem.training, "axes": axes, "seed": self.seed}
            told = round.each(projection, model, silos=silos, **options)
            points = {
                client: (tokens.tolist(), own.tolist())
                for m in told
                for client, tokens, own in zip(m.clients, m.tokens, m.words, strict=True)
            }
            made.append(self.folder.path / "codebook.png")
            draw_codebook(made[-1], (shared @ axes).tolist(), points, {c: silos.domain(c) or "" for c in points})
        return tuple(made)

    def _doubts(self, model: Model, round: Round) -> dict[str, dict[str, float]]:
        """client to what uncertainty_check finds on its test rows; nothing of a regression, or without test rows."""
        if self.quantity.outcome != "correct":
            return {}
        silos = self.project.silos.select(model.clients)
        asked = silos.select(silos.clients[:1]) if silos.common("test") and not model.is_personal else silos
        options: dict[str, Any] = {"training": round.problem.training, "seed": self.seed, "round": round.number}
        options |= {"passes": self.project.params.evaluation.passes, "refuse": False}
        found: dict[str, dict[str, float]] = {}
        for told in round.each(uncertainty_check, model, silos=asked, split="test", **options):
            for at, client in enumerate(told.clients):
                if told.rows[at]:
                    numbers = {name: float(value[at]) for name, value in told.numbers.items()}
                    found[client] = {name: value for name, value in numbers.items() if math.isfinite(value)}
        return found if asked is silos else {client: dict(found[asked.clients[0]]) for client in silos.clients}

    def _evaluate(self, model: Model, round: Round, keep_outcomes: bool = False) -> list[Scores]:
        """Every client of the model is scored; one model on common rows is scored once and counts for every client."""
        silos = self.project.silos.select(model.clients)
        once = tuple(s for s in SPLITS if silos.common(s) and not model.is_personal)
        options: dict[str, Any] = {"training": round.problem.training, "keep_outcomes": keep_outcomes}
        scores: list[Scores] = []
        if len(once) < len(SPLITS):
            each = tuple(s for s in SPLITS if s not in once)
            scores += round.each(evaluate, model, silos=silos, splits=each, **options)
        if once:
            found = round.each(evaluate, model, silos=silos.select(silos.clients[:1]), splits=once, **options)
            scores += [score.for_all(silos.clients) for score in found]
        return scores


def _means(doubts: dict[str, dict[str, float]], silos: Silos) -> dict[str, float]:
    """`uncertainty/entropy` and so on: means over the federated clients, over each domain's, and over others by role."""
    groups: dict[str, list[str]] = {"": list(silos.federated().clients)}
    groups |= {f"{place}/": clients for place, clients in _domains(silos).items()}
    groups |= {f"{role}/": [c for c in doubts if silos.role(c) == role] for role in ("fresh", "unseen")}
    names = dict.fromkeys(name for of in doubts.values() for name in of)
    found: dict[str, float] = {}
    for before, clients in groups.items():
        for name in [n for n in names if not before.startswith("domain") or n in _BY_DOMAIN]:
            values = [doubts[c][name] for c in clients if name in doubts.get(c, {})]
            found |= {f"{before}uncertainty/{name}": math.fsum(values) / len(values)} if values else {}
    return found


def answer_of(page: Method, silos: Silos, state: State, round: Round) -> Model:
    """The model of every client, of all roles, that has one.

    The tasks that this may take cost seconds like those of the round; what they send is no traffic of training.
    """
    silos = page.answers(silos)
    problem, tally = replace(round.problem, silos=silos), Tally(round.tally.seconds)
    return page.answer(state, replace(round, problem=problem, clients=silos.clients, dropped=(), tally=tally))


def _asked(project: Project, problem: Problem, page: Method, method: str) -> dict[str, Any]:
    """What decides the run's numbers; where it is computed does not, but the engine's form rounds in its own way."""
    elsewhere = {"runner", "tracking", "comparison", "method", "engine"}
    params = project.params.model_dump(mode="json", exclude=elsewhere)
    network = members_of(problem.network)[0].network
    if isinstance(network, Pretrained) and network.pretrained:
        params["model"]["pretrained"] = f"sha256:{network.pretrained}"  # wherever the file lies
    stack = even(len(problem.silos.clients), problem.stack)
    engine = {"kind": problem.training.engine, "stack": stack, "device": project.device}
    return {
        "method": method,
        "seed": problem.seed,
        "data_version": project.silos.version,
        "params": {**params, "method": page.model_dump(mode="json"), "engine": engine},
    }


def _record(round: Round, report: Report, scores: list[Scores], silos: Silos, quantity: Quantity) -> dict[str, Any]:
    """What the journal keeps of a round: metrics with their time, and a row for each client."""
    table: dict[str, dict[str, Any]] = {c: {"role": silos.role(c)} for c in silos.clients}
    for column, values in report.rows.items():
        for client in table.keys() & values.keys():
            table[client][column] = values[client]
    scored = by_client(scores, quantity)
    for client, row in scored.items():
        table[client].update(row)
    metrics = {k: v for k, v in report.numbers.items() if math.isfinite(v)} | _metrics(scored, silos, quantity)
    metrics |= {"bytes/up": round.tally.bytes_up, "bytes/down": round.tally.bytes_down}
    metrics["clients/answered"] = len(round.clients)
    metrics["steps"] = max(round.tally.steps.values(), default=0)
    return {
        "round": round.number,
        "time_ms": int(time.time() * 1000),
        "metrics": metrics,
        "clients": table,
        "dropped": list(round.dropped),
    }


def _metrics(table: dict[str, dict[str, Any]], silos: Silos, quantity: Quantity) -> dict[str, Any]:
    """Test metrics of the federated clients under their own names; `validation/`, `fresh/` and `unseen/` before others."""
    found: dict[str, Any] = {}
    for role in ("federated", "fresh", "unseen"):
        rows = {client: row for client, row in table.items() if silos.role(client) == role}
        before = "" if role == "federated" else f"{role}/"
        found |= {f"{before}{k}": v for k, v in summary(rows, "test", quantity).items()}
        if role == "federated":
            found |= {f"validation/{k}": v for k, v in summary(rows, "validation", quantity).items()}
            shown = (quantity.headline, *(f"{name}/mean" for name in quantity.also))
            for place, clients in _domains(silos).items():
                there = summary({c: rows[c] for c in clients if c in rows}, "test", quantity)
                found |= {f"{place}/{name}": there[name] for name in shown if name in there}
    return found


_BY_DOMAIN = ("entropy", "ece", "perplexity")
_MOST_DOMAINS = 12  # more in one page cannot be told apart


def _domains(silos: Silos) -> dict[str, list[str]]:
    """`domain/-50` to the federated clients of that domain, where there are a few."""
    federated = silos.federated()
    if not 2 <= len(federated.laws()) <= _MOST_DOMAINS:
        return {}
    names = parts(federated.laws())
    found: dict[str, list[str]] = {}
    for client in federated.clients:
        found.setdefault(f"domain/{names[silos.domain(client)]}", []).append(client)
    return found


def _seconds(records: list[dict[str, Any]]) -> dict[str, float]:
    """Of all rounds, also those before a resume; orchestration is what was not spent on the work inside tasks."""
    rounds = [r["seconds"] for r in records]
    spent = sum(s["round"] for s in rounds)
    inside = sum(v for s in rounds for k, v in s.items() if k != "round")
    return {
        "per_round": spent / max(len(rounds), 1),
        "local_train": sum(s.get("local_train", 0.0) for s in rounds),
        "orchestration": spent - inside,
    }
