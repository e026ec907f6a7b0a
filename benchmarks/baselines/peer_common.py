"""Open the rows of a workload for peer frameworks, and print their measurements."""

import json
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.baselines.reference_loop import mean_loss, network, open_rows


class Opened(NamedTuple):
    """The rows of every client, the initial network (the plain loop's), and how to train it."""

    clients: list[tuple[Tensor, Tensor]]
    network: nn.Module
    training: dict[str, Any]


@cache
def opened(folder: str, described: str) -> Opened:
    """Open the workload that the JSON `described` describes, once a process."""
    workload = json.loads(described)
    torch.manual_seed(0)
    clients = open_rows(folder, "train")
    return Opened(clients, network(workload["model"], clients[0][0].shape[1:], workload), workload["training"])


def answer(marks: list[float], server: nn.Module, clients: list[tuple[Tensor, Tensor]]) -> None:
    """Print {"rounds": [seconds, ...], "loss": ...}; the first round warms up and is left out.

    Args:
        marks: The clock before the first round and after each.
        server: The server's network at the end.
        clients: The rows of every client.
    """
    rounds = [b - a for a, b in pairwise(marks)][1:]
    print(json.dumps({"rounds": rounds, "loss": mean_loss(server, clients)}))
