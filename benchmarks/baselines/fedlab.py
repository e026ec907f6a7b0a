"""Run the same rounds as a standalone simulation in FedLab: `SGDSerialClientTrainer`, `SyncServerHandler`, a pipeline.

One model is trained for one client after another, in one process. A `DataLoader` collates rows one by one in stored order,
as in FedLab's own data sets; means count clients, not rows. Written for FedLab 1.3.
"""

import json
import sys
import time

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.baselines.peer_common import Opened, answer, opened
from benchmarks.baselines.reference_loop import loss, optimiser
from silos.sources.torchvision_datasets import torchvision

torchvision()  # FedLab imports torchvision, which fails with a CPU build of torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Rows(FedDataset):
    """The rows of every client, in memory."""

    def __init__(self, clients: list[tuple[Tensor, Tensor]]) -> None:
        self.num = len(clients)
        self.of = [TensorDataset(x, y) for x, y in clients]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader:
        return DataLoader(self.of[id], batch_size=batch_size)


class Trainer(SGDSerialClientTrainer):
    """A trainer with the workload's loss, and a new optimiser for each client."""

    def __init__(self, work: Opened) -> None:
        super().__init__(work.network, len(work.clients))
        self.options = work.training["optimiser"]
        self.setup_dataset(Rows(work.clients))
        self.setup_optim(1, work.training["batch"], self.options["learning_rate"])
        self.criterion = loss

    def train(self, model_parameters: Tensor, train_loader: DataLoader) -> list[Tensor]:
        self.optimizer = optimiser(self._model.parameters(), self.options)
        return super().train(model_parameters, train_loader)


class Pipeline(StandalonePipeline):
    """A pipeline that reads the clock after each round, where others evaluate."""

    def __init__(self, handler: SyncServerHandler, trainer: Trainer) -> None:
        super().__init__(handler, trainer)
        self.marks = [time.perf_counter()]

    def evaluate(self) -> None:
        self.marks.append(time.perf_counter())


def main() -> None:
    """Print the seconds of rounds and the loss."""
    folder, described = sys.argv[1:3]
    torch.set_num_threads(json.loads(described)["threads"])
    work = opened(folder, described)
    handler = SyncServerHandler(work.network, work.training["rounds"], sample_ratio=1.0)
    pipeline = Pipeline(handler, Trainer(work))
    pipeline.main()
    answer(pipeline.marks, handler.model, work.clients)


if __name__ == "__main__":
    main()
