"""Report a run to the user's screen and to Prefect's log: warnings, rounds, the result."""

from collections.abc import Mapping, Sequence
from typing import Any

from flows.console import progress
from flows.experiment import prefect_artifacts
from models.metrics.task_metrics import TaskMetrics

_LOGGED = 10  # lines of rounds in a run's log on Prefect's page, or less than twice as many


def log_warnings(name: str, sentences: Sequence[str]) -> None:
    """Report warnings on a run."""
    for sentence in sentences:
        progress.current().say(f"{name}: {sentence}")
        prefect_artifacts.log_artifact(f"{name}: {sentence}")


def log_notes(notes: Sequence[Mapping[str, str]]) -> None:
    """Report notes on the training rows; on the screen once, since all runs of a command have the same."""
    for note in notes:
        progress.current().say_once(note["sentence"])
        prefect_artifacts.log_artifact(note["sentence"])


def log_round(name: str, record: dict[str, Any], quantity: TaskMetrics, messages: Sequence[str], rounds: int) -> None:
    """Report a round of at most `rounds`, with the messages of the method."""
    number, score = record["round"], quantity.headline_text(record["metrics"])
    progress.current().round(number, score)
    if number % max(1, rounds // _LOGGED) == 0:
        prefect_artifacts.log_artifact(f"round {number} of {rounds}" + (f": {score}" if score else ""))
    for sentence in messages:
        progress.current().say(f"{name}, round {record['round']}: {sentence}")


def log_result(name: str, result: dict[str, Any], quantity: TaskMetrics, problem: str | None) -> None:
    """Report the result of a run. `problem` is the reason why MLflow lacks a part of the run."""
    score = quantity.headline_text(result["metrics"])
    progress.current().end(name, score, result["seconds"]["total"])
    prefect_artifacts.log_artifact(
        f"{name} is done: {score or 'no test rows'}; {result['folder']}, {_in_mlflow(result)}"
    )
    if problem:
        progress.current().say(
            f"{name}: {problem}; its metrics are saved in {result['folder']}, and --resume delivers them."
        )
    if result["dropped_out"]:
        progress.current().say(
            f"{name}: clients dropped out {result['dropped_out']} times; the rounds went on without them"
        )


def _in_mlflow(result: dict[str, Any]) -> str:
    return f"MLflow's run {result['mlflow_run_id']}" if result["mlflow_run_id"] else "not yet in MLflow"
