"""What the contestants that are other people's frameworks share: what they open, and what they answer."""

import json
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.baselines.reference_loop import mean_loss, network, open_rows


class Opened(NamedTuple):
    """Every client's rows, the network that all start from (the plain loop's), and how to train it."""

    clients: list[tuple[Tensor, Tensor]]
    network: nn.Module
    training: dict[str, Any]


@cache
def opened(folder: str, described: str) -> Opened:
    """What `described`, the bench's JSON, asks for; once a process."""
    asked = json.loads(described)
    torch.manual_seed(0)
    clients = open_rows(folder, "train")
    return Opened(clients, network(asked["model"], clients[0][0].shape[1:], asked), asked["training"])


def answer(marks: list[float], server: nn.Module, clients: list[tuple[Tensor, Tensor]]) -> None:
    """Prints {"rounds": [seconds, ...], "loss": the server's at the end}.

    The marks are the clock's before the first round and after each; the first round warms up and is left out.
    """
    rounds = [b - a for a, b in pairwise(marks)][1:]
    print(json.dumps({"rounds": rounds, "loss": mean_loss(server, clients)}))
