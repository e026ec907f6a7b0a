"""The scale that clients agree on is NumPy's of the training rows of those who are there in round 1, however it is split."""

import math
import os
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flows.project.project import Project
from flows.training import fit_standardizer as module
from flows.training.fit_standardizer import (
    _fit_key,
    _ledger_notes,
    fit_or_load,
    fit_standardizer,
    load_standardizer,
)
from flows.training.run_records.run_folder import RunFolder
from flows.training.training_setup import training_setup
from silos.errors import UserError
from silos.privacy.owner_file import make_store
from silos.standardizer import NO_STANDARDIZATION, Standardizer
from tasks.execution.task_runner import PlainRunner
from tasks.messages.statistics_messages import ScaleMoments
from tasks.tracking.json_io import write_json

SIZES = {"north": 90, "south": 40, "east": 25}  # unequal: a mean over silos is another
BOTH = ["model.inputs=standardise", "model.targets=standardise"]


@pytest.fixture(scope="module")
def rows(folder: Path) -> dict[str, np.ndarray]:
    """A table of three columns and the target, in units of their own; test rows are far from the training rows."""
    rng = np.random.default_rng(4)
    client = np.repeat([*SIZES], [*SIZES.values()])
    split = np.where(np.arange(len(client)) % 5 == 0, "test", "train")
    split[np.arange(len(client)) % 5 == 1] = "validation"
    x = rng.normal(size=(len(client), 3)) * [300, 1, 0.01] + [700, 3, 0]
    x += 50 * (client == "east")[:, None]
    x[split != "train"] += 1e4
    y = 10 * x[:, 0] + rng.normal(size=len(client))
    arrays = {"x": x.astype(np.float32), "y": y.astype(np.float32), "client": client, "split": split}
    np.savez(folder / "uneven.npz", **arrays)
    return arrays


def opened(folder: Path, *more: str) -> Project:
    settings = [
        "data.name=uneven",
        "data.source={kind: npz, path: uneven.npz, task: regression}",
        "data.scheme=[{kind: column, column: client}]",
        "training.objective={kind: squared_error}",
    ]
    return Project.open([*settings, *more], folder, derived=True)


def fit(project: Project):
    return fit_standardizer(project.params, training_setup(project, 0), PlainRunner(), project.ledgers)


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        (BOTH, []),
        (BOTH[:1], []),
        (BOTH[1:], []),
        (BOTH, ["clients.join={east: 2}"]),
        (BOTH, ["clients.leave={south: 1}"]),
    ],
)
def test_mean_and_scale_are_numpys_over_training_rows_of_the_clients_of_round_1(folder, rows, wanted, asked):
    absent = [name for name in SIZES if any(name in each for each in asked)]
    told = (rows["split"] == "train") & ~np.isin(rows["client"], absent)
    scaling = fit(opened(folder, *wanted, *asked)).scaling
    for part, name, column in (("inputs", "x", BOTH[0]), ("targets", "y", BOTH[1])):
        standardizer, values = getattr(scaling, part), rows[name][told].astype(np.float64).reshape(told.sum(), -1)
        assert (standardizer is not None) == (column in wanted)
        if standardizer is not None:
            np.testing.assert_allclose(standardizer.mean, values.mean(0), rtol=1e-12)
            np.testing.assert_allclose(standardizer.scale, values.std(0), rtol=1e-9)


def test_every_client_is_sent_the_scale_and_only_those_of_round_1_report(folder, rows):
    fitted = fit(opened(folder, *BOTH, "clients.join={east: 2}"))
    assert fitted.bytes_down == 3 * 4 * 2 * 8  # clients, columns, mean and scale, bytes
    assert fitted.bytes_up == 2 * 4 * 3 * 8


def test_a_run_saves_what_it_agreed_on_and_a_resumed_one_asks_nobody(folder, rows, tmp_path):
    project = opened(folder, *BOTH)
    setup, run = training_setup(project, 0), RunFolder(tmp_path / "run")
    (tmp_path / "run").mkdir()
    first = fit_or_load(project, setup, run, PlainRunner())
    again = fit_or_load(project, setup, run, SimpleNamespace())  # no runner: it cannot ask
    assert (again.scaling, again.bytes_up, again.bytes_down) == (first.scaling, first.bytes_up, first.bytes_down)
    aligned = opened(folder, "clients.align.kind=quantiles")
    (tmp_path / "aligned").mkdir()
    saved = [
        fit_or_load(aligned, training_setup(aligned, 0), RunFolder(tmp_path / "aligned"), PlainRunner()) for _ in "ab"
    ]
    assert saved[0].scaling == saved[1].scaling
    assert (saved[0].scaling.own_columns, saved[0].scaling.by_quantiles) == ((0, 1, 2), True)
    assert [path.name for path in (tmp_path / "aligned").iterdir()] == ["scaling.json"]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("training.rounds=7", True),
        ("clients.fraction=0.5", True),
        ("clients.join={east: 1}", True),  # in round 1
        ("clients.leave={east: 2}", True),  # after it
        ("clients.join={east: 2}", False),
        ("clients.leave={east: 1}", False),
        ("model.inputs=none", False),
        ("model.targets=none", False),
        ("clients.align.kind=standardise", False),
        ("clients.align.kind=quantiles", False),
        ("data.name=other", False),
    ],
)
def test_runs_share_a_scale_only_if_it_depends_on_the_same_settings(folder, rows, change, same):
    keys = [_fit_key(opened(folder, *BOTH, *more).params.model_dump(mode="json")) for more in ((), (change,))]
    assert (keys[0] == keys[1]) == same


