"""Train a setting on a federation once, and keep what strategies read of that run.

Runs are trained without Prefect and MLflow, which change no weight. Each is stored under a hash of its settings. So an
interrupted study continues where it stopped, and any number of strategies are replayed from the same runs.
"""

import hashlib
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flows.experiments.advice.race import Candidate, Leg, rungs_of
from flows.experiments.comparison.tuner import Score
from flows.methods.method_settings import method_of
from flows.project.project import Project
from flows.project.run_sets import scratch_dir
from flows.training.run_context import RunContext, open_run
from flows.training.run_records.fingerprint import fingerprint_of
from flows.training.run_records.round_record import metrics_of
from flows.training.run_records.run_folder import RunFolder
from flows.training.trainer import Trainer
from flows.training.training_setup import training_setup
from models.metrics.paired_difference import Difference, Stratum, difference
from models.metrics.task_metrics import TaskMetrics
from silos.errors import UserError
from silos.io.atomic_io import write_bytes
from tasks.evaluate import OUTCOMES
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.result_tables import by_client
from tasks.tracking.result_types.run_files import RunIdentity

ByClient = Mapping[str, np.ndarray]
"""The outcome of each row of a client, (rows,) float32: 1 if correct, or a squared error."""


class Rung(NamedTuple):
    """A run after some rounds: its score and outcomes on validation rows, and the processor seconds so far."""

    rounds: int
    score: Score | None
    validation: ByClient
    seconds: float


@dataclass(frozen=True)
class Run:
    """A run at each rung of a race, the outcomes of its test rows at the end, and all clients' bytes in its rounds.

    If it ended early, `failure` is the reason. `fresh` are the outcomes of clients that took no part, if these have a model.
    """

    rungs: Sequence[Rung]
    test: ByClient
    failure: str = ""
    bytes: int = 0
    fresh: ByClient = field(default_factory=dict)

    def at(self, rounds: int) -> Rung | None:
        """Return the rung after this number of rounds; None if the run has no score there."""
        return next((rung for rung in self.rungs if rung.rounds == rounds and rung.score is not None), None)

    def leg(self, rounds: int) -> Leg:
        """Return what a race sees of the run after this number of rounds."""
        rung = self.at(rounds)
        if rung is None:
            return Leg(rounds, None, self.rungs[-1].seconds if self.rungs else 0.0, self.failure or "diverged")
        return Leg(rounds, rung.score, rung.seconds)


def paired(first: Sequence[ByClient], second: Sequence[ByClient], quantity: TaskMetrics, level: float) -> Difference:
    """Return the paired difference of two settings, first minus second.

    Args:
        first: The outcomes of the first setting, by seed.
        second: Those of the second setting with the same seeds.
        quantity: The metric.
        level: The level of the interval, such as 0.95.
    """
    return difference(strata_of(first, second), level, quantity.bound, quantity.alike)


def strata_of(first: Sequence[ByClient], second: Sequence[ByClient]) -> list[Stratum]:
    """Return the sums of two settings by client, first minus second, from their outcomes by seed."""
    return [
        Stratum.from_differences(np.stack([a[client] - b[client] for a, b in zip(first, second, strict=True)]))
        for client in first[0]
    ]


@dataclass(frozen=True)
class RunTable:
    """The runs of one federation, each trained at the first call for it.

    Attributes:
        project: The federation's project.
        folder: Where runs are stored.
    """

    project: Project
    folder: Path
    _known: dict[Path, Run] = field(default_factory=dict)

    @cached_property
    def rungs(self) -> list[int]:
        """Return the rounds at which a race compares."""
        return rungs_of(self.project.params.training.rounds)

    def run(self, candidate: Candidate, seed: int, rounds: int) -> Run:
        """Return the run of a setting with a seed, up to a rung or beyond.

        The first call trains the run to `rounds`. A later call for more rounds trains it from its start to the end.
        """
        about = json.dumps([candidate.method, list(candidate.settings), seed, self.project.silos.version])
        file = self.folder / f"{candidate.method}-{hashlib.sha256(about.encode()).hexdigest()[:16]}.npz"
        stored = self._known.get(file) or (_read(file) if file.is_file() else None)
        if stored is not None and (stored.failure or stored.rungs[-1].rounds >= rounds):
            self._known[file] = stored
            return stored
        last = self.rungs[-1] if stored else rounds
        run = self._train(candidate, seed, [rung for rung in self.rungs if rung <= last])
        _write(file, run)
        self._known[file] = run
        return run

    def _train(self, candidate: Candidate, seed: int, rungs: Sequence[int]) -> Run:
        project = self.project.with_overrides(candidate.settings)
        with scratch_dir(self.folder / f"scratch-{os.getpid()}") as scratch:
            try:
                return _train(replace(project, scratch=scratch), candidate.method, seed, rungs)
            except UserError as error:
                return Run((), {}, str(error))


