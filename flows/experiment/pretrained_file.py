"""model.pretrained: a file of torchvision's weights becomes what an encoder starts from."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.networks.registry import kind_of
from models.networks.vision.pretrained import Pretrained
from silos.errors import UserError
from silos.io.atomic_io import is_there


def started(network: Pretrained, path: Path) -> Pretrained:
    """The network that starts from this file, known by its SHA-256; UserError if it is not there or holds something else.

    torch opens it as tensors only: a file that would run code is refused. Nothing is downloaded.
    """
    way_out = (
        f"name a state dict of torchvision's {kind_of(network)} (what torchvision has downloaded lies in "
        "~/.cache/torch/hub/checkpoints), or set model.pretrained to null"
    )
    where = f"params.yaml: model.pretrained: {path}"
    if not is_there(path):
        raise UserError(f"{where} is no file; {way_out}.")
    with path.open("rb") as file:
        network = replace(network, pretrained=hashlib.file_digest(file, "sha256").hexdigest())
        if network.is_kept:
            return network
        file.seek(0)
        try:
            network.keep(_state(torch.load(file, map_location="cpu", weights_only=True)))
        except ValueError as error:
            raise UserError(f"{where} {error}; {way_out}.") from None
        except Exception as error:  # torch raises whatever pickle, zipfile and its own readers do
            raise UserError(f"{where} cannot be read as tensors ({type(error).__name__}); {way_out}.") from error
    return network


def _state(content: Any) -> dict[str, Tensor]:
    if not isinstance(content, dict) or not all(isinstance(w, Tensor) for w in content.values()):
        raise ValueError("holds something else than named tensors")
    return content