def test_a_run_of_before_alignment_has_the_key_of_one_that_aligns_nothing(folder, rows):
    params = opened(folder, *BOTH).params.model_dump(mode="json")
    key = _fit_key(params)
    del params["clients"]["align"]
    assert _fit_key(params) == key


def test_notes_tell_clients_that_repeat_an_earlier_report_from_those_that_report_nothing(tmp_path):
    make_store(tmp_path / "store")
    numbers = torch.tensor([[3.0, 3.0], [3.0, 3.0], [0.0, 0.0]])
    message = ScaleMoments(("a", "b", "c"), numbers.long(), numbers, numbers, {"b": "v1", "c": "v0"})
    repeats, withholds = _ledger_notes([message], tmp_path / "store")
    alone = ScaleMoments(("b",), numbers[:1].long(), numbers[:1], numbers[:1], {"b": "v1"})
    silent = ScaleMoments(("c",), numbers[2:].long(), numbers[2:], numbers[2:], {"c": "v0"})
    assert _ledger_notes([alone], tmp_path / "store") == (repeats,)
    assert _ledger_notes([silent], tmp_path / "store") == (withholds,)
    assert repeats["sentence"].startswith("client b's report of its earlier rows ")
    assert repeats["sentence"].endswith(": the client repeats its earlier mean and scale")
    assert withholds["sentence"].startswith("client c's report of its earlier rows ")
    assert withholds["sentence"].endswith(": the client reports no mean and scale")
    assert _ledger_notes([ScaleMoments(("a",), *[numbers[:1]] * 3, {})], tmp_path / "store") == ()


@pytest.fixture
def saved(folder: Path):
    """Saves, as of a run of this name and time, a scale whose bytes tell which one it is; it goes after the test."""
    places = []

    def save(project: Project, name: str, number: int, time: float, kind: str = "reproduce") -> None:
        places.append(folder / "runs" / name)
        run = places[-1] / "fedavg-seed0"
        write_json(places[-1] / "experiment.json", {"kind": kind, "name": name, "about": ""})
        params = project.params.model_dump(mode="json")
        write_json(run / "run.json", {"data_version": project.silos.version, "params": params})
        write_json(run / "scaling.json", {**NO_STANDARDIZATION.as_json(), "bytes": [number, number]})
        os.utime(run / "scaling.json", (time, time))

    yield save
    for place in places:
        shutil.rmtree(place)


@pytest.mark.parametrize("wanted", [BOTH, BOTH[:1], BOTH[1:]])
@pytest.mark.parametrize("newest", [1, 2])
def test_the_scale_of_the_newest_run_on_the_same_partition_is_taken_whatever_is_scaled(
    folder, rows, saved, wanted, newest
):
    project = opened(folder, *wanted)
    saved(project, "saved-first", 1, 2e9 + (newest == 1))
    saved(project, "saved-second", 2, 2e9 + (newest == 2))
    saved(project, "saved-of-data", 3, 3e9, kind="compare")  # on data/, while the project's rows are of the cache
    assert load_standardizer(project).bytes_up == newest


def test_a_project_that_scales_nothing_takes_no_scale_of_a_run(folder, rows, saved):
    project = opened(folder)
    saved(project, "saved", 1, 2e9)
    assert load_standardizer(project).bytes_up == 0


@pytest.mark.parametrize(
    ("mean", "message"),
    [
        ((1.0, math.nan, math.nan), r"different training rows with a value of sugar to compute .* Drop that feature"),
        ((math.nan,) * 3, r"different training rows to compute a mean and scale from\. Set both to none"),
        ((0.0, 0.0, 0.0), None),
    ],
)
def test_a_feature_that_no_client_reports_is_named_and_if_none_is_reported_all_are(
    mean, message, folder, rows, monkeypatch
):
    names = [SimpleNamespace(name=name) for name in ("age", "sugar", "dose")]
    monkeypatch.setattr(module, "schema_of", lambda _: SimpleNamespace(features=names))
    project = opened(folder, *BOTH)
    check = partial(module._require_all, Standardizer(mean, (1.0,) * 3), project.params, project.silos, 10, ())
    if message is None:
        check()
    else:
        with pytest.raises(UserError, match=message):
            check()
