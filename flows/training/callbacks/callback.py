"""The base class of callbacks, and the callbacks that users bring."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flows.core.console import progress
from flows.core.console.process_control import interruption
from flows.core.plugin_loader import line_of
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext
from flows.training.run_context import RunContext
from silos.errors import MethodError, UserError, shown
from silos.plugin_registry import Registered, options_of
from tasks.tracking import prefect_artifacts
from tasks.tracking.json_io import read_json, unwritable, write_json
from tasks.tracking.result_types.journal_record import RoundRecord
from tasks.tracking.result_types.run_files import EndRecord


@dataclass(frozen=True)
class PlayedRound:
    """Holds one played round.

    Attributes:
        round: The context that the method played the round with: its number, its clients, its costs.
        report: What the method reports of the round.
        began: When the round began, by `time.perf_counter`.
        committed: Calls `after_commit` of every callback with this round. The callback that saves rounds calls it
            once, when the round is on disk.
        record: The round's record in the journal: empty at first, `Evaluation` fills it.
    """

    round: RoundContext
    report: RoundReport
    began: float
    committed: Callable[["PlayedRound"], None]
    record: RoundRecord


class Callback:
    """Handles one concern around the rounds of a run. Every hook does nothing unless a subclass overrides it.

    Hooks of all callbacks are called in the order of the list. `default_callbacks` documents what that order promises.
    """

    def before_training(self, run: RunContext) -> None:
        """Act once, before the first round that this process plays; `run.number` rounds were played before."""

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """Act when the method has played a round, with `run.state` as the round left it."""

    def after_commit(self, run: RunContext, played: PlayedRound) -> None:
        """Act when the round is on disk. The next round may be in progress, and `run.state` may be the state after it.

        Rounds are committed in order, each once. It is not called for a round that a failed or killed process committed.
        """

    def after_training(self, run: RunContext) -> None:
        """Act once, after the last round; `RoundSaver` waits here until every round is on disk."""

    def on_end(self, run: RunContext) -> None:
        """Act after `after_training`: built-in callbacks fill `run.result` and write it to disk, in order.

        A user's callback is called once: not again if `--resume` delivers a finished run to MLflow.
        """

    def on_pause(self, run: RunContext) -> None:
        """Act if the process leaves the run after a round, to continue it later; a user's callback is not called."""

    def on_error(self, run: RunContext, error: BaseException) -> None:
        """Act if training, a callback or the end of the run fails or is interrupted; `error` is raised afterwards."""


class CallbackError(MethodError):
    """A user's callback raised an error: the run fails, the other runs of a comparison go on."""


@dataclass(frozen=True)
class UserCallback(Callback):
    """Wraps a user's callback: an error in it is reported with its name, and never hides another error."""

    name: str
    callback: Callback

    @classmethod
    def from_config(cls, name: str, kind: Callable[..., Callback], options: Mapping[str, object]) -> "UserCallback":
        """Build a user's callback.

        Args:
            name: As the user registered it.
            kind: The user's class, or a function that returns a callback.
            options: Its section of params.yaml, passed as keyword arguments.

        Raises:
            UserError: If the options are not those that `kind` takes, or `kind` returns no callback.
            CallbackError: If `kind` raises.
        """
        signature = inspect.signature(kind)
        try:
            signature.bind(**options)
        except TypeError as error:
            given = shown(", ".join(options)) or "no options"
            raise UserError(
                f"callbacks.{name}: got {given}, expected {signature} ({error}). Give it the options that it takes."
            ) from None
        with _explain_errors(name, "its constructor", kind):
            callback = kind(**options)
        if not isinstance(callback, Callback):
            raise UserError(
                f"callbacks.{name}: got a {type(callback).__name__}, expected a Callback. "
                "Derive the class from flows.training.callbacks.callback.Callback."
            )
        return cls(name, callback)

    def before_training(self, run: RunContext) -> None:
        with _explain_errors(self.name, "before_training", self.callback):
            self.callback.before_training(run)

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        with _explain_errors(self.name, "after_round", self.callback):
            self.callback.after_round(run, played)

    def after_commit(self, run: RunContext, played: PlayedRound) -> None:
        with _explain_errors(self.name, "after_commit", self.callback):
            self.callback.after_commit(run, played)

    def after_training(self, run: RunContext) -> None:
        with _explain_errors(self.name, "after_training", self.callback):
            self.callback.after_training(run)

    def on_end(self, run: RunContext) -> None:
        mark: EndRecord | None = read_json(run.folder.on_end)
        if mark is not None and mark.get("round") == run.number:
            return
        with _explain_errors(self.name, "on_end", self.callback):
            self.callback.on_end(run)

    def on_error(self, run: RunContext, error: BaseException) -> None:
        """Report an error of the hook; the run's own error is raised."""
        try:
            self.callback.on_error(run, error)
        except Exception as failed:
            log_warnings(run.folder.name, [_failure(self.name, "on_error", self.callback, failed)])


class EndMark(Callback):
    """Record in the run's folder that `on_end` of all user callbacks was called after the last round."""

    def on_end(self, run: RunContext) -> None:
        mark: EndRecord = {"round": run.number}
        write_json(run.folder.on_end, mark)


def user_callbacks(sections: Sequence[Registered]) -> list[UserCallback]:
    """Build the callbacks that params name, each with the options of its section."""
    return [UserCallback.from_config(section.kind, section.entry.target, options_of(section)) for section in sections]


@contextmanager
def _explain_errors(name: str, hook: str, source: object) -> Iterator[None]:
    """Turn an error of a user's callback into a CallbackError; a full disk and an interrupt pass unchanged."""
    try:
        yield
    except Exception as error:
        if unwritable(error) or interruption(error):
            raise
        raise CallbackError(
            f"{_failure(name, hook, source, error)} Correct the callback; --resume continues after the last round "
            "on disk."
        ) from error


def _failure(name: str, hook: str, source: object, error: Exception) -> str:
    """Describe which hook of which callback failed, with the error and its line in the file that defines `source`."""
    file = getattr(sys.modules.get(source.__module__), "__file__", None)
    line = line_of(error, file) if file else None
    message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    location = f" ({Path(str(file)).name}, line {line})" if line else ""
    return f"callbacks.{name}: {hook} failed with {message.rstrip('.')}{location}."


def log_warnings(name: str, sentences: Sequence[str]) -> None:
    """Report warnings on a run on the user's screen and in Prefect's log."""
    for sentence in sentences:
        progress.say(f"{name}: {sentence}")
        prefect_artifacts.log_artifact(f"{name}: {sentence}")
