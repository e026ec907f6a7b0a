"""What pages share that make a network around that of params.yaml."""

from collections.abc import Collection
from typing import Any

from flows.round import Problem
from models.networks import kind_of
from models.state import Weights
from silos.errors import UserError


def ending_in_a_layer(problem: Problem) -> Any:
    """The problem's network; UserError if it has no last dense layer that a method could read or replace."""
    return offering(problem, "represent", "last dense layer to build on")


def offering(problem: Problem, part: str, what: str) -> Any:
    """The problem's network; UserError if it does not offer this part."""
    if not hasattr(problem.network, part):
        raise UserError(
            f"params.yaml: model.kind {kind_of(problem.network)} has no {what}; "
            "use residual, vgg16_bn, resnet18, cnn or mlp."
        )
    return problem.network


def apart(weights: Weights, personal: Collection[str]) -> tuple[dict[str, Weights], Weights]:
    """Those that the server knows, as a section of the state, and those that stay with clients."""
    shared = {name: w for name, w in weights.items() if name not in personal}
    return {"weights": shared}, {name: weights[name] for name in personal}
