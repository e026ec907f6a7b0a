"""Authors' selective averaging: the authors' code; groups share and train one tensor in turn.

phase 1, E1 rounds:    each client k trains w_k alone, from initial weights of its own
regroup:               k joins each group whose first client is correct on the same common rows; g_k <- the last of them
phase 2, first round:  each client k trains its w_k once more;  w_g <- mean of w_k over the clients of g
repeat:                the clients k with g_k = g train w_g one after another;  w_g <- mean of w_{g_k} over the clients of g

E1 = 0 is their federated training: one group of all clients (Liu, Lee and Julien 2020; code UT-MPC/LocalGlobalFedLearning).
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field

from flows.methods.base import Method, RoundReport
from flows.methods.common import correctness_overlap
from flows.methods.common.group_training import group_members, grouped_model, participants, select_group, stack_groups
from flows.methods.common.method_figures import group_history
from flows.methods.figure_context import FigureWriter
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.clustering import Assign, Overlap
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_limits
from tasks.aggregate import aggregate, send_weights
from tasks.cluster_clients import OverlapClusters, overlap
from tasks.local_train import local_train
from tasks.messages.round_messages import Update

LOCAL, TRAINED = "weights", "trained"
"""Sections of a client's store: its own weights, and the weights that it trained from its group's."""


class SelectiveAuthors(Method):
    """The defaults follow the authors' code, which also has `training.optimiser.state: kept`.

    With `averaging: mean`, `starts: common` and `weighting: rows` it is FedAvg in groups; its first round starts from the
    clients' own weights.
    """

    takes_aggregation = False

    tested_model = "personal"

    local_rounds: int = Field(
        5, ge=0, le=param_limits.TIMES, description="E1: rounds alone; 0: no groups, federated training"
    )
    averaging: Literal["in_turn", "mean"] = Field(
        "in_turn", description="whether a group trains one tensor in turn, or each client a copy"
    )
    starts: Literal["own", "common"] = Field(
        "own", description="whether clients start from different initial weights, or common ones"
    )
    weighting: Literal["equal", "rows"] = Field("equal", description="weights of clients in the mean of a group")
    overlap: Overlap = Field("equal", description="how to measure the overlap of two clients' correctly predicted rows")
    threshold: float = Field(0.82, ge=0, le=1, description="the overlap from which clients share a group")
    assign: Assign = Field("first_member", description="how to make groups from overlaps")

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return a state without trained weights; UserError if groups need common validation rows and there are none."""
        if self.local_rounds:
            correctness_overlap.check_common_rows("selective_authors", setup)
        return ServerState(numbers={"groups": [], "group": {}}, private={LOCAL: {}, TRAINED: {}})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train alone up to the first round of phase 2, then group by group."""
        if "weights" in state.tensors:
            state, updates = self._train_in_groups(_with_late_clients(state, round), round)
            return state, _report(updates, state)
        state, updates = self._train_alone(state, round)
        grouping = None
        if state.numbers["groups"] or not self.local_rounds:
            state = _with_late_clients(state, round)
            groups = participants(state.numbers["groups"], round)
            means = [self._mean(_local_model(state, round.setup, names), round) for names in groups]
            state = state.with_tensors(weights=stack_groups(means))
        elif round.number >= self.local_rounds:
            messages = correctness_overlap.collect_correctness(_local_model(state, round.setup, round.clients), round)
            rows = correctness_overlap.num_common_rows(round)
            grouping = round.run_on_server(overlap, messages, rows, self.overlap, self.threshold, self.assign)
            state = _with_groups(state, grouping.groups)
        return state, _report(updates, state, grouping)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return each client's own weights, or those of the last group that it joined once groups have weights."""
        if "weights" not in state.tensors:
            return _local_model(state, setup, setup.silos.clients)
        group = state.numbers["group"]
        return grouped_model(setup, state.tensors["weights"], {c: group.get(c, 0) for c in setup.silos.clients})

    def figures(self) -> Sequence[FigureWriter]:
        """Draw the groups of the clients over rounds."""
        return (group_history,)

    def _train_alone(self, state: ServerState, round: RoundContext) -> tuple[ServerState, list[Update]]:
        """Train each participating client for a round, from its own weights or its initial ones."""
        stored, updates = state.private[LOCAL], []
        fresh = [client for client in round.clients if client not in stored]
        by_start = [[client] for client in fresh] if self.starts == "own" else [fresh]
        for clients in [[client for client in round.clients if client in stored], *by_start]:
            if clients:
                init_of = clients[0] if self.starts == "own" and clients[0] not in stored else None
                model = _local_model(state, round.setup, clients, init_of)
                updates += round.train(local_train, model, round.silos.select(clients))
        for update in updates:
            state = state.with_private(LOCAL, update.private[LOCAL])
        return state, updates

    def _train_in_groups(self, state: ServerState, round: RoundContext) -> tuple[ServerState, list[Update]]:
        """Train a round of phase 2: each client trains the weights of the last group that it joined."""
        before, groups, group = state.tensors["weights"], state.numbers["groups"], state.numbers["group"]
        updates: list[Update] = []
        if self.averaging == "mean":
            refs: dict[str, str] = {}
            for index, clients in enumerate(group_members(round.clients, group, len(groups))):
                model = Model(round.setup.network, select_group(before, index), clients=tuple(clients))
                trained = round.train(local_train, model, round.silos.select(clients), keep=TRAINED) if clients else []
                updates += trained
                refs |= {client: ref for update in trained for client, ref in update.private[TRAINED].items()}
            means: list[Weights] = []
            for index, names in enumerate(groups):
                trained_clients = tuple(client for client in names if client in refs)
                model = Model(round.setup.network, {}, ClientStateRefs(TRAINED, refs), clients=trained_clients)
                means.append(self._mean(model, round, select_group(before, index)))
            return state.with_tensors(weights=stack_groups(means)), updates
        after = [select_group(before, index) for index in range(len(groups))]
        for client in round.clients:
            model = Model(round.setup.network, after[group[client]], clients=(client,))
            (update,) = round.train(local_train, model, round.silos.select([client]))
            after[group[client]] = round.run_on_server(aggregate, [update], model.shared)
            updates.append(update)
        shares = self._shares(round) or {c: float(rows) for c, rows in round.setup.silos.rows("train").items()}
        means = [_mean_of([after[group[c]] for c in names], [shares[c] for c in names]) for names in groups]
        return state.with_tensors(weights=stack_groups(means)), updates

    def _mean(self, model: Model, round: RoundContext, default: Weights | None = None) -> Weights:
        """Average the weights of the model's clients; return `default` or the initial ones if they have stored none."""
        sent = round.map_clients(send_weights, model, round.silos.select(model.clients), shares=self._shares(round))
        default = round.setup.initial_weights() if default is None else default
        mean: Weights = round.run_on_server(aggregate, sent, default)
        return mean

    def _shares(self, round: RoundContext) -> Mapping[str, float] | None:
        """Return the clients' shares in a mean; None if clients count by rows."""
        return dict.fromkeys(round.setup.silos.clients, 1.0) if self.weighting == "equal" else None


