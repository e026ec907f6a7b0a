"""The loop of rounds, and the callbacks around it: who is called when, and what is on disk by then."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from flows.core.config.params_schema import EvaluationParams
from flows.methods.base import RoundReport
from flows.methods.fedavg import FedAvg
from flows.methods.round_context import RoundContext
from flows.project.project import Project
from flows.training.callbacks.callback import Callback, CallbackError, PlayedRound, UserCallback
from flows.training.callbacks.report_run import MLflowTracking, Progress, ResultFile
from flows.training.callbacks.score_and_save import BestModel, ClientStateCleanup, Evaluation, RoundSaver
from flows.training.run_context import RunContext, open_run
from flows.training.run_records.fingerprint import fingerprint_of
from flows.training.run_records.round_record import is_scored
from flows.training.run_records.run_folder import RunFolder
from flows.training.trainer import Trainer, default_callbacks
from flows.training.training_setup import training_setup
from models.server_state import ServerState, Weights
from silos.errors import UserError
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.checkpoint import load_state
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.mlflow_logging.connection import connect

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints

ROUNDS = 3
LOOP = ["before_training", *["after_round", "after_commit"] * ROUNDS, "after_training", "on_end"]


class Counting(FedAvg):
    """A toy: its weights are the fresh ones, moved a little in every round, without a client's step."""

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """See Method."""
        return state.with_tensors(weights=moved(state, round.number)), RoundReport({"loss/train": 1 / round.number})


def moved(state: ServerState, number: int) -> Weights:
    return {name: tensor + 0.01 * number for name, tensor in state.tensors["weights"].items()}


@dataclass
class Recorder(Callback):
    """Keep every call of a hook: the name of the recorder, the hook, the round, and the round on disk at that moment."""

    name: str = "recorder"
    fails: str = ""  # the hook that raises, in the round `at`
    at: int = 2
    error: type[BaseException] = ValueError
    calls: list[tuple[str, str, int, int]] = field(default_factory=list)

    def before_training(self, run: RunContext) -> None:
        self._hear("before_training", run, run.number)

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        self._hear("after_round", run, played.round.number)

    def after_commit(self, run: RunContext, played: PlayedRound) -> None:
        self._hear("after_commit", run, played.round.number)

    def after_training(self, run: RunContext) -> None:
        self._hear("after_training", run, run.number)

    def on_end(self, run: RunContext) -> None:
        self._hear("on_end", run, run.number)

    def on_error(self, run: RunContext, error: BaseException) -> None:
        self._hear("on_error", run, run.number)

    def _hear(self, hook: str, run: RunContext, number: int) -> None:
        saved = load_state(run.folder.checkpoint)
        on_disk = saved.round if saved else 0
        assert all((run.folder.path / "journal" / f"{at:06d}.json").exists() for at in range(1, on_disk + 1))
        self.calls.append((self.name, hook, number, on_disk))
        if hook == self.fails and (number == self.at or hook == "on_error"):
            raise self.error("a mistake of the user")

    @property
    def hooks(self) -> list[str]:
        return [hook for _, hook, *_ in self.calls]

    def rounds(self, hook: str) -> list[int]:
        return [number for _, called, number, _ in self.calls if called == hook]


@dataclass
class Stop(Callback):
    """End training in a hook of a round."""

    hook: str
    at: int = 1

    def before_training(self, run: RunContext) -> None:
        self._stop("before_training", run)

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        self._stop("after_round", run)

    def after_commit(self, run: RunContext, played: PlayedRound) -> None:
        self._stop("after_commit", run)

    def _stop(self, hook: str, run: RunContext) -> None:
        if hook == self.hook and run.number >= self.at:
            run.stop_reason = "enough"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, write_params: Callable[[Path], Any], databases: Path) -> Project:
    """A project of six clients, with its partition and a database of MLflow's."""
    folder = tmp_path_factory.mktemp("trainer") / "project"
    write_params(folder)
    shutil.copy(databases / "mlflow.db", folder)
    return Project.open([f"training.rounds={ROUNDS}"], folder, derived=True)


@dataclass(frozen=True)
class NamedRunner(PlainRunner):
    """Run tasks without Prefect, under a name that no page shows."""

    when: str = ""


