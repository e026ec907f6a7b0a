"""A logged model's answers to rows: what its card says of it, and its weights, where no checkout of siloflow is."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .networks.network_factory import from_json
from .preprocessing import RawInputModel, encode
from .statistics.statistic_base import made_as


def of_classes(classes: Sequence[str]) -> list[str]:
    """The column of each class's probability; no class can be called so that it clashes with another column."""
    return [f"probability/{name}" for name in classes]


def checked_array(rows: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return rows as (rows, *shape) of `dtype`, uint8 or float32.

    Raises:
        ValueError: for rows of another shape, floats as pixels, pixels outside of 0 to 255, and numbers that are not finite.
    """
    try:
        array = np.asarray(rows)
        array = np.array(array.tolist()) if array.dtype == object else array
    except ValueError:
        raise ValueError(f"rows: got lists of different lengths, expected rows of shape {shape}.") from None
    if array.shape[1:] != shape or array.ndim != len(shape) + 1:
        raise ValueError(f"rows have shape {array.shape[1:]}, and this model takes {shape}")
    if dtype == "uint8":
        if array.dtype.kind not in "iu":
            raise ValueError(
                f"rows: got {array.dtype}, expected pixels as whole numbers from 0 to 255 (uint8). Undo any scaling; the "
                "model divides by 255 itself."
            )
        usable, expected = (array >= 0) & (array <= 255), "whole numbers from 0 to 255"
    else:
        if array.dtype.kind not in "iuf":
            raise ValueError(f"rows: got {array.dtype}, expected finite {dtype} numbers.")
        with np.errstate(over="ignore"):
            usable, expected = np.isfinite(array.astype(dtype)), f"finite {dtype} numbers"
    for at in np.argwhere(~usable).tolist():
        raise ValueError(
            f"rows: got {array[tuple(at)]} in row {at[0] + 1}, expected {expected}. Correct or drop the row."
        )
    return array.astype(dtype)


class Answering:
    """Rows to label, its probability, entropy (nats) and the probability of each class; of a regression to prediction.

    Rows of a table come as a data frame with the columns of its file, other rows as an array of the shape and type that
    they were partitioned in. `params={"client": name}` chooses a client's weights where each client has a model, and is
    refused where there is one for all. A conditional model is given the statistics of the rows' client, as `siloflow stats`
    makes them: `params={"statistics": [...]}`, with their `made_as`, which is compared with the card's.
    """

    def __init__(self, card: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.card, self.tensors = card, tensors
        self.network = from_json(card["network"])
        self.raw = RawInputModel(card["inputs"], card["targets"])

    def answer(self, rows: Any, params: Mapping[str, Any]) -> pd.DataFrame:
        """Return one finite answer a row; ValueError, which names the row, for rows or params that have none."""
        weights = self._weights(params.get("client", ""))
        context = self._statistics(params.get("statistics", ()), params.get("made_as", ""))
        context |= {name: weights.pop(name) for name in self.card["context"] if name in weights}
        x = torch.from_numpy(np.ascontiguousarray(self._checked(rows)))
        with torch.no_grad():
            output = self.network.apply(weights, context, self.raw(x), None)
        if self.card["task"] == "regression":
            made = pd.DataFrame({"prediction": self.raw.predictions(output).numpy()})
        else:
            made = self._of_classes(torch.log_softmax(output, -1))
        finite = np.isfinite(made.select_dtypes("number").to_numpy()).all(axis=1)
        for at in np.flatnonzero(~finite).tolist():
            raise ValueError(
                f"rows: got row {at + 1}, for which the answer of this model is not finite, expected values near those of "
                "the training data. Correct the row, or use a model whose training did not diverge."
            )
        return made

    def _of_classes(self, log_p: Tensor) -> pd.DataFrame:
        """log_p: (rows, classes)."""
        best = log_p.argmax(-1)
        return pd.DataFrame(
            {
                "label": [self.card["classes"][i] for i in best.tolist()],
                "probability": log_p.exp().gather(1, best[:, None])[:, 0].numpy(),
                "entropy": -(log_p.exp() * log_p).sum(-1).numpy(),
                **dict(zip(of_classes(self.card["classes"]), log_p.exp().T.numpy(), strict=True)),
            }
        )

    def _checked(self, rows: Any) -> np.ndarray:
        """Return rows as (rows, *shape) of the data's type."""
        if self.card["columns"] is not None:
            if not isinstance(rows, pd.DataFrame):
                raise ValueError(
                    f"rows: got {type(rows).__name__}, expected a data frame with the columns of the table."
                )
            return encode(rows, self.card["columns"])
        return checked_array(rows, tuple(self.card["shape"]), self.card["dtype"])

    def _weights(self, client: str) -> dict[str, Tensor]:
        shared = {k.removeprefix("shared/"): t for k, t in self.tensors.items() if k.startswith("shared/")}
        if not self.card["personal"]:
            if client:
                raise ValueError(
                    f"client: got {client!r}, expected none, since {self.card['method']} has one model for all clients. "
                    "Drop the parameter."
                )
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
            if len(given) or how:
                raise ValueError(
                    f"statistics: got {len(given)} numbers, expected none, since {self.card['method']} reads rows only. "
                    "Drop the parameters `statistics` and `made_as`."
                )
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
