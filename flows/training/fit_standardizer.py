"""Fits the mean and scale that a run's clients agree on before its first round; the run's folder stores them."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from flows.core.config.params_schema import Params
from flows.methods.round_context import RoundContext, TrainingSetup
from flows.project.project import Project
from flows.project.project_workers import plain_runner
from flows.project.run_sets import is_of_other_partition
from flows.training.run_notes import note_of_earlier
from flows.training.run_records.run_folder import RunFolder
from flows.training.training_setup import own_columns, training_setup
from models.client_model import Model
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import UserError
from silos.privacy.owner_file import least_rows_of
from silos.standardizer import NO_STANDARDIZATION, Standardization, Standardizer
from silos.storage.manifest import Manifest, schema_of
from tasks.execution.task_runner import RoundCost, Runner
from tasks.fit_scale import combine_moments, report_moments
from tasks.messages.statistics_messages import ScaleMoments
from tasks.tracking.json_io import RESTORE_ADVICE, read_json, write_json
from tasks.tracking.result_types.run_files import PlainParams
from tasks.tracking.result_types.run_result import Note

_NUMBER_BYTES = 8


@dataclass(frozen=True)
class FittedStandardization:
    """Holds the agreed standardization, its traffic in bytes over all clients, and notes on it."""

    scaling: Standardization
    bytes_up: int
    bytes_down: int
    notes: tuple[Note, ...] = ()

    def count(self, tally: RoundCost) -> None:
        """Add the bytes to the traffic of the first round."""
        tally.bytes_up += self.bytes_up
        tally.bytes_down += self.bytes_down


def fit_or_load(project: Project, setup: TrainingSetup, folder: RunFolder, runner: Runner) -> FittedStandardization:
    """Load the standardization from the run's folder; otherwise fit it with the clients, and write it there."""
    fitted = _read_saved(folder)
    if fitted is None:
        fitted = fit_standardizer(project.params, setup, runner, project.ledgers)
        if fitted.scaling != NO_STANDARDIZATION:
            traffic = {"bytes": [fitted.bytes_up, fitted.bytes_down], "notes": list(fitted.notes)}
            write_json(folder.scaling, {**fitted.scaling.as_json(), **traffic})
    return fitted


