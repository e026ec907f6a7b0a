"""Checks that a network offers what a method needs, and splits its weights into shared and personal ones."""

from collections.abc import Collection
from typing import Any

from flows.methods.round_context import TrainingSetup
from models.networks.cnn import CNN
from models.networks.mlp import MLP
from models.networks.network_factory import Network, kind_of, size
from models.server_state import Weights
from models.training.optimizers import PARAMETER_BYTES
from silos.errors import UserError
from silos.io.memory_and_disk import must_fit


def require_linear_head(setup: TrainingSetup) -> Any:
    """Return the run's network; UserError if it has no last dense layer that a method could read or replace."""
    return require_part(setup.network, setup.network.linear_head, "last dense layer to build on")


def reject_batchnorm(setup: TrainingSetup) -> None:
    """Raise a UserError if the network has batch normalization, whose running statistics cannot be Gaussian weights."""
    if setup.network.normalising or setup.network.buffers:
        raise UserError(
            f"params.yaml: model.kind: got {kind_of(setup.network)}, expected mlp or cnn, since the running "
            "statistics of its batch normalisation are not weights with a posterior. Use mlp or cnn."
        )


def require_mlp(setup: TrainingSetup, key: str) -> None:
    """Raise a UserError if an option needs an MLP and the network is another one."""
    if not isinstance(setup.network, MLP):
        raise UserError(f"params.yaml: model.kind: got {kind_of(setup.network)}, expected mlp for {key}. Use mlp.")


def require_memory(network: Network, key: str, copies: int = 1) -> Network:
    """Return the network; UserError if this many copies of its parameters do not fit into the memory."""
    count = size(network)
    what = f"params.yaml: {key}: got {f'{copies:,} networks' if copies > 1 else 'a network'} of {count:,} parameters"
    must_fit(count * copies * PARAMETER_BYTES, what, "Lower the setting that makes it that large")
    return network


def require_part(network: Network, part: object | None, what: str) -> Any:
    """Return the network; UserError if `part`, which a method needs of it, is None (also in a deep ensemble)."""
    if part is None and len(network.single_networks) > 1:
        raise UserError(
            f"params.yaml: model.members: got {len(network.single_networks)}, expected 1, since this method wraps "
            "a single network. Set model.members to 1, and takes_members = False in the method's class, which "
            "then gives this message itself."
        )
    if part is None and isinstance(network, CNN):
        raise UserError(
            f"params.yaml: model.channel_dropout: got {network.channel_dropout}, expected 0, since a network "
            f"whose features are random has no {what}. Set it to 0."
        )
    if part is None:
        raise UserError(
            f"params.yaml: model.kind: got {kind_of(network)}, which has no {what}, expected residual, vgg16_bn, "
            "resnet18, cnn or mlp. Use one of these."
        )
    return network


def split_personal(weights: Weights, personal: Collection[str]) -> tuple[dict[str, Weights], Weights]:
    """Split weights into the shared ones, as the section `weights` of a state, and the personal ones by these names."""
    shared = {name: w for name, w in weights.items() if name not in personal}
    return {"weights": shared}, {name: weights[name] for name in personal}
