"""Base classes of convolutional encoders: the head of the codebook paper, and a start from pretrained weights.

Pretrained tensors are stored in this process by the hash of their file; a network contains only the hash. So it stays a
small record that equals itself in worker processes and in JSON. Only `init`, which the server calls, reads the tensors.
Training, prediction and messages use weights like any other network's.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import gelu

from ..prng import fold_in
from ..server_state import Weights
from .grouped_layers import BUFFERS, GroupedLayers, Layers, PlainLayers, fold_images, norm_weights, unfold_images
from .mlp import DenseHead, dense, dense_weights, drop, hidden_layers
from .network import Network
from .network_abilities import EncoderHeadCostStack

_PRETRAINED: dict[tuple[type, str | None], dict[str, Tensor]] = {}

_STATISTIC_NAMES = {"running_mean": "mean", "running_var": "variance"}


@dataclass(frozen=True)
class EncoderHeadNetwork(EncoderHeadCostStack, DenseHead, Network):
    """An encoder, then dense layers with GELU and dropout between them, and dropout on the logits.

    The head follows the code of arXiv 2402.18888. Rows are images (height, width) or (height, width, channels).
    `logit_dropout` false switches dropout on the logits off.
    """

    shape: tuple[int, ...]
    outputs: int
    hidden: tuple[int, ...] = (512,)
    dropout: float = 0.1
    logit_dropout: bool = True

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 3):
            raise ValueError(f"got rows of shape {self.shape}, expected images for convolutions. Use the kind mlp.")
        if self.encoded[1] < 1:
            raise ValueError(
                f"got poolings that leave nothing of an image of {self.shape[0]} x {self.shape[1]}, "
                "expected a larger image."
            )

    @abstractmethod
    def trunk(self, layers: Layers, x: Tensor) -> Tensor:
        """Map images to features, both (rows, channels, height, width)."""

    @abstractmethod
    def trunk_weights(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the encoder's weights."""

    @property
    @abstractmethod
    def norms(self) -> tuple[str, ...]:
        """Return the names of the encoder's normalisation layers."""

    @property
    def normalising(self) -> tuple[str, ...]:
        """Return weight, bias and running statistics of every normalisation layer."""
        return tuple(weight for name in self.norms for weight in norm_weights(name, 0))

    @property
    def buffers(self) -> tuple[str, ...]:
        """Return the running statistics of every normalisation layer."""
        return tuple(f"{name}.{part}" for name in self.norms for part in BUFFERS)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the encoder's weights, and dense weights uniformly from ±1/√fan_in."""
        weights = self.trunk_weights(fold_in(stream, 0))
        for layer, sizes in enumerate(pairwise((math.prod(self.encoded), *self.hidden, self.outputs))):
            weights |= dense_weights(fold_in(stream, 1 + layer), layer, *sizes)
        return weights

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Encode one client's images: (rows, channels, positions)."""
        layers = PlainLayers(weights, used)
        images = x.reshape(x.shape[0], *self.shape[:2], -1).movedim(-1, 1)
        return self.trunk(layers, images).flatten(2), layers.updated

    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, unpadded: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run `encode` for a stack, clients folded into channels: (clients, rows, channels, positions)."""
        lead = x.shape[:2]
        layers = GroupedLayers(weights, used, unpadded)
        images = fold_images(x.reshape(*lead, *self.shape[:2], -1))
        return unfold_images(self.trunk(layers, images), lead[0]).flatten(3), layers.updated

    def pre_head(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Flatten the features, channel first, and apply the first hidden layer with its GELU, if there is one."""
        features = z.flatten(-2)
        return gelu(dense(weights, 0, features)) if self.hidden else features

    def represent(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> Tensor:
        """Apply the other hidden layers, each after dropout."""
        return hidden_layers(weights, self.last, embedding, self.dropout, stream, self.last > 0, gelu)

    def to_logits(self, scores: Tensor, stream: Tensor | None) -> Tensor:
        """Apply dropout to the logits."""
        return drop(scores, self.dropout, stream, self.last + 1) if self.logit_dropout else scores

    @property
    def image_channels(self) -> int:
        """Return the channels of a row."""
        return self.shape[2] if len(self.shape) == 3 else 1


def area(shape: Sequence[int], poolings: int) -> int:
    """Count the pixels that remain of an image after `poolings` poolings."""
    return math.prod(side // 2**poolings for side in shape[:2])


@dataclass(frozen=True)
class Pretrained(EncoderHeadNetwork):
    """An encoder with torchvision's parameter names; `pretrained` is the hash of stored weights, or None.

    Published weights expect three channels, so a grey image is repeated as three equal channels. Without them, the
    first layer has the image's own channels. In both cases pixels enter unchanged, without ImageNet's mean and scale.
    """

    pretrained: str | None = None

    @property
    def starts_from(self) -> str:
        """Return the hash of the stored weights."""
        return self.pretrained or ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrained is not None and self.image_channels not in (1, 3):
            raise ValueError(
                f"pretrained: got images of {self.image_channels} channels, expected grey or colour images. Set "
                "model.pretrained to null."
            )

    @property
    def input_channels(self) -> int:
        """Return the channels of the first layer's input."""
        return self.image_channels if self.pretrained is None else 3

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw a new head and copy the stored encoder; KeyError if no weights are stored under this hash."""
        weights = super().init(stream)
        if self.pretrained is None:
            return weights
        return weights | {name: w.clone() for name, w in _PRETRAINED[self._key].items()}

    def match_channels(self, layers: Layers, x: Tensor) -> Tensor:
        """Repeat the images' channels to match the first layer."""
        repeats = self.input_channels // self.image_channels
        return x if repeats == 1 else layers.repeat(x, repeats)

    def load_pretrained(self, state: Weights) -> None:
        """Store the encoder's part of a torchvision state dict in this process, under this network's hash.

        Raises:
            ValueError: If the state dict does not fit.
        """
        stored, expected = rename_torchvision(state), self.trunk_weights(torch.tensor(0, dtype=torch.int64))
        for name, w in expected.items():
            if name not in stored:
                raise ValueError(f"got no {name}, expected it")
            if stored[name].shape != w.shape:
                raise ValueError(f"{name}: got the shape {tuple(stored[name].shape)}, expected {tuple(w.shape)}")
            if stored[name].is_complex() or not torch.isfinite(stored[name].float()).all():
                raise ValueError(f"{name}: got numbers that are not finite or not real, expected finite ones")
        _PRETRAINED[self._key] = {name: stored[name].detach().float().clone() for name in expected}

    @property
    def is_stored(self) -> bool:
        """Whether `load_pretrained` has been called in this process."""
        return self._key in _PRETRAINED

    @property
    def _key(self) -> tuple[type, str | None]:
        return type(self), self.pretrained


def rename_torchvision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a torchvision state dict to this project's weight names; entries that no encoder uses stay."""
    weights = {}
    for name, w in state.items():
        layer, _, part = name.rpartition(".")
        weights[f"{layer}.{_STATISTIC_NAMES.get(part, part)}"] = w
    return weights
