"""A run that has ended, opened again from its folder: its page, its silos, and the model that it reports."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.config.load_config import plugins_of
from flows.config.method_settings import method_of
from flows.config.plugin_params import params_type
from flows.config.validation_errors import nearest_hint
from flows.experiment.evaluation import scored_model
from flows.experiment.fit_standardizer import scaled_as
from flows.experiment.project import Project, experiment
from flows.experiment.run.run_folder import RunFolder
from flows.methods.context import RoundContext
from models.client_model import Model
from silos.client_store import ClientStore
from silos.errors import UserError, shown
from silos.io.atomic_io import is_there
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.checkpoint import load_state
from tasks.tracking.json_io import RESTORE_ADVICE, read_json


@dataclass(frozen=True)
class FinishedRun:
    """What the run was, and its model; `project` has the params that it was started with, and not those of today."""

    folder: RunFolder
    project: Project
    method: str
    seed: int
    round: int
    model: Model
    private: ClientStore


def finished_run(project: Project, run: str) -> FinishedRun:
    """The run of this path or name, with the model that was scored at its end.

    Clients may be asked for it again, as at the end of the run. UserError where there is no such run, where it has not
    ended, and where data/ is not what it was trained on.
    """
    folder = find_run(project, run)
    known = _known(folder)
    done = folder.finished()
    if done is None:
        raise UserError(f"{folder.path} is not finished; the command that started it, with --resume, finishes it.")
    project = _as_then(project, folder, known)
    setup = project.training_setup(known["seed"])
    _same_start(folder, known, {one.network.starts_from for one in setup.network.single_networks} - {""})
    private = project.private(folder.path)
    checkpoint = load_state(folder.checkpoint)
    if project.params.evaluation.report == "best":
        checkpoint = folder.load_best(done["rounds"], project.quantity) or checkpoint
    if checkpoint is None:
        raise UserError(f"{folder.checkpoint} is missing; {RESTORE_ADVICE}.")
    method = method_of(project.params, known["method"])
    round = RoundContext(checkpoint.round, setup, setup.silos.clients, (), PlainRunner(), private)
    model = scored_model(method, project.silos, checkpoint.state, round)
    return FinishedRun(folder, project, known["method"], known["seed"], checkpoint.round, model, private)


def find_run(project: Project, run: str) -> RunFolder:
    """By its path, that of a folder that holds it alone, or its name in runs/; UserError if there is none, or several."""
    runs = project.runs.resolve()
    places = [(project.root / run).resolve(), *((folder / run).resolve() for folder in (runs, *_folders(runs)))]
    inside = [place for place in dict.fromkeys(places) if place.is_relative_to(runs)]
    found = [place for place in inside if _is_run(place)] or [
        p for place in inside for p in _folders(place) if _is_run(p)
    ]
    if not found:
        there = [path.name for folder in _folders(runs) for path in (folder, *_folders(folder)) if _is_run(path)]
        there += [folder.name for folder in _folders(runs) if is_there(folder / "experiment.json")]
        otherwise = "; give the path that `siloflow run` prints after files, such as runs/run-…/fedavg-seed0."
        raise UserError(f"there is no run {shown(repr(run))} in {runs}{nearest_hint(run, sorted({*there}), otherwise)}")
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(runs.parent)) for path in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise UserError(f"{shown(repr(run))} is {len(found)} runs: {names}{more}; name one.")
    return RunFolder(found[0])


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
    except OSError:  # none, or of a name that no folder can have
        return []


def _is_run(place: Path) -> bool:
    return is_there(place / "run.json")


def _known(folder: RunFolder) -> dict[str, Any]:
    known: dict[str, Any] | None = read_json(
        folder.path / "run.json", RESTORE_ADVICE, ("method", "seed", "data_version", "params", "plugins")
    )
    assert known is not None, "looked for before"
    return known


def _as_then(project: Project, folder: RunFolder, known: dict[str, Any]) -> Project:
    """The project with the params of the run, computed on the CPU; UserError if its data are not there any more."""
    held, method = {**known["params"], "plugins": known["plugins"]}, known["method"]
    if held["model"].get("pretrained"):  # known by its hash, and not by its place
        held["model"] = {**held["model"], "pretrained": getattr(project.params.model, "pretrained", None)}
    held["engine"] = {**held["engine"], "device": "cpu"}
    held["comparison"] = {"methods": [method], "seeds": [known["seed"]], "reference": method}
    held["method"] = {method: held["method"]}
    try:
        params = params_type(project.plugin_files.load(plugins_of(held))).model_validate(held)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"{folder.path} was made by another version of siloflow: its params have {'.'.join(map(str, first['loc']))} "
            f"({first['msg']}); open it with that version."
        ) from None
    derived = experiment(project, folder.path.parent.name)["kind"] not in ("run", "compare")
    then = replace(project, params=params, derived=derived)
    if not then.same_rows(known["data_version"], then.silos.version):
        raise UserError(
            f"{folder.path} was trained on data version {known['data_version']}, and data/ is version "
            f"{then.silos.version}; `siloflow data use {known['data_version'][:10]}` brings it back."
        )
    return scaled_as(then, folder)


def _same_start(folder: RunFolder, known: dict[str, Any], starts: set[str]) -> None:
    """UserError if the network is of another kind than then because it starts from another file, or from none."""
    wanted = known["params"]["model"].get("pretrained")
    if wanted and {f"sha256:{start}" for start in starts} != {wanted}:
        raise UserError(
            f"{folder.path} started from a file with the hash {wanted}; name it by --set model.pretrained=FILE."
        )
