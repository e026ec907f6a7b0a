"""What a model says of its own doubt: the mean of several stochastic passes, and how it keeps to the truth."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..networks.network import Network
from ..prng import fold_in
from ..server_state import Weights
from ..training.execution_plan import Kind, Plan, resolve

_ROWS_AT_ONCE = 256  # fixed, since each piece draws its own masks

BINS = 15  # of the expected calibration error


class Predictive(NamedTuple):
    """p: (clients, rows, classes), the mean over passes or members; `each`: (clients, rows), their mean entropy in nats."""

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
    """`passes` of Monte-Carlo dropout (Gal and Ghahramani 2016), or one without dropout if there are no streams.

    Of a deep ensemble every member makes so many. weights, context: (clients, ...); x: (clients, rows, *shape); streams:
    (clients,). A network in parts is run once up to its first dropout: the passes share what they would repeat.
    """
    random = streams is not None and passes > 0 and network.random
    plans = [(one, resolve(one.network, engine)) for one in network.single_networks]
    pieces = []
    with torch.no_grad():
        for number, at in enumerate(range(0, x.shape[1], _ROWS_AT_ONCE)):
            substreams = (
                [fold_in(fold_in(cast(Tensor, streams), number), t) for t in range(passes)] if random else [None]
            )
            outputs: list[Tensor] = []
            for one, plan in plans:
                rows = x[:, at : at + _ROWS_AT_ONCE]
                logits = _passes(plan, one.of(weights), one.of(context), rows)
                outputs += [logits(None if stream is None else one.stream(stream)) for stream in substreams]
            pieces.append(together(outputs))
    return Predictive(*(torch.cat(part, 1) for part in zip(*pieces, strict=True)))


def together(logits: Sequence[Tensor]) -> Predictive:
    """The mean of the passes' or members' probabilities, in float64; logits: (clients, rows, classes) each."""
    p = [torch.softmax(one.double(), -1) for one in logits]
    each = [torch.special.entr(one).sum(-1) for one in p]
    return Predictive(sum(p[1:], p[0]) / len(p), sum(each[1:], each[0]) / len(each))


def doubts(prediction: Predictive, y: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Numbers of each client, (clients,) float64, over its first `counts` rows; y (clients, rows). No rows give NaN.

    entropy: of the mean prediction, in nats (UEFL, equation 6); mutual_information: what of it the passes disagree on
    (Houlsby et al. 2011); accuracy and nll of the mean prediction; brier: sum of squares over classes; ece: expected
    calibration error in 15 equal bins of confidence (Guo et al. 2017).
    """
    used = torch.arange(y.shape[1], device=y.device) < counts[:, None]
    entropy = torch.special.entr(prediction.p).sum(-1)
    truth = prediction.p.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    confidence, guess = prediction.p.max(-1)
    right = (guess == y).double()
    per_row = {
        "entropy": entropy,
        "mutual_information": entropy - prediction.each,
        "accuracy": right,
        "nll": -truth.clamp_min(torch.finfo(torch.float64).tiny).log(),
        "brier": (prediction.p**2).sum(-1) - 2 * truth + 1,
    }
    rows = counts.double()
    numbers = {name: value.masked_fill(~used, 0).sum(1) / rows for name, value in per_row.items()}
    return {**numbers, "ece": _calibration(confidence, right, used) / rows}


def _calibration(confidence: Tensor, right: Tensor, used: Tensor) -> Tensor:
    """Sum over bins of |right - confident|, (clients,)."""
    gap = (right - confidence).masked_fill(~used, 0)
    place = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    return gap.new_zeros(len(gap), BINS).scatter_add_(1, place, gap).abs().sum(1)


def _passes(plan: Plan, weights: Weights, context: Weights, x: Tensor) -> Callable[[Tensor | None], Tensor]:
    """Logits by stream, everything before the first dropout computed once where the network has parts."""
    parts = plan.encoder_head
    if parts is None:
        return lambda streams: plan.logits(weights, context, x, streams)
    z, _ = parts.encode_stack(weights, context, x)
    settled = parts.settle_stack(weights, context, z)
    return lambda streams: parts.finish(weights, settled, streams)
