"""IFCA: each client trains the one of K models that fits it best (Ghosh et al. 2020).

w_1 .. w_K <- init, each drawn separately
repeat: each client i takes  k_i = argmin_k F_i(w_k), F_i its training loss, and trains w_i from w_{k_i} for E local epochs
        w_k <- sum_i n_i w_i / sum_i n_i  over the clients i with k_i = k
"""

from collections.abc import Sequence

import torch
from pydantic import Field

from flows.core.search_space import Axis, axes
from flows.methods.base import Method, RoundReport
from flows.methods.common.group_training import group_members, grouped_model, select_group, stack_groups, train_groups
from flows.methods.common.network_checks import require_memory
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.network_factory import learned
from models.server_state import ServerState, Weights
from silos import param_limits
from tasks.messages.message_policy import messages_of
from tasks.messages.round_messages import ClusterChoice
from tasks.report_evidence import report_evidence

Choice = dict[str, list[int]]
"""Client to the index of its model in each set."""


class IFCA(Method):
    """`clusters` is the paper's K; `restarts` sets of K models train for `trial` rounds, then only the best set."""

    tested_model = "personal"

    tuned = axes(restarts=Axis(values=(1, 4), least=1, most=4))

    clusters: int = Field(3, ge=1, le=param_limits.COPIES, description="K: the number of models")
    restarts: int = Field(
        1, ge=1, le=param_limits.COPIES, description="the number of sets of models to try; only the best set continues"
    )
    trial: int = Field(10, ge=1, le=param_limits.TIMES, description="rounds of that trial")
    start_scale: float = Field(
        1.0,
        gt=0,
        le=param_limits.MAX_REAL,
        description="factor of the initial weights: a smaller one gives models that start alike",
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Initialize each model of each set; the first model has FedAvg's initial weights."""
        require_memory(setup.network, "method.ifca.clusters and restarts", self.clusters * self.restarts)
        sets = [
            [self._initial_weights(setup, i * self.clusters + k) for k in range(self.clusters)]
            for i in range(self.restarts)
        ]
        return ServerState(
            {"weights": stack_groups([stack_groups(models) for models in sets])}, {"choice": {}, "best": 0}
        )

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Let each client choose a model of each set, train it and average within clusters."""
        sets = state.tensors["weights"]  # (sets, clusters, ...)
        chosen = _choose(sets, round)
        choice, best = _choices(chosen), _best(chosen)
        after, updates = [], []
        for i in range(len(chosen[0].loss[0])):
            group_of = {client: models[i] for client, models in choice.items()}
            groups = group_members(round.clients, group_of, self.clusters)
            weights, sent = train_groups(round, select_group(sets, i), groups, received=True)
            after.append(weights)
            updates.append(sent)
        if round.validation is not None:  # a sampler gets the losses of the best set, not of the last
            round.validation.update(pair for update in updates[best] for pair in update.validation.items())
        choices = state.numbers["choice"]
        report = self._report(RoundReport.from_updates(updates[best]), choice, choices, best)
        choices = {**choices, **choice}
        if round.number >= self.trial and len(after) > 1:
            after, choices, best = [after[best]], {client: [models[best]] for client, models in choices.items()}, 0
        return ServerState({"weights": stack_groups(after)}, {"choice": choices, "best": best}), report

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the models that clients chose last; a client that never chose has the first."""
        best, choice = state.numbers["best"], state.numbers["choice"]
        group_of = {c: choice[c][best] if c in choice else 0 for c in setup.silos.clients}
        return grouped_model(setup, select_group(state.tensors["weights"], best), group_of)

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """Let each client, also a fresh or unseen one, choose among the current models."""
        best = state.numbers["best"]
        weights = select_group(state.tensors["weights"], best)
        choice = _choices(_choose(stack_groups([weights]), round))
        return grouped_model(round.setup, weights, {client: model for client, (model,) in choice.items()})

    def _initial_weights(self, setup: TrainingSetup, index: int) -> Weights:
        purpose = f"init {index}" if index else "init"
        weights = setup.initial_weights(purpose=purpose)
        return {**weights, **{name: w * self.start_scale for name, w in learned(setup.network, weights).items()}}

    def _report(self, report: RoundReport, choice: Choice, before: Choice, best: int) -> RoundReport:
        """Report each client's model of the best set, the size of each cluster, and how many clients changed clusters."""
        cluster_of = {client: models[best] for client, models in choice.items()}
        sizes = {f"clients/cluster{k}": float(list(cluster_of.values()).count(k)) for k in range(self.clusters)}
        changed = sum(client in before and before[client][best] != k for client, k in cluster_of.items())
        clusters = {client: float(k) for client, k in cluster_of.items()}
        return report.merge(RoundReport({**sizes, "clients/changed": float(changed)}, {"cluster": clusters}))


def _choose(sets: Weights, round: RoundContext) -> list[ClusterChoice]:
    setup = round.setup
    model = Model(setup.network, shared=sets, clients=round.clients)
    return messages_of(ClusterChoice, round.map_clients(report_evidence, model, training=setup.training))


def _choices(chosen: Sequence[ClusterChoice]) -> Choice:
    return {c: models for m in chosen for c, models in zip(m.clients, m.choice.tolist(), strict=True)}


def _best(chosen: Sequence[ClusterChoice]) -> int:
    """Return the index of the set with the smallest loss over all training rows; the first on ties."""
    total = torch.stack([(m.loss * m.rows[:, None]).nan_to_num(posinf=torch.inf).sum(0) for m in chosen]).sum(0)
    return int(total.numpy().argmin())
