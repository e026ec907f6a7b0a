"""Authors' selective averaging: what their code does, where the clients of a group share one tensor and train it in turn.

phase 1, E1 rounds:    every client k trains w_k alone, from a start of its own
regroup:               k joins every group whose first member is right on the same common rows; the last one counts
phase 2, first round:  every client trains its w_k once more;  w_g <- mean of w_k over the clients of g
repeat:                the clients for whom g counts train w_g one after another;  w_g <- mean of what its clients have

E1 = 0 is their federated training: everybody in one group (Liu, Lee and Julien 2020; code UT-MPC/LocalGlobalFedLearning).
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field

from flows.experiment.figure_context import FigureWriter
from flows.methods.base import Method, RoundReport
from flows.methods.common import correctness_overlap
from flows.methods.common.clusters import members, model_of_groups, of_group, train_together
from flows.methods.common.method_figures import group_history
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.clustering import Assign, Overlap
from models.prng import server_stream
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_types
from tasks.aggregate import aggregate, send_weights
from tasks.cluster_clients import OverlapClusters, overlap
from tasks.local_train import local_train
from tasks.messages.update_messages import Update

LOCAL, TRAINED = "weights", "trained"
"""Of a client, in its store: its own weights, and those that it trained from its group's."""


class SelectiveAuthors(Method):
    """Every option is one of their code's ways; `training.optimiser.state: kept` is another.

    With `averaging: mean`, `starts: common` and `weighting: rows` it is FedAvg in groups, whose first round is from the
    clients' own weights.
    """

    tested_model = "personal"

    local_rounds: int = Field(
        5, ge=0, le=param_types.TIMES, description="E1: rounds alone; 0: no groups, federated training"
    )
    averaging: Literal["in_turn", "mean"] = Field(
        "in_turn", description="a group trains one tensor in turn, or each client a copy"
    )
    starts: Literal["own", "common"] = Field(
        "own", description="clients start from draws of their own, or from a common one"
    )
    weighting: Literal["equal", "rows"] = Field("equal", description="of clients in the mean of a group")
    overlap: Overlap = Field("equal", description="how alike two clients' right rows are")
    threshold: float = Field(0.82, ge=0, le=1, description="overlap from which clients are together")
    assign: Assign = Field("first_member", description="how groups are made of overlaps")

    def init(self, setup: TrainingSetup) -> ServerState:
        """Nobody has trained; UserError where groups are to be made without rows on which every client can be tried."""
        if self.local_rounds:
            correctness_overlap.check_common_rows("selective_authors", setup)
        return ServerState(numbers={"groups": [], "group": {}}, private={LOCAL: {}, TRAINED: {}})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Alone up to the first round of phase 2, then group by group."""
        if "weights" in state.tensors:
            state, updates = self._in_groups(_with_late(state, round), round)
            return state, _report(updates, state)
        state, updates = self._alone(state, round)
        made = None
        if state.numbers["groups"] or not self.local_rounds:
            state = _with_late(state, round)
            local = [_local(state, round.setup, names) for names in _present(state, round)]
            means = [self._mean(model, round) for model in local]
            state = state.with_tensors(weights=train_together(means))
        elif round.number >= self.local_rounds:
            answers = correctness_overlap.asked(_local(state, round.setup, round.clients), round)
            rows = correctness_overlap.rows_of(round)
            made = round.run_on_server(overlap, answers, rows, self.overlap, self.threshold, self.assign)
            state = _grouped(state, made.groups)
        return state, _report(updates, state, made)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Each client's own weights until groups have some, then those of the last group that it joined."""
        if "weights" not in state.tensors:
            return _local(state, setup, setup.silos.clients)
        group = state.numbers["group"]
        return model_of_groups(setup, state.tensors["weights"], {c: group.get(c, 0) for c in setup.silos.clients})

    def figures(self) -> Sequence[FigureWriter]:
        """Who was with whom."""
        return (group_history,)

    def _alone(self, state: ServerState, round: RoundContext) -> tuple[ServerState, list[Update]]:
        """A round of training for everybody who takes part, from its own weights or else its start."""
        begun, updates = state.private[LOCAL], []
        fresh = [client for client in round.clients if client not in begun]
        starts = [[client] for client in fresh] if self.starts == "own" else [fresh]
        for clients in [[client for client in round.clients if client in begun], *starts]:
            if clients:
                own = clients[0] if self.starts == "own" and clients[0] not in begun else None
                model = _local(state, round.setup, clients, own)
                updates += round.train(local_train, model, round.silos.select(clients))
        for update in updates:
            state = state.with_private(LOCAL, update.private[LOCAL])
        return state, updates

    def _in_groups(self, state: ServerState, round: RoundContext) -> tuple[ServerState, list[Update]]:
        """A round of phase 2: every client trains the weights of the last group that it joined."""
        before, groups, group = state.tensors["weights"], state.numbers["groups"], state.numbers["group"]
        updates: list[Update] = []
        if self.averaging == "mean":
            refs: dict[str, str] = {}
            for number, clients in enumerate(members(round.clients, group, len(groups))):
                model = Model(round.setup.network, of_group(before, number), clients=tuple(clients))
                trained = round.train(local_train, model, round.silos.select(clients), keep=TRAINED) if clients else []
                updates += trained
                refs |= {client: ref for update in trained for client, ref in update.private[TRAINED].items()}
            there = [[client for client in names if client in refs] for names in groups]
            kept = [
                Model(round.setup.network, {}, ClientStateRefs(TRAINED, refs), clients=tuple(names)) for names in there
            ]
            means = [self._mean(model, round, of_group(before, number)) for number, model in enumerate(kept)]
            return state.with_tensors(weights=train_together(means)), updates
        after = [of_group(before, number) for number in range(len(groups))]
        for client in round.clients:
            model = Model(round.setup.network, after[group[client]], clients=(client,))
            (update,) = round.train(local_train, model, round.silos.select([client]))
            after[group[client]] = round.run_on_server(aggregate, [update], model.shared)
            updates.append(update)
        share = self._shares(round) or {c: float(rows) for c, rows in round.setup.silos.rows("train").items()}
        means = [_mean_of([after[group[c]] for c in names], [share[c] for c in names]) for names in groups]
        return state.with_tensors(weights=train_together(means)), updates

    def _mean(self, model: Model, round: RoundContext, otherwise: Weights | None = None) -> Weights:
        """Of the weights that the model's clients keep; others if there are none."""
        sent = round.map_clients(send_weights, model, round.silos.select(model.clients), shares=self._shares(round))
        start = _drawn(round.setup) if otherwise is None else otherwise
        mean: Weights = round.run_on_server(aggregate, sent, start)
        return mean

    def _shares(self, round: RoundContext) -> Mapping[str, float] | None:
        """What clients count in a mean; nothing where it is their rows."""
        return dict.fromkeys(round.setup.silos.clients, 1.0) if self.weighting == "equal" else None


