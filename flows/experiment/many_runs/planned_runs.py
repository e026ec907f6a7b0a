"""What is to come of a set of runs: how many rounds, and which of them an earlier command made."""

from collections.abc import Sequence
from dataclasses import dataclass

from flows.console import screen
from flows.experiment.one_run.run_folder import RunFolder
from flows.experiment.project import Project


@dataclass(frozen=True)
class Plan:
    """What a comparison runs: every method with every seed, on the rows of one data version."""

    methods: list[str]
    seeds: list[int]
    reference: str
    tune: int
    data_version: str


def say_plan(project: Project, experiment: str, runs: Sequence[str]) -> None:
    """Tells the screen of all runs, by the names of their folders; each may take all rounds of params.yaml."""
    rounds = project.params.training.rounds
    done = len(runs) - len(unfinished(project, experiment, runs))
    screen.current().plan(len(runs), len(runs) * rounds, done, done * rounds)


def unfinished(project: Project, experiment: str, runs: Sequence[str]) -> list[str]:
    """Return the runs that are still to be made, or to be delivered to MLflow; a resumed comparison has others already."""
    results = {run: RunFolder(project.runs / experiment / run).finished() for run in runs}
    return [run for run, result in results.items() if result is None or result["mlflow_run_id"] is None]
