"""Define the workloads of `siloflow bench`: clients, rows, a network, a method, and the contestants."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from silos.errors import UserError

THREADS = 2


@dataclass(frozen=True)
class Workload:
    """A number of clients with a number of rows each, a network, and one local epoch a round."""

    name: str
    clients: int
    rows: int
    about: str
    model: dict[str, Any]
    batch: int
    optimiser: dict[str, Any]
    rounds: int
    shape: tuple[int, ...] = ()  # of a row of pixels; if empty, the source is `synthetic` with the task linear
    workers: int = THREADS
    every: int | None = None  # rounds between evaluations; None is no evaluation
    objective: dict[str, Any] = field(default_factory=lambda: {"kind": "cross_entropy"})
    method: str = "fedavg"
    options: dict[str, Any] = field(default_factory=dict)  # the method's parameters
    plain: str = "plain"  # the contestant written by hand
    checked: int = 0  # validation rows of a client
    learned: int = 0  # test rows of a client for the accuracy; if not 0, pixels depend on the label
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name to arguments of `siloflow run`

    @property
    def by_hand(self) -> list[str]:
        """Return the contestants written by hand: with one torch thread and with two."""
        return [f"{self.plain} 1", f"{self.plain} 2"]

    def contestants(self, peers: Sequence[str], device: str = "cpu") -> list[str]:
        """Return the contestants; peers implement FedAvg only, and torch's threads matter on a CPU only."""
        by_hand = self.by_hand if device == "cpu" else self.by_hand[:1]
        return [*by_hand, "siloflow", *self.others, *(peers if self.method == "fedavg" else ())]

    def params(self, device: str = "cpu") -> dict[str, Any]:
        """Return the content of params.yaml, for clients that are computed on this device."""
        data: dict[str, Any] = {"name": self.name.lower(), "seed": 0, "split": {"validation": 0.0, "test": 0.0}}
        if self.shape:
            data["source"] = {"kind": "npz", "path": f"{self.name}.npz"}
        else:
            law = {"kind": "synthetic", "task": "linear", "clusters": 3, "clients_per_cluster": self.clients // 3}
            data["source"] = {**law, "rows": self.rows, "test_rows": 2}
        data["scheme"] = [{"kind": "column", "column": "client"}]
        return {
            "data": data,
            "model": self.model,
            "training": {
                "rounds": self.rounds,
                "epochs": 1,
                "batch": self.batch,
                "optimiser": self.optimiser,
                "objective": self.objective,
            },
            "evaluation": {"every": self.every or self.rounds},
            "comparison": {"methods": [self.method], "seeds": [0]},
            "method": {self.method: self.options},
            "engine": {"device": device},
            "runner": {"workers": self.workers if device == "cpu" else 1},
        }


_SGD = {"kind": "sgd", "learning_rate": 0.05}
_DENSE = {"kind": "mlp", "hidden": [200]}
_EVERY_ROUND = {"arm": "paper", "words": 32, "passes": 20, "first_rounds": 1, "more_rounds": 1, "stages": 9, "most": 3}
_EVERY_ROUND |= {"tolerance": -1}
WORKLOADS = {
    w.name: w
    for w in (
        Workload("W1", 100, 600, "784-200-10, batch 32, SGD", _DENSE, 32, _SGD, rounds=8, shape=(28, 28)),
        Workload(
            "W2",
            300,
            100,
            "linear 10-1, batch 100, AdamW",
            {"kind": "mlp", "hidden": []},
            100,
            {"kind": "adamw", "learning_rate": 1e-3, "weight_decay": 1e-3},
            rounds=60,
            workers=1,
            objective={"kind": "squared_error"},
        ),
        Workload(
            "W3",
            9,
            2000,
            "two convolutions 5 x 5, batch 64, SGD",
            {"kind": "cnn", "channels": [10, 20], "kernel": 5, "hidden": [50]},
            64,
            _SGD,
            rounds=6,
            shape=(28, 28),
        ),
        *(
            Workload(f"W4-{clients}", clients, 20, "64-200-10, batch 20, SGD", _DENSE, 20, _SGD, 31, (8, 8), every=10)
            for clients in (1000, 3000, 10000)
        ),
        Workload(
            "W5",
            9,
            2000,
            "UEFL with 9 silos: two convolutions, 32 codewords; every round all are checked and 3 are extended",
            {"kind": "cnn", "channels": [16, 32], "kernel": 5, "hidden": [128], "dropout": 0.1},
            64,
            {"kind": "adam", "learning_rate": 1e-3},
            rounds=6,
            shape=(28, 28),
            method="uefl",
            options=_EVERY_ROUND,
            plain="authors",
            checked=250,
        ),
        Workload(
            "W7",
            10,
            600,
            "VIRTUAL with 784-100-100-10, batch 20, Adam, local noise",
            {"kind": "mlp", "hidden": [100, 100]},
            20,
            {"kind": "adam", "learning_rate": 1e-3},
            rounds=6,
            shape=(28, 28),
            method="virtual",
            options={"kl_weight": 1e-3, "deviation": 0.0067, "prior_precision": 1.0, "draws": 10},
            plain="bayes",
            learned=100,
            others={
                "fedavg": ("fedavg",),
                "one-at-a-time": ("virtual", "--set", "engine.kind=sequential"),
                "visits-in-turn": ("virtual", "--set", "method.virtual.visits=sequential"),
            },
        ),
        Workload(
            "W8",
            100,
            600,
            "W1, and methods with the same local steps",
            _DENSE,
            32,
            _SGD,
            rounds=8,
            shape=(28, 28),
            others={name: (name,) for name in ("finetune", "scaffold", "fedopt")},
        ),
    )
}


def chosen_workloads(names: Sequence[str]) -> list[Workload]:
    """Return the workloads with these names, where W4 is all its sizes; UserError for another name."""
    workloads = []
    for name in names or ["W1", "W2", "W3", "W4", "W5", "W7", "W8"]:
        matching = [w for w in WORKLOADS.values() if w.name == name or w.name.startswith(f"{name}-")]
        if not matching:
            raise UserError(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}.")
        workloads += matching
    return workloads
