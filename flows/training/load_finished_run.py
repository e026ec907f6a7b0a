"""Loads a finished run from its folder, and scores its model on the test rows that are in data/ now.

What is loaded is the run's method, its silos, and the model that it reports.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from flows.core.config.load_config import plugins_of
from flows.core.config.plugin_params import params_type
from flows.core.config.validation_errors import nearest_hint
from flows.methods.method_settings import method_of
from flows.methods.round_context import RoundContext, TrainingSetup
from flows.project.project import Project
from flows.project.project_workers import plain_runner
from flows.project.run_sets import is_of_other_partition
from flows.training.evaluation import Scorer
from flows.training.fit_standardizer import scaling_of
from flows.training.run_records.run_folder import RunFolder
from flows.training.training_setup import training_setup
from models.client_model import Model
from models.prng import server_stream
from models.server_state import ClientStateRefs
from silos.errors import UserError, shown
from silos.io.atomic_io import is_there
from tasks.messages.score_messages import Scores
from tasks.tracking.checkpoint import load_state
from tasks.tracking.json_io import RESTORE_ADVICE, read_json
from tasks.tracking.result_types.run_files import PlainParams, RunIdentity


@dataclass(frozen=True)
class FinishedRun:
    """A finished run and its model.

    Attributes:
        folder: The run's folder.
        project: The project, with the params that the run was started with, not the current ones.
        method: The name of its method.
        scorer: Its method, and its clients, with rows standardised as they were in training.
        round: The round that the run reports, for all clients that take part.
        model: The model of that round.
    """

    folder: RunFolder
    project: Project
    method: str
    scorer: Scorer
    round: RoundContext
    model: Model


def finished_run(project: Project, run: str, on_present_data: bool = False) -> FinishedRun:
    """Load the run of this path or name, with the model that was scored at its end.

    Clients may be queried again for the model, as at the end of the run.

    Args:
        project: The project.
        run: The path or name of the run.
        on_present_data: Open data/ as it is now, also if the run was trained on another version.

    Raises:
        UserError: If there is no such run, if it is not finished, if data/ differs from what it was trained on, or if
            the model does not take the rows that are in data/ now.
    """
    folder = find_run(project, run)
    saved = _read_run(folder)
    result = folder.finished()
    if result is None:
        raise UserError(
            f"{folder.path}: got an unfinished run, expected a finished one. Run the command that "
            "started it with --resume."
        )
    # everything below is built from the run's own params: those of params.yaml may have changed since
    project = _with_saved_params(project, folder, saved, on_present_data)
    scaling = scaling_of(project.params, folder)
    setup = training_setup(project, saved["seed"], scaling)
    _check_start(folder, saved, {one.network.starts_from for one in setup.network.single_networks} - {""})
    checkpoint = load_state(folder.checkpoint)
    if project.params.evaluation.report == "best":
        checkpoint = folder.load_best(result["rounds"], project.quantity) or checkpoint
    if checkpoint is None:
        raise UserError(f"{folder.checkpoint} is missing. {RESTORE_ADVICE}.")
    scorer = Scorer.of(project, method_of(project.params, saved["method"]), scaling)
    private = project.store.private(folder.path)
    round = RoundContext(checkpoint.round, setup, setup.silos.clients, (), plain_runner(project), private)
    model = scorer.model(checkpoint.state, round)
    if on_present_data:
        _check_inputs(folder, model, setup)
    return FinishedRun(folder, project, saved["method"], scorer, round, model)


def find_run(project: Project, run: str) -> RunFolder:
    """Find a run by its path, by a folder that holds only this run, or by its name in runs/.

    Raises:
        UserError: If there is no such run, or if several match.
    """
    runs = project.store.runs.resolve()
    candidates = [(project.root / run).resolve(), *((folder / run).resolve() for folder in (runs, *_folders(runs)))]
    inside = [path for path in dict.fromkeys(candidates) if path.is_relative_to(runs)]
    matches = [path for path in inside if _is_run(path)] or [p for path in inside for p in _folders(path) if _is_run(p)]
    if not matches:
        names = [path.name for folder in _folders(runs) for path in (folder, *_folders(folder)) if _is_run(path)]
        names += [folder.name for folder in _folders(runs) if is_there(folder / "experiment.json")]
        otherwise = ". Give the path that `siloflow run` prints after files, such as runs/run-…/fedavg-seed0."
        raise UserError(f"{runs}: got no run {shown(repr(run))}{nearest_hint(run, sorted({*names}), otherwise)}")
    if len(matches) > 1:
        listed = ", ".join(str(path.relative_to(runs.parent)) for path in matches[:5])
        more = f" and {len(matches) - 5} more" if len(matches) > 5 else ""
        raise UserError(
            f"{shown(repr(run))}: got a name of {len(matches)} runs, expected one: {listed}{more}. "
            "Type more of the name."
        )
    return RunFolder(project.store.runs / matches[0].relative_to(runs))  # runs/ may be a link to another disk


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:  # missing, or a name that no folder can have
        return []


def _is_run(folder: Path) -> bool:
    return is_there(folder / "run.json")


def _read_run(folder: RunFolder) -> RunIdentity:
    saved: RunIdentity | None = read_json(
        folder.path / "run.json", RESTORE_ADVICE, ("method", "seed", "data_version", "params", "plugins")
    )
    assert saved is not None, "looked for before"
    return saved


def _check_inputs(folder: RunFolder, model: Model, setup: TrainingSetup) -> None:
    """Raise a UserError if the present rows or classes need a network of other shapes."""
    needed = setup.network.init(server_stream(0, 0, "init"))
    differ = [name for name in needed.keys() & model.shared.keys() if needed[name].shape != model.shared[name].shape]
    if differ:
        raise UserError(
            f"{folder.path.name}: got a model of other rows or classes than those in data/, expected the same. Train "
            "it again."
        )


def _with_saved_params(
    project: Project, folder: RunFolder, saved: RunIdentity, on_present_data: bool = False
) -> Project:
    """Return the project with the run's params, computed on the CPU; UserError if its data no longer exist."""
    raw: PlainParams = {**saved["params"], "plugins": saved["plugins"]}
    method = saved["method"]
    if on_present_data:
        raw["data"] = project.params.data.model_dump(mode="json")
    if raw["model"].get("pretrained"):  # identified by its hash; params keep no path
        raw["model"] = {**raw["model"], "pretrained": getattr(project.params.model, "pretrained", None)}
    raw["engine"] = {**raw["engine"], "device": "cpu"}
    raw["runner"] = project.params.runner.model_dump(mode="json")  # no part of a run: where clients are reached now
    raw["comparison"] = {"methods": [method], "seeds": [saved["seed"]], "reference": method}
    raw["method"] = {method: raw["method"]}
    try:
        params = params_type(project.own_file.plugin_files.load(plugins_of(raw))).model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"{folder.path}: got params of another version of siloflow in {'.'.join(map(str, first['loc']))} ("
            f"{first['msg']}), expected those of this version. Open the run with its own version."
        ) from None
    derived = is_of_other_partition(project, folder.path, saved["data_version"])
    loaded = replace(project, params=params, derived=derived)
    if not on_present_data and not loaded.data.same_rows(saved["data_version"], loaded.silos.version):
        raise UserError(
            f"{folder.path}: got data version {loaded.silos.version} in data/, expected {saved['data_version']}, "
            f"on which it was trained. Run `siloflow data use {saved['data_version'][:10]}` to restore it."
        )
    return loaded


