"""Uncertainty of predictions: the mean over stochastic passes or ensemble members, and its calibration."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..networks.network import Network
from ..prng import fold_in
from ..server_state import Weights
from ..training.execution_plan import Kind, Plan, resolve

_BATCH_ROWS = 256  # fixed, since each batch has its own dropout masks

BINS = 15  # of the expected calibration error


class Predictive(NamedTuple):
    """p: (clients, rows, classes), the mean over passes or members; each: (clients, rows), their mean entropy in nats."""

    p: Tensor
    each: Tensor


def predictive(
    network: Network,
    weights: Weights,
    context: Weights,
    x: Tensor,
    streams: Tensor | None,
    passes: int,
    engine: Kind = "batched",
) -> Predictive:
    """Predict by Monte-Carlo dropout (Gal and Ghahramani 2016), or by one pass without dropout.

    A network with parts is run once up to its first dropout, which the passes share.

    Args:
        network: The network; each member of a deep ensemble makes all passes.
        weights: Names to (clients, ...).
        context: Names to (clients, ...); it may be empty.
        x: (clients, rows, *shape) float32.
        streams: Random streams, (clients,); None makes one pass without dropout.
        passes: The number of passes; 0 makes one without dropout.
        engine: The form in which the network is computed.
    """
    stochastic = streams is not None and passes > 0 and network.random
    plans = [(one, resolve(one.network, engine)) for one in network.single_networks]
    batches = []
    with torch.no_grad():
        # each batch has its own dropout masks, so the batch size is a part of the result and is fixed
        for index, start in enumerate(range(0, x.shape[1], _BATCH_ROWS)):
            substreams = (
                [fold_in(fold_in(cast(Tensor, streams), index), t) for t in range(passes)] if stochastic else [None]
            )
            outputs: list[Tensor] = []
            for one, plan in plans:
                rows = x[:, start : start + _BATCH_ROWS]
                logits = _passes(plan, one.of(weights), one.of(context), rows)
                outputs += [logits(None if stream is None else one.stream(stream)) for stream in substreams]
            batches.append(average_passes(outputs))
    return Predictive(*(torch.cat(part, 1) for part in zip(*batches, strict=True)))


def average_passes(logits: Sequence[Tensor]) -> Predictive:
    """Average the probabilities of passes or members, in float64; logits: (clients, rows, classes) each."""
    p = [torch.softmax(values.double(), -1) for values in logits]
    entropies = [torch.special.entr(values).sum(-1) for values in p]
    return Predictive(sum(p[1:], p[0]) / len(p), sum(entropies[1:], entropies[0]) / len(entropies))


def uncertainty_metrics(prediction: Predictive, y: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Compute uncertainty metrics of each client over its rows.

    Args:
        prediction: The mean prediction of padded rows.
        y: The classes of these rows, (clients, rows) int64.
        counts: (clients,), how many of the rows are no padding.

    Returns:
        (clients,) float64 each, NaN without rows. entropy: of the mean prediction, in nats (UEFL, equation 6).
        mutual_information: the part due to disagreement of passes (Houlsby et al. 2011). accuracy and nll: of the mean
        prediction. brier: the sum of squares over classes. ece: the expected calibration error in 15 equal bins of
        confidence (Guo et al. 2017).
    """
    mask = torch.arange(y.shape[1], device=y.device) < counts[:, None]
    entropy = torch.special.entr(prediction.p).sum(-1)
    p_true = prediction.p.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    confidence, predicted = prediction.p.max(-1)
    correct = (predicted == y).double()
    per_row = {
        "entropy": entropy,
        "mutual_information": entropy - prediction.each,
        "accuracy": correct,
        "nll": -p_true.clamp_min(torch.finfo(torch.float64).tiny).log(),
        "brier": (prediction.p**2).sum(-1) - 2 * p_true + 1,
    }
    rows = counts.double()
    means = {name: value.masked_fill(~mask, 0).sum(1) / rows for name, value in per_row.items()}
    return {**means, "ece": _calibration(confidence, correct, mask) / rows}


def _calibration(confidence: Tensor, correct: Tensor, mask: Tensor) -> Tensor:
    """Return the sum over bins of |correct - confident|, (clients,)."""
    gap = (correct - confidence).masked_fill(~mask, 0)
    bin_index = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    return gap.new_zeros(len(gap), BINS).scatter_add_(1, bin_index, gap).abs().sum(1)


def _passes(plan: Plan, weights: Weights, context: Weights, x: Tensor) -> Callable[[Tensor | None], Tensor]:
    """Return logits as a function of a stream; a network with parts is computed once up to its first dropout."""
    parts = plan.encoder_head
    if parts is None:
        return lambda streams: plan.logits(weights, context, x, streams)
    z, _ = parts.encode_stack(weights, context, x)
    embedding = parts.pre_head_stack(weights, context, z)
    return lambda streams: parts.apply_head(weights, embedding, streams)
