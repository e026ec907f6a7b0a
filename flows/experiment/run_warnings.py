"""What a person should know of a run's numbers: rows that are not scaled, and training that led nowhere."""

from collections.abc import Iterable, Mapping
from typing import Any

from flows.experiment.project import Project
from flows.experiment.run.run_folder import RunFolder
from flows.methods.base import Method
from flows.methods.context import RoundContext, TrainingSetup
from flows.methods.samplers.client_sampler import validation_rows
from models.client_model import Model
from models.metrics.task_metrics import TaskMetrics
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.storage.client_table import ROLES
from tasks.execution.task_runner import Runner
from tasks.feature_moments import LARGE, SMALL, check_scale
from tasks.messages.message_policy import LEAST_ROWS
from tasks.messages.statistics_messages import ScaleCheck

Note = dict[str, str]
"""`about` inputs, targets, evaluation or training, and a `sentence`: plain JSON."""

_WAY_OUT = "lower training.optimiser.learning_rate, or set model.inputs to standardise where a table's inputs are not."

_MOST_ASKED = 1000  # clients
_LEAST_ROUNDS = 3  # of which it is said that the loss did not fall
_LEAST_WORSE = 0.01  # of the best score on validation rows
_LEAST_FALL = 1e-3  # of the first round's loss; order and rounding of batches are less


def notes_of_scores(project: Project, method: Method) -> list[Note]:
    """Of how many clients with a model speak for all in what is scored, and where no best round can be told."""
    some = _some_of(*map(method.silos_with_a_model, (project.scored, project.silos)))
    said = [f"scored on {some} (evaluation.clients)."] if some else []
    if project.params.evaluation.report == "best" and not any(validation_rows(project.scored.federated()).values()):
        said.append(
            "evaluation.report is best, and nobody who is scored has validation rows: the last round is reported."
        )
    return [{"about": "evaluation", "sentence": sentence} for sentence in said]


def notes_of_rows(project: Project, setup: TrainingSetup, runner: Runner, private: ClientStore) -> list[Note]:
    """Of inputs and targets that are far from unit scale and not scaled: federated clients say yes or no.

    Of more than _MOST_ASKED so many are asked, all over their list.
    """
    params, manifest = project.params, setup.silos.manifest
    asked = {
        "inputs": params.model.inputs == "none" and manifest.dtype != "uint8",
        "targets": params.model.targets == "none" and manifest.task == "regression",
    }
    if not any(asked.values()):
        return []
    round = RoundContext(0, setup, _spread(setup.silos.clients, _MOST_ASKED), (), runner, private)
    told: list[ScaleCheck] = round.map_clients(check_scale, Model(setup.network, {}, clients=round.clients))
    far = {about: sum(int(getattr(message, about).sum()) for message in told) for about in asked}
    return [
        {"about": about, "sentence": _far(about, far[about], len(round.clients))}
        for about, wanted in asked.items()
        if wanted and far[about]
    ]


def note_of_earlier(versions: Mapping[str, str], silent: bool) -> Note:
    """Of clients whose ledgers let nothing new be told for a mean and scale, by the version of their rows in the way."""
    first = min(versions)
    more = f" (and {len(versions) - 1} more likewise)" if len(versions) > 1 else ""
    before = f"what client {first} told of version {versions[first][:12]} of its rows and what it would tell now"
    instead = "tells no mean and scale" if silent else "tells the mean and scale that it told then"
    sentence = (
        f"{before} differ by fewer than {LEAST_ROWS} different rows, which subtracting would show: it {instead}{more}"
    )
    return {"about": "inputs", "sentence": sentence}


def notes_of_training(folder: RunFolder, last: int, metrics: dict[str, Any], quantity: TaskMetrics) -> list[Note]:
    """Of a training loss that is no number at the end, unless the scores say so already, or that did not fall."""
    losses = [loss for _, loss in folder.curve("loss/train", last)]
    lost = any(row.get("train_loss", 0.0) is None for row in folder.journal.read(last)["clients"].values())
    if lost and quantity.headline_text(metrics) != f"{quantity.name} diverged":
        return [{"about": "training", "sentence": f"the training loss is no finite number at the end: {_WAY_OUT}"}]
    if not lost and len(losses) >= _LEAST_ROUNDS and min(losses[1:]) > losses[0] - _LEAST_FALL * abs(losses[0]):
        return [{"about": "training", "sentence": f"the training loss did not fall after the first round: {_WAY_OUT}"}]
    return []


def notes_of_best(folder: RunFolder, reported: int, last: int, quantity: TaskMetrics) -> list[Note]:
    """Say that the score on validation rows became worse after the best round, which is the one that is reported."""
    if reported == last:
        return []
    best, end = (quantity.score(folder.journal.read(number)["metrics"], "validation/") for number in (reported, last))
    if best - end < _LEAST_WORSE * abs(best):
        return []
    sentence = (
        f"{quantity.name} on validation rows was worse at the end than in the best round, which is reported "
        "(evaluation.report is best): fewer training.rounds are enough."
    )
    return [{"about": "training", "sentence": sentence}]


def of_all(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each note of several runs once, with the methods that it is true of."""
    methods: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for note in result.get("notes", ()):  # runs of earlier versions have none
            methods.setdefault((note["about"], note["sentence"]), []).append(result["method"])
    return [
        {"about": about, "sentence": sentence, "methods": list(dict.fromkeys(of))}
        for (about, sentence), of in methods.items()
    ]


def _some_of(scored: Silos, everybody: Silos) -> str:
    """How many are scored of all, by role where there are several; empty where everybody is."""
    if len(scored.clients) == len(everybody.clients):
        return ""
    counts = {role: [int(silos.of_role(role).sum()) for silos in (scored, everybody)] for role in ROLES}
    said = {role: f"{some:,} of {all_:,}" for role, (some, all_) in counts.items() if all_}
    if len(said) == 1:
        return f"{next(iter(said.values()))} clients"
    *first, last = (f"{count} {role}" for role, count in said.items())
    return f"{', '.join(first)} and {last} clients"


def _spread(clients: tuple[str, ...], most: int) -> tuple[str, ...]:
    """All of them, or so many at evenly spaced places."""
    count = min(most, len(clients))
    return tuple(clients[at * len(clients) // count] for at in range(count))


def _far(about: str, far: int, clients: int) -> str:
    column = "a feature's" if about == "inputs" else "their"
    return (
        f"{about} of {far} of {clients} clients are far from unit scale ({column} mean or standard deviation is above "
        f"{LARGE[about]:g}, or all are under {SMALL:g}) and are trained on as they are: set model.{about} to standardise."
    )
