"""Run the same rounds as a simulation in Flower: its message API, FedAvg, and one Ray actor a core.

Each actor has one torch thread, and opens all rows once, in the round that warms up. Clients do not evaluate. Written for
Flower 1.41 with Ray 2.55.
"""

import copy
import json
import os
import sys
import tempfile
import time

os.environ.update(  # read at import
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_LOG_LEVEL="ERROR",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # on Linux as well it makes Ray listen on 127.0.0.1 only
)

import ray
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.baselines.peer_common import answer, opened
from benchmarks.baselines.reference_loop import local_epoch

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client for a local epoch from the server's weights."""
    torch.set_num_threads(1)
    config = message.content["config"]
    clients, blank, training = opened(config["folder"], config["workload"])
    x, y = clients[int(context.node_config["partition-id"])]
    model = copy.deepcopy(blank)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    local_epoch(model, x, y, training)
    answer = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(answer), reply_to=message)


def main() -> None:
    """Print the seconds of rounds and the loss."""
    folder, described = sys.argv[1:3]
    workload = json.loads(described)
    server_app, marks = ServerApp(), list[float]()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        marks.extend(_marks(grid, folder, described))

    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        os.environ["FLWR_HOME"] = scratch
        run_simulation(
            server_app=server_app,
            client_app=client_app,
            num_supernodes=workload["clients"],
            backend_config={
                "init_args": {"num_cpus": os.cpu_count(), "_temp_dir": scratch},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
        ray.shutdown()
    clients, network, _ = opened(folder, described)
    answer(marks, network, clients)


def _marks(grid: Grid, folder: str, described: str) -> list[float]:
    """Run the rounds, and return the clock before the first round and after each.

    The opened network is left with the server's weights. RuntimeError if a client's answer is missing.
    """
    workload = json.loads(described)
    clients, rounds = workload["clients"], workload["training"]["rounds"]
    network = opened(folder, described).network
    marks: list[float] = []

    def mark(number: int, arrays: ArrayRecord) -> None:
        marks.append(time.perf_counter())

    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=clients,
        min_available_nodes=clients,
        train_metrics_aggr_fn=lambda answers, _: MetricRecord({"answers": len(answers)}),
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network.state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord({"folder": folder, "workload": described}),
        evaluate_fn=mark,
    )
    answers = [int(result.train_metrics_clientapp.get(n, {}).get("answers", 0)) for n in range(1, rounds + 1)]
    if answers != [clients] * rounds:  # Flower averages the answers it has, and continues
        raise RuntimeError(f"of {clients} clients {answers} answered, round by round")
    network.load_state_dict(result.arrays.to_torch_state_dict())
    return marks


if __name__ == "__main__":
    pass  # actors import this file: by value it would open rows every time

    main()
