"""Run rounds of VIRTUAL as written by hand: Bayes by backprop, one client after another, autograd and torch's Adam.

Noise is local reparameterisation, biases are numbers, sites can only add precision: docs/methods/virtual.md. Natural
parameters are float64, rows and training float32.
"""

import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, softplus

from benchmarks.baselines.reference_loop import finish, network, open_rows


class Factor(NamedTuple):
    """Natural parameters of a layer's weights: precision * mean, and precision, (out, in) each."""

    pull: Tensor
    precision: Tensor


class Belief(NamedTuple):
    """The server's posterior of a layer, and the means with which training starts."""

    weights: Factor
    bias: Tensor
    drawn: Tensor


class GaussianLayer(nn.Module):
    """One dense layer of a client: the cavity, a mean and a site's deviation for each weight, and biases."""

    def __init__(self, belief: Belief, site: Factor, deviation: float, informed: bool) -> None:
        super().__init__()
        pull, precision = (total - own for total, own in zip(belief.weights, site, strict=True))
        start = torch.maximum(site.precision, deviation**-2 - precision).clamp_min(1e-4).rsqrt()
        self.cavity = Factor(pull, precision)
        self.cavity_mean, self.cavity_precision = (pull / precision).float(), precision.float()
        mean = belief.weights.pull / belief.weights.precision if informed else belief.drawn
        self.mean = nn.Parameter(mean.float().clone())
        self.raw = nn.Parameter(start.expm1().log().float())
        self.bias = nn.Parameter(belief.bias.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs drawn for every row, (rows, out), and the divergence from the cavity in nats, ()."""
        variance = 1 / (self.cavity_precision + softplus(self.raw) ** -2)
        ratio = self.cavity_precision * variance
        apart = self.cavity_precision * (self.mean - self.cavity_mean) ** 2
        nats = (ratio - torch.log(ratio) - 1 + apart).sum() / 2
        middle = linear(x, self.mean, self.bias)
        return middle + (linear(x**2, variance) + 1e-12).sqrt() * torch.randn_like(middle), nats

    @torch.no_grad()
    def site(self) -> Factor:
        """Return the client's posterior divided by its cavity."""
        precision = softplus(self.raw.double()) ** -2
        return Factor((self.cavity.precision + precision) * self.mean.double() - self.cavity.pull, precision)


def main() -> None:
    """Print {"rounds": [seconds, ...], "accuracy": ...}; the first round warms up and is left out."""
    folder, workload = sys.argv[1], json.loads(sys.argv[2])
    device, options = workload["engine"]["device"], workload["method"]["virtual"]
    torch.manual_seed(0)
    torch.set_num_threads(workload["threads"])
    clients, tests = (open_rows(folder, split, device) for split in ("train", "test"))
    drawn = network(workload["model"], clients[0][0].shape[1:], workload).to(device)
    server = begin(drawn, options["prior_precision"])
    sites = nothing(server, len(clients))
    seconds = []
    for number in range(workload["training"]["rounds"]):
        start = time.perf_counter()
        server, sites = one_round(server, sites, clients, workload["training"], options, number > 0)
        finish(device)
        seconds.append(time.perf_counter() - start)
    accuracy = sum(_accuracy(server, x, y, options["draws"]) for x, y in tests) / len(tests)
    print(json.dumps({"rounds": seconds[1:], "accuracy": accuracy}))


def begin(drawn: nn.Module, prior_precision: float) -> list[Belief]:
    """Return the prior of every dense layer of a network; training starts at the network's weights."""
    layers = [layer for layer in drawn.modules() if isinstance(layer, nn.Linear)]
    flat = [torch.zeros_like(layer.weight.data, dtype=torch.float64) for layer in layers]
    return [
        Belief(Factor(zero, zero + prior_precision), layer.bias.data, layer.weight.data)
        for zero, layer in zip(flat, layers, strict=True)
    ]


def nothing(server: Sequence[Belief], clients: int) -> list[list[Factor]]:
    """Return a uniform site for every layer of every client."""
    return [[Factor(*(t * 0 for t in belief.weights)) for belief in server] for _ in range(clients)]


def one_round(
    server: Sequence[Belief],
    sites: Sequence[Sequence[Factor]],
    clients: Sequence[tuple[Tensor, Tensor]],
    training: dict[str, Any],
    options: dict[str, Any],
    informed: bool,
) -> tuple[list[Belief], list[list[Factor]]]:
    """Train all clients from the same server, which takes their steps weighted by rows.

    Args:
        server: The posterior of each layer.
        sites: The sites of each client, a layer each.
        clients: The rows of each client.
        training: The block `training` of params.yaml.
        options: The parameters of `virtual`.
        informed: Whether training starts at the server's means, and not at the drawn ones.

    Returns:
        The server and the sites after the round.
    """
    total = sum(len(y) for _, y in clients)
    after, moved = list(server), []
    for site, (x, y) in zip(sites, clients, strict=True):
        layers = [
            GaussianLayer(belief, own, options["deviation"], informed) for belief, own in zip(server, site, strict=True)
        ]
        _local_epochs(layers, x, y, training, options["kl_weight"] / len(y))
        share = len(y) / total
        steps = [
            Factor(*(share * (new - old) for new, old in zip(layer.site(), own, strict=True)))
            for layer, own in zip(layers, site, strict=True)
        ]
        moved.append([_times(own, step) for own, step in zip(site, steps, strict=True)])
        after = [
            Belief(_times(sum_.weights, step), sum_.bias + share * (layer.bias.data - belief.bias), belief.drawn)
            for sum_, step, layer, belief in zip(after, steps, layers, server, strict=True)
        ]
    return after, moved


def _local_epochs(layers: Sequence[GaussianLayer], x: Tensor, y: Tensor, training: dict[str, Any], nat: float) -> None:
    """Train on a client's rows; `nat` is the weight of a nat of divergence relative to the mean loss of a row."""
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    optimiser = torch.optim.Adam(parameters, training["optimiser"]["learning_rate"])
    for _ in range(training["epochs"]):
        order = torch.randperm(len(y), device=y.device)
        for at in range(0, len(y), training["batch"]):
            index = order[at : at + training["batch"]]
            out, nats = x[index].flatten(1), torch.zeros((), device=x.device)
            for number, layer in enumerate(layers):
                out, more = layer(torch.relu(out) if number else out)
                nats = nats + more
            optimiser.zero_grad()
            (cross_entropy(out, y[index]) + nat * nats).backward()
            optimiser.step()


def _times(first: Factor, second: Factor) -> Factor:
    """Multiply two Gaussians."""
    return Factor(first.pull + second.pull, first.precision + second.precision)


@torch.no_grad()
def _accuracy(server: Sequence[Belief], x: Tensor, y: Tensor, draws: int) -> float:
    """Return the accuracy of the mean of softmax over draws of all weights."""
    answers = []
    for _ in range(draws):
        out = x.flatten(1)
        for number, (weights, bias, _) in enumerate(server):
            mean, deviation = (weights.pull / weights.precision).float(), weights.precision.rsqrt().float()
            out = linear(torch.relu(out) if number else out, mean + deviation * torch.randn_like(mean), bias)
        answers.append(torch.log_softmax(out, 1))
    mixed = torch.logsumexp(torch.stack(answers), 0) - math.log(draws)
    return float((mixed.argmax(1) == y).float().mean())


if __name__ == "__main__":
    main()
