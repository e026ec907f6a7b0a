"""Holds the callbacks that report a run: its result, to MLflow, to the screen and to Prefect's log."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from flows.core.console import progress
from flows.core.console.process_control import interruption
from flows.methods.figure_context import FigureContext
from flows.training.absent_places import notes_of_budgets
from flows.training.callbacks.callback import Callback, PlayedRound, log_warnings
from flows.training.constant_baseline import baseline
from flows.training.evaluation import other_metrics
from flows.training.run_context import RunContext
from flows.training.run_notes import (
    notes_of_best,
    notes_of_rows,
    notes_of_scores,
    notes_of_training,
    notes_of_undefined,
)
from flows.training.run_records.draw_figures import draw_figures, figures_of
from flows.training.run_records.mlflow_run_metadata import final_artifacts, run_spec
from flows.training.run_records.round_record import mean_uncertainty, run_totals, time_breakdown
from models.metrics.client_metrics import metric_record
from models.metrics.task_metrics import TaskMetrics, metric_value
from models.networks.network_factory import num_trainable
from silos.errors import ClientsAwayError
from tasks.tracking import prefect_artifacts
from tasks.tracking.checkpoint import Checkpoint
from tasks.tracking.json_io import write_json
from tasks.tracking.mlflow_logging.async_logger import MLflowLogger
from tasks.tracking.result_types.journal_record import RoundRecord, TimedMetrics
from tasks.tracking.result_types.run_result import Metrics, Note, RunResult

_LOGGED = 10  # lines of rounds in a run's log on Prefect's page, or less than twice as many


class FinalEvaluation(Callback):
    """Evaluate the reported model at the end, let each client store its outcomes, and draw the method's figures.

    Fills `run.report.artifacts` and `run.result`: without the id of the MLflow run, and with the seconds until then.
    """

    def on_end(self, run: RunContext) -> None:
        project, method, folder, last = run.project, run.method, run.folder, run.number
        clients, scorer, report = run.clients, run.scorer, run.report
        quantity, silos = scorer.quantity, scorer.silos
        rounds, (state, reported, _) = folder.rounds(last), _reported(run)
        round = clients.round(reported, "result")
        model = scorer.model(state, round)
        metrics, uncertainty = scorer.final_scores(model, round, folder)
        metrics |= scorer.score_other_models(state, round)
        result: RunResult = {
            "method": run.identity["method"],
            "seed": run.identity["seed"],
            "model": method.tested_model,
            **metric_record(quantity),
            "data_version": silos.version,
            "rounds": last,
            "reported_round": reported,
            "ended_by": run.ended_by,
            "resumed_from_round": report.resumed_from,
            **run_totals(rounds),
            "parameters": num_trainable(model.network),
            "metrics": metrics,
            "baseline": baseline(project),
            "doubts": uncertainty,
            "notes": [
                *report.notes,
                *notes_of_budgets(run),
                *notes_of_undefined(metrics, quantity),
                *notes_of_training(folder, last, metrics, quantity),
                *notes_of_best(folder, reported, last, quantity),
            ],
            "weights_sha256": state.sha256(),
            "folder": str(folder.path.relative_to(project.root)),
            "mlflow_run_id": None,
            "seconds": {"total": report.seconds(rounds), **time_breakdown(rounds)},
        }
        columns = [name for metric in other_metrics(quantity) for name in metric.columns if name in metrics]
        means: Metrics = {**mean_uncertainty(uncertainty, silos), **{n: metric_value(metrics, n) for n in columns}}
        final: TimedMetrics = {"round": reported, "time_ms": rounds[-1]["time_ms"], "metrics": means}
        # a function, since the records of all clients in all rounds are read only for a figure that draws them
        each, personal = folder.journal.each, project.params.tracking.personal_models
        figure_context = FigureContext(folder.path, model, silos, round, rounds, lambda: each(last), quantity, personal)
        figures = draw_figures([*method.figures(), *figures_of(project.params)], figure_context)
        parts = (clients.setup, clients.private, model, folder, result, final, figures)
        report.artifacts = final_artifacts(project, method, *parts)
        run.result = result


def _reported(run: RunContext) -> Checkpoint:
    """Return the state that the run reports: that of the last round, or of the best one."""
    if run.project.params.evaluation.report != "best":
        return run.last
    return run.folder.require_best(run.number, run.scorer.quantity) or run.last


class ValidationOutcomes(Callback):
    """Let each client store the outcomes of its validation rows, when the run pauses or ends."""

    def on_pause(self, run: RunContext) -> None:
        state, reported, _ = _reported(run)
        round = run.clients.round(reported, f"validation after round {run.number}")
        run.scorer.write_validation(run.scorer.model(state, round), round, run.folder, run.number)

    def on_end(self, run: RunContext) -> None:
        self.on_pause(run)


@dataclass
class MLflowTracking(Callback):
    """Deliver rounds that are on disk to MLflow in the background, and end the MLflow run with its status."""

    logger: MLflowLogger | None = field(default=None, init=False)

    def before_training(self, run: RunContext) -> None:
        self.logger = MLflowLogger(run.folder.path, run_spec(run.project, run.method, run.identity, run.folder))
        self.logger.round_done(run.number)

    def after_commit(self, run: RunContext, played: PlayedRound) -> None:
        self._started().round_done(played.round.number)

    def on_end(self, run: RunContext) -> None:
        logger = self._started()
        _result(run)["mlflow_run_id"] = logger.finish(run.report.artifacts)
        run.report.undelivered = logger.problem
        if logger.notice:
            progress.current().say_once(f"{logger.notice}.")

    def on_pause(self, run: RunContext) -> None:
        """End the MLflow run as killed; it runs again when training continues."""
        self._started().mark_failed("KILLED")

    def on_error(self, run: RunContext, error: BaseException) -> None:
        if self.logger is not None:
            self.logger.mark_failed("FAILED" if interruption(error) is None else "KILLED")

    def _started(self) -> MLflowLogger:
        assert self.logger is not None, "before_training begins it"
        return self.logger


class ResultFile(Callback):
    """Write result.json, which marks the run as finished."""

    def on_end(self, run: RunContext) -> None:
        result = _result(run)
        result["seconds"]["total"] = run.report.seconds(run.folder.rounds(run.report.resumed_from))
        write_json(run.folder.result, result)


class Progress(Callback):
    """Show the run on the screen and on Prefect's page: its start, rounds that are on disk, and its result."""

    def before_training(self, run: RunContext) -> None:
        progress.current().begin(run.folder.name, run.number, run.project.params.training.rounds)

    def after_commit(self, run: RunContext, played: PlayedRound) -> None:
        rounds = run.project.params.training.rounds
        _log_round(run.folder.name, played.record, run.scorer.quantity, played.report.messages, rounds)

    def on_end(self, run: RunContext) -> None:
        _log_result(run.folder.name, _result(run), run.scorer.quantity, run.report.undelivered)


