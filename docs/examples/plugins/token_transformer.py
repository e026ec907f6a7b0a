"""A small Transformer over rows of tokens: each row is a list of whole numbers below `tokens`."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from flows.plugins import register_network

Count = Annotated[int, Field(ge=1, le=1024)]


@register_network("token_transformer")
class TokenTransformer(nn.Module):
    """Embedding and places, encoder layers, the mean over tokens, a Linear."""

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int,
        tokens: Count = 16,
        width: Count = 16,
        heads: Count = 2,
        layers: Count = 1,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = nn.Parameter(torch.randn(shape[0], width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """x: (rows, tokens) to logits (rows, outputs)."""
        return self.head(self.encoder(self.tokens(x.long()) + self.places).mean(1))
