"""What goes wrong in a run is told in a sentence, spoils nothing, and `resume` ends with the bits of an undisturbed run."""

import json
import re
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.client.schemas.objects import StateType

from flows.cli import app
from flows.cli.training_commands import print_compare
from flows.compare import compare
from flows.core.console.safe_text import PlainConsole
from flows.project.project import Project
from flows.training.run_records.fingerprint import check_resume
from flows.training.run_records.run_folder import RunFolder
from models.metrics.task_metrics import TASK_METRICS
from silos.client_store import ClientStore
from silos.errors import MethodError, UserError
from tasks.execution.open_workers import check
from tasks.tracking.checkpoint import load_state
from tasks.tracking.json_io import unwritable, write_json
from tasks.tracking.mlflow_logging.async_logger import MLflowLogger
from tasks.tracking.mlflow_logging.connection import connect, usable_experiment

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints

PLACES = [("threads", 2), ("processes", 2)]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, str]:
    """The weights of runs that nobody disturbed, by method."""
    return {}


@pytest.fixture
def fails(play_run: Callable, undisturbed: dict[str, str], folder: Path, told: Any) -> Callable[..., BaseException]:
    """A run that must fail after its first round, which `spoil` may see to; then `mend` is called, and `resume` goes on."""

    def run(
        mend: Callable[[], object],
        *more: str,
        spoil: Callable[[], object] | None = None,
        method: str = "fedavg",
        kind: str = "threads",
        workers: int = 1,
    ) -> BaseException:
        same = "fedavg" if method == "own" else method
        if same not in undisturbed:
            undisturbed[same] = play_run(same, "threads", 1)["weights_sha256"]
        if spoil is not None:
            told.after[1] = spoil
        with pytest.raises((UserError, OSError)) as error:
            play_run(method, kind, workers, *more)
        mend()
        found = play_run(method, kind, workers, *more, resume=True)
        assert found["resumed_from_round"] == 1
        assert found["weights_sha256"] == undisturbed[same]
        left = [p for p in (folder / found["folder"]).rglob(".*") if p.name != ".lock"]
        assert left == []
        return error.value

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), PLACES)
def test_an_error_in_a_page_of_the_users_own_names_the_step_the_clients_and_the_line(
    kind, workers, fails, pools, folder
):
    pools(kind)
    page = (folder / "own.py").read_text()
    line = page.splitlines().index('        raise ZeroDivisionError("no rows left")') + 1

    def mend():
        (folder / "own.py").write_text(page.replace('"c03" in', "None in"))

    error = fails(mend, "method.own.does=raises", method="own", kind=kind, workers=workers)
    (folder / "own.py").write_text(page)
    assert isinstance(error, MethodError)
    start, clients = str(error).split(" in train of ")
    assert start == "own failed: ZeroDivisionError: no rows left"
    named, _, rest = clients.partition(" (")
    assert "c03" in named
    assert rest == f"own.py, line {line}). Correct own.py; --resume continues after the last complete round."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raised", "shown"),
    [('KeyError("between two steps")', "KeyError: 'between two steps'"), ("SystemExit(3)", "SystemExit: 3")],
)
def test_an_error_of_such_a_page_between_its_steps_names_the_line(raised, shown, fails, folder):
    page = (folder / "own.py").read_text()
    line = page.splitlines().index('            raise KeyError("between two steps")') + 1
    mended = page.replace("round.number == 2", "round.number == 0")
    (folder / "own.py").write_text(page.replace('KeyError("between two steps")', raised))
    error = fails(lambda: (folder / "own.py").write_text(mended), "method.own.does=stumbles", method="own")
    (folder / "own.py").write_text(page)
    said = f"own failed: {shown} (own.py, line {line}). Correct own.py; --resume continues"
    assert str(error).startswith(said)


PICTURE = """
from flows.methods import fedavg
from flows.plugins import register_method


def draw(scene):
    (scene.folder / "{name}").write_text("drawn")
    return scene.folder / "{name}"


@register_method("drawing")
class Drawing(fedavg.FedAvg):
    def figures(self):
        return (draw,)
"""


@pytest.mark.slow
def test_a_page_whose_picture_is_called_as_a_file_of_the_run_is_told_and_spoils_nothing(play_run, folder):
    settings = ["plugins=[own.py, drawing.py]", "training.rounds=2"]
    (folder / "drawing.py").write_text(PICTURE.format(name="checkpoint.safetensors"))
    with pytest.raises(MethodError) as error:
        play_run("drawing", "threads", 1, *settings)
    said = (
        "drawing failed: ValueError: figure: got the name checkpoint.safetensors, which is a file of the run itself, "
    )
    assert str(error.value).startswith(said)
    assert "expected another name. Correct drawing.py; --resume" in str(error.value)
    (folder / "drawing.py").write_text(PICTURE.format(name="own.png"))
    found = play_run("drawing", "threads", 1, *settings, resume=True)
    assert found["resumed_from_round"] == 2
    names = {path.name for path in (folder / found["folder"]).iterdir()}
    assert [name for name in names if not RunFolder.is_own(name)] == ["own.png"]


