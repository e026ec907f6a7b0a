"""The mean and scale that a run's clients agree on before its first round, kept in its folder from then on."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from flows.config.params_schema import Params
from flows.experiment.project import Project, experiment
from flows.experiment.run.run_folder import RunFolder
from flows.experiment.run_warnings import Note, note_of_earlier
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import UserError
from silos.standardizer import NO_STANDARDIZATION, Standardization, Standardizer
from silos.storage.manifest import schema_of
from tasks.execution.round_cost import RoundCost
from tasks.execution.task_runner import PlainRunner, Runner
from tasks.feature_moments import combine_moments, report_moments
from tasks.messages.message_policy import LEAST_ROWS
from tasks.messages.statistics_messages import ScaleMoments
from tasks.tracking.json_io import RESTORE_ADVICE, read_json, write_json

_NUMBER_BYTES = 8


@dataclass(frozen=True)
class FittedStandardization:
    """What the agreement is, how many bytes it took from all clients together and to them, and what is odd about it."""

    scaling: Standardization
    bytes_up: int
    bytes_down: int
    notes: tuple[Note, ...] = ()

    def count(self, tally: RoundCost) -> None:
        """Among the traffic of the first round."""
        tally.bytes_up += self.bytes_up
        tally.bytes_down += self.bytes_down


def fit_or_load(project: Project, setup: TrainingSetup, folder: RunFolder, runner: Runner) -> FittedStandardization:
    """As it is in the run's folder; else the clients are asked, and it is written there."""
    known = _kept(folder)
    if known is None:
        known = fit_standardizer(project.params, setup, runner, project.ledgers)
        if known.scaling != NO_STANDARDIZATION:
            traffic = {"bytes": [known.bytes_up, known.bytes_down], "notes": list(known.notes)}
            write_json(folder.scaling, {**known.scaling.as_json(), **traffic})
    return known


