"""Builds notes on a run's numbers: rows that are not scaled, partial evaluation, and training that did not improve."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from flows.core.config.params_schema import Params
from flows.methods.client_sampler import validation_rows
from flows.methods.round_context import RoundContext, TrainingSetup
from flows.training.evaluation import Scorer
from flows.training.run_records.run_folder import RunFolder
from models.client_model import Model
from models.metrics.client_metrics import ClientMetric
from models.metrics.task_metrics import TaskMetrics, metric_value
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.storage.manifest import ROLES
from tasks.execution.task_runner import Runner
from tasks.fit_scale import LARGE, SMALL, check_scale
from tasks.messages.statistics_messages import ScaleCheck
from tasks.tracking.result_types.comparison_result import ComparisonNote
from tasks.tracking.result_types.run_result import Note, RunMetrics, RunResult

_WAY_OUT = (
    "lower training.optimiser.learning_rate, or set model.inputs to standardise if inputs of a table are "
    "not standardised."
)

_MAX_CLIENTS = 1000
_MIN_ROUNDS = 3  # to report that the loss did not fall
_MIN_DROP = 0.01  # relative to the best score on validation rows
_MIN_FALL = 1e-3  # relative to the first round's loss; order and rounding of batches change it less


def notes_of_scores(scorer: Scorer) -> list[Note]:
    """Note how many clients are scored if not all are, and if no best round can be determined."""
    counts = _scored_counts(*map(scorer.method.silos_with_a_model, (scorer.scored, scorer.silos)))
    reason = (
        "owners let the others answer neither run nor evaluate"
        if scorer.params.clients == "all"
        else "evaluation.clients"
    )
    sentences = [f"scored on {counts} ({reason})."] if counts else []
    if scorer.params.report == "best" and not any(validation_rows(scorer.scored.federated()).values()):
        sentences.append(
            "evaluation.report is best, and no scored client has validation rows: the last round is reported."
        )
    return [{"about": "evaluation", "sentence": sentence} for sentence in sentences]


def notes_of_rows(params: Params, setup: TrainingSetup, runner: Runner, private: ClientStore) -> list[Note]:
    """Note inputs and targets that are far from unit scale and not standardised.

    Each queried client answers yes or no. At most `_MAX_CLIENTS` clients are queried, evenly spaced over their list.
    """
    manifest = setup.silos.manifest
    unscaled: dict[Literal["inputs", "targets"], bool] = {
        "inputs": params.model.inputs == "none" and manifest.dtype != "uint8",
        "targets": params.model.targets == "none" and manifest.task == "regression",
    }
    if setup.training.privacy or not any(unscaled.values()):  # the answers follow from rows, without noise
        return []
    clients = _evenly_spaced(setup.silos.clients, _MAX_CLIENTS)
    round = RoundContext(0, replace(setup, device="cpu"), clients, (), runner, private)
    messages: list[ScaleCheck] = round.map_clients(check_scale, Model(setup.network, {}, clients=round.clients))
    far = {about: sum(int(getattr(message, about).sum()) for message in messages) for about in unscaled}
    return [
        {"about": about, "sentence": _far_from_unit(about, far[about], len(round.clients))}
        for about, is_unscaled in unscaled.items()
        if is_unscaled and far[about]
    ]


def note_of_earlier(versions: Mapping[str, str], least: int, silent: bool) -> Note:
    """Note the clients that report no new mean and scale, because their ledgers withhold it.

    Args:
        versions: Each client and the version of its rows that it reported before.
        least: The least rows of the first client's policy.
        silent: Whether the clients report nothing; otherwise they repeat their earlier report.
    """
    first = min(versions)
    others = len(versions) - 1
    more = f" (and {others} more client{'' if others == 1 else 's'})" if others else ""
    before = f"client {first}'s report of its earlier rows and its new one"
    instead = "the client reports no mean and scale" if silent else "the client repeats its earlier mean and scale"
    sentence = (
        f"{before} differ by fewer than {least} different rows, which subtracting the reports would reveal: "
        f"{instead}{more}"
    )
    return {"about": "inputs", "sentence": sentence}


def notes_of_undefined(metrics: Mapping[str, object], quantity: TaskMetrics) -> list[Note]:
    """Note for how many federated clients the chosen metric is undefined."""
    missing = int(metric_value(metrics, f"{quantity.name}/undefined") or 0)
    if not missing or not isinstance(quantity, ClientMetric):
        return []
    clients, whose, them = ("1 client", "its", "it") if missing == 1 else (f"{missing:,} clients", "their", "them")
    why = f"since {whose} test rows have {quantity.undefined_if}"
    sentence = f"{clients} had no {quantity.label}, {why}: means leave {them} out."
    return [{"about": "evaluation", "sentence": sentence}]


def notes_of_training(folder: RunFolder, last: int, metrics: RunMetrics, quantity: TaskMetrics) -> list[Note]:
    """Note a training loss that is not finite at the end, unless the scores show it already, or that did not fall."""
    losses = [loss for _, loss in folder.curve("loss/train", last)]
    diverged = any(row.get("train_loss", 0.0) is None for row in folder.journal.read(last)["clients"].values())
    if diverged and quantity.headline_text(metrics) != f"{quantity.label} diverged":
        return [{"about": "training", "sentence": f"the training loss is not finite at the end: {_WAY_OUT}"}]
    if not diverged and len(losses) >= _MIN_ROUNDS and min(losses[1:]) > losses[0] - _MIN_FALL * abs(losses[0]):
        return [{"about": "training", "sentence": f"the training loss did not fall after the first round: {_WAY_OUT}"}]
    return []


def notes_of_best(folder: RunFolder, reported: int, last: int, quantity: TaskMetrics) -> list[Note]:
    """Note that the score on validation rows became worse after the best round, which is the reported one."""
    if reported == last:
        return []
    best, end = (
        quantity.score(folder.journal.read(round_number)["metrics"], "validation/") for round_number in (reported, last)
    )
    if best - end < _MIN_DROP * abs(best):
        return []
    sentence = (
        f"{quantity.label} on validation rows was worse at the end than in the best round, which is reported "
        "(evaluation.report is best). Only a longer run shows whether more training.rounds help."
    )
    return [{"about": "training", "sentence": sentence}]


def merge_notes(results: Iterable[RunResult]) -> list[ComparisonNote]:
    """Merge the notes of several runs: each note once, with the methods that it applies to."""
    merged: dict[tuple[str, str], ComparisonNote] = {}
    for result in results:
        for note in result.get("notes", ()):  # runs of earlier versions have none
            of_methods = merged.setdefault((note["about"], note["sentence"]), {**note, "methods": []})["methods"]
            if result["method"] not in of_methods:
                of_methods.append(result["method"])
    return list(merged.values())


def _scored_counts(scored: Silos, all_clients: Silos) -> str:
    """Describe how many clients are scored, by role if there are several; empty if all are."""
    if len(scored.clients) == len(all_clients.clients):
        return ""
    counts = {role: [int(silos.of_role(role).sum()) for silos in (scored, all_clients)] for role in ROLES}
    parts = {role: f"{scored_count:,} of {total:,}" for role, (scored_count, total) in counts.items() if total}
    if len(parts) == 1:
        return f"{next(iter(parts.values()))} clients"
    *first, last = (f"{count} {role}" for role, count in parts.items())
    return f"{', '.join(first)} and {last} clients"


def _evenly_spaced(clients: tuple[str, ...], most: int) -> tuple[str, ...]:
    """Return all clients, or `most` of them at evenly spaced indices."""
    count = min(most, len(clients))
    return tuple(clients[index * len(clients) // count] for index in range(count))


def _far_from_unit(about: str, far: int, clients: int) -> str:
    column = "a feature's" if about == "inputs" else "their"
    return (
        f"{about} of {far} of {clients} clients are far from unit scale ({column} mean or standard deviation is "
        f"above {LARGE[about]:g}, or all are below {SMALL:g}) and are not scaled: set model.{about} to "
        "standardise."
    )
