"""Run the same rounds as a simulation in Apple's pfl-research: `FederatedAveraging` on a `SimulatedBackend`.

One model is trained for one client after another, in one process. Batches are cut in stored order, and means are by rows.
In the round that warms up clients are evaluated before and after training, as pfl always does. Written for pfl 0.6.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

os.environ.update(PFL_PYTORCH_DEVICE="cpu")  # read at import; by default pfl takes a GPU

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.baselines.peer_common import answer, opened
from benchmarks.baselines.reference_loop import loss, optimiser


class Trained(nn.Module):
    """A network that computes its own loss and metrics, as pfl requires."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return loss(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Return the metrics of a batch."""
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Clock(TrainingProcessCallback):
    """Records the clock before the first round, and after each."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.marks.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.marks.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    """Print the seconds of rounds and the loss."""
    folder, described = sys.argv[1:3]
    torch.set_num_threads(json.loads(described)["threads"])
    np.random.seed(0)
    clients, network, training = opened(folder, described)
    trained, rounds = Trained(network), training["rounds"]
    model = PyTorchModel(
        model=trained,
        local_optimizer_create=partial(_local, training["optimiser"]),
        central_optimizer=torch.optim.SGD(trained.parameters(), lr=1.0),  # the mean itself
    )
    users = list(range(len(clients)))
    data = FederatedDataset(lambda i: Dataset(clients[i]), get_user_sampler("minimize_reuse", users))
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=len(clients),
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=training["optimiser"]["learning_rate"],
            local_batch_size=training["batch"],
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
    )
    answer(clock.marks, network, clients)


def _local(options: dict[str, Any], parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
    """Make a client's optimiser, as pfl calls it."""
    return optimiser(parameters, {**options, "learning_rate": lr})


if __name__ == "__main__":
    main()
