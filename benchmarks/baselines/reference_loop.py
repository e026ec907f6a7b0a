"""Run rounds of FedAvg as written by hand: one client after another, a deep copy of the model, permuted rows."""

import copy
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from silos.cohort import Silos, make_stacks, open_stack


def main() -> None:
    """Print {"rounds": [seconds, ...], "loss": ...}; the first round warms up and is left out."""
    folder, workload = sys.argv[1], json.loads(sys.argv[2])
    device, every = workload["engine"]["device"], workload["evaluation"]["every"]
    torch.manual_seed(0)
    torch.set_num_threads(workload["threads"])
    clients, tests = (open_rows(folder, split, device) for split in ("train", "test"))
    server = network(workload["model"], clients[0][0].shape[1:], workload).to(device)
    rounds = workload["training"]["rounds"]
    seconds = []
    for number in range(1, rounds + 1):
        start = time.perf_counter()
        _round(server, clients, workload["training"])
        if every < rounds and number % every == 0:
            _evaluate(server, tests)
        finish(device)
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"rounds": seconds[1:], "loss": mean_loss(server, clients)}))


def finish(device: str) -> None:
    """Wait until a GPU has computed what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def open_rows(folder: str, split: str, device: str = "cpu") -> list[tuple[Tensor, Tensor]]:
    """Open every client's x: (rows, *shape) and y: (rows,), in the memory of the device."""
    silos = Silos.open(Path(folder), "bench")
    opened = [open_stack(silos, stack, split) for stack in make_stacks(silos, 1)]
    return [(torch.from_numpy(o.x[0]).clone().to(device), torch.from_numpy(o.y[0]).clone().to(device)) for o in opened]


def network(model: dict[str, Any], shape: tuple[int, ...], workload: dict[str, Any]) -> nn.Sequential:
    """Build the workload's network, with weights drawn from torch's global generator.

    Args:
        model: The block `model` of params.yaml.
        shape: The shape of a row.
        workload: The whole workload.
    """
    outputs = 1 if workload["training"]["objective"]["kind"] == "squared_error" else 10
    if model["kind"] == "mlp":
        layers: list[nn.Module] = [nn.Flatten()]
        inside = int(torch.Size(shape).numel())
    else:
        layers = [nn.Unflatten(1, (1, shape[0]))]
        for inside, outside in zip((1, *model["channels"]), model["channels"], strict=False):
            layers += [nn.Conv2d(inside, outside, model["kernel"]), nn.MaxPool2d(2), nn.ReLU()]
        layers.append(nn.Flatten())
        inside = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
    for width in model["hidden"]:
        layers += [nn.Linear(inside, width), nn.ReLU()]
        inside = width
    return nn.Sequential(*layers, nn.Linear(inside, outputs))


def local_epoch(model: nn.Module, x: Tensor, y: Tensor, training: dict[str, Any]) -> None:
    """Train a model in place for one pass over a client's permuted rows.

    Args:
        model: The client's model.
        x: (rows, *shape).
        y: (rows,).
        training: The block `training` of params.yaml.
    """
    steps = optimiser(model.parameters(), training["optimiser"])
    order = torch.randperm(len(y), device=y.device)
    for at in range(0, len(y), training["batch"]):
        index = order[at : at + training["batch"]]
        steps.zero_grad()
        loss(model(x[index]), y[index]).backward()
        steps.step()


def loss(out: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss of a batch: squared error of numbers, cross-entropy of classes."""
    if y.is_floating_point():
        return nn.functional.mse_loss(out.squeeze(1), y)
    return nn.functional.cross_entropy(out, y)


def optimiser(parameters: Iterable[Tensor], options: dict[str, Any]) -> torch.optim.Optimizer:
    """Make a client's optimiser, which is new in every round."""
    if options["kind"] == "sgd":
        return torch.optim.SGD(parameters, options["learning_rate"])
    return torch.optim.AdamW(parameters, options["learning_rate"], weight_decay=options["weight_decay"])


@torch.no_grad()
def mean_loss(server: nn.Module, clients: list[tuple[Tensor, Tensor]]) -> float:
    """Return the mean loss over the rows of all clients."""
    return sum(float(loss(server(x), y)) * len(y) for x, y in clients) / sum(len(y) for _, y in clients)


def _round(server: nn.Module, clients: list[tuple[Tensor, Tensor]], training: dict[str, Any]) -> None:
    """Train all clients for one local epoch, then average by rows."""
    total = sum(len(y) for _, y in clients)
    mean = {k: torch.zeros_like(w) for k, w in server.state_dict().items()}
    for x, y in clients:
        model = copy.deepcopy(server)
        local_epoch(model, x, y, training)
        for k, w in model.state_dict().items():
            mean[k].add_(w, alpha=len(y) / total)
    server.load_state_dict(mean)


@torch.no_grad()
def _evaluate(server: nn.Module, tests: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Return the accuracy of each client."""
    return [float((server(x).argmax(1) == y).float().mean()) for x, y in tests]


if __name__ == "__main__":
    main()
