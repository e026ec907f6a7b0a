"""IFCA: every client trains that one of K models that fits its training rows best (Ghosh et al. 2020).

w_1 .. w_K <- init, each its own
repeat: every client i takes  k_i = argmin_k F_i(w_k), F_i its training loss, and trains from w_{k_i} for E local epochs
        w_k <- sum n_i w_i / sum n_i over the clients that took k
"""

from collections.abc import Sequence

import torch
from pydantic import Field

from flows.experiment.comparison.search_space import Axis, axes
from flows.methods.base import Method, RoundReport
from flows.methods.common.clusters import members, model_of_groups, of_group, train_groups, train_together
from flows.methods.common.network_checks import fitting
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.network_factory import learned
from models.prng import server_stream
from models.server_state import ServerState, Weights
from silos import param_types
from tasks.messages.clustering_messages import ClusterChoice
from tasks.regroup import regroup

Choice = dict[str, list[int]]
"""Each client's model in every set."""


class IFCA(Method):
    """`clusters` is the paper's K; `restarts` such sets train side by side for `trial` rounds, then the best alone."""

    tested_model = "personal"

    tuned = axes(restarts=Axis(values=(1, 4), least=1, most=4))

    clusters: int = Field(3, ge=1, le=param_types.COPIES, description="K: how many models the server keeps")
    restarts: int = Field(
        1, ge=1, le=param_types.COPIES, description="so many sets of models on trial; the best goes on alone"
    )
    trial: int = Field(10, ge=1, le=param_types.TIMES, description="rounds of that trial")
    start_scale: float = Field(
        1.0, gt=0, le=param_types.MAX_REAL, description="factor of the drawn weights: near starts are alike to clients"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """A draw for every model of every set; the first of them is FedAvg's."""
        fitting(setup.network, "method.ifca.clusters and restarts", self.clusters * self.restarts)
        sets = [[self._draw(setup, i * self.clusters + k) for k in range(self.clusters)] for i in range(self.restarts)]
        return ServerState(
            {"weights": train_together([train_together(models) for models in sets])}, {"choice": {}, "best": 0}
        )

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Every client chooses, every cluster averages."""
        sets = state.tensors["weights"]  # (sets, clusters, ...)
        chosen = _choose(sets, round)
        choice, best = _choices(chosen), _best(chosen)
        after, updates = [], []
        for at in range(len(chosen[0].loss[0])):
            group_of = {client: models[at] for client, models in choice.items()}
            groups = members(round.clients, group_of, self.clusters)
            weights, sent = train_groups(round, of_group(sets, at), groups, received=True)
            after.append(weights)
            updates.append(sent)
        known = state.numbers["choice"]
        report = self._report(RoundReport.of(updates[best]), choice, known, best)
        known = {**known, **choice}
        if round.number >= self.trial and len(after) > 1:
            after, known, best = [after[best]], {client: [models[best]] for client, models in known.items()}, 0
        return ServerState({"weights": train_together(after)}, {"choice": known, "best": best}), report

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Each client has the model that it chose last; one that was never asked has the first."""
        best, choice = state.numbers["best"], state.numbers["choice"]
        group_of = {c: choice[c][best] if c in choice else 0 for c in setup.silos.clients}
        return model_of_groups(setup, of_group(state.tensors["weights"], best), group_of)

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """Every client chooses among today's models, also the fresh and the unseen."""
        best = state.numbers["best"]
        weights = of_group(state.tensors["weights"], best)
        choice = _choices(_choose(train_together([weights]), round))
        return model_of_groups(round.setup, weights, {client: model for client, (model,) in choice.items()})

    def _draw(self, setup: TrainingSetup, number: int) -> Weights:
        purpose = f"init {number}" if number else "init"
        drawn = setup.network.init(server_stream(setup.seed, 0, purpose))
        return {**drawn, **{name: w * self.start_scale for name, w in learned(setup.network, drawn).items()}}

    def _report(self, report: RoundReport, choice: Choice, before: Choice, best: int) -> RoundReport:
        """Who took which model of the best set, how many took each, and how many took another one than before."""
        taken = {client: models[best] for client, models in choice.items()}
        sizes = {f"clients/cluster{k}": float(list(taken.values()).count(k)) for k in range(self.clusters)}
        changed = sum(client in before and before[client][best] != k for client, k in taken.items())
        numbers = {**report.metrics, **sizes, "clients/changed": float(changed)}
        return RoundReport(
            numbers, {**report.client_metrics, "cluster": {client: float(k) for client, k in taken.items()}}
        )


def _choose(sets: Weights, round: RoundContext) -> list[ClusterChoice]:
    setup = round.setup
    model = Model(setup.network, shared=sets, clients=round.clients)
    return round.map_clients(regroup, model, training=setup.training)


def _choices(chosen: Sequence[ClusterChoice]) -> Choice:
    return {c: models for m in chosen for c, models in zip(m.clients, m.choice.tolist(), strict=True)}


def _best(chosen: Sequence[ClusterChoice]) -> int:
    """The set with the smallest loss over all training rows, the first of equals."""
    total = torch.stack([(m.loss * m.rows[:, None]).nan_to_num(posinf=torch.inf).sum(0) for m in chosen]).sum(0)
    return int(total.numpy().argmin())
