"""A client's metric: the share of one class's rows that the model finds, its recall or sensitivity."""

from dataclasses import dataclass

import numpy as np

from flows.plugins import register_metric
from models.metrics.client_metrics import ClientMetric


@register_metric("detection")
@dataclass(frozen=True)
class Detection(ClientMetric):
    """The recall of the class with this code; a client without such rows has none."""

    code: int = 1

    bound = 1.0
    undefined_if = "no row of the class"

    def row_values(self, prediction: np.ndarray, y: np.ndarray) -> np.ndarray | None:
        """Return the recall plus the influence of each row, so that the mean over rows is the recall."""
        members = y == self.code
        if not members.any():
            return None
        correct = prediction.argmax(1) == y
        recall = correct[members].mean()
        return recall + members * (correct - recall) / members.mean()