def load_standardizer(project: Project) -> FittedStandardization:
    """What a run of today's params and data agrees on: as the newest such run has it, without a client being asked.

    Where none has it, the clients are asked, as a run asks them; a note says if a run was there that cannot be compared.
    """
    if project.params.model.inputs == project.params.model.targets == "none":
        return FittedStandardization(NO_STANDARDIZATION, 0, 0)
    asked = _asked(project.params.model_dump(mode="json"))
    unlike: list[str] = []
    held = sorted(project.runs.glob("*/*/scaling.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for folder in (RunFolder(path.parent) for path in held):
        with suppress(UserError):  # of a damaged file; another run's may be whole
            of_run = read_json(folder.path / "run.json", RESTORE_ADVICE, ("data_version", "params"))
            swept = experiment(project, folder.path.parent.name)["kind"] not in ("run", "compare")
            known = _kept(folder)
            if not (known and of_run and swept == project.derived):
                continue
            try:
                same = _asked(of_run["params"]) == asked
                if same and project.same_rows(of_run["data_version"], project.silos.version):
                    return known
            except (KeyError, TypeError, AttributeError):  # params of another version
                unlike.append(str(folder.path.relative_to(project.runs.parent)))
    found = fit_standardizer(project.params, project.training_setup(0), PlainRunner(), project.ledgers)
    return replace(found, notes=(*found.notes, _note_of_unlike(unlike))) if unlike else found


def _asked(params: dict[str, Any]) -> list[Any]:
    """What an agreement follows from, besides the data version: the partition, what is scaled, and who comes later."""
    later = sorted(client for client, number in params["clients"]["join"].items() if number > 1)
    return [params["data"]["name"], params["model"]["inputs"], params["model"]["targets"], later]


def fit_standardizer(
    params: Params, setup: TrainingSetup, runner: Runner, ledgers: ClientStore
) -> FittedStandardization:
    """Asks the federated clients that are there in round 1 for what params want; nobody where that is nothing.

    `ledgers`: where they remember what they told in all runs. UserError where no client has enough rows to tell, or may.
    """
    inputs, targets = (wanted == "standardise" for wanted in (params.model.inputs, params.model.targets))
    if not (inputs or targets):
        return FittedStandardization(NO_STANDARDIZATION, 0, 0)
    silos, join = setup.silos, params.clients.join
    there = tuple(client for client in silos.clients if join.get(client, 1) <= 1)
    round = RoundContext(0, setup, there, (), runner, ledgers)
    model = Model(setup.network, {}, clients=silos.clients)
    told: list[ScaleMoments] = round.map_clients(report_moments, model, inputs=inputs, targets=targets)
    whole: Standardizer = round.run_on_server(combine_moments, told)
    notes = _notes(told)
    _all_told(whole, params, silos, notes)
    width = math.prod(silos.manifest.shape) if inputs else 0
    parts = [Standardizer(whole.mean[part], whole.scale[part]) for part in (slice(width), slice(width, None))]
    scaling = Standardization(parts[0] if inputs else None, parts[1] if targets else None)
    down = 2 * _NUMBER_BYTES * len(whole.mean) * len(silos.clients)
    return FittedStandardization(scaling, round.tally.bytes_up, down, notes)


def scaled_as(project: Project, folder: RunFolder) -> Project:
    """The project whose rows are opened as the run's were; UserError where its agreement is missing."""
    known = _kept(folder)
    if known is None and {project.params.model.inputs, project.params.model.targets} != {"none"}:
        raise UserError(f"{folder.scaling} is missing; {RESTORE_ADVICE}.")
    return project if known is None else replace(project, scaling=known.scaling)


def _kept(folder: RunFolder) -> FittedStandardization | None:
    held = read_json(folder.scaling, RESTORE_ADVICE, ("inputs", "targets", "bytes"))
    if held is None:
        return None
    try:
        up, down = map(int, held["bytes"])
        return FittedStandardization(
            Standardization.from_json(held), up, down, tuple(held.get("notes", ()))
        )  # runs of earlier versions have none
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder.scaling} is damaged ({error!r}); {RESTORE_ADVICE}.") from None


def _notes(told: Sequence[ScaleMoments]) -> tuple[Note, ...]:
    """Of clients that tell nothing new, since it would show the few rows that came or went since they told before."""
    earlier = {client: version for message in told for client, version in message.earlier.items()}
    silent = {
        client
        for message in told
        for client, counts in zip(message.clients, message.counts.any(1).tolist(), strict=True)
        if client in earlier and not counts
    }
    parts = [({c: v for c, v in earlier.items() if (c in silent) == none}, none) for none in (False, True)]
    return tuple(note_of_earlier(clients, none) for clients, none in parts if clients)


def _all_told(whole: Standardizer, params: Params, silos: Silos, notes: Sequence[Note]) -> None:
    missing = [at for at, mean in enumerate(whole.mean) if math.isnan(mean)]
    if not missing:
        return
    where = f"data/{params.data.name}"
    if len(missing) == len(whole.mean):
        raise UserError(
            f"params.yaml: model.inputs or model.targets is standardise, and no client of {where} has {LEAST_ROWS} "
            "different training rows, of which it could tell mean and scale; set both to none, or give one client more rows."
            + _because(notes)
        )
    names = [feature.name for feature in schema_of(silos.manifest).features]  # of no other rows a value can be missing
    raise UserError(
        f"params.yaml: model.inputs is standardise, and no client of {where} has {LEAST_ROWS} different training rows with "
        f"a value of {names[missing[0]]}, of which it could tell mean and scale; drop that feature, or set it to none."
        + _because(notes)
    )


def _note_of_unlike(runs: Sequence[str]) -> Note:
    more = f" (and {len(runs) - 1} more likewise)" if len(runs) > 1 else ""
    sentence = (
        f"{runs[0]} has params of another version of siloflow, so that nobody can tell whether its clients agreed on the "
        f"same mean and scale{more}: the clients were asked; for a model of that run, run its method anew"
    )
    return {"about": "inputs", "sentence": sentence}


def _because(notes: Sequence[Note]) -> str:
    return "".join(f" {note['sentence'][:1].upper()}{note['sentence'][1:]}." for note in notes)
