"""torchvision's ResNet18 on small images of one or three channels."""

from collections.abc import Sequence

from torch import Tensor, nn

from flows.plugins import register_network
from silos.sources.vision import torchvision  # also where torchvision and torch are of two builds

torchvision()
from torchvision.models.resnet import BasicBlock, ResNet  # noqa: E402


@register_network("torchvision_resnet")
class Images(nn.Module):
    """Images come as (rows, height, width) or (rows, height, width, channels), and torchvision takes channels first."""

    def __init__(self, shape: Sequence[int], outputs: int, blocks: int = 1) -> None:
        super().__init__()
        self.colours = len(shape) == 3 and shape[2] == 3
        self.net = ResNet(BasicBlock, [blocks] * 4, num_classes=outputs)

    def forward(self, x: Tensor) -> Tensor:
        """x: (rows, *shape) to logits (rows, outputs)."""
        return self.net(x.movedim(-1, 1) if self.colours else x.flatten(3).unsqueeze(1).expand(-1, 3, -1, -1))
