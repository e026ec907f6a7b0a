"""Holds the context of a run: its settings, its folder and its progress. The trainer and the callbacks change it."""

import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from flows.core.plugin_loader import plugin_error
from flows.methods.base import Method, find_method, private_training_of, start_method
from flows.methods.client_sampler import SampledClients, Sampler
from flows.methods.round_context import RoundContext, TrainingSetup
from flows.project.project import Project
from flows.training.evaluation import Scorer
from flows.training.fit_standardizer import FittedStandardization, fit_or_load
from flows.training.privacy_budget import note_of_privacy
from flows.training.run_records.run_folder import RunFolder
from flows.training.training_setup import client_sampler, training_setup
from models.server_state import ServerState
from silos.client_store import ClientStore
from silos.errors import MethodError, RefusalError
from silos.privacy.owner_file import (
    check_own_models,
    check_training,
    make_store,
    must_be_private,
    policy_file,
)
from silos.sources.source_params import is_public
from silos.standardizer import NO_STANDARDIZATION
from tasks.execution.prefect_runner import PrefectRunner
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.checkpoint import Checkpoint, load_state
from tasks.tracking.mlflow_logging.mlflow_records import FinalArtifacts
from tasks.tracking.result_types.journal_record import RoundRecord, RoundSummary
from tasks.tracking.result_types.run_files import RunIdentity
from tasks.tracking.result_types.run_result import Note, RunResult


@dataclass(frozen=True)
class RunClients:
    """Holds the clients of a run.

    Attributes:
        setup: What they train with, on rows that are standardised as they agreed.
        runner: Where their tasks run.
        private: The store of their private state in this run.
        agreement: The standardization that they agreed on.
    """

    setup: TrainingSetup
    runner: PrefectRunner | PlainRunner
    private: ClientStore
    agreement: FittedStandardization

    def keep(self, section: str, refs: Collection[str]) -> None:
        """Let clients delete their private state of a section but that of these references."""
        self.runner.keep(self.private, section, refs)

    def round(self, number: int, when: str, sampled: SampledClients | None = None) -> RoundContext:
        """Build the context of a round, by default for all clients; `when` starts the names of its task runs.

        The steps of a round with sampled clients do not wait for absent places.
        """
        runner = replace(self.runner, when=when, waits=self.runner.waits and sampled is None)
        sampled = SampledClients(self.setup.silos.clients) if sampled is None else sampled
        parts = (sampled.clients, sampled.dropped, runner, self.private)
        return RoundContext(number, self.setup, *parts, leaving=sampled.leaving)


@dataclass
class RunReport:
    """Holds what callbacks find out of a run and leave to later ones, until it is in result.json and in MLflow.

    Attributes:
        began: When this process began with the run, by `time.perf_counter`.
        resumed_from: The round that this process continues after.
        notes: Sentences on the run's rows and settings, which its result repeats.
        best_round: The best round so far, 0 if the state of the best round is not saved.
        scored_late: The last round's record if it was scored after training, and is on disk without scores before.
        artifacts: Files, model and metrics that MLflow receives once, at the end.
        undelivered: Why MLflow did not receive everything; None if it did.
    """

    began: float = field(default_factory=time.perf_counter)
    resumed_from: int = 0
    notes: list[Note] = field(default_factory=list)
    best_round: int = 0
    scored_late: RoundRecord | None = None
    artifacts: FinalArtifacts = field(default_factory=FinalArtifacts)
    undelivered: str | None = None

    def seconds(self, rounds: Sequence[RoundSummary]) -> float:
        """Return the seconds of the run until now; of rounds that earlier processes played, those of `rounds`."""
        earlier = sum(r["seconds"]["round"] for r in rounds[: self.resumed_from])
        return time.perf_counter() - self.began + earlier


