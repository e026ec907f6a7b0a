"""What a finished run or comparison answered, once more."""

from typing import Any

from flows.experiment.project import Project
from flows.history.find_runs import find_runs
from flows.history.list_runs import unfinished
from silos.errors import UserError
from tasks.tracking.json_io import read_json


def load_result(project: Project, name: str) -> tuple[dict[str, Any], str]:
    """The answer, and the printer of the command that gave it first.

    UserError where there is no such set of runs, and where it is not finished: with the command that goes on.
    """
    name = name.removeprefix("runs/").rstrip("/")  # as a shell completes it
    if "/" in name:
        return _of_run(project, name), "run"
    one = find_runs(project.runs, name)
    if one.kind == "reproduce":
        raise UserError(
            f"{one.name} is a sweep of a published table, which `siloflow reproduce` prints from its records."
        )
    left = unfinished(one)
    if left:
        go_on = "wait for it" if left == "at work" else f"`{_go_on(one.about, one.name)}` goes on"
        raise UserError(f"{one.name} is not finished ({left}); {go_on}.")
    if one.kind == "run":
        return _of_run(project, one.name), "run"
    answer = read_json(one.folder / "comparison.json", keys=("table", "paired", "runs", "tuning", "failed", "task"))
    return answer, "compare"


def _of_run(project: Project, name: str) -> dict[str, Any]:
    from flows.experiment.run.load_finished_run import find_run  # and torch with it

    folder = find_run(project, name)
    done = folder.finished()
    if done is None:
        raise UserError(f"{folder.path} is not finished; the command that started it, with --resume, finishes it.")
    return done


def _go_on(about: dict[str, Any], name: str) -> str:
    """The command that finishes it, with what it was asked for."""
    if about["kind"] == "run":
        return f"siloflow run {about['methods'][0]} --seed {about['seeds'][0]} --resume"
    asked = [*about["methods"], "--seeds", ",".join(map(str, about["seeds"])), "--reference", about["reference"]]
    asked += ["--set", f"comparison.tune={about['tune']}"] if about.get("tune") else []
    return " ".join(["siloflow compare", *asked, "--resume --name", name])