@pytest.mark.slow
def test_a_sentence_that_a_page_of_the_users_own_raised_in_a_step_is_what_is_said(fails, folder):
    page = (folder / "own.py").read_text()
    mended = page.replace('does == "refuses"', "not does")
    error = fails(lambda: (folder / "own.py").write_text(mended), "method.own.does=refuses", method="own")
    (folder / "own.py").write_text(page)
    assert isinstance(error, MethodError)
    assert str(error) == "client c03 has one row; give it two."


@pytest.mark.slow
def test_a_comparison_goes_on_after_a_users_method_failed_and_ends_with_1(prefect, folder, told, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    data = Project.open(derived=True).silos  # as `partition` would, for a folder that DVC knows
    monkeypatch.setattr(Project, "silos", data)
    settings = ["training.rounds=2", "plugins=[own.py]", "method.own.does=raises"]
    typed = ["compare", "own", "fedavg", "--seeds", "0", "--reference", "fedavg", "--json"]
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended:
        app([*typed, *(part for setting in settings for part in ("--set", setting))])
    signal.signal(signal.SIGINT, before)
    assert ended.value.code == 1
    found = json.loads(capsys.readouterr().out)
    assert [run["method"] for run in found["runs"]] == ["fedavg"]
    (failed,) = found["failed"]
    assert (failed["method"], failed["seed"]) == ("own", 0)
    assert failed["error"].startswith("own failed: ZeroDivisionError: no rows left in train of clients ")


HALF = """
from flows.methods import fedavg
from flows.plugins import register_method
from silos.errors import UserError


@register_method("half")
class Half(fedavg.FedAvg):
    def run_round(self, state, round):
        if round.setup.seed == 1:
            raise UserError("the loss is no number; lower the learning rate.")
        return super().run_round(state, round)
"""


@pytest.mark.slow
def test_a_comparison_with_a_failed_run_is_not_called_complete(prefect, folder, told, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(Project, "silos", Project.open(derived=True).silos)
    (folder / "half.py").write_text(HALF)
    settings = ["training.rounds=1", "plugins=[own.py, half.py]"]
    found = compare(["fedavg", "half", "local_only"], [0, 1], "fedavg", settings, name="partial")
    assert [(run["method"], run["seed"]) for run in found["failed"]] == [("half", 1)]

    named = FlowRunFilter(name=FlowRunFilterName(like_=", partial"))  # the server has those of other tests, too
    with get_client(sync_client=True) as client:
        (state,) = [run.state for run in client.read_flow_runs(flow_run_filter=named)]
    assert (state.type, state.message) == (
        StateType.FAILED,
        "partial is not complete: 1 of 6 runs failed (half seed 1)",
    )
    store = connect(Project.open(settings).store.tracking)
    _, number = usable_experiment(store, Project.open(settings).store.mlflow_experiment)
    (run,) = store.search_runs([number], "attributes.run_name = 'partial'")
    assert run.info.status == "FAILED"
    assert run.data.tags["mlflow.note.content"].startswith("Not complete: 1 of 6 runs failed (half seed 1). Against ")

    print_compare(found, PlainConsole(width=120))
    shown = capsys.readouterr().out
    assert re.search(r"^method .* seeds *$", shown, re.MULTILINE)
    for method, seeds in {"fedavg": "2 of 2", "half": "1 of 2", "local_only": "2 of 2", "always": "-"}.items():
        assert re.search(rf"^{method} .* {seeds} *$", shown, re.MULTILINE), shown
    assert "over the seeds that each method finished; 95 %" in shown
    assert "over 2 seeds" not in shown
    assert re.search(r"^  half − fedavg .* \(seed 0\)$", shown, re.MULTILINE)
    assert "The comparison is not complete: 1 of 6 runs failed (half seed 1)" in shown

    (folder / "half.py").write_text(HALF.replace("seed == 1", "seed == 2"))
    again = compare(["fedavg", "half", "local_only"], [0, 1], "fedavg", settings, resume=True, name="partial")
    assert again["failed"] == []
    (run,) = store.search_runs([number], "attributes.run_name = 'partial'")
    assert run.info.status == "FINISHED"
    print_compare(again, PlainConsole(width=120))
    shown = capsys.readouterr().out
    assert "seeds" not in shown.split("\n")[0]
    assert "over 2 seeds; 95 %" in shown
    assert "not complete" not in shown


def test_a_comparison_ends_where_data_are_others_also_under_a_users_method(prefect, folder, told, monkeypatch):
    monkeypatch.chdir(folder)
    silos = Project.open(["data.seed=6"], derived=True).silos
    monkeypatch.setattr(Project, "silos", silos)
    broken = Path(silos.folder) / "c03.safetensors"
    told.after[1] = lambda: broken.write_bytes(broken.read_bytes()[:-40])
    with pytest.raises(
        UserError, match=r"c03\.safetensors, with the rows of client c03, differs from data version"
    ) as error:
        compare(["own", "fedavg"], [0], "fedavg", ["data.seed=6", "plugins=[own.py]"])
    assert not isinstance(error.value, MethodError)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), PLACES)
