"""From params and silos to what every method of a seed is given."""

from flows.params import Params
from flows.round import Problem
from models import objectives, optimisers
from models.cohort import Kind, Training
from models.kernels import pick
from models.networks import build
from silos.cohort import Silos
from silos.errors import UserError


def problem(params: Params, silos: Silos, device: str, seed: int) -> Problem:
    """The federated silos, the network for their rows, and how it trains; UserError for what does not fit together."""
    manifest, engine = silos.manifest, params.engine
    if manifest.task != "classification":
        raise UserError(f"data/{params.data.name} is a {manifest.task}, and siloflow trains classifiers only, so far.")
    options = params.model.model_dump(exclude={"kind"})
    try:
        network = build(params.model.kind, manifest.shape, len(manifest.classes), options)
        kernel = pick(network, params.training.batch, device, engine.kind, engine.stack)
    except ValueError as error:
        raise UserError(f"params.yaml: model: {error}") from None
    return Problem(silos.federated(), network, _training(params, kernel.kind), seed, kernel.stack)


def _training(params: Params, engine: Kind) -> Training:
    training = params.training
    options = training.optimiser.model_dump(exclude={"kind"})
    optimiser: optimisers.Optimiser
    if training.optimiser.kind == "sgd":
        optimiser = optimisers.SGD(**options)
    else:
        optimiser = optimisers.Adam(**options, decoupled=training.optimiser.kind == "adamw")
    objective: objectives.Objective = objectives.CrossEntropy()
    if training.objective.kind == "focal":
        objective = objectives.Focal(training.objective.gamma)
    return Training(objective, optimiser, training.epochs, training.batch, engine)
