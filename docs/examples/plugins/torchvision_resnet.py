"""A residual network of torchvision, on images of one or three channels."""

from collections.abc import Sequence

from torch import Tensor, nn

from flows.plugins import register_network
from silos.sources.torchvision_datasets import torchvision


@register_network("torchvision_resnet")
class Images(nn.Module):
    """Images come as (rows, height, width) or (rows, height, width, channels), and torchvision takes channels first."""

    def __init__(self, shape: Sequence[int], outputs: int, blocks: int = 1) -> None:
        super().__init__()
        torchvision()  # also where torchvision and torch are of two builds, in every process
        from torchvision.models.resnet import BasicBlock, ResNet

        self.net = ResNet(BasicBlock, [blocks] * 4, num_classes=outputs)

    def forward(self, x: Tensor) -> Tensor:
        """x: (rows, *shape) to logits (rows, outputs)."""
        return self.net(x.reshape(*x.shape[:3], -1).movedim(-1, 1).expand(-1, 3, -1, -1))