def test_a_broken_rows_file_is_named_with_its_client(kind, workers, play_run, pools, folder, told):
    pools(kind)
    silos = Project.open(["data.seed=5"], root=folder, derived=True).silos
    broken = Path(silos.folder) / "c03.safetensors"
    whole = broken.read_bytes()
    told.after[1] = lambda: broken.write_bytes(whole[:-40])
    with pytest.raises(UserError) as error:
        play_run("fedavg", kind, workers, "data.seed=5")
    assert str(error.value).startswith(
        f"{broken}, with the rows of client c03, differs from data version {silos.version}"
    )
    assert play_run("fedavg", kind, workers, "data.seed=5")["data_version"] == silos.version  # it was made again
    assert broken.read_bytes() == whole


@pytest.mark.slow
def test_a_damaged_file_of_a_run_is_told_with_the_way_out_and_whole_rounds_are_used(
    play_run, folder, told, undisturbed
):
    """Of a round that no checkpoint counts it is written anew; of one that counts, nothing goes on before it is mended."""
    told.after[2] = lambda: (_ for _ in ()).throw(OSError("stop"))
    with pytest.raises(OSError, match="stop"):
        play_run("fedavg", "threads", 1)
    path = max(folder.glob("runs/*/fedavg-seed0"), key=lambda p: p.stat().st_mtime_ns)
    half(path / "journal" / "000002.json", path / "journal" / "000003.json")  # as if round 3 had begun
    for name in ("journal/000001.json", "run.json", "../experiment.json"):
        whole = half(path / name)
        with pytest.raises(UserError, match=r"Restore it from a copy, or start again without --resume\."):
            play_run("fedavg", "threads", 1, resume=True)
        (path / name).write_bytes(whole)
    found = play_run("fedavg", "threads", 1, resume=True)
    assert found["resumed_from_round"] == 2
    undisturbed.setdefault("fedavg", found["weights_sha256"])
    assert found["weights_sha256"] == undisturbed["fedavg"]
    half(path / "result.json")
    with pytest.raises(UserError, match=r"result\.json is damaged \("):
        play_run("fedavg", "threads", 1, resume=True)
    (path / "result.json").unlink()
    again = play_run("fedavg", "threads", 1, resume=True)
    assert (again["weights_sha256"], again["metrics"]) == (found["weights_sha256"], found["metrics"])
    half(path / "outcomes.json")
    with pytest.raises(
        UserError, match=r"outcomes\.json is damaged \(Expecting property name enclosed in double quotes: line 4"
    ):
        RunFolder(path).outcome_hashes()