def _local_model(state: ServerState, setup: TrainingSetup, clients: Sequence[str], init_of: str | None = None) -> Model:
    """Return the clients' own weights, initially those of FedAvg or the separate draw of the client `init_of`."""
    initial = setup.initial_weights(purpose="init" if init_of is None else f"init {init_of}")
    personal = ClientStateRefs(LOCAL, state.private[LOCAL], initial)
    return Model(setup.network, {}, personal, clients=tuple(clients))


def _with_groups(state: ServerState, groups: Sequence[Sequence[str]]) -> ServerState:
    """Return the state with these groups; a client's group is the last one that lists it."""
    group = {client: index for index, names in enumerate(groups) for client in names}
    return state.with_numbers(groups=[list(names) for names in groups], group=group)


def _with_late_clients(state: ServerState, round: RoundContext) -> ServerState:
    """Add clients without a group to the first group; without groups all clients form one."""
    first, *others = state.numbers["groups"] or [[]]
    late = [client for client in round.clients if client not in state.numbers["group"]]
    return _with_groups(state, [[*first, *late], *others]) if late else state


def _mean_of(weights: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """Average in float64; the mean of equal weights is bit-identical to them."""
    share = torch.tensor(shares, dtype=torch.float64)
    return {
        name: (torch.tensordot(share, torch.stack([w[name].double() for w in weights]), 1) / share.sum()).to(
            first.dtype
        )
        for name, first in weights[0].items()
    }


def _report(updates: Sequence[Update], state: ServerState, grouping: OverlapClusters | None = None) -> RoundReport:
    """Report the groups of clients; after a grouping, also its message."""
    group = state.numbers["group"]
    client_metrics = {"group": {client: float(index) for client, index in group.items()}} if group else {}
    messages = (correctness_overlap.groups_message(grouping),) if grouping else ()
    extra = RoundReport({"groups": float(len(state.numbers["groups"]))}, client_metrics, messages)
    return RoundReport.from_updates(updates).merge(extra)
