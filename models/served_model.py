"""Predicts from a logged model's card and weights, without a siloflow project."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .model_card import ModelCard, Scale
from .networks.network_factory import from_json
from .preprocessing import INPUTS_MEAN, INPUTS_SCALE, INPUTS_SEGMENTS, RawInputModel, encode
from .statistics.statistic_base import made_as

_CHUNK = 4096  # rows that pass through the network at once


def probability_columns(classes: Sequence[str]) -> list[str]:
    """Return the column name of each class's probability; the prefix avoids clashes with other columns."""
    return [f"probability/{name}" for name in classes]


def named_tensors(shared: Mapping[str, Tensor], personal: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names that ServedModel expects; personal ones have a leading axis over clients."""
    parts = (("shared", shared), ("personal", personal))
    return {f"{part}/{name}": tensor for part, tensors in parts for name, tensor in tensors.items()}


def checked_array(rows: object, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return rows as (rows, *shape) of `dtype`, uint8 or float32.

    Raises:
        ValueError: For another shape, floats as pixels, pixels outside 0 to 255, and numbers that are not finite.
    """
    try:
        array = np.asarray(rows)
        array = np.array(array.tolist()) if array.dtype == object else array
    except ValueError:
        raise ValueError(f"rows: got lists of different lengths, expected rows of shape {shape}.") from None
    if array.shape[1:] != shape or array.ndim != len(shape) + 1:
        raise ValueError(f"rows: got shape {array.shape[1:]}, expected {shape}")
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
    for index in np.argwhere(~usable).tolist():
        raise ValueError(
            f"rows: got {array[tuple(index)]} in row {index[0] + 1}, expected {expected}. Correct or drop the row."
        )
    return array.astype(dtype)


class ServedModel:
    """Predicts label, its probability, entropy (nats) and each class's probability; for regression the prediction.

    Rows of a table are a data frame with the columns of its file; the label and the like are ignored. Other rows are
    an array of the shape and type that they were partitioned in. `params={"client": name}` selects a client's weights if
    each client has a model, and is refused if all clients share one. A conditional model takes the statistics of the
    rows' client, as `siloflow stats` computes them: `params={"statistics": [...]}`, with their `made_as`, which is
    compared with the card's.
    """

    def __init__(self, card: ModelCard, tensors: Mapping[str, Tensor]) -> None:
        self.card, self.tensors = card, tensors
        self.network = from_json(card["network"])
        self.raw = RawInputModel(card["inputs"], card["targets"])

    def predict(self, rows: object, params: Mapping[str, Any]) -> pd.DataFrame:
        """Return one finite prediction per row; ValueError, which names the row, for rows or params without one."""
        weights = self._weights(params.get("client", ""))
        raw = self._raw(weights)
        context = self._statistics(params.get("statistics", ()), params.get("made_as", ""))
        context |= {name: weights.pop(name) for name in self.card["context"] if name in weights}
        x = torch.from_numpy(np.ascontiguousarray(self._checked(rows)))
        with torch.no_grad():
            parts = [self.network.apply(weights, context, raw(part), None) for part in x.split(_CHUNK)]
        output = torch.cat(parts)
        if self.card["task"] == "regression":
            predictions = pd.DataFrame({"prediction": raw.predictions(output).numpy()})
        else:
            predictions = self._classification(torch.log_softmax(output, -1))
        finite = np.isfinite(predictions.select_dtypes("number").to_numpy()).all(axis=1)
        for row in np.flatnonzero(~finite).tolist():
            raise ValueError(
                f"rows: got row {row + 1}, for which the prediction is not finite, expected values near those of "
                "the training data. Correct the row, or use a model whose training did not diverge."
            )
        return predictions

    def _raw(self, weights: dict[str, Tensor]) -> RawInputModel:
        """Return the preprocessing of rows; the client's own scale is taken out of its weights."""
        if INPUTS_MEAN not in weights:
            return self.raw
        own: Scale = {"mean": weights.pop(INPUTS_MEAN).tolist(), "scale": weights.pop(INPUTS_SCALE).tolist()}
        if INPUTS_SEGMENTS in weights:
            own["segments"] = weights.pop(INPUTS_SEGMENTS).tolist()
        return RawInputModel(own, self.card["targets"])

    def _classification(self, log_p: Tensor) -> pd.DataFrame:
        """Return the columns of a classification; log_p: (rows, classes)."""
        best = log_p.argmax(-1)
        return pd.DataFrame(
            {
                "label": [self.card["classes"][i] for i in best.tolist()],
                "probability": log_p.exp().gather(1, best[:, None])[:, 0].numpy(),
                "entropy": -(log_p.exp() * log_p).sum(-1).numpy(),
                **dict(zip(probability_columns(self.card["classes"]), log_p.exp().T.numpy(), strict=True)),
            }
        )

    def _checked(self, rows: object) -> np.ndarray:
        """Return rows as (rows, *shape) in the data's type."""
        if self.card["columns"] is not None:
            if not isinstance(rows, pd.DataFrame):
                raise ValueError(
                    f"rows: got {type(rows).__name__}, expected a data frame with the columns of the table."
                )
            reading = self.card.get("reading")  # models that earlier versions logged have none
            ignored = reading["ignored"] if reading else []
            return encode(rows.drop(columns=ignored, errors="ignore"), self.card["columns"])
        return checked_array(rows, tuple(self.card["shape"]), self.card["dtype"])

    def _weights(self, client: str) -> dict[str, Tensor]:
        shared = {k.removeprefix("shared/"): t for k, t in self.tensors.items() if k.startswith("shared/")}
        if not self.card["personal"]:
            if client:
                raise ValueError(
                    f"client: got {repr(client)[:60]}, expected none, since {self.card['method']} has one model for all "
                    "clients. Drop the parameter."
                )
            return shared
        if client not in self.card["clients"]:
            names = ", ".join(self.card["clients"][:20])
            raise ValueError(
                f"client: got {repr(client)[:60]}, expected one of {names}, since {self.card['method']} has a model of its "
                f'own for each client. Choose one by params={{"client": name}}.'
            )
        index = self.card["clients"].index(client)
        personal = {k.removeprefix("personal/"): t[index] for k, t in self.tensors.items() if k.startswith("personal/")}
        return {**shared, **personal}

    def _statistics(self, values: Sequence[float], origin: str) -> dict[str, Tensor]:
        expected = self.card["statistics"]
        if expected is None:
            if len(values) or origin:
                raise ValueError(
                    f"statistics: got {len(values)} numbers, expected none, since {self.card['method']} reads rows only. "
                    "Drop the parameters `statistics` and `made_as`."
                )
            return {}
        expected_origin = made_as(expected["kinds"])
        takes = f"{expected['length']} numbers" + (f" ({expected_origin})" if expected_origin else "")
        statistics = torch.tensor([float(number) for number in values]).float()
        if not len(statistics):
            raise ValueError(
                f"statistics: got none, expected {takes}, which {self.card['method']} reads in addition to rows. "
                f'Pass params={{"statistics": [...]}}, which `siloflow stats CLIENT --json` prints'
            )
        if len(statistics) != expected["length"]:
            raise ValueError(f"statistics: got {len(statistics)}, expected {takes}")
        if origin and origin != expected_origin:
            raise ValueError(f"statistics: got some computed as {origin}, expected {takes}")
        for index in torch.nonzero(~torch.isfinite(statistics)).flatten().tolist():
            raise ValueError(f"statistics: got {values[index]} as number {index + 1}, expected a finite float32 number")
        return {"statistics": statistics}
