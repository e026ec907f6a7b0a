"""The types of a run's JSON are those of real files, for every method and setting that adds or leaves out a key."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from flows.run import run
from tasks.tracking.result_types.journal_record import RoundRecord
from tasks.tracking.result_types.run_files import EndRecord, ExperimentRecord, RunIdentity, ValidationRecord
from tasks.tracking.result_types.run_result import RunResult
from tests.typed_json import assert_typed

LINES = [
    "data.source={kind: synthetic, task: linear, clusters: 2, clients_per_cluster: 2, rows: 40, features: 3}",
    "data.name=lines",
    "data.scheme=[{kind: column, column: client}]",
    "model.hidden=[]",
    "training.objective={kind: squared_error}",
]
ROLES = "data.scheme=[{kind: equal, clients: 9}, {kind: rotation, angles: [0, 60]}, {kind: fresh, per_domain: 1}]"
CASES = {
    "classification": ("fedavg", []),
    "clients that never train, and domains": ("fedavg", [ROLES]),
    "the best round, not every round scored, and clients that drop out": (
        "ifca",
        ["evaluation.report=best", "evaluation.every=2", "clients.dropout=0.4"],
    ),
    "a metric of a client's rows": ("ditto", ["evaluation.metric=auc", "training.objective={kind: focal}"]),
    "no federation": ("local_only", ["evaluation.clients=2"]),
    "codebooks": ("uefl", ["method.uefl.first_rounds=1"]),
    "a personal model and a shared one": ("flux", []),
    "a regression": ("fedavg", [*LINES, "model.inputs=standardise", "model.targets=standardise"]),
    "a regression that diverges": ("fedavg", [*LINES, "training.optimiser.learning_rate=1.0e+9"]),
}
FILES = {
    "result.json": RunResult,
    "run.json": RunIdentity,
    "outcomes.json": dict[str, str],
    "journal/000001.json": RoundRecord,
    "journal/000002.json": RoundRecord,
    "journal/000003.json": RoundRecord,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_params):
    folder = tmp_path_factory.mktemp("types") / "project"
    write_params(folder)
    return folder


@pytest.fixture
def play(prefect, folder, monkeypatch):
    """Plays a run of three rounds and returns its folder."""
    monkeypatch.chdir(folder)

    def play_run(method: str, settings: list[str], **options: int) -> Path:
        result = run(method, 0, ["training.rounds=3", *settings], derived=True, **options)
        newest = max((folder / "runs").glob("*/*/run.json"), key=lambda file: file.stat().st_mtime_ns).parent
        assert result is None or result["folder"] == str(newest.relative_to(folder))
        return newest

    return play_run


def read(path):
    return json.loads(path.read_bytes())


@pytest.mark.parametrize(("method", "settings"), CASES.values(), ids=CASES)
@pytest.mark.sample(4)
def test_every_file_of_a_run_has_its_type(method, settings, play):
    played = play(method, settings)
    for name, kind in FILES.items():
        assert_typed(read(played / name), kind)
    assert_typed(read(played.parent / "experiment.json"), ExperimentRecord)


def test_a_run_that_pauses_and_a_user_callback_write_two_more(play, folder):
    (folder / "mine.py").write_text(
        "from flows.plugins import register_callback\n"
        "from flows.training.callbacks.callback import Callback\n\n"
        "@register_callback('mine')\nclass Mine(Callback):\n    pass\n"
    )
    settings = ["plugins=[mine.py]", "callbacks=[{kind: mine}]"]
    paused = play("fedavg", settings, until=1)
    assert not (paused / "result.json").exists()
    assert_typed(read(paused / "validation.json"), ValidationRecord)
    assert play("fedavg", settings, until=3, resume=True) == paused
    assert_typed(read(paused / "on_end.json"), EndRecord)
    assert_typed(read(paused / "result.json"), RunResult)


def test_what_the_types_do_not_say_is_refused_at_every_depth(play):
    result = read(play("fedavg", []) / "result.json")
    less = {key: value for key, value in result.items() if key != "ended_by"}
    for wrong in (
        {**result, "more": 1},
        {**result, "bytes": {**result["bytes"], "more": 1}},
        {**result, "baseline": {**result["baseline"], "metrics": {"accuracy/mean": "high"}}},
        {**result, "notes": [{"about": "weather", "sentence": "It rains."}]},
        {**result, "seed": "0"},
        {**result, "steps": True},
        less,
    ):
        with pytest.raises(ValidationError):
            assert_typed(wrong, RunResult)
