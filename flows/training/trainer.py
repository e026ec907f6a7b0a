"""Runs the loop of rounds for every method: sample clients, run the method's round, call the callbacks in order."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from flows.core.config.params_schema import EvaluationParams
from flows.core.console.process_control import raise_if_interrupted
from flows.methods.base import Method, RoundReport
from flows.methods.client_sampler import SampledClients, sample_clients
from flows.methods.round_context import RoundContext
from flows.training.absent_places import note_lost, present_clients
from flows.training.callbacks.callback import Callback, EndMark, PlayedRound, UserCallback
from flows.training.callbacks.report_run import (
    FinalEvaluation,
    MLflowTracking,
    Progress,
    ResultFile,
    RunNotes,
    ValidationOutcomes,
)
from flows.training.callbacks.score_and_save import (
    BestModel,
    ClientStateCleanup,
    EarlyStopping,
    Evaluation,
    MemoryUse,
    RoundSaver,
    StandardizerTraffic,
)
from flows.training.run_context import RunContext
from flows.training.run_records.round_record import empty_record
from models.server_state import ServerState
from silos.errors import ClientsAwayError
from tasks.client_optimizer_state import client_optimizer_states
from tasks.tracking.checkpoint import Checkpoint
from tasks.tracking.result_types.run_result import RunResult


@dataclass
class Trainer:
    """Trains a method round by round. Callbacks do everything around a round, in the order of their list."""

    run: RunContext
    callbacks: Sequence[Callback]

    def fit(self, until: int = 0) -> RunResult | None:
        """Play rounds until the budget is spent, the method finishes or a callback stops it; at least one in the whole run.

        Args:
            until: Pause after this round, if training goes on after it; another `fit` continues. 0 does not pause.

        Returns:
            The result of the run, as the callbacks filled it; None after a pause.

        Raises:
            MethodError: If a user's method or callback failed. Other errors are raised unchanged.
        """
        try:
            self._call("before_training")
            while not (self.run.number and self.run.ended_by):
                if 0 < until <= self.run.number:
                    self._call("on_pause")
                    return None
                raise_if_interrupted()
                self._call("after_round", self.play_round())
            self._call("after_training")
            self._call("on_end")
        except BaseException as error:
            last = self._call_on_error(error)
            explained = self.run.error_of_method(last)
            if explained is not None:
                raise explained from last
            if last is not error:
                raise last from error
            raise
        return self.run.result

    def play_round(self) -> PlayedRound:
        """Play the next round with sampled clients, and replace the run's last round: state, number and sampler memory."""
        began, run, sampler = time.perf_counter(), self.run, self.run.sampler
        number = run.number + 1
        sampled = sample_clients(sampler, run.clients.setup, number, run.last.memory)
        round, state, report = self._play(number, sampled)
        memory = sampler.update(run.last.memory, round, report) if round.clients else run.last.memory
        run.last = Checkpoint(state, number, memory)
        return PlayedRound(round, report, began, partial(self._call, "after_commit"), empty_record(number))

    def _play(self, number: int, sampled: SampledClients) -> tuple[RoundContext, ServerState, RoundReport]:
        """Play a round without the clients of absent places; play it again from its start if a place becomes absent.

        A round that was played in part leaves the state before it unchanged, and its weights depend on its clients only.
        """
        run, lost = self.run, set[str]()
        while True:
            present = present_clients(run, number, sampled, lost)
            round = run.clients.round(number, f"round {number}", present)
            round = replace(round, validation={} if run.sampler.asks_validation else None)
            try:
                return round, *play_method_round(run.method, run.state, round)
            except ClientsAwayError as error:
                note_lost(run, number, present, lost, error)

    def _call(self, hook: str, *args: PlayedRound) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self.run, *args)

    def _call_on_error(self, error: BaseException) -> BaseException:
        """Call every callback's `on_error`; an error that a callback raises replaces `error` for those after it."""
        for callback in self.callbacks:
            try:
                callback.on_error(self.run, error)
            except BaseException as later:  # usually a second interrupt
                error = later
        return error


def default_callbacks(
    params: EvaluationParams, extra: Sequence[UserCallback] = (), pauses: bool = False
) -> list[Callback]:
    """Return the callbacks of a run; their order promises that what is reported is on disk.

    1. A round is scored, its best state is saved and its record is complete, before `RoundSaver` writes it.
    2. `RoundSaver` writes the journal, then the checkpoint. After that the round counts, and `after_commit` is called:
       MLflow first, then the screen, then the user's callbacks.
    3. `ClientStateCleanup` deletes what no round on disk refers to, so it follows `RoundSaver`.
    4. After training the last round is scored if it was not, its best state is saved, and its record is written again.
    5. At the end the reported model is scored, MLflow receives it, result.json is written, and the screen shows it.
    6. On an error `RoundSaver` finishes the file that it writes, before MLflow is marked.

    Args:
        params: The section `evaluation` of params.yaml.
        extra: The user's callbacks: each hook is called after the hooks of all others, and `on_end` once for a run.
        pauses: Whether the run may pause, so that clients also store the outcomes of their validation rows.
    """
    saver = RoundSaver()
    return [
        StandardizerTraffic(),
        Evaluation(params.every, saver.flush),
        *([BestModel()] if params.report == "best" else []),
        *([EarlyStopping(params.stop_at)] if params.stop_at is not None else []),
        MemoryUse(),
        saver,
        ClientStateCleanup(saver),
        *([ValidationOutcomes()] if pauses else []),  # before result.json, with which a run is never evaluated again
        FinalEvaluation(),
        MLflowTracking(),
        ResultFile(),
        Progress(),
        RunNotes(),
        *extra,
        *([EndMark()] if extra else []),
    ]


def play_method_round(method: Method, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
    """Run the method's round: first for the clients that leave for good, then for those that take part.

    Client optimizer states that are kept are read from the server state, and written back into it.
    """
    round, report = replace(round, optimisers=client_optimizer_states(state)), RoundReport()
    if round.leaving:
        state, report = method.leave(state, replace(round, clients=round.leaving, dropped=()))
    if round.clients:
        state, round_report = method.run_round(state, round)
        report = report.merge(round_report)
    return round.optimisers.into(state), report
