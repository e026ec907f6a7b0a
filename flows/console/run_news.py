"""What a run says while it goes, and at its end."""

from collections.abc import Mapping, Sequence
from typing import Any

from flows.console import screen
from models.assessment.quantities import Quantity


def say_warnings(name: str, sentences: Sequence[str]) -> None:
    """A run is about to begin, or to go on."""
    for sentence in sentences:
        screen.current().say(f"{name}: {sentence}")


def say_notes(notes: Sequence[Mapping[str, str]]) -> None:
    """Of the rows that a run is about to train on; they are the same for every run of a command."""
    for note in notes:
        screen.current().say_once(note["sentence"])


def say_round(name: str, record: dict[str, Any], quantity: Quantity, said: Sequence[str]) -> None:
    """A round is over; `said`: the sentences that the method reports."""
    screen.current().round(record["round"], quantity.said(record["metrics"]))
    for sentence in said:
        screen.current().say(f"{name}, round {record['round']}: {sentence}")


def say_result(name: str, result: dict[str, Any], quantity: Quantity, problem: str | None) -> None:
    """The run is over; `problem`: why MLflow was not told of all of it."""
    screen.current().end(name, quantity.said(result["metrics"]), result["seconds"]["total"])
    if problem:
        screen.current().say(
            f"{name}: {problem}; its metrics are kept in {result['folder']}, and --resume delivers them."
        )
    if result["dropped_out"]:
        screen.current().say(f"{name}: clients dropped out {result['dropped_out']} times, the rounds went on")
