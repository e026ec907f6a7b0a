"""A logged model's answers to rows: what its card says of it, and its weights, where no checkout of siloflow is."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .client_statistics.made_as import made_as
from .networks.registry import from_json
from .raw_rows import RawRows


def of_classes(classes: Sequence[str]) -> list[str]:
    """The column of each class's probability; no class can be called so that it clashes with another column."""
    return [f"probability/{name}" for name in classes]


class Answering:
    """Rows, as they were partitioned, to label, its probability, entropy (nats) and the probability of each class.

    Of a regression they go to prediction. `params={"client": name}` chooses that client's weights; the empty name, or an
    unknown one, gets the rule for fresh clients: the global model where the method has one, else a refusal. A conditional
    model is given the statistics of the rows' client, as `siloflow stats` makes them: `params={"statistics": [...]}`, with
    its `made_as` beside them, which is compared with the card's.
    """

    def __init__(self, card: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.card, self.tensors = card, tensors
        self.network = from_json(card["network"])
        self.raw = RawRows(card["inputs"], card["targets"])

    def answer(self, rows: np.ndarray, params: Mapping[str, Any]) -> pd.DataFrame:
        """rows: (rows, *shape) array of the logged dtype; ValueError for another shape or wrong params."""
        weights = self._weights(params.get("client", ""))
        context = self._statistics(params.get("statistics", ()), params.get("made_as", ""))
        context |= {name: weights.pop(name) for name in self.card["context"] if name in weights}
        x = torch.from_numpy(np.ascontiguousarray(rows))
        shape = tuple(self.card["shape"])
        if tuple(x.shape[1:]) != shape:
            raise ValueError(f"rows have shape {tuple(x.shape[1:])}, and this model takes {shape}")
        with torch.no_grad():
            output = self.network.apply(weights, context, self.raw(x), None)
        if self.card["task"] == "regression":
            return pd.DataFrame({"prediction": self.raw.predictions(output).numpy()})
        log_p = torch.log_softmax(output, -1)
        best = log_p.argmax(-1)
        return pd.DataFrame(
            {
                "label": [self.card["classes"][i] for i in best.tolist()],
                "probability": log_p.exp().gather(1, best[:, None])[:, 0].numpy(),
                "entropy": -(log_p.exp() * log_p).sum(-1).numpy(),
                **dict(zip(of_classes(self.card["classes"]), log_p.exp().T.numpy(), strict=True)),
            }
        )

    def _weights(self, client: str) -> dict[str, Tensor]:
        shared = {k.removeprefix("shared/"): t for k, t in self.tensors.items() if k.startswith("shared/")}
        if not self.card["personal"]:
            return shared
        if client not in self.card["clients"]:
            known = ", ".join(self.card["clients"][:20])
            raise ValueError(
                f"{self.card['method']} has a model of its own for each client and none for {client!r}; "
                f'choose one by params={{"client": name}}: {known}'
            )
        place = self.card["clients"].index(client)
        personal = {k.removeprefix("personal/"): t[place] for k, t in self.tensors.items() if k.startswith("personal/")}
        return {**shared, **personal}

    def _statistics(self, given: Sequence[float], how: str) -> dict[str, Tensor]:
        wanted = self.card["statistics"]
        if wanted is None:
            return {}
        kinds = made_as(wanted["kinds"])
        takes = f"{wanted['length']} numbers" + (f" ({kinds})" if kinds else "")
        numbers = torch.tensor([float(number) for number in given]).float()
        if not len(numbers):
            raise ValueError(
                f"{self.card['method']} reads {takes} of a client beside its rows, and was given none; "
                'params={"statistics": [...]} are what `siloflow stats CLIENT --json` prints'
            )
        if len(numbers) != wanted["length"]:
            raise ValueError(f"{len(numbers)} statistics were given, and this model takes {takes}")
        if how and how != kinds:
            raise ValueError(f"the statistics were made as {how}, and this model takes {takes}")
        for place in torch.nonzero(~torch.isfinite(numbers)).flatten().tolist():
            raise ValueError(
                f"number {place + 1} of the statistics is {given[place]}, which is no finite float32 number"
            )
        return {"statistics": numbers}
