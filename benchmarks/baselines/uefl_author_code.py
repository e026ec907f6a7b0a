"""Run rounds of UEFL as its authors' repository does: a copy of the model a silo, whole passes, k-means for all silos.

After the local epoch of all silos, each silo passes its rows 20 times through the whole network, one silo after another.
Then every silo clusters all of its tokens. Written for this comparison; docs/methods/uefl_authors.md describes the
repository.
"""

import copy
import json
import sys
import time
from typing import Any

import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor, nn

from benchmarks.baselines.reference_loop import finish, network, open_rows


class VectorQuantised(nn.Module):
    """The encoder, codebook and classifier of the workload."""

    def __init__(self, whole: nn.Sequential, words: int, channels: int) -> None:
        super().__init__()
        flat = next(i for i, layer in enumerate(whole) if isinstance(layer, nn.Flatten))
        self.encoder, self.classifier = whole[:flat], whole[flat:]
        self.words = nn.Parameter(torch.randn(words, channels))

    def tokens(self, x: Tensor) -> Tensor:
        """Return the tokens: (rows, height, width, channels)."""
        features: Tensor = self.encoder(x).permute(0, 2, 3, 1)
        return features.contiguous()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, and the distance between words and tokens."""
        z = self.tokens(x)
        flat = z.view(-1, z.shape[-1])
        far = (flat**2).sum(1, keepdim=True) + (self.words**2).sum(1) - 2 * flat @ self.words.T
        chosen = torch.zeros_like(far).scatter_(1, far.argmin(1, keepdim=True), 1)
        c = (chosen @ self.words).view_as(z)
        distance = nn.functional.mse_loss(c, z.detach()) + 0.25 * nn.functional.mse_loss(z, c.detach())
        straight = z + (c - z).detach()
        return self.classifier(straight.permute(0, 3, 1, 2)), distance


def main() -> None:
    """Print {"rounds": [seconds, ...]}; the first round warms up and is left out."""
    folder, workload = sys.argv[1], json.loads(sys.argv[2])
    device = workload["engine"]["device"]
    torch.manual_seed(0)
    torch.set_num_threads(workload["threads"])
    clients, checks = (open_rows(folder, split, device) for split in ("train", "validation"))
    options = workload["method"]["uefl"]
    whole = network(workload["model"], clients[0][0].shape[1:], workload)
    server = VectorQuantised(whole, options["words"], workload["model"]["channels"][-1]).to(device)
    seconds = []
    with threadpool_limits(workload["threads"]):
        for _ in range(workload["training"]["rounds"]):
            start = time.perf_counter()
            _round(server, clients, checks, workload["training"], options)
            finish(device)
            seconds.append(time.perf_counter() - start)
    print(json.dumps({"rounds": seconds[1:]}))


def _round(
    server: VectorQuantised,
    clients: list[tuple[Tensor, Tensor]],
    checks: list[tuple[Tensor, Tensor]],
    training: dict[str, Any],
    options: dict[str, Any],
) -> None:
    copies = [copy.deepcopy(server) for _ in clients]
    for model, (x, y) in zip(copies, clients, strict=True):
        _local_epoch(model, x, y, training)
    states = [model.state_dict() for model in copies]
    server.load_state_dict({k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]})
    with torch.no_grad():
        for model, (x, _) in zip(copies, checks, strict=True):
            passes = [torch.softmax(model(x)[0], 1) for _ in range(options["passes"])]
            torch.special.entr(torch.stack(passes).mean(0)).sum(1).mean()
        for model, (x, _) in zip(copies, clients, strict=True):
            tokens = model.tokens(x).flatten(0, 2).cpu().numpy()
            clusters = KMeans(options["words"], n_init=1, random_state=0).fit(tokens)
            model.words.data = torch.from_numpy(clusters.cluster_centers_).to(x.device)


def _local_epoch(model: VectorQuantised, x: Tensor, y: Tensor, training: dict[str, Any]) -> None:
    optimiser = torch.optim.Adam(model.parameters(), training["optimiser"]["learning_rate"])
    order = torch.randperm(len(y), device=y.device)
    for at in range(0, len(y), training["batch"]):
        index = order[at : at + training["batch"]]
        optimiser.zero_grad()
        logits, distance = model(x[index])
        (nn.functional.cross_entropy(logits, y[index]) + distance).backward()
        optimiser.step()


if __name__ == "__main__":
    main()
