"""Boosted trees as a network: the nodes are tensors, so that trees are scored, logged, served and exported like weights.

scikit-learn trains the trees; no gradient moves them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..server_state import Weights
from .network import Network, register

_FLOOR = 1e-6  # least probability of a class, since a silo's trees know only the classes of its rows
_UNKNOWN = -1e4  # score of a class that a silo has no row of


@register("trees")
@dataclass(frozen=True)
class TreeEnsemble(Network):
    """Silos vote with their boosted trees; a silo alone is one vote.

    A classification mixes the silos' probabilities, a regression their predictions. Weights, for S silos with I
    iterations of K trees and N nodes: `feature`, `left` and `right` (S, I, K, N) int32; `threshold`, `value` (S, I, K,
    N); `baseline` (S, outputs); `vote` (S,). A row goes left if its feature is at most the threshold, and a leaf's
    children are the leaf itself. K is 1 for a regression and for two classes, where trees score the second class.
    """

    inputs: int
    outputs: int
    iterations: int
    leaves: int
    depth: int
    silos: int = 1

    dropout = 0.0
    maps = False  # a gather by client is as fast one client after another

    @property
    def trees(self) -> int:
        """Return K, the trees of one iteration."""
        return self.outputs if self.outputs > 2 else 1

    @property
    def max_width(self) -> int:
        return self.silos * self.iterations * self.trees

    @property
    def buffers(self) -> tuple[str, ...]:
        """Return all weights: none has a gradient."""
        return ("baseline", "feature", "left", "right", "threshold", "value", "vote")

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Return trees of one leaf, whose scores are 0; nothing is drawn."""
        shape = (self.silos, self.iterations, self.trees, 2 * self.leaves - 1)
        floats = {name: torch.zeros(shape) for name in ("threshold", "value")}
        whole = {name: torch.zeros(shape, dtype=torch.int32) for name in ("feature", "left", "right")}
        return {**floats, **whole, "baseline": torch.zeros(self.silos, self.outputs), "vote": torch.ones(self.silos)}

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Map x (rows, *shape) to logits (rows, outputs): the logarithm of the mixed probabilities, or the prediction."""
        x, shape = x.flatten(1), weights["value"].shape
        nodes = {name: weights[name].flatten(0, 2) for name in ("feature", "left", "right", "threshold", "value")}
        tree = torch.arange(shape[0] * shape[1] * shape[2], device=x.device)[None]
        node = torch.zeros_like(x[:, :1], dtype=torch.int64) + torch.zeros_like(tree)  # the roots, (rows, trees)
        for _ in range(self.depth):
            below = x.gather(1, nodes["feature"][tree, node].long()) <= nodes["threshold"][tree, node]
            node = torch.where(below, nodes["left"][tree, node], nodes["right"][tree, node]).long()
        scores = nodes["value"][tree, node].view(-1, *shape[:3]).sum(2)  # (rows, silos, trees)
        if self.outputs == 2:
            scores = torch.cat([torch.zeros_like(scores), scores], -1)
        scores = scores + weights["baseline"]
        share = weights["vote"] / weights["vote"].sum()
        if self.outputs == 1:
            return (scores * share[:, None]).sum(1)
        mixed = (torch.softmax(scores, -1) * share[:, None]).sum(1)
        return torch.log(mixed * (1 - _FLOOR) + _FLOOR / self.outputs)


def fit_trees(network: TreeEnsemble, x: np.ndarray, y: np.ndarray, rate: float, least_rows: int) -> dict[str, Tensor]:
    """Train one silo's trees with scikit-learn's histogram gradient boosting; return weights of one vote per row.

    Classes without a row get no probability. One class, or a target that never changes, needs no tree.

    Args:
        network: The sizes; `silos` is 1.
        x: Rows, (rows, *shape).
        y: Class indices, or numbers for a regression, (rows,).
        rate: The learning rate.
        least_rows: The least rows of a leaf.
    """
    weights = network.init(torch.empty(0))
    weights["vote"] = torch.tensor([float(len(y))])
    x = x.reshape(len(y), -1)
    values, baseline = np.unique(y), weights["baseline"][0]
    if network.outputs == 1:
        baseline[0] = float(y.mean())
    else:
        baseline[:] = _UNKNOWN
        baseline[values] = 0.0
    if len(values) < 2:
        return weights
    model = _boosting(network, rate, least_rows).fit(x, y)
    start = torch.from_numpy(model._baseline_prediction.ravel().astype(np.float32))
    columns: Sequence[int] = [0]  # the tree of each of scikit-learn's scores
    if network.outputs == 1:
        baseline[:] = start
    elif len(values) == 2:
        baseline[int(values[1])] = start[0]
        columns = [int(values[1]) if network.outputs > 2 else 0]
    else:
        baseline[values] = start
        columns = values.tolist()
    for iteration, predictors in enumerate(model._predictors):
        for column, predictor in zip(columns, predictors, strict=True):
            _copy_nodes(predictor.nodes, {n: w[0, iteration, column] for n, w in weights.items() if w.dim() == 4})
    return weights


def _boosting(network: TreeEnsemble, rate: float, least_rows: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor  # takes half a second

    kind = HistGradientBoostingRegressor if network.outputs == 1 else HistGradientBoostingClassifier
    return kind(
        learning_rate=rate,
        max_iter=network.iterations,
        max_leaf_nodes=network.leaves,
        max_depth=network.depth,
        min_samples_leaf=least_rows,
        early_stopping=False,
        random_state=0,  # draws rows for the bins of more than 200,000 rows
    )


def _copy_nodes(nodes: np.ndarray, tree: Weights) -> None:
    """Write scikit-learn's nodes of one tree into tensors (nodes,)."""
    count, leaf, index = len(nodes), nodes["is_leaf"].astype(bool), np.arange(len(nodes))
    threshold = nodes["num_threshold"].astype(np.float32)
    above = threshold > nodes["num_threshold"]  # round down, so that float32 rows go where they did in training
    threshold[above] = np.nextafter(threshold[above], np.float32(-np.inf))
    found = {
        "feature": np.where(leaf, 0, nodes["feature_idx"]),
        "left": np.where(leaf, index, nodes["left"]),
        "right": np.where(leaf, index, nodes["right"]),
        "threshold": np.where(leaf, 0, threshold),
        "value": np.where(leaf, nodes["value"], 0),
    }
    for name, values in found.items():
        tree[name][:count] = torch.from_numpy(values.astype(np.float64)).to(tree[name].dtype)
