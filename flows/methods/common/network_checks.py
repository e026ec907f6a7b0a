"""What pages share that make a network around that of params.yaml."""

from collections.abc import Collection
from typing import Any

from flows.methods.context import TrainingSetup
from models.networks.mlp import MLP
from models.networks.network_factory import Network, kind_of, size
from models.networks.vision.cnn import CNN
from models.server_state import Weights
from models.training.optimizers import PARAMETER_BYTES
from silos.errors import UserError
from silos.io.free_memory import must_fit


def ending_in_a_layer(setup: TrainingSetup) -> Any:
    """The problem's network; UserError if it has no last dense layer that a method could read or replace."""
    return offering(setup.network, setup.network.linear_head, "last dense layer to build on")


def not_normalising(setup: TrainingSetup) -> None:
    """UserError for a network whose weights cannot all be Gaussian: batch normalisation has statistics among them."""
    if setup.network.normalising or setup.network.buffers:
        raise UserError(
            f"params.yaml: model.kind {kind_of(setup.network)} normalises by batches, whose running statistics are no "
            "weights that a posterior could be of; use mlp or cnn."
        )


def dense_only(setup: TrainingSetup, key: str) -> None:
    """UserError where an option asks for a network of dense layers and there is another."""
    if not isinstance(setup.network, MLP):
        raise UserError(f"params.yaml: {key} needs model.kind mlp, and it is {kind_of(setup.network)}.")


def fitting(network: Network, key: str, copies: int = 1) -> Network:
    """The network that a method made; UserError if so many copies of it are more than the memory that there is."""
    count = size(network)
    what = f"params.yaml: {key}: {f'{copies:,} networks' if copies > 1 else 'a network'} of {count:,} parameters"
    must_fit(count * copies * PARAMETER_BYTES, what, "lower what makes it that large")
    return network


def offering(network: Network, part: object | None, what: str) -> Any:
    """The network; UserError if it does not offer this part, which is None then, as a deep ensemble offers none."""
    if part is None and len(network.single_networks) > 1:
        raise UserError(
            f"params.yaml: model.members is {len(network.single_networks)}, and this method builds on a single network; set "
            "model.members to 1, and takes_members = False in the method's page, which then says so by itself."
        )
    if part is None and isinstance(network, CNN):
        raise UserError(
            f"params.yaml: model.channel_dropout is {network.channel_dropout}, and a network whose features are random has "
            f"no {what}; set it to 0."
        )
    if part is None:
        raise UserError(
            f"params.yaml: model.kind {kind_of(network)} has no {what}; use residual, vgg16_bn, resnet18, cnn or mlp."
        )
    return network


def apart(weights: Weights, personal: Collection[str]) -> tuple[dict[str, Weights], Weights]:
    """Those that the server knows, as a section of the state, and those that stay with clients."""
    shared = {name: w for name, w in weights.items() if name not in personal}
    return {"weights": shared}, {name: weights[name] for name in personal}
