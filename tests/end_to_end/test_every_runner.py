"""The main commands as typed under every runner: the same answers, also when another runner finishes what one began."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

pytestmark = pytest.mark.slow

FAR = ("processes", "dask")
SMALL = ("--set", "data.scheme=[{kind: dirichlet, clients: 4, alpha: 1.0}]", "--set", "training.rounds=2")
COMPARE = ("compare", "fedavg", "local_only", "--seeds", "0,1")
COMMANDS = {
    "compare": COMPARE,
    "promote": ("promote",),
    "predict": ("predict", "rows.npz", "--output", "labels.csv"),
    "diagnose": ("diagnose", "--set", "diagnose.second_look=true"),
    "advise": ("advise", "fedavg", "--minutes", "30", "--set", "plugins=[few.py]"),
}
TIMES = {"seconds", "at", "pace", "before"}
DRAWN = re.compile(r"-\d{8}-\d{6}-\w{4}|[\d.]+ (second|minute)s?|runner\.kind=\w+")
FEW = """
from flows.experiments.advice import proof

proof.SEEDS = range(3, 4)  # a proof has more where the time allows
"""
BROKEN = """
from pathlib import Path

from tasks.paired_outcomes import count_predictions


def broken(*args, **options):
    raise RuntimeError("a step that fails after training")


if not Path("mended").exists():
    count_predictions.fn = broken
"""


def under(runner: str) -> tuple[str, ...]:
    """Settings of two workers of this kind."""
    return ("--set", f"runner.kind={runner}", "--set", "runner.workers=2")


def lasting(answer: Any) -> Any:
    """An answer without times, the runner, and the names and ids that every command draws anew."""
    if isinstance(answer, dict):
        return {
            key: "id" if key.endswith("id") else lasting(value) for key, value in answer.items() if key not in TIMES
        }
    if isinstance(answer, list):
        return [lasting(part) for part in answer]
    return DRAWN.sub("", answer) if isinstance(answer, str) else answer


def without_times_of_legs(answer: dict[str, Any]) -> dict[str, Any]:
    """An advice whose race has only the rounds and scores of its legs."""
    legs = {name: leg[:2] for name, leg in answer["race"]["legs"].items()}
    return {**answer, "race": {**answer["race"], "legs": legs}}


@pytest.fixture(scope="module")
def template(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A project of four silos, and a file of seven digits."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("every_runner") / "template", server)
    folder.type("partition", *SMALL)
    (folder.path / "few.py").write_text(FEW)
    np.savez(folder.path / "rows.npz", x=(15 * load_digits().images[:7]).astype(np.uint8))
    return folder


@pytest.fixture(scope="module")
def answers(template: Any, living: Callable[[Path], list[str]]) -> Callable[[str, str], Any]:
    """Returns what a command answers under a runner, in a copy of the project in which each is typed once, in order."""
    found: dict[str, dict[str, Any]] = {}
    folders: dict[str, Any] = {}

    def typed(runner: str, command: str) -> Any:
        if runner not in folders:
            folders[runner], found[runner] = template.copy(template.path.parent / runner, template.server), {}
        folder, of_runner = folders[runner], found[runner]
        names = list(COMMANDS)
        for name in names[len(of_runner) : names.index(command) + 1]:
            code, out, err = folder.run([*COMMANDS[name], *SMALL, *under(runner), "--json"])
            assert code == 0, err
            assert_gone(living, folder.path)
            of_runner[name] = lasting(json.loads(out))
            if name == "advise":
                of_runner[name] = without_times_of_legs(of_runner[name])
            if name == "predict":
                of_runner[name]["file"] = (folder.path / "labels.csv").read_text()
        return of_runner[command]

    return typed


def assert_gone(living: Callable[[Path], list[str]], folder: Path) -> None:
    """No process is left; Python's own tracker of a pool ends a moment after it."""
    for _ in range(600):
        if not living(folder):
            return
        time.sleep(0.1)
    assert living(folder) == []


@pytest.mark.parametrize("runner", FAR)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers_the_same_in_other_processes(command: str, runner: str, answers: Any) -> None:
    assert answers(runner, command) == answers("threads", command)


@pytest.mark.parametrize(("first", "second"), [("processes", "threads"), ("threads", "dask")])
def test_what_a_step_after_training_failed_to_finish_another_runner_finishes(
    first: str, second: str, template: Any, answers: Any, tmp_path: Path
) -> None:
    folder = template.copy(tmp_path / "project", template.server)
    (folder.path / "broken.py").write_text(BROKEN)
    typed = (*COMPARE, *SMALL, "--set", "plugins=[broken.py]", "--name", "again")
    code, _, err = folder.run([*typed, *under(first)])
    assert code == 1
    assert "a step that fails after training" in err
    (folder.path / "mended").touch()
    code, out, err = folder.run([*typed, *under(second), "--resume", "--json"])
    assert code == 0, err
    assert "round" not in err
    resumed, expected = json.loads(out), answers("threads", "compare")
    assert [run["weights_sha256"] for run in resumed["runs"]] == [run["weights_sha256"] for run in expected["runs"]]
    assert lasting(resumed)["gains"] == expected["gains"]
