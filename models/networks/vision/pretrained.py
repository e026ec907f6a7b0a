"""Encoders that can start from pretrained weights.

Pretrained tensors are stored in this process by the hash of their file; a network contains only the hash. So it stays a
small record that equals itself in worker processes and in JSON. Only `init`, which the server calls, reads the tensors.
Training, prediction and messages use weights like any other network's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...server_state import Weights
from .encoder_head import EncoderHeadNetwork
from .grouped_layers import Layers

_PRETRAINED: dict[tuple[type, str | None], dict[str, Tensor]] = {}

_STATISTIC_NAMES = {"running_mean": "mean", "running_var": "variance"}


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