def _check_start(folder: RunFolder, saved: RunIdentity, hashes: set[str]) -> None:
    """Raise a UserError if the network starts from another pretrained file than the run's, or from none."""
    expected = saved["params"]["model"].get("pretrained")
    if expected and {f"sha256:{start}" for start in hashes} != {expected}:
        raise UserError(
            f"{folder.path}: got other pretrained weights, expected a file with the hash {expected}. Name it with "
            "`--set model.pretrained=FILE`."
        )


def check_same_data(project: Project, folder: Path) -> RunIdentity:
    """Return a run's saved fingerprint; UserError if it was trained on other data than those that params.yaml names."""
    saved: RunIdentity | None = read_json(folder / "run.json", RESTORE_ADVICE, ("params", "data_version"))
    if saved is None:
        raise UserError(f"{folder} is missing. Restore it from a copy.")
    name, now = saved["params"]["data"]["name"], project.params.data.name
    if name != now:
        raise UserError(
            f"{folder.name}: got a run on data/{name}, expected one on data/{now} (data.name). Name another run."
        )
    return saved


def score_on_present_rows(project: Project, folder: Path, final: bool = False) -> tuple[FinishedRun, list[Scores]]:
    """Return a run, and what its clients report of its model on their present test rows.

    Args:
        project: The project.
        folder: The run's folder.
        final: Compute all metrics of the task, as at the end of a run.

    Raises:
        UserError: If the run is not finished, if its training rows may be test rows now, or if its models are private
            and were trained on other rows.
    """
    saved = check_same_data(project, folder)
    if is_of_other_partition(project, folder, saved["data_version"]):
        raise UserError(
            f"{folder.name}: got a run on another partition, expected one on data/, since its training rows may be test "
            "rows of data/. Name another run."
        )
    is_same = project.data.same_rows(saved["data_version"], project.silos.version)
    run = finished_run(project, str(folder.relative_to(project.root)), on_present_data=not is_same)
    if not is_same and isinstance(run.model.personal, ClientStateRefs):
        raise UserError(
            f"{folder.name}: got other rows in data/, expected those that its clients' own models were trained on. Run "
            f"`siloflow data use {saved['data_version'][:10]}` to restore them."
        )
    return run, run.scorer.score(run.model, run.round, keep_outcomes=not final, final=final, splits=("test",))
