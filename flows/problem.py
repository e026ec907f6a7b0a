"""From params and silos to what every method of a seed is given."""

from collections.abc import Mapping
from typing import Any

from flows.params import Params
from flows.round import Problem
from models import objectives, optimisers
from models.cohort import Kind, Training
from models.kernels import pick
from models.networks import build
from silos.cohort import Silos
from silos.errors import UserError

_OBJECTIVES: Mapping[str, Any] = {
    "cross_entropy": objectives.CrossEntropy,
    "focal": objectives.Focal,
    "squared_error": objectives.SquaredError,
}


def problem(params: Params, silos: Silos, device: str, seed: int) -> Problem:
    """The federated silos, the network for their rows, and how it trains; UserError for what does not fit together."""
    manifest, engine = silos.manifest, params.engine
    _suits(params, manifest.task)
    options = params.model.model_dump(exclude={"kind"})
    try:
        network = build(params.model.kind, manifest.shape, len(manifest.classes) or 1, options)
        kernel = pick(network, params.training.batch, device, engine.kind, engine.stack)
    except ValueError as error:
        raise UserError(f"params.yaml: model: {error}") from None
    return Problem(silos.federated(), network, _training(params, kernel.kind), seed, kernel.stack)


def _suits(params: Params, task: str) -> None:
    """UserError if the data are of another task than the objective."""
    kind = params.training.objective.kind
    if _OBJECTIVES[kind].task != task:
        ours = "squared_error" if task == "regression" else "cross_entropy or focal"
        raise UserError(
            f"params.yaml: training.objective.kind is {kind}, and data/{params.data.name} is a {task}; use {ours}."
        )


def _training(params: Params, engine: Kind) -> Training:
    training = params.training
    options = training.optimiser.model_dump(exclude={"kind"})
    optimiser: optimisers.Optimiser
    if training.optimiser.kind == "sgd":
        optimiser = optimisers.SGD(**options)
    else:
        optimiser = optimisers.Adam(**options, decoupled=training.optimiser.kind == "adamw")
    objective: objectives.Objective = _OBJECTIVES[training.objective.kind](
        **training.objective.model_dump(exclude={"kind"})
    )
    return Training(objective, optimiser, training.epochs, training.batch, engine)
