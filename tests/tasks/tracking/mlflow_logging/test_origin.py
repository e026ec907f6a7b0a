"""MLflow's `Source` and `Created by` say what was typed and by whom, and no path of the machine."""

import getpass
import sys

import pytest

from tasks.tracking.mlflow_logging.mlflow_records import run_source


@pytest.mark.parametrize(
    ("argv", "source"),
    [
        (["/opt/bin/siloflow", "run", "fedavg", "--seed", "1"], "siloflow run fedavg --seed 1"),
        (["siloflow", "run", "fedavg", "--set", "a=b c"], "siloflow run fedavg --set 'a=b c'"),
        (["siloflow", "run", "--set", "x=http://me:hunter2@there"], "siloflow run --set x=http://me:***@there"),
        (
            [
                "siloflow",
                "run",
                "fedavg",
                "--set",
                "model.pretrained=/home/me/w.pt",
                "--set",
                "p={kind: npz, path: ~/a/b.npz}",
            ],
            "siloflow run fedavg --set model.pretrained=w.pt --set 'p={kind: npz, path: b.npz}'",
        ),
        (
            ["siloflow", "compare", "--set", "u=https://there/a/b", "--set", "p=a/b"],
            "siloflow compare --set u=https://there/a/b --set p=a/b",
        ),
        (["/home/me/secret-project/train.py", "--password", "hunter2"], "train.py"),
    ],
)
def test_the_source_is_what_was_typed(argv: list[str], source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert run_source("none") == {
        "mlflow.user": getpass.getuser(),
        "mlflow.source.name": source,
        "mlflow.source.type": "LOCAL",
    }


@pytest.mark.parametrize("commit", ["0123456789ab", "0123456789ab+changes"])
def test_the_commit_is_the_projects(commit: str) -> None:
    assert run_source(commit)["mlflow.source.git.commit"] == "0123456789ab"