@dataclass
class RunContext:
    """Holds one run of a method.

    Attributes:
        project: The project, with the params of the run.
        method: The method that trains.
        identity: What determines the run's results, such as method, seed and data version, and its tag in MLflow.
        folder: The run's folder.
        clients: The clients that train.
        scorer: Evaluates the method's models.
        last: The last round that was played, 0 before the first, with the server's state and the sampler's memory after it.
        report: What callbacks found out so far.
        stop_reason: Set by a callback to end training after this round; it is not part of the checkpoint.
        result: The content of result.json; None before the end of the run.
    """

    project: Project
    method: Method
    identity: RunIdentity
    folder: RunFolder
    clients: RunClients
    scorer: Scorer
    last: Checkpoint
    report: RunReport
    stop_reason: str = ""
    result: RunResult | None = None

    @property
    def state(self) -> ServerState:
        """Return the server's state after the last round."""
        return self.last.state

    @property
    def number(self) -> int:
        """Return the last round that was played, 0 before the first."""
        return self.last.round

    @cached_property
    def sampler(self) -> Sampler:
        """Return the sampler of a round's clients: the method's own, or that of params.yaml."""
        return self.method.sampler(client_sampler(self.project.params.clients))

    @property
    def ended_by(self) -> str:
        """Return why no further round is played; empty while training continues."""
        is_spent = self.number >= self.project.params.training.rounds
        return self.state.finished or self.stop_reason or ("training.rounds" if is_spent else "")

    def error_of_method(self, error: BaseException) -> MethodError | None:
        """Explain an error that a plugin file raised; None for any other error."""
        files = {str(self.project.root / file): file for file in self.project.params.plugins}
        method_file = getattr(sys.modules.get(type(self.method).__module__), "__file__", None) or ""
        return plugin_error(error, self.identity["method"], files, method_file if method_file in files else "")


def check_allowed(project: Project, method: str, setup: TrainingSetup) -> None:
    """Raise RefusalError if a silo that takes part in training does not answer this method, as its owner's file says."""
    leave = project.params.clients.leave
    rows = {client: own for client, own in setup.silos.rows("train").items() if leave.get(client) != 1}
    folder = Path(project.ledgers.folder)
    check_training(folder, method, rows.items())
    if must_be_private(folder, rows) and not (
        setup.training.privacy and private_training_of(find_method(method, project.params.registered)) == "noise"
    ):
        raise RefusalError(
            f"{method}: got training without noise, expected training.privacy.epsilon and a method with noise on all "
            f"weights, as the owner has set under private_training in {policy_file(folder)}. Use fedavg, fedprox or fedopt "
            "with training.privacy.epsilon: docs/privacy.md."
        )
    if project.params.tracking.personal_models:
        got = "tracking.personal_models: got true, which logs weights and scales"
        check_own_models(Path(project.ledgers.folder), setup.silos.clients, got)


def open_run(
    project: Project,
    method: Method,
    setup: TrainingSetup,
    identity: RunIdentity,
    folder: RunFolder,
    runner: PrefectRunner | PlainRunner,
    began: float,
) -> RunContext:
    """Open a run at its start, or after the last round that its checkpoint counts.

    Args:
        project: With the params of the run.
        method: The method, with its own section of params.yaml.
        setup: What stays the same over all rounds, before clients agree on a standardization.
        identity: As `RunFolder.identify` wrote it.
        folder: The run's folder.
        runner: Where tasks run.
        began: When this process began with the run, by `time.perf_counter`.

    Raises:
        UserError: If a file that the run continues from is damaged or missing.
    """
    check_allowed(project, identity["method"], setup)
    agreement = fit_or_load(project, setup, folder, runner)
    if agreement.scaling != NO_STANDARDIZATION:
        setup = training_setup(project, setup.seed, agreement.scaling)
    last = load_state(folder.checkpoint) or Checkpoint(start_method(method, setup), 0, {})
    for _ in folder.journal.each(last.round):
        pass  # report a damaged record now, not after the remaining rounds
    clients = RunClients(setup, runner, project.store.private(folder.path), agreement)
    scorer, report = Scorer.of(project, method, agreement.scaling), RunReport(began, last.round)
    privacy = project.params.training.privacy
    report.notes += note_of_privacy(method, setup, privacy.epsilon, privacy.delta)
    if setup.training.privacy is not None and is_public(project.params.data.source):
        # `partition` makes none for sweeps and trials
        make_store(project.store.client_folder, project.params.data)
    return RunContext(project, method, identity, folder, clients, scorer, last, report)
