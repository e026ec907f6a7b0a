"""What a model that leaves siloflow does with rows as they were partitioned, and with its answers."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

Scale = Mapping[str, Sequence[float]]
"""`mean` and `scale` of each number of a row, or of the target; as silos.standardizer has them."""


class RawRows(nn.Module):
    """Rows to what the network is trained on, and its outputs to units of y; the arithmetic is that of silos.standardizer.

    Pixels, uint8, are divided by 255; other numbers are scaled where there is a scale, in float64, else taken as they are.
    """

    inputs_mean: Tensor
    inputs_scale: Tensor
    targets_mean: Tensor
    targets_scale: Tensor

    def __init__(self, inputs: Scale | None, targets: Scale | None) -> None:
        super().__init__()
        self.scaled, self.answers = inputs is not None, targets is not None
        for name, of in (("inputs", inputs), ("targets", targets)):
            for part in ("mean", "scale") if of else ():
                self.register_buffer(f"{name}_{part}", torch.tensor(of[part], dtype=torch.float64))  # type: ignore[index]

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, *shape) in the type of the data to float32."""
        if rows.dtype == torch.uint8:
            return rows.float() / 255
        if not self.scaled:
            return rows.float()
        columns = rows.flatten(1).double()
        return ((columns - self.inputs_mean) / self.inputs_scale).float().reshape(rows.shape)

    def predictions(self, output: Tensor) -> Tensor:
        """(rows, 1), a network's output of a regression, to (rows,) in units of y."""
        if not self.answers:
            return output[:, 0]
        return (output[:, 0].double() * self.targets_scale + self.targets_mean).float()