def half(path: Path, into: Path | None = None) -> bytes:
    """What was in the file, of which half is left, or of which half is in another."""
    whole = path.read_bytes()
    (into or path).write_bytes(whole[: len(whole) // 2])
    return whole


@pytest.mark.slow
def test_a_folder_in_place_of_the_checkpoint_is_told(fails, folder):
    places = []

    def put():
        checkpoint = max(folder.glob("runs/*/*/checkpoint.safetensors"), key=lambda p: p.stat().st_mtime_ns)
        checkpoint.rename(checkpoint.with_name("aside"))
        checkpoint.mkdir()
        places.append(checkpoint)

    def mend():
        places[0].rmdir()
        places[0].with_name("aside").rename(places[0])

    error = fails(mend, spoil=put)
    assert unwritable(error) == f"cannot write {places[0]}: a folder has the name of the needed file; move it away."


@pytest.mark.slow
def test_a_file_that_may_not_grow_is_told(fails, folder):
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> Callable[[], None]:
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    try:
        error = fails(limit(hard), spoil=limit(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert unwritable(error).endswith(": files may not become that large; raise the limit (`ulimit -f`).")
    assert str(folder / "runs") in unwritable(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "method", "kind", "workers"),
    [("runs", "fedavg", "threads", 1), ("private", "local_only", "processes", 2)],
)
def test_a_full_disk_is_told(place, method, kind, workers, fails, pools, folder, small_disk, fill):
    pools(kind)
    with small_disk(folder / place):
        ballast = folder / place / "ballast"
        message = unwritable(
            fails(ballast.unlink, spoil=lambda: fill(ballast), method=method, kind=kind, workers=workers)
        )
    assert message.startswith(f"cannot write {folder / place}/")
    assert message.endswith(": the disk is full; free some space.")


@pytest.mark.slow
def test_other_settings_are_refused_before_a_flow_starts(play_run, folder):
    found = play_run("fedavg", "threads", 1, "training.rounds=1")
    experiment = Path(found["folder"]).parent.name
    small = ["engine.stack=2", "plugins=[own.py]", f"method.own.marker={folder}/marker", "runner.workers=2"]
    check_resume(Project.open([*small, "training.rounds=1"], derived=True), "fedavg", 0, experiment)
    with pytest.raises(UserError, match="fedavg-seed0: got other settings than at its start"):
        check_resume(Project.open([*small, "training.rounds=3"], derived=True), "fedavg", 0, experiment)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "local_only"])
def test_whenever_a_run_is_killed_all_that_its_checkpoint_counts_on_is_there(method, play_run, folder, monkeypatch):
    """Files come by a rename and go by an unlink: after each of those is every moment that a kill can leave behind."""
    seen, told, missing = [], [], []
    changes = {"replace": Path.replace, "unlink": Path.unlink}
    hear = MLflowLogger.round_done

    def look(change: str) -> Callable[..., Any]:
        def changed(path: Path, *more: Any, **options: Any) -> Any:
            done = changes[change](path, *more, **options)
            if threading.current_thread() is threading.main_thread() and path.is_relative_to(folder):
                try:
                    seen.append(counted(folder, method))
                except (UserError, AssertionError) as error:
                    missing.append(f"after {change} of {path.name}: {error}")
            return done

        return changed

    def is_told(delivery: MLflowLogger, number: int) -> None:
        told.append((number, counted(folder, method)))
        hear(delivery, number)

    write_json(
        folder / "runs" / "killed" / "experiment.json", {"kind": "run", "name": "killed", "started": "20000101-000000"}
    )
    for change in changes:
        monkeypatch.setattr(Path, change, look(change))
    monkeypatch.setattr(MLflowLogger, "round_done", is_told)
    settings = ["evaluation.report=best", "training.optimiser.learning_rate=0.02"]
    play_run(method, "threads", 1, *settings, experiment="killed")
    assert missing == []
    assert set(seen) == {0, 1, 2, 3}
    assert told == [(number, number) for number in range(4)], "MLflow hears of a round when its checkpoint is there"


def counted(folder: Path, method: str) -> int:
    """The round that the run's checkpoint counts, once all that it needs was found."""
    run = RunFolder(folder / "runs" / "killed" / f"{method}-seed0")
    found = load_state(run.checkpoint)
    if found is None:
        return 0
    quantity = TASK_METRICS["classification"]
    private = ClientStore(str(folder / "private" / "digits" / "killed" / run.name))
    assert len(list(run.journal.each(found[1]))) == found[1]
    best = run.load_best(found[1], quantity)
    assert best is not None, "the best state is missing"
    assert best[1] == run.best_round(found[1], quantity)[1]
    for state, *_ in (found, best):
        for section, refs in state.private.items():
            assert len(private.load_stack(section, refs, sorted(refs))) > 0
    return found[1]


@pytest.mark.slow
def test_a_run_that_only_lacks_its_result_reports_the_best_round_as_before(play_run, folder):
    """As one that MLflow was away from, or that was killed after its last round: no round is left to be played."""
    settings = ["evaluation.report=best", "training.optimiser.learning_rate=16"]
    whole = play_run("fedavg", "threads", 1, *settings)
    assert whole["reported_round"] < whole["rounds"] == 3, "or it says nothing"
    (folder / whole["folder"] / "result.json").unlink()
    again = play_run("fedavg", "threads", 1, *settings, resume=True)
    for same in ("folder", "rounds", "reported_round", "weights_sha256"):
        assert again[same] == whole[same]
    assert again["resumed_from_round"] == 3
    (folder / whole["folder"] / "result.json").unlink()
    (best,) = (folder / whole["folder"]).glob("best-*")
    best.unlink()
    with pytest.raises(UserError, match=r"best-000002\.safetensors is missing"):
        play_run("fedavg", "threads", 1, *settings, resume=True)


def test_dask_that_is_not_installed_is_told_with_the_command_that_installs_it(monkeypatch):
    check("dask")
    monkeypatch.setattr("tasks.execution.open_workers.find_spec", lambda _: False)
    with pytest.raises(UserError, match=r"Install it with `pip install -c constraints\.txt -e '\.\[dask\]'`"):
        check("dask")
    check("processes")
