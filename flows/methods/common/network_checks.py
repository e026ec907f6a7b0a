"""Checks that a network offers what a method needs, and splits its weights into shared and personal ones."""

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


def require_linear_head(setup: TrainingSetup) -> Any:
    """Return the run's network; UserError if it has no last dense layer that a method could read or replace."""
    return require_part(setup.network, setup.network.linear_head, "last dense layer to build on")


def reject_batchnorm(setup: TrainingSetup) -> None:
    """Raise a UserError if the network has batch normalization, whose running statistics cannot be Gaussian weights."""
    if setup.network.normalising or setup.network.buffers:
        raise UserError(
            f"params.yaml: model.kind {kind_of(setup.network)} normalises by batches, whose running statistics are no "
            "weights that a posterior could be of; use mlp or cnn."
        )


def require_mlp(setup: TrainingSetup, key: str) -> None:
    """Raise a UserError if an option needs an MLP and the network is another one."""
    if not isinstance(setup.network, MLP):
        raise UserError(f"params.yaml: {key} needs model.kind mlp, and it is {kind_of(setup.network)}.")


def require_memory(network: Network, key: str, copies: int = 1) -> Network:
    """Return the network; UserError if this many copies of its parameters do not fit into the memory."""
    count = size(network)
    what = f"params.yaml: {key}: {f'{copies:,} networks' if copies > 1 else 'a network'} of {count:,} parameters"
    must_fit(count * copies * PARAMETER_BYTES, what, "lower what makes it that large")
    return network


def require_part(network: Network, part: object | None, what: str) -> Any:
    """Return the network; UserError if `part`, which a method needs of it, is None (also in a deep ensemble)."""
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


def split_personal(weights: Weights, personal: Collection[str]) -> tuple[dict[str, Weights], Weights]:
    """Split weights into the shared ones, as the section `weights` of a state, and the personal ones by these names."""
    shared = {name: w for name, w in weights.items() if name not in personal}
    return {"weights": shared}, {name: weights[name] for name in personal}