def load_standardizer(project: Project) -> FittedStandardization:
    """Return the standardization that the newest run with these params and data saved; query the clients if there is none.

    A note names runs that could not be compared.
    """
    if project.params.model.inputs == project.params.model.targets == "none":
        return FittedStandardization(_own_part(project.params, project.silos.manifest), 0, 0)
    key = _fit_key(project.params.model_dump(mode="json"))
    unreadable: list[str] = []
    files = sorted(project.store.runs.glob("*/*/scaling.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for folder in (RunFolder(path.parent) for path in files):
        with suppress(UserError):  # skips a damaged file
            run_record = read_json(folder.path / "run.json", RESTORE_ADVICE, ("data_version", "params"))
            saved = _read_saved(folder)
            if not (saved and run_record):
                continue
            if is_of_other_partition(project, folder.path, run_record["data_version"]) != project.derived:
                continue
            try:
                same_key = _fit_key(run_record["params"]) == key
                if same_key and project.data.same_rows(run_record["data_version"], project.silos.version):
                    return saved
            except (KeyError, TypeError, AttributeError):  # params of another version
                unreadable.append(str(folder.path.relative_to(project.store.runs.parent)))
    fitted = fit_standardizer(project.params, training_setup(project, 0), plain_runner(project), project.ledgers)
    return replace(fitted, notes=(*fitted.notes, _note_of_unreadable(unreadable))) if unreadable else fitted


def _fit_key(params: PlainParams) -> list[object]:
    """Return what the fit depends on besides the data version: partition, what is scaled, and who is not in round 1."""
    join, leave = (params["clients"][key] for key in ("join", "leave"))
    later = sorted({c for c, first in join.items() if first > 1} | {c for c, left in leave.items() if left == 1})
    align = params["clients"].get("align", {"kind": "none"})  # a run's fingerprint has none if clients align nothing
    aligned = None if align["kind"] == "none" else align
    return [params["data"]["name"], params["model"]["inputs"], params["model"]["targets"], later, aligned]


def fit_standardizer(
    params: Params, setup: TrainingSetup, runner: Runner, ledgers: ClientStore
) -> FittedStandardization:
    """Fit the standardizer on moments that the federated clients of round 1 report.

    Clients are queried only if params standardise inputs or targets.

    Args:
        params: `model.inputs` and `model.targets` say what is standardised.
        setup: The federated clients.
        runner: Where the tasks run.
        ledgers: Where clients record what they reported in all runs.

    Raises:
        UserError: If no client has enough rows to report, or may report.
    """
    inputs, targets = (value == "standardise" for value in (params.model.inputs, params.model.targets))
    own = _own_part(params, setup.silos.manifest)
    if not (inputs or targets):
        return FittedStandardization(own, 0, 0)
    silos, join, leave = setup.silos, params.clients.join, params.clients.leave
    active_clients = tuple(c for c in silos.clients if join.get(c, 1) <= 1 < leave.get(c, 2))
    # on the CPU, since sums would be rounded differently elsewhere
    round = RoundContext(0, replace(setup, device="cpu"), active_clients, (), runner, ledgers)
    model = Model(setup.network, {}, clients=silos.clients)
    messages: list[ScaleMoments] = round.map_clients(report_moments, model, inputs=inputs, targets=targets)
    standardizer: Standardizer = round.run_on_server(combine_moments, messages)
    folder = Path(ledgers.folder)
    notes = _ledger_notes(messages, folder)
    _require_all(standardizer, params, silos, least_rows_of(folder, silos.clients)[0], notes)
    width = math.prod(silos.manifest.shape) if inputs else 0
    mean, scale = standardizer.mean, standardizer.scale
    parts = Standardizer(mean[:width], scale[:width]), Standardizer(mean[width:], scale[width:])
    scaling = replace(own, inputs=parts[0] if inputs else None, targets=parts[1] if targets else None)
    # mean and scale go to all clients, also to those that join later and reported nothing
    down = 2 * _NUMBER_BYTES * len(mean) * len(silos.clients)
    return FittedStandardization(scaling, round.tally.bytes_up, down, notes)


def _own_part(params: Params, manifest: Manifest) -> Standardization:
    """Return what each client aligns by its own rows."""
    return Standardization(
        own_columns=own_columns(params, manifest), by_quantiles=params.clients.align.kind == "quantiles"
    )


def scaling_of(params: Params, folder: RunFolder) -> Standardization:
    """Return the standardization that a run with these params agreed on; UserError if it is missing."""
    saved = _read_saved(folder)
    if saved is None and {params.model.inputs, params.model.targets, params.clients.align.kind} != {"none"}:
        raise UserError(f"{folder.scaling} is missing. {RESTORE_ADVICE}.")
    return NO_STANDARDIZATION if saved is None else saved.scaling


def _read_saved(folder: RunFolder) -> FittedStandardization | None:
    content = read_json(folder.scaling, RESTORE_ADVICE, ("inputs", "targets", "bytes"))
    if content is None:
        return None
    try:
        up, down = map(int, content["bytes"])
        notes = tuple(content.get("notes", ()))  # runs of earlier versions have none
        return FittedStandardization(Standardization.from_json(content), up, down, notes)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder.scaling} is damaged ({error!r}). {RESTORE_ADVICE}.") from None


def _ledger_notes(messages: Sequence[ScaleMoments], folder: Path) -> tuple[Note, ...]:
    """Note clients that report nothing new.

    A report would reveal the few rows that were added or removed since their last one.
    """
    earlier = {client: version for message in messages for client, version in message.earlier.items()}
    silent = {
        client
        for message in messages
        for client, counts in zip(message.clients, message.counts.any(1).tolist(), strict=True)
        if client in earlier and not counts
    }
    repeated = {client: version for client, version in earlier.items() if client not in silent}
    withheld = {client: version for client, version in earlier.items() if client in silent}
    return tuple(
        note_of_earlier(group, least_rows_of(folder, [min(group)])[0], group is withheld)
        for group in (repeated, withheld)
        if group
    )


def _require_all(standardizer: Standardizer, params: Params, silos: Silos, least: int, notes: Sequence[Note]) -> None:
    missing = [index for index, mean in enumerate(standardizer.mean) if math.isnan(mean)]
    if not missing:
        return
    where = f"data/{params.data.name}"
    if len(missing) == len(standardizer.mean):
        raise UserError(
            "params.yaml: model.inputs or model.targets: got standardise, expected none, since no client of "
            f"{where} has {least} different training rows to compute a mean and scale from. Set both to "
            "none, or give one client more rows." + _as_text(notes)
        )
    names = [feature.name for feature in schema_of(silos.manifest).features]  # only tables have missing values
    raise UserError(
        f"params.yaml: model.inputs: got standardise, expected none, since no client of {where} has {least} "
        f"different training rows with a value of {names[missing[0]]} to compute a mean and scale from. Drop that "
        "feature, or set it to none." + _as_text(notes)
    )


def _note_of_unreadable(runs: Sequence[str]) -> Note:
    more = f" (and {len(runs) - 1} more)" if len(runs) > 1 else ""
    sentence = (
        f"{runs[0]} has params of another version of siloflow, so it is unknown whether its clients agreed on the "
        f"same mean and scale{more}: the clients computed them again; to use a model of that run, run its method "
        "again"
    )
    return {"about": "inputs", "sentence": sentence}


def _as_text(notes: Sequence[Note]) -> str:
    return "".join(f" {note['sentence'][:1].upper()}{note['sentence'][1:]}." for note in notes)