@pytest.fixture
def open_toy(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunContext]:
    """Open the toy's run: a new one, or the newest one after the last round on disk."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project.root}/mlflow.db")
    held = len(list(project.store.runs.glob("toy*")))

    def opened(resume: bool = False, **evaluation: Any) -> RunContext:
        nonlocal held
        held += not resume
        settings = project.params.evaluation.model_copy(update=evaluation)
        here, method = replace(project, params=project.params.model_copy(update={"evaluation": settings})), Counting()
        folder = RunFolder(project.store.runs / f"toy{held}" / "counting-seed0")
        about = {"kind": "run", "name": folder.path.parent.name, "started": "20000101-000000"}
        write_json(folder.path.parent / "experiment.json", about)
        setup = training_setup(here, 0)
        identity = folder.identify(fingerprint_of(here, setup, method, "counting"), resume)
        return open_run(here, method, setup, identity, folder, NamedRunner(), 0.0)

    return opened


def train(run: RunContext, *extra: UserCallback) -> dict[str, Any]:
    return Trainer(run, default_callbacks(run.project.params.evaluation, extra)).fit()


def status(run: RunContext) -> str:
    """The status of the run in MLflow."""
    client = connect(run.project.store.tracking)
    experiments = [one.experiment_id for one in client.search_experiments()]
    (found,) = client.search_runs(experiments, f"tags.`siloflow.run` = '{run.identity['tag']}'")
    return str(found.info.status)


def test_each_hook_is_called_on_every_callback_in_the_order_of_the_list(open_toy):
    run, calls = open_toy(), []
    Trainer(run, [Recorder("one", calls=calls), Recorder("other", calls=calls)]).fit()
    hooks = [hook for hook in LOOP if hook != "after_commit"]  # no callback commits
    assert [(name, hook) for name, hook, *_ in calls] == [(n, hook) for hook in hooks for n in ("one", "other")]
    assert [call for call in calls if call[1] == "after_round"][::2] == [
        ("one", "after_round", n, 0) for n in (1, 2, 3)
    ]
    assert run.number == ROUNDS
    assert run.ended_by == "training.rounds"


def test_the_default_list_saves_a_round_before_it_reports_it():
    kinds = [type(one) for one in default_callbacks(EvaluationParams(report="best", stop_at=0.5))]
    saved = kinds.index(RoundSaver)
    assert max(kinds.index(Evaluation), kinds.index(BestModel)) < saved
    assert saved < min(map(kinds.index, (ClientStateCleanup, MLflowTracking, Progress)))
    assert kinds.index(MLflowTracking) < kinds.index(ResultFile) < kinds.index(Progress)


def test_a_round_is_committed_when_its_files_are_on_disk(open_toy):
    run, extra = open_toy(), Recorder()
    result = train(run, UserCallback("recorder", extra))
    assert sorted(extra.hooks) == sorted(LOOP)
    assert extra.rounds("after_commit") == [1, 2, 3]
    assert all(number <= on_disk for _, hook, number, on_disk in extra.calls if hook == "after_commit")
    assert [call[1:] for call in extra.calls[-2:]] == [("after_training", 3, 3), ("on_end", 3, 3)]
    assert read_json(run.folder.result)["weights_sha256"] == result["weights_sha256"] == run.state.sha256()
    assert status(run) == "FINISHED"


def test_a_round_whose_files_are_still_being_written_is_not_committed(open_toy, monkeypatch):
    """Only the last round is scored, before which the one before is waited for."""
    run, extra, gate, rename = open_toy(every=ROUNDS), Recorder(), threading.Event(), Path.replace
    gate.set()

    def slow(old: Path, new: Path) -> Path:
        assert gate.wait(10)
        return rename(old, new)

    class SlowDisk(Callback):
        """Let the disk take no file from the end of round 1 to the end of round 2, when round 2 is being written."""

        def after_round(self, run: RunContext, played: PlayedRound) -> None:
            if played.round.number == 1:
                saver.flush()
                gate.clear()
            if played.round.number == 2:
                assert extra.rounds("after_commit") == [1]
                assert load_state(run.folder.checkpoint).round == 1
                gate.set()

    monkeypatch.setattr(Path, "replace", slow)
    monkeypatch.setattr("flows.training.callbacks.score_and_save.SHARE", -1.0)  # every commit is long for its round
    callbacks = default_callbacks(run.project.params.evaluation, [UserCallback("recorder", extra)])
    (saver,) = [one for one in callbacks if isinstance(one, RoundSaver)]
    Trainer(run, [*callbacks, SlowDisk()]).fit()
    assert extra.rounds("after_commit") == [1, 2, 3]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_run_that_was_stopped_goes_on_after_the_last_round_on_disk(open_toy, error):
    whole = train(open_toy())
    stopped = open_toy()
    with pytest.raises(CallbackError if error is ValueError else KeyboardInterrupt):
        train(stopped, UserCallback("stops", Recorder(fails="after_commit", at=2, error=error)))
    assert status(stopped) == ("FAILED" if error is ValueError else "KILLED")
    resumed, extra = open_toy(resume=True), Recorder()
    result = train(resumed, UserCallback("recorder", extra))
    assert extra.calls[0] == ("recorder", "before_training", 2, 2)
    assert extra.rounds("after_round") == extra.rounds("after_commit") == [3]
    assert result["resumed_from_round"] == 2
    assert (result["weights_sha256"], result["metrics"]) == (whole["weights_sha256"], whole["metrics"])
    assert status(resumed) == "FINISHED"


def test_training_stops_after_the_first_round_whose_score_is_reached_also_when_resumed(open_toy):
    extra = Recorder()
    result = train(open_toy(stop_at=1e-9), UserCallback("recorder", extra))
    assert (result["rounds"], result["ended_by"]) == (1, "evaluation.stop_at")
    assert extra.rounds("after_commit") == [1]
    run, extra = open_toy(resume=True, stop_at=1e-9), Recorder()
    again = train(run, UserCallback("recorder", extra))
    assert extra.hooks == ["before_training", "after_training"]
    assert (again["rounds"], again["ended_by"]) == (1, "evaluation.stop_at")


@pytest.mark.slow
@pytest.mark.parametrize("report", ["last", "best"])
@pytest.mark.parametrize("hook", ["after_round", "after_commit"])
def test_the_last_round_is_scored_whoever_ends_the_run(open_toy, hook, report):
    run = open_toy(every=10, report=report)
    result = train(run, UserCallback("stop", Stop(hook)))
    assert (result["ended_by"], result["reported_round"]) == ("enough", result["rounds"])
    assert result["rounds"] < ROUNDS
    assert_last_round_is_scored(run, result)


def test_the_last_round_is_scored_also_if_a_resumed_run_is_ended_before_it_goes_on(open_toy):
    with pytest.raises(CallbackError):
        train(open_toy(every=10), UserCallback("fails", Recorder(fails="after_commit", at=1)))
    run = open_toy(resume=True, every=10)
    result = train(run, UserCallback("stop", Stop("before_training")))
    assert (result["ended_by"], result["rounds"]) == ("enough", 1)
    assert_last_round_is_scored(run, result)


def test_a_callback_that_ends_the_run_before_its_first_round_leaves_a_result_of_one_round(open_toy):
    result = train(open_toy(every=10), UserCallback("stop", Stop("before_training", at=0)))
    assert (result["ended_by"], result["rounds"]) == ("enough", 1)


def assert_last_round_is_scored(run: RunContext, result: dict[str, Any]) -> None:
    """Its record and MLflow have the scores that the result has, and a scored run has the same ones."""
    record = run.folder.journal.read(run.number)
    assert is_scored(record)
    assert record["metrics"]["accuracy/mean"] == result["metrics"]["accuracy/mean"]
    assert record["seconds"]["evaluate"] > 0
    history = connect(run.project.store.tracking).get_metric_history(result["mlflow_run_id"], "accuracy/mean")
    assert {(one.step, one.value) for one in history} == {(run.number, record["metrics"]["accuracy/mean"])}
    assert load_state(run.folder.checkpoint).state.sha256() == run.state.sha256()


def test_a_late_score_is_written_down_as_a_score_in_time(open_toy):
    late, in_time = open_toy(every=10), open_toy()
    for run in (late, in_time):
        train(run, UserCallback("stop", Stop("after_round")))
    records = [run.folder.journal.read(1) for run in (late, in_time)]
    assert late.report.scored_late is not None
    assert in_time.report.scored_late is None
    for key in ("metrics", "clients", "dropped"):
        assert records[0][key] == records[1][key]


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["before_training", "after_round", "after_commit", "after_training"])
def test_an_error_of_a_users_callback_names_it_fails_the_run_and_loses_nothing(open_toy, hook):
    run, at = open_toy(), {"before_training": 0, "after_training": ROUNDS}.get(hook, 2)
    failing, after = Recorder(fails=hook, at=at), Recorder("after")
    with pytest.raises(CallbackError) as error:
        train(run, UserCallback("mine", failing), UserCallback("after", after))
    sentence, line = str(error.value).split(" (test_trainer.py, line ")
    assert sentence == f"callbacks.mine: {hook} failed with ValueError: a mistake of the user"
    assert line.endswith("). Correct the callback; --resume continues after the last round on disk.")
    assert after.hooks[-1] == failing.hooks[-1] == "on_error"
    assert status(run) == "FAILED"
    resumed = open_toy(resume=True)
    assert resumed.number == at, "every round that was played is on disk"
    assert train(resumed)["weights_sha256"] == expected_sha256(resumed)


def expected_sha256(run: RunContext) -> str:
    state = Counting().init(run.clients.setup)
    for number in range(1, ROUNDS + 1):
        state = state.with_tensors(weights=moved(state, number))
    return str(state.sha256())


def test_an_error_of_a_users_callback_at_the_end_leaves_a_finished_run(open_toy):
    run = open_toy()
    with pytest.raises(CallbackError, match=r"callbacks\.mine: on_end failed with ValueError"):
        train(run, UserCallback("mine", Recorder(fails="on_end", at=ROUNDS)))
    assert read_json(run.folder.result)["mlflow_run_id"]
    assert status(run) == "FINISHED"


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["", "on_end"])
def test_on_end_is_called_once_also_if_a_finished_run_is_delivered_to_mlflow_later(open_toy, fails):
    run, first = open_toy(), Recorder(fails=fails, at=ROUNDS)
    try:
        train(run, UserCallback("mine", first))
    except CallbackError:
        assert fails
    write_json(run.folder.result, {**read_json(run.folder.result), "mlflow_run_id": None})  # as if MLflow had been away
    again = Recorder()
    result = train(open_toy(resume=True), UserCallback("mine", again))
    assert result["mlflow_run_id"] is not None
    assert (first.rounds("on_end"), again.rounds("on_end")) == ([ROUNDS], [ROUNDS] if fails else [])


class Finishing(Counting):
    """Ends itself after the second round; round 1 is made the best."""

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """See Method."""
        after, report = super().run_round(state, round)
        return (replace(after, finished="converged") if round.number == 2 else after), report


def test_a_run_that_reports_its_best_round_says_how_the_last_one_ended(open_toy, monkeypatch):
    run = open_toy(report="best")
    run.method = Finishing()
    monkeypatch.setattr(type(run.project.quantity), "rank", lambda *_: (1.0, 0.0))
    result = train(run)
    assert (result["reported_round"], result["rounds"], result["ended_by"]) == (1, 2, "converged")


def test_an_error_while_another_is_handled_hides_nothing(open_toy, told):
    run, later = open_toy(), Recorder("later")
    clumsy = UserCallback("clumsy", Recorder(fails="on_error"))
    with pytest.raises(CallbackError, match=r"callbacks\.mine: after_round failed"):
        train(run, clumsy, UserCallback("mine", Recorder(fails="after_round")), UserCallback("later", later))
    assert later.hooks[-1] == "on_error"
    (sentence,) = [line for line in told.said if "clumsy" in line]
    assert sentence.startswith("counting-seed0: callbacks.clumsy: on_error failed with ValueError")
    assert status(run) == "FAILED"


def test_an_error_of_a_built_in_callback_stays_as_it_is(open_toy):
    class Broken(Callback):
        """As a fault of our own would be."""

        def after_round(self, run: RunContext, played: PlayedRound) -> None:
            raise ZeroDivisionError

    recorder = Recorder()
    with pytest.raises(ZeroDivisionError):
        Trainer(open_toy(), [Broken(), recorder]).fit()
    assert recorder.hooks == ["before_training", "on_error"]


def test_a_second_interrupt_is_what_the_callbacks_that_follow_see(open_toy):
    seen: list[BaseException] = []

    class Seeing(Callback):
        """Keep the error."""

        def on_error(self, run: RunContext, error: BaseException) -> None:
            seen.append(error)

    first = Recorder("first", fails="after_round", at=1)
    second = Recorder("second", fails="on_error", error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        Trainer(open_toy(), [Seeing(), first, second, Seeing()]).fit()
    assert [type(error) for error in seen] == [ValueError, KeyboardInterrupt]


def test_an_interrupt_in_a_users_callback_stays_an_interrupt(open_toy):
    run = open_toy()
    with pytest.raises(KeyboardInterrupt):
        train(run, UserCallback("mine", Recorder(fails="after_round", error=KeyboardInterrupt)))
    assert status(run) == "KILLED"
    assert load_state(run.folder.checkpoint).round == 2
    assert load_state(run.folder.checkpoint).state.sha256() == run.state.sha256()


def test_a_users_callback_is_built_from_its_section_of_the_params():
    built = UserCallback.from_config("mine", Recorder, {"name": "mine", "at": 3})
    assert (built.name, built.callback) == ("mine", Recorder("mine", at=3))


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        (Recorder, {"colour": "red"}, r"callbacks\.mine: got colour, expected \(name.*unexpected keyword.*'colour'"),
        (lambda: {}, {}, r"callbacks\.mine: got a dict, expected a Callback\. Derive the class from flows\.training"),
        (lambda: 1 / 0, {}, r"callbacks\.mine: its constructor failed with ZeroDivisionError: division by zero"),
    ],
)
def test_a_section_that_builds_no_callback_is_refused_in_a_sentence(kind, options, sentence):
    with pytest.raises(UserError, match=sentence):
        UserCallback.from_config("mine", kind, options)