def _train(project: Project, name: str, seed: int, rungs: Sequence[int]) -> Run:
    folder, method = RunFolder(project.store.runs / "study" / f"{name}-seed{seed}"), method_of(project.params, name)
    folder.path.mkdir(parents=True)
    began, found, sent = time.process_time(), list[Rung](), 0
    setup = training_setup(project, seed)
    identity: RunIdentity = {**fingerprint_of(project, setup, method, name), "tag": ""}
    run = open_run(project, method, setup, identity, folder, PlainRunner(), time.perf_counter())
    trainer = Trainer(run, [])
    for rounds in rungs:
        while run.number < rounds and not (run.number and run.ended_by):
            tally = trainer.play_round().round.tally
            sent += tally.bytes_up + tally.bytes_down
        metrics, validation, _ = _scored(run, "validation")
        value = project.quantity.score(metrics, "validation/")
        score = Score(value, metrics["validation/loss/mean"]) if np.isfinite(value) else None
        found.append(Rung(rounds, score, validation, time.process_time() - began))
        if score is None:
            return Run(found, {}, "diverged", sent)
    if rungs[-1] < project.params.training.rounds:
        return Run(found, {}, "", sent)
    _, test, fresh = _scored(run, "test")
    return Run(found, test, "", sent, fresh)


def _scored(run: RunContext, split: str) -> tuple[dict[str, Any], ByClient, ByClient]:
    """Score a split; return the metrics, and the outcomes of rows of the federated clients and of the others."""
    scorer, silos, quantity = run.scorer, run.scorer.silos, run.scorer.quantity
    round = run.clients.round(run.number, split)
    scores = scorer.score(scorer.model(run.state, round), round, keep_outcomes=True, splits=(split,))
    refs = {client: ref for s in scores for client, ref in s.outcomes.items()}
    rows, federated = silos.rows(split), dict[str, np.ndarray]()
    others = dict[str, np.ndarray]()
    for client in refs:
        if rows.get(client):
            values = np.asarray(run.clients.private.load(OUTCOMES, refs, client)[quantity.outcome])[: rows[client]]
            of_role = federated if silos.role(client) == "federated" else others
            of_role[client] = values.astype(np.float32)
    return metrics_of(by_client(scores, quantity), silos, quantity), federated, others


def _write(file: Path, run: Run) -> None:
    arrays: dict[str, np.ndarray] = {"failure": np.array(run.failure), "bytes": np.array(run.bytes)}
    for rung in run.rungs:
        score = [np.nan, np.nan] if rung.score is None else list(rung.score)
        arrays[f"rung/{rung.rounds}"] = np.array([*score, rung.seconds])
        arrays |= {f"validation/{rung.rounds}/{client}": values for client, values in rung.validation.items()}
    for prefix, of_rows in (("test", run.test), ("fresh", run.fresh)):
        arrays |= {f"{prefix}/{client}": values for client, values in of_rows.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(file, buffer.getvalue())


def _read(file: Path) -> Run:
    with np.load(file) as stored:
        arrays = {name: stored[name] for name in stored.files}

    def under(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}

    rungs = [
        Rung(
            int(rounds),
            None if np.isnan(value) else Score(float(value), float(loss)),
            under(f"validation/{rounds}/"),
            float(seconds),
        )
        for rounds, (value, loss, seconds) in under("rung/").items()
    ]
    return Run(rungs, under("test/"), str(arrays["failure"]), int(arrays["bytes"]), under("fresh/"))
