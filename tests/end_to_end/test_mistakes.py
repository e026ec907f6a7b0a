"""A user's mistakes: exit code 2, one sentence that names the thing and the way out, and no traceback."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NO_SERVER = "http://127.0.0.1:9/api"  # a command that waits for it waits two minutes


def nothing(folder: Path) -> None:
    """Leaves the partitioned folder as it is."""


def no_params(folder: Path) -> None:
    (folder / "params.yaml").unlink()


def no_data(folder: Path) -> None:
    for made in ("data", ".dvc"):
        shutil.rmtree(folder / made)
    (folder / "data.dvc").unlink()


def truncated(folder: Path) -> None:
    file = folder / "data" / "digits" / "c02.safetensors"
    file.write_bytes(file.read_bytes()[:500])


def changed(folder: Path) -> None:
    file = folder / "data" / "digits" / "c02.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def missing_client(folder: Path) -> None:
    (folder / "data" / "digits" / "c02.safetensors").unlink()


def not_a_number(folder: Path) -> None:
    x = np.ones((6, 4))
    x[2, 1] = np.nan
    np.savez(folder / "my.npz", x=x, y=[0, 1] * 3, client=["a", "a", "b", "b", "c", "c"])


def runs_is_a_file(folder: Path) -> None:
    shutil.rmtree(folder / "runs", ignore_errors=True)
    (folder / "runs").touch()


def prefect_is_a_file(folder: Path) -> None:
    shutil.rmtree(folder / ".prefect")
    (folder / ".prefect").touch()


def private_is_a_file(folder: Path) -> None:
    shutil.rmtree(folder / "private")
    (folder / "private").touch()


def runs_take_no_files(folder: Path) -> None:
    shutil.rmtree(folder / "runs")
    (folder / "runs").symlink_to("/sys")  # where not even root may make a file


def broken_yaml(folder: Path) -> None:
    (folder / "params.yaml").write_text("data: [1,\ntraining: {")


LINEAR = "{kind: synthetic, task: linear, clusters: 1, clients_per_cluster: 2, rows: 9, features: 2}"
COLUMN = "data.scheme=[{kind: column, column: client}]"
LINES = ("--set", "data.name=lines", "--set", f"data.source={LINEAR}", "--set", COLUMN)


def a_regression(folder: Path) -> None:
    from flows.project.make_partition import make
    from flows.project.project import Project

    make(Project.open(LINES[1::2], folder))


NPZ = ("--set", "data.source={kind: npz, path: my.npz}", "--set", "data.scheme=[{kind: column, column: client}]")


@dataclass(frozen=True)
class Mistake:
    """What was done to a partitioned folder, what was typed there, and what must be said."""

    typed: tuple[str, ...]
    said: str  # a regular expression
    spoil: Callable[[Path], None] = nothing
    needs_server: bool = False
    own_server: bool = False


MISTAKES = {
    "unknown method": Mistake(
        ("run", "fedavgg"), r"method: got 'fedavgg', expected a known method\. Did you mean fedavg\?"
    ),
    "unknown method of a comparison": Mistake(
        ("compare", "fedavg", "nonesuch"),
        r"method: got 'nonesuch', expected a known method\. Choose one of .*fedavg, .*local_only.*\.",
    ),
    "unknown reference": Mistake(
        ("compare", "--reference", "fedproxy"),
        r"method: got 'fedproxy', expected a known method\. Did you mean fedprox\?",
    ),
    "misspelt key": Mistake(
        ("run", "fedavg", "--set", "training.epoch=2"),
        r"params\.yaml: training\.epoch: got an unknown key\. Did you mean epochs\?",
    ),
    "value out of bounds": Mistake(
        ("run", "fedavg", "--set", "clients.dropout=1.5"),
        r"params\.yaml: clients\.dropout: got 1\.5, expected less than 1\.",
    ),
    "squared error of classes": Mistake(
        ("compare", "--set", "training.objective={kind: squared_error}"),
        r"params\.yaml: training\.objective\.kind: got squared_error, expected cross_entropy or "
        r"focal, since data/digits is a "
        r"classification\. Use cross_entropy or focal\.",
    ),
    "cross-entropy of numbers": Mistake(
        ("compare", *LINES),
        r"params\.yaml: training\.objective\.kind: got cross_entropy, expected squared_error, since data/lines is a "
        r"regression\. Use squared_error\.",
        a_regression,
    ),
    "accuracy above one": Mistake(
        ("run", "fedavg", "--set", "evaluation.stop_at=2"),
        r"params\.yaml: evaluation\.stop_at: got 2, expected at most 1, since it is an accuracy\. Lower it\.",
    ),
    "override without a value": Mistake(
        ("run", "fedavg", "--set", "training.rounds"),
        r"--set training\.rounds: expected section\.key=value\. Write it as in training\.rounds=20\.",
    ),
    "seeds that are no numbers": Mistake(
        ("compare", "--seeds", "0;1"),
        r"--seeds: got 0;1, expected whole numbers separated by commas\. Write them as in 0,1,2\.",
    ),
    "bad cron": Mistake(
        ("schedule", "at noon"),
        r"cron: got 'at noon', expected five fields or one of @hourly, .*\. Write it as in \"0 6 \* \* 1\"\.",
    ),
    "cron with seconds and years": Mistake(
        ("schedule", "0 6 * * 1 30 2026"), r"cron: got '0 6 \* \* 1 30 2026', expected five fields .*\."
    ),
    "a day that never comes": Mistake(
        ("schedule", "0 6 30 2 *"), r"cron: got '0 6 30 2 \*', which matches no date\. Use a day .*\."
    ),
    "a port that cannot be": Mistake(
        ("ui", "--mlflow-port", "65536"),
        r"--mlflow-port: got 65536, expected a port from 1 to 65535\. Choose another\.",
    ),
    "a port below all": Mistake(
        ("ui", "--prefect-port", "0", "--mlflow-port", "1"),
        r"--prefect-port: got (1, which cannot be used .*|0, expected a port from 1 to 65535)\. Choose another\.",
    ),
    "one port for two pages": Mistake(
        ("ui", "--mlflow-port", "5001", "--prefect-port", "5001"),
        r"--prefect-port: got 5001, the same as --mlflow-port, expected another\. Give each page its own port\.",
    ),
    "a port of a scheduler that cannot be": Mistake(
        ("run", "fedavg", "--set", "runner={kind: dask, address: tcp://127.0.0.1:87860}"),
        r"params\.yaml: runner\.address: got the port of tcp://127\.0\.0\.1:87860, expected a number from 1 .*\.",
    ),
    "a password in an address": Mistake(
        ("run", "fedavg", "--set", "tracking.uri=https://me:hunter2@tracker:5000"),
        r"params\.yaml: tracking\.uri: got a password, expected none, since it would be printed and "
        r"stored\. Remove it \(MLflow reads it from "
        r"MLFLOW_TRACKING_URI, or from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD\)\.",
    ),
    "a password in what is no setting": Mistake(
        ("run", "fedavg", "--set", "https://me:hunter2@tracker:5000"),
        r"--set https://me:\*\*\*@tracker:5000: expected section\.key=value\. .*\.",
    ),
    "missing params.yaml": Mistake(
        ("compare",),
        r"/.*: got no params\.yaml, expected a project\. Go to your project's folder, or make one "
        r"with `siloflow init DIR`\.",
        no_params,
    ),
    "params.yaml that is no YAML": Mistake(
        ("run", "fedavg"), r"params\.yaml is not valid YAML: line \d+, column \d+: .*\.", broken_yaml
    ),
    "missing data": Mistake(
        ("run", "fedavg"),
        r"/.*/data/digits: got no such folder, expected a partition\. Run `siloflow partition` to make it .*\.",
        no_data,
    ),
    "truncated client file": Mistake(
        ("run", "fedavg"),
        r"data/: got files that differ from data\.dvc: data/digits/c02\.safetensors changed\. Run `dvc .*\.",
        truncated,
    ),
    "changed client file": Mistake(
        ("compare",),
        r"data/: got files that differ from data\.dvc: data/digits/c02\.safetensors changed\. .*partition` .*\.",
        changed,
    ),
    "missing client file": Mistake(
        ("show",),
        r"data/: got files that differ from data\.dvc: data/digits/c02\.safetensors is missing\. .*\.",
        missing_client,
    ),
    "params that no longer match the data": Mistake(
        ("compare", "--set", "data.seed=1"),
        r"params\.yaml: data\.seed: got 1, expected 0, with which data/digits was made\. Run "
        r"`siloflow partition` to make the data again, "
        r"or set the value back\.",
    ),
    "value that is missing": Mistake(
        ("partition", *NPZ),
        r"my\.npz: x: got no value \(NaN\) of the feature 'x1', column 1, in row 2 \(client b\), "
        r"expected a number\. Fill in or drop such rows, "
        r"or set `missing: {fill: mean}` for the feature under data\.features in params\.yaml\.",
        not_a_number,
    ),
    "more clients than rows": Mistake(
        ("partition", "--set", "data.scheme.0.clients=2000"),
        r"params\.yaml: data\.scheme\[0\] \(`equal`\): clients: got 2000 with at least 1 row each, expected fewer, "
        r"since client c1797 would get too few of the 1797 rows\. Lower clients\.",
    ),
    "a file where runs should be": Mistake(
        ("compare",), r"cannot write /.*/runs: a file has the name of the needed folder; move it away\.", runs_is_a_file
    ),
    "a file where Prefect's folder should be": Mistake(
        ("run", "fedavg"),
        r"cannot write /.*/\.prefect: a file has the name of the needed folder; move it away\.",
        prefect_is_a_file,
        needs_server=True,
        own_server=True,
    ),
    "a file where private weights should be": Mistake(
        ("compare", "local_only", "--seeds", "0"),
        r"cannot write /.*/private: a file has the name of the needed folder; move it away\.",
        private_is_a_file,
        needs_server=True,
    ),
    "a folder that takes no files": Mistake(
        ("compare",),
        r"cannot write /.*/runs.*: you have no permission to write there; change the permissions\.",
        runs_take_no_files,
    ),
}


EARLY = [name for name, mistake in MISTAKES.items() if not mistake.needs_server]
LATE = [pytest.param(name, marks=pytest.mark.slow) for name, mistake in MISTAKES.items() if mistake.needs_server]


@pytest.fixture
def spoiled(partitioned: Any, tmp_path: Path) -> Callable[[str], Any]:
    """Make a folder in which a user made this mistake."""

    def spoil(name: str) -> Any:
        folder = partitioned[0].copy(tmp_path / name.replace(" ", "-"))
        MISTAKES[name].spoil(folder.path)
        return folder

    return spoil


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", EARLY)
def test_a_mistake_is_told_in_one_sentence_before_anything_starts(spoiled: Callable[[str], Any], name: str) -> None:
    answer = replace(spoiled(name), server=NO_SERVER).type(*MISTAKES[name].typed, code=2)
    assert answer.out == ""
    assert re.fullmatch(f"error: {MISTAKES[name].said}\n", answer.err), answer.err


@pytest.mark.parametrize("name", LATE)
def test_a_mistake_that_only_the_work_can_find_is_told_in_one_sentence(
    spoiled: Callable[[str], Any], server: str, name: str
) -> None:
    mistake = MISTAKES[name]
    answer = replace(spoiled(name), server=None if mistake.own_server else server).type(*mistake.typed, code=2)
    assert answer.out == ""
    assert re.fullmatch(f"error: {mistake.said}\n", answer.err), answer.err
