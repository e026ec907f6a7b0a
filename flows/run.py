"""The flow `run`: one method, one seed, one data version. It owns the loop, once for every method."""

import math
import secrets
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows import screen
from flows.method import Method, Report
from flows.params import differences, flat
from flows.project import Project, alone, experiment, new_experiment, newest_experiment
from flows.round import Problem, Round, Tally, draw
from models.networks import to_json
from models.state import Private, State
from silos.errors import UserError
from silos.private import PrivateStore
from silos.store import open_client
from tasks.checkpoint import Journal, load_state, save_state
from tasks.evaluate import OUTCOMES, evaluate
from tasks.files import read_json, write_json
from tasks.report import write_client_table
from tasks.runner import PrefectRunner, Runner
from tasks.scoring import by_client, summary
from tasks.track import Delivery, Finish, Ticket, tracking_uri


@flow(name="run", flow_run_name="{method}-seed{seed}", task_runner=ThreadPoolTaskRunner(), validate_parameters=False)
def run(
    method: str,
    seed: int = 0,
    overrides: list[str] | None = None,
    resume: bool = False,
    experiment: str | None = None,
) -> dict[str, Any]:
    """One run of a method; answers with its result as plain JSON.

    `overrides` are `section.key=value` over params.yaml of the current folder; `experiment` is the set of runs that this
    one belongs to (a new one if not given); `resume` goes on after the last whole round.
    """
    project = Project.open(overrides or [])
    page = project.params.page(method, project.root)
    if experiment is None and resume:
        experiment = newest_experiment(project, "run", inside=run_name(method, seed))
    if experiment is None:
        about = {"methods": [method], "seeds": [seed], "data_version": project.silos.version}
        experiment = new_experiment(project, "run", about)
    folder = project.runs / experiment / run_name(method, seed)
    with alone(folder):
        return _Run(project, page, method, seed, folder, PrefectRunner(project.params.runner.workers)).result(resume)


def run_name(method: str, seed: int) -> str:
    """The run's folder inside its experiment."""
    return f"{method}-seed{seed}"