def _drawn(setup: TrainingSetup, client: str | None = None) -> Weights:
    """FedAvg's start, or a client's own."""
    return setup.network.init(server_stream(setup.seed, 0, "init" if client is None else f"init {client}"))


def _local(state: ServerState, setup: TrainingSetup, clients: Sequence[str], own: str | None = None) -> Model:
    """Each client's own weights; without such the start, FedAvg's or the named client's own."""
    personal = ClientStateRefs(LOCAL, state.private[LOCAL], _drawn(setup, own))
    return Model(setup.network, {}, personal, clients=tuple(clients))


def _grouped(state: ServerState, groups: Sequence[Sequence[str]]) -> ServerState:
    """The state with these groups, of which the last that names a client counts."""
    group = {client: number for number, names in enumerate(groups) for client in names}
    return state.with_numbers(groups=[list(names) for names in groups], group=group)


def _present(state: ServerState, round: RoundContext) -> list[list[str]]:
    """Those of each group that take part."""
    return [[client for client in names if client in round.clients] for names in state.numbers["groups"]]


def _with_late(state: ServerState, round: RoundContext) -> ServerState:
    """Who was not there when groups were made is in the first; without groups all are in one."""
    first, *others = state.numbers["groups"] or [[]]
    late = [client for client in round.clients if client not in state.numbers["group"]]
    return _grouped(state, [[*first, *late], *others]) if late else state


def _mean_of(weights: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """In float64: of equals their own, to the bit."""
    by = torch.tensor(shares, dtype=torch.float64)
    return {
        name: (torch.tensordot(by, torch.stack([w[name].double() for w in weights]), 1) / by.sum()).to(now.dtype)
        for name, now in weights[0].items()
    }


def _report(updates: Sequence[Update], state: ServerState, made: OverlapClusters | None = None) -> RoundReport:
    """Which group everybody is in."""
    report, group = RoundReport.of(updates), state.numbers["group"]
    numbers = {**report.metrics, "groups": float(len(state.numbers["groups"]))}
    rows = {"group": {client: float(number) for client, number in group.items()}} if group else {}
    return RoundReport(
        numbers, {**report.client_metrics, **rows}, (correctness_overlap.sentence(made),) if made else ()
    )
