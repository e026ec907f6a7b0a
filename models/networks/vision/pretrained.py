"""Encoders that may start from numbers of somebody's training instead of fresh ones.

The numbers are kept here by the hash of the file that they were read from, and a network holds only that hash: so it stays
a small record, equal to itself in a worker process and in JSON. Only `init` asks for the numbers, which the server calls;
what is trained, served and sent are weights as of any other network.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...server_state import Weights
from .encoder_head import EncoderHeadNetwork
from .grouped_layers import Layers

_KEPT: dict[tuple[type, str | None], dict[str, Tensor]] = {}

_OURS = {"running_mean": "mean", "running_var": "variance"}


@dataclass(frozen=True)
class Pretrained(EncoderHeadNetwork):
    """An encoder with torchvision's parameter names; `pretrained` is the hash of numbers that were kept, or None.

    Published numbers expect three channels: with them a grey image is given as three equal ones. Fresh, the first layer
    takes the image's own channels. Pixels go in as rows are, without ImageNet's mean and scale, in either case.
    """

    pretrained: str | None = None

    @property
    def starts_from(self) -> str:
        """The hash of the numbers that were kept."""
        return self.pretrained or ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrained is not None and self.image_channels not in (1, 3):
            raise ValueError(
                f"pretrained weights take grey or colour images, and rows have {self.image_channels} channels; "
                "set model.pretrained to null."
            )

    @property
    def taken(self) -> int:
        """Channels that the first layer takes."""
        return self.image_channels if self.pretrained is None else 3

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """A fresh head, and the encoder as it was kept; KeyError where nothing was kept under this hash."""
        fresh = super().init(stream)
        if self.pretrained is None:
            return fresh
        return fresh | {name: w.clone() for name, w in _KEPT[self._key].items()}

    def taken_images(self, layers: Layers, x: Tensor) -> Tensor:
        """Images with as many channels a client as the first layer takes."""
        repeats = self.taken // self.image_channels
        return x if repeats == 1 else layers.repeat(x, repeats)

    def keep(self, state: Weights) -> None:
        """Keeps the encoder's part of a torchvision state dict under this network's hash; ValueError if it is another's."""
        given, wanted = ours(state), self.trunk_weights(torch.tensor(0, dtype=torch.int64))
        for name, w in wanted.items():
            if name not in given:
                raise ValueError(f"has no {name}")
            if given[name].shape != w.shape:
                raise ValueError(f"has {name} of the shape {tuple(given[name].shape)}, and {tuple(w.shape)} is needed")
            if given[name].is_complex() or not torch.isfinite(given[name].float()).all():
                raise ValueError(f"has numbers in {name} that are not finite or not real")
        _KEPT[self._key] = {name: given[name].detach().float().clone() for name in wanted}

    @property
    def is_kept(self) -> bool:
        """Whether `keep` has been called in this process."""
        return self._key in _KEPT

    @property
    def _key(self) -> tuple[type, str | None]:
        return type(self), self.pretrained


def ours(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A torchvision state dict under the names that weights have here; those that no encoder uses stay too."""
    weights = {}
    for name, w in state.items():
        layer, _, part = name.rpartition(".")
        weights[f"{layer}.{_OURS.get(part, part)}"] = w
    return weights