@dataclass
class _Run:
    """The loop's surroundings: what it was asked for, and where its files are."""

    project: Project
    page: Method
    method: str
    seed: int
    folder: Path
    runner: Runner
    clock: float = field(default_factory=time.perf_counter)

    def result(self, resume: bool) -> dict[str, Any]:
        """The finished run's JSON, from disk if it was finished before and is delivered."""
        identity = self._identity(resume)
        done = read_json(self.folder / "result.json")
        if done is not None and done["mlflow_run_id"] is not None:
            return dict(done)
        problem = self.project.problem(self.seed)
        private = self.project.private(self.folder)
        restored = load_state(self.folder / "checkpoint.safetensors")
        state, number = restored or (self.page.init(problem), 0)
        delivery = Delivery(self.folder, self._ticket(identity))
        screen.current().begin(self.folder.name, number, self.project.params.training.rounds)
        try:
            if number:
                delivery.round_done(number)
            state, last = self._loop(problem, private, state, number, delivery)
            return self._conclude(problem, private, state, last, number, delivery)
        except BaseException:
            delivery.abandon()
            raise

    def _loop(
        self, problem: Problem, private: PrivateStore, state: State, number: int, delivery: Delivery
    ) -> tuple[State, int]:
        """Rounds until the budget is spent or the method ends itself; each is on disk before it counts."""
        params, journal = self.project.params, Journal(self.folder / "journal")
        best = self._best(journal, number)
        while number < params.training.rounds and not state.finished:
            start, number = time.perf_counter(), number + 1
            clients, dropped = draw(problem, number, params.clients.fraction, params.clients.dropout)
            round = self._round(problem, private, number, clients, dropped)
            report = Report()
            if clients:
                state, report = self.page.one_round(state, round)
            metrics = {k: v for k, v in report.numbers.items() if math.isfinite(v)}
            table: dict[str, dict[str, Any]] = {c: {} for c in problem.silos.clients}
            for column, values in report.rows.items():
                for client in table.keys() & values.keys():
                    table[client][column] = values[client]
            if number % params.evaluation.every == 0 or number == params.training.rounds or state.finished:
                scored = by_client(self._evaluate(problem, state, round))
                for client, row in scored.items():
                    table[client].update(row)
                metrics |= summary(scored, "test")
                metrics |= {f"validation/{k}": v for k, v in summary(scored, "validation").items()}
            tally = round.tally
            metrics |= {"bytes/up": tally.bytes_up, "bytes/down": tally.bytes_down, "clients/answered": len(clients)}
            if params.evaluation.report == "best" and metrics.get("validation/accuracy/mean", -1) > best[0]:
                best = (metrics["validation/accuracy/mean"], number)
                save_state(self._best_path(number), state, number)
            seconds = {"round": time.perf_counter() - start, **tally.seconds}
            record = {"round": number, "time_ms": int(time.time() * 1000), "metrics": metrics, "seconds": seconds}
            journal.write({**record, "clients": table, "dropped": list(dropped)})
            save_state(self.folder / "checkpoint.safetensors", state, number)
            self._forget(private, state, best[1])
            delivery.round_done(number)
            screen.current().round(number, metrics.get("accuracy/mean"))
        return state, number

    def _conclude(
        self, problem: Problem, private: PrivateStore, state: State, last: int, resumed_from: int, delivery: Delivery
    ) -> dict[str, Any]:
        """The reported model is scored once more, each client keeping its outcomes, and everything is written down."""
        reported, records = last, Journal(self.folder / "journal").all(last)
        if self.project.params.evaluation.report == "best":
            best = load_state(self._best_path(self._best(Journal(self.folder / "journal"), last)[1]))
            state, reported = best or (state, last)
        round = self._round(problem, private, reported, problem.silos.clients, ())
        scores = self._evaluate(problem, state, round, keep_outcomes=True)
        table = by_client(scores)
        outcomes = {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()}
        write_json(self.folder / "outcomes.json", outcomes)
        metrics = {**summary(table, "test"), **{f"validation/{k}": v for k, v in summary(table, "validation").items()}}
        metrics["accuracy/by_client"] = {c: table[c]["test/accuracy"] for c in problem.silos.clients}
        result = {
            "method": self.method,
            "seed": self.seed,
            "model": self.page.tests,
            "data_version": problem.silos.version,
            "rounds": last,
            "reported_round": reported,
            "finished": state.finished or "rounds",
            "resumed_from_round": resumed_from,
            "mlflow_run_id": None,
            "bytes": {k: sum(r["metrics"][f"bytes/{k}"] for r in records) for k in ("up", "down")},
            "dropped": sum(len(r["dropped"]) for r in records),
            "metrics": metrics,
            "weights_sha256": state.sha256(),
            "folder": str(self.folder.relative_to(self.project.root)),
        }
        clients_file = write_client_table(self.folder / "clients.csv", records)
        finish = Finish((clients_file,), self._served(problem, private, state), self._data(problem))
        result["mlflow_run_id"] = delivery.finish(finish)
        if delivery.problem:
            screen.current().say(f"{delivery.problem}; its metrics are kept, and --resume delivers them.")
        result["seconds"] = self._seconds(records)
        write_json(self.folder / "result.json", result)
        screen.current().end(self.folder.name, metrics.get("accuracy/mean"), result["seconds"]["total"])
        if result["dropped"]:
            screen.current().say(f"{self.folder.name}: clients dropped out {result['dropped']} times.")
        return result

    def _round(
        self,
        problem: Problem,
        private: PrivateStore,
        number: int,
        clients: tuple[str, ...],
        dropped: tuple[str, ...],
    ) -> Round:
        stack = self.project.params.engine.stack
        return Round(number, problem, clients, dropped, self.runner, private, stack, self.project.device, Tally())

    def _evaluate(self, problem: Problem, state: State, round: Round, keep_outcomes: bool = False) -> list[Any]:
        """Every client is scored, also those that did not take part."""
        model = self.page.model(state, problem)
        objective = problem.training.objective
        return round.each(evaluate, model, silos=problem.silos, objective=objective, keep_outcomes=keep_outcomes)

    def _identity(self, resume: bool) -> dict[str, Any]:
        """Who this run is, on disk before anything else; a resumed run must be the same."""
        params = self.project.params.model_dump(mode="json", exclude={"runner", "tracking", "comparison", "method"})
        asked = {
            "method": self.method,
            "seed": self.seed,
            "data_version": self.project.silos.version,
            "params": {**params, "method": self.page.model_dump(mode="json")},
        }
        path = self.folder / "run.json"
        known = read_json(path) if resume else None
        if known is None:
            known = {**asked, "tag": secrets.token_hex(8)}
            write_json(path, known)
        changed = differences({k: known[k] for k in asked}, asked)
        if changed:
            raise UserError(
                f"{self.folder.name} was started with other settings ({'; '.join(changed[:3])}); "
                "put them back, or start anew without --resume."
            )
        return dict(known)

    def _ticket(self, identity: dict[str, Any]) -> Ticket:
        root, about = self.project.root, experiment(self.project, self.folder.parent.name)
        name = "single runs" if about["kind"] == "run" else about["name"]
        return Ticket(
            uri=tracking_uri(root, self.project.params.tracking.uri),
            artifacts=(self.project.runs / "artifacts" / name).as_uri(),
            experiment=name,
            name=f"{self.method} seed {self.seed}",
            tag=identity["tag"],
            tags={
                "method": self.method,
                "seed": str(self.seed),
                "model tested": self.page.tests,
                "data_version": identity["data_version"],
                "git_commit": git_commit(root),
            },
            params=flat({**identity["params"], "method_name": self.method, "seed": self.seed}),
            about=about.get("about", ""),
        )

    def _served(self, problem: Problem, private: PrivateStore, state: State) -> dict[str, Any] | None:
        """What the logged model holds; None where that would be personal weights nobody asked for."""
        model, manifest = self.page.model(state, problem), problem.silos.manifest
        personal = {}
        if model.is_personal:
            if not self.project.params.tracking.personal_models:
                return None
            assert isinstance(model.personal, Private)
            refs = model.personal.refs
            stored = tuple(c for c in model.clients if c in refs)
            personal = private.load_stack(model.personal.section, refs, stored)
        from torch import as_tensor

        example, _ = open_client(Path(problem.silos.folder), manifest.clients[0], "train")
        card = {
            "method": self.method,
            "network": to_json(problem.network),
            "classes": list(manifest.classes),
            "shape": list(manifest.shape),
            "personal": model.is_personal,
            "clients": [c for c in model.clients if c in model.personal.refs] if isinstance(model.personal, Private) else [],
        }
        return {
            "uri": tracking_uri(self.project.root, self.project.params.tracking.uri),
            "card": card,
            "shared": dict(model.shared),
            "personal": {k: as_tensor(v) for k, v in personal.items()},
            "example": example[:2],
        }

    def _data(self, problem: Problem) -> dict[str, Any]:
        import json

        rows = {split: sum(problem.silos.rows(split).values()) for split in ("train", "validation", "test")}
        name = self.project.params.data.name
        profile = json.dumps({"clients": len(problem.silos.clients), "rows": rows})
        source = json.dumps({"path": f"data/{name}", "dvc": problem.silos.version})
        return {"name": name, "version": problem.silos.version, "source": source, "profile": profile}

    def _forget(self, private: PrivateStore, state: State, best: int) -> None:
        """Private state that no checkpoint names any more is deleted."""
        kept = {section: set(refs.values()) for section, refs in state.private.items()}
        if best and kept:
            loaded = load_state(self._best_path(best))
            for section, refs in (loaded[0].private if loaded else {}).items():
                kept[section] |= set(refs.values())
        for section, refs in kept.items():
            if section != OUTCOMES:
                private.keep(section, refs)
        for old in self.folder.glob("best-*.safetensors"):
            if old != self._best_path(best):
                old.unlink()

    def _best(self, journal: Journal, last: int) -> tuple[float, int]:
        """Validation accuracy and number of the best round so far; the first of equals."""
        if self.project.params.evaluation.report != "best":
            return (-1.0, 0)
        scored = [(r["metrics"].get("validation/accuracy/mean"), r["round"]) for r in journal.all(last)]
        found = [(a, n) for a, n in scored if a is not None]
        return max(found, key=lambda pair: (pair[0], -pair[1]), default=(-1.0, 0))

    def _best_path(self, number: int) -> Path:
        return self.folder / f"best-{number:06d}.safetensors"

    def _seconds(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """Of all rounds, also those before a resume: orchestration is what was not spent inside a task's work."""
        rounds = [r["seconds"] for r in records]
        spent = sum(s["round"] for s in rounds)
        inside = sum(v for s in rounds for k, v in s.items() if k != "round")
        return {
            "total": time.perf_counter() - self.clock,
            "per_round": spent / max(len(rounds), 1),
            "local_train": sum(s.get("local_train", 0.0) for s in rounds),
            "orchestration": spent - inside,
        }


def git_commit(root: Path) -> str:
    """The checkout's commit, `+changes` if files differ from it; `none` outside of git."""
    git = ["git", "-C", str(root)]
    found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode:
        return "none"
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    return found.stdout.strip() + ("+changes" if changed.stdout.strip() else "")
