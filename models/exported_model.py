"""A client's model as one torch module, to be exported: rows as they were partitioned to what a program wants to know."""

from typing import Any

import torch
from torch import Tensor, nn

from .networks.network import Network
from .preprocessing import RawInputModel
from .server_state import Weights


class ExportedModel(nn.Module):
    """(rows, *shape) in the type of the data to probabilities (rows, classes) float32; to (rows,) of a regression.

    Pixels, uint8, are divided by 255 inside, and other numbers scaled, as in training; `raw` does so. Weights and context
    are one client's, without a client axis, and become constants. Dropout is off.
    """

    def __init__(
        self, network: Network, weights: Weights, context: Weights, classes: int, raw: RawInputModel | None = None
    ) -> None:
        super().__init__()
        self.network, self.classes, self.raw = network, classes, raw or RawInputModel(None, None)
        self.parts = self._hold("weight", weights), self._hold("context", context)

    def forward(self, rows: Tensor) -> Tensor:
        """See the class."""
        weights, context = ({name: getattr(self, held) for name, held in part.items()} for part in self.parts)
        output = self.network.apply(weights, context, self.raw(rows), None)
        return torch.softmax(output, -1) if self.classes else self.raw.predictions(output)

    def traced(self, example: Tensor) -> Any:
        """Its torch.export program for any number of rows; the example has two or more."""
        return torch.export.export(self.eval(), (example,), dynamic_shapes=any_rows())

    def _hold(self, part: str, tensors: Weights) -> dict[str, str]:
        """Names to those of buffers, in which torch takes no point; the number tells apart what would be one name."""
        names = {n: f"{part}{at}_{n.replace('.', '_').replace('/', '_')}" for at, n in enumerate(tensors)}
        for name, held in names.items():
            self.register_buffer(held, tensors[name].detach().clone())
        return names


def any_rows() -> dict[str, dict[int, Any]]:
    """What torch is told of the input's shape: its first axis may have any length."""
    return {"rows": {0: torch.export.Dim("rows")}}
