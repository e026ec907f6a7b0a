"""Sends the champion from a coordinator to its places, and predicts there with what the place's clients keep."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flows.methods.base import method_names
from flows.methods.method_settings import method_of
from flows.project.project import Project
from flows.results.registry.model_finder import ModelFinder
from flows.results.serving.open_model import OpenModel, run_of_champion, served_model
from flows.results.serving.predict_file import predict_file
from flows.training.load_finished_run import check_same_data, find_run, finished_run
from silos.client_store import OF_COORDINATOR
from silos.errors import UserError, shown
from silos.storage.places import part_digest
from tasks.remote.codec import OpenedPlace, unpack
from tasks.remote.gather_parts import send_to_places
from tasks.remote.serve_place import MODEL_FILE, SentModel
from tasks.remote.step_list import offered_functions
from tasks.tracking.mlflow_logging.model_registry import CHAMPION
from tasks.tracking.result_types.model_results import Predictions
from tasks.tracking.result_types.place_results import PlaceModels


def send_model(project: Project, model: str) -> PlaceModels:
    """Send a model to each place, which keeps it for `siloflow place predict`; return what each answered.

    A place gets the shared weights, the scaling, and references to what its own clients keep.

    Args:
        project: The coordinator's project.
        model: `champion`, or the run's folder or name.

    Raises:
        UserError: If there is no such model, or if no place takes it.
    """
    number = None
    if model == CHAMPION:
        version = ModelFinder(project).champion()
        number, model = version.number, run_of_champion(version)
    with project.data.working("place send"):
        folder = find_run(project, model)
        saved = check_same_data(project, folder.path)
        is_same = project.data.same_rows(saved["data_version"], project.silos.version)
        run = str(folder.path.relative_to(project.root))
        opened = finished_run(project, run, on_present_data=not is_same)
        method, trained = opened.scorer.method, opened.model
        settings = json.dumps(method.model_dump(mode="json"))
        sent = {
            place: SentModel(
                f"the coordinator's {run}" + (f", champion {number}" if number else ""),
                opened.method,
                settings,
                number or "",
                run,
                opened.scorer.silos.scaling,
                # references to what clients keep travel to their own place only
                trained.select([c for c in trained.clients if c in silos] if trained.is_personal else ()),
                opened.round.private,
            )
            for place, silos in project.silos.by_place().items()
        }
        return {"run": run, "version": number, "places": send_to_places(project.root, sent)}


def predict_at_place(
    project: Project, input: str, output: str, client: str | None, keep: Sequence[str] = (), skip_bad_rows: bool = False
) -> Predictions:
    """Predict as `predict_file` does, by the model that the coordinator sent, with the private state of this place.

    Raises:
        UserError: Also if the coordinator sent no model, or one that this place cannot read.
    """
    store, silos = Path(project.ledgers.folder), project.silos
    path = store / OF_COORDINATOR / MODEL_FILE
    if not path.is_file():
        raise UserError(
            "place predict: got no model of the coordinator, expected one. Let the coordinator run `siloflow place send` "
            "while `siloflow place serve` runs here."
        )
    place = OpenedPlace(silos, part_digest(Path(silos.folder)), store, offered_functions())
    sent: SentModel = unpack(path.read_bytes(), SentModel, place)
    if sent.method not in method_names(project.params.registered):
        raise UserError(
            f"place predict: got a model of the method {shown(sent.method)}, expected one of siloflow's own. Ask the "
            "coordinator for another model."
        )
    settings = json.dumps(json.loads(sent.settings))  # one line of JSON
    with_settings = project.with_overrides([f"method.{sent.method}={settings}"])

    def opens(project: Project, model: str, clients: Sequence[str]) -> OpenModel:
        method, scaled = method_of(project.params, sent.method), replace(silos, scaling=sent.scaling)
        served = served_model(project, sent.name, sent.method, method, scaled, sent.private, sent.model, clients, True)
        return OpenModel(sent.name, sent.method, sent.version or None, sent.run, served)

    return predict_file(with_settings, input, output, client, CHAMPION, keep, skip_bad_rows, opens)