class RunNotes(Callback):
    """Report before training what the user should know about the rows, the settings and the sampler."""

    def before_training(self, run: RunContext) -> None:
        clients, notes = run.clients, run.report.notes
        of_rows: list[Note] = []
        with suppress(ClientsAwayError):  # a note is not worth waiting for
            runner = replace(clients.runner, waits=False)
            of_rows = notes_of_rows(run.project.params, clients.setup, runner, clients.private)
        notes += [*notes_of_scores(run.scorer), *clients.agreement.notes, *of_rows]
        _log_notes(notes)
        log_warnings(run.folder.name, run.sampler.warnings(clients.setup))


def _result(run: RunContext) -> RunResult:
    assert run.result is not None, "FinalEvaluation makes it"
    return run.result


def _log_notes(notes: Sequence[Note]) -> None:
    """Report notes on the training rows; on the screen once, since all runs of a command have the same."""
    for note in notes:
        progress.current().say_once(note["sentence"])
        prefect_artifacts.log_artifact(note["sentence"])


def _log_round(name: str, record: RoundRecord, quantity: TaskMetrics, messages: Sequence[str], rounds: int) -> None:
    """Report a round of at most `rounds`, with the messages of the method."""
    number, score = record["round"], quantity.headline_text(record["metrics"])
    progress.current().round(name, number, score)
    if number % max(1, rounds // _LOGGED) == 0:
        prefect_artifacts.log_artifact(f"round {number} of {rounds}" + (f": {score}" if score else ""))
    for sentence in messages:
        progress.say(f"{name}, round {record['round']}: {sentence}")


def _log_result(name: str, result: RunResult, quantity: TaskMetrics, problem: str | None) -> None:
    """Report the result of a run. `problem` is the reason why MLflow lacks a part of the run."""
    score = quantity.headline_text(result["metrics"])
    progress.current().end(name, score, result["seconds"]["total"])
    prefect_artifacts.log_artifact(
        f"{name} is done: {score or 'no test rows'}; {result['folder']}, {_in_mlflow(result)}"
    )
    if problem:
        progress.say(f"{name}: {problem}; its metrics are saved in {result['folder']}, and --resume delivers them.")
    if result["dropped_out"]:
        progress.say(f"{name}: clients dropped out {result['dropped_out']} times; the rounds went on without them")


def _in_mlflow(result: RunResult) -> str:
    return f"MLflow's run {result['mlflow_run_id']}" if result["mlflow_run_id"] else "not yet in MLflow"
