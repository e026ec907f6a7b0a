"""Trees: histogram gradient boosting on tables, per silo, pooled, or as a vote of the silos' trees (bagging).

local:      each client k trains trees f_k on its own rows
pooled:     f, trained on the union of the rows
federated:  f(x) = sum_k n_k f_k(x) / sum_k n_k, of probabilities or predictions
"""

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field

from flows.core.search_space import Axis, axes
from flows.methods.base import Method, RoundReport
from flows.methods.client_sampler import FractionSampler, Sampler
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.tree_ensemble import TreeEnsemble
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_limits
from silos.cohort import Silos
from silos.errors import UserError
from tasks.local_train import train_trees
from tasks.messages.round_messages import SentTrees

SECTION = "trees"


class Trees(Method):
    """scikit-learn trains the trees once; `training` and `model` of params.yaml have no effect on them."""

    takes_members = False
    takes_aggregation = False
    uses_learning_rate = False

    tuned = axes(rate=Axis(values=(0.03, 0.1), most=1.0), leaves=Axis(values=(7, 31), least=2))

    arm: Literal["local", "pooled", "federated"] = Field(
        "federated", description="local trees, pooled rows, or federated: the silos' trees vote by rows"
    )
    iterations: int = Field(100, ge=1, le=param_limits.COPIES, description="trees, one for each class above two")
    rate: float = Field(0.1, gt=0, le=param_limits.MAX_REAL, description="the learning rate of the boosting")
    leaves: int = Field(31, ge=2, le=param_limits.COPIES, description="the most leaves of a tree")
    depth: int = Field(8, ge=1, le=param_limits.LAYERS, description="the most decisions from the root to a leaf")
    least_rows: int = Field(20, ge=1, le=param_limits.TIMES, description="the least training rows of a leaf")

    @property
    def is_bound(self) -> bool:  # type: ignore[override]
        """Return whether rows are pooled."""
        return self.arm == "pooled"

    @property
    def pools_rows(self) -> bool:  # type: ignore[override]
        """Return whether rows are pooled."""
        return self.arm == "pooled"

    @property
    def tested_model(self) -> Literal["global", "personal"]:  # type: ignore[override]
        """Return personal if each silo keeps its trees."""
        return "personal" if self.arm == "local" else "global"

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return trees that know nothing.

        Raises:
            UserError: If the rows are pictures.
        """
        manifest = setup.silos.manifest
        if len(manifest.shape) > 1 or manifest.dtype == "uint8":
            raise UserError(
                f"params.yaml: data.source: got pictures of shape {tuple(manifest.shape)}, expected a table, since trees "
                "split one column at a time. Use a table, or a method that trains a network."
            )
        if self.arm == "local":
            return ServerState(private={SECTION: {}})
        return ServerState({"weights": self._network(setup).init(torch.empty(0))}, {"silos": [], "rows": 0})

    def sampler(self, usual: Sampler) -> Sampler:
        """Return a sampler that also names the clients that never train, for which training must not wait."""
        return replace(usual, names_absent=True) if isinstance(usual, FractionSampler) else usual

    def leave(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Record that these clients train no more trees; those that they have stay."""
        return state.with_numbers(left=[*state.numbers.get("left", ()), *round.clients]), RoundReport()

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train the trees of clients that have none yet; end the run when all clients that remain have trees."""
        setup = round.setup
        remaining = {*setup.silos.federated().clients} - {*state.numbers.get("left", ())}
        if self.arm == "pooled":
            return self._pooled_round(state, round, done={*round.clients} == remaining)
        known = set(state.private[SECTION] if self.arm == "local" else state.numbers["silos"])
        updates = self._train(round, setup.silos.select([c for c in round.clients if c not in known]))
        for update in updates:
            if self.arm == "local":
                state = state.with_private(SECTION, update.private[SECTION])
                continue
            old, names = state.tensors["weights"], state.numbers["silos"]
            trees = {name: w.flatten(0, 1) for name, w in update.trees.items()}  # a client is one silo of the vote
            if names:
                trees = {name: torch.cat([old[name], w]) for name, w in trees.items()}
            state = state.with_tensors(weights=trees).with_numbers(silos=[*names, *update.clients])
        done = known.union(*(update.clients for update in updates)) >= remaining
        return _finished(state, done), RoundReport.from_updates(updates)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return each silo's own trees, or the trees that all silos share."""
        if self.arm == "local":
            network = self._network(setup)
            own = ClientStateRefs(SECTION, state.private[SECTION], network.init(torch.empty(0)))
            return Model(network, {}, own, clients=setup.silos.clients)
        weights = state.tensors["weights"]
        return Model(self._network(setup, len(weights["vote"])), weights, clients=setup.silos.clients)

    def silos_with_a_model(self, silos: Silos) -> Silos:
        """Select the federated clients if trees are local: others never train."""
        return silos.federated() if self.arm == "local" else silos

    def _pooled_round(self, state: ServerState, round: RoundContext, done: bool) -> tuple[ServerState, RoundReport]:
        """Train on the round's rows if they are more than those of the trees so far."""
        rows = sum(round.silos.rows("train").values())
        updates = self._train(round, round.silos.pool()) if rows > state.numbers["rows"] else []
        for update in updates:
            weights: Weights = {name: w[0] for name, w in update.trees.items()}
            state = state.with_tensors(weights=weights).with_numbers(rows=rows)
        return _finished(state, done), RoundReport.from_updates(updates)

    def _train(self, round: RoundContext, silos: Silos) -> list[SentTrees]:
        if not silos.clients:
            return []
        personal: Weights | ClientStateRefs = ClientStateRefs(SECTION, {}) if self.arm == "local" else {}
        model = Model(self._network(round.setup), {}, personal, clients=silos.clients)
        for client in silos.clients:
            round.tally.add_steps(client, self.iterations)
        training = round.setup.training
        return round.map_clients(
            train_trees, model, silos, training=training, rate=self.rate, least_rows=self.least_rows
        )

    def _network(self, setup: TrainingSetup, silos: int = 1) -> TreeEnsemble:
        manifest = setup.silos.manifest
        sizes = (manifest.shape[0], len(manifest.classes) or 1)
        return TreeEnsemble(*sizes, self.iterations, self.leaves, self.depth, silos)


def _finished(state: ServerState, done: bool) -> ServerState:
    return ServerState(state.tensors, state.numbers, state.private, "every silo has trees") if done else state
