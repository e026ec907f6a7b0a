"""Callbacks that report a run: its result, to MLflow, to the screen."""

import time
from dataclasses import dataclass, field

from flows.console import screen
from flows.console.ctrl_c import interruption
from flows.console.run_news import say_notes, say_result, say_round, say_warnings
from flows.experiment.callbacks.callback import Callback, PlayedRound
from flows.experiment.one_run.finish_run import finish_run
from flows.experiment.one_run.mlflow_run import ticket
from flows.experiment.one_run.run_context import RunContext
from flows.experiment.scaling.run_notes import notes_of_rows, notes_of_scores
from tasks.recording.json_files import write_json
from tasks.recording.mlflow_store.delivery import Delivery


class FinalEvaluation(Callback):
    """Score the reported model at the end, draw the figures, and fill the run's result."""

    def on_end(self, run: RunContext) -> None:
        """See Callback."""
        finish_run(run)


@dataclass
class MLflowTracking(Callback):
    """Deliver rounds that are on disk to MLflow in the background, and end the MLflow run with its status."""

    delivery: Delivery | None = field(default=None, init=False)

    def before_training(self, run: RunContext) -> None:
        """See Callback."""
        self.delivery = Delivery(run.folder.path, ticket(run.project, run.method, run.identity, run.folder))
        self.delivery.round_done(run.number)

    def after_commit(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        self._begun().round_done(played.round.number)

    def on_end(self, run: RunContext) -> None:
        """See Callback."""
        delivery = self._begun()
        run.result["mlflow_run_id"] = delivery.finish(run.artifacts)
        run.undelivered = delivery.problem
        if delivery.notice:
            screen.current().say_once(f"{delivery.notice}.")

    def on_error(self, run: RunContext, error: BaseException) -> None:
        """See Callback."""
        if self.delivery is not None:
            self.delivery.abandon("FAILED" if interruption(error) is None else "KILLED")

    def _begun(self) -> Delivery:
        assert self.delivery is not None, "before_training begins it"
        return self.delivery


class ResultFile(Callback):
    """Write result.json: from then on the run is finished."""

    def on_end(self, run: RunContext) -> None:
        """See Callback."""
        total = time.perf_counter() - run.began
        run.result["seconds"] = {"total": total, **run.result["seconds"]}
        write_json(run.folder.result, run.result)


class Progress(Callback):
    """Show the run on the screen and on Prefect's page: its start, rounds that are on disk, and its result."""

    def before_training(self, run: RunContext) -> None:
        """See Callback."""
        screen.current().begin(run.folder.name, run.number, run.project.params.training.rounds)

    def after_commit(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        rounds = run.project.params.training.rounds
        say_round(run.folder.name, played.record, run.project.quantity, played.report.said, rounds)

    def on_end(self, run: RunContext) -> None:
        """See Callback."""
        say_result(run.folder.name, run.result, run.project.quantity, run.undelivered)


class RunNotes(Callback):
    """Say before training what the user should know of the rows, the settings and the sampler."""

    def before_training(self, run: RunContext) -> None:
        """See Callback."""
        of_rows = notes_of_rows(run.project, run.problem, run.runner, run.private)
        run.notes += [*notes_of_scores(run.project, run.method), *run.agreement.notes, *of_rows]
        say_notes(run.notes)
        say_warnings(run.folder.name, run.sampler.warnings(run.problem))
