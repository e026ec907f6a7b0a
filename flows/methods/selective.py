"""Selective averaging: clients correct on the same common rows average together (Liu, Lee and Julien 2020).

phase 1, E1 rounds:  each client k trains w_k alone, from w_0; w_k stays with the client
regroup:             each client k sends S_k, one bit for each common validation row: whether w_k is correct on it;
                     the overlaps of all pairs S_j, S_k make groups
phase 2, repeat:     a round of FedAvg within each group, from w_0 or from the mean of its clients' w_k
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from flows.methods.base import Method, RoundReport
from flows.methods.common import correctness_overlap
from flows.methods.common.correctness_overlap import best_threshold
from flows.methods.common.group_training import grouped_model, participants, select_group, stack_groups, train_groups
from flows.methods.common.method_figures import group_history
from flows.methods.figure_context import FigureWriter
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.clustering import Assign, Overlap
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_limits
from tasks.aggregate import aggregate, send_weights
from tasks.cluster_clients import OverlapClusters, admit, overlap
from tasks.local_train import local_train
from tasks.messages.round_messages import CorrectnessBits, Update

LOCAL, TRAINED = "weights", "trained"
"""Sections of a client's store: the weights of phase 1, and the weights that are trained before regrouping."""


class Selective(Method):
    """`threshold` is the minimum overlap of two clients in a group; `gap` and `accuracy` choose it.

    With `gap` all clients are one group if a permutation test finds nothing to part.

    `accuracy` trains the groups of each threshold for `trial_rounds`. `start` is the initial weights of groups.
    `regroup_every` regroups after this many rounds of phase 2, by the weights that clients trained in the last of them,
    before averaging.
    """

    takes_aggregation = False

    tested_model = "personal"

    local_rounds: int = Field(5, ge=1, le=param_limits.TIMES, description="E1: rounds alone, before groups are made")
    overlap: Overlap = Field(
        "jaccard", description="how to measure the overlap of two clients' correctly predicted rows"
    )
    threshold: Annotated[float, Field(ge=0, le=1)] | Literal["gap", "accuracy"] = Field(
        "gap", description="the overlap from which clients share a group; gap and accuracy find it"
    )
    trial_rounds: int = Field(
        5, ge=1, le=param_limits.TIMES, description="with threshold accuracy: rounds for which groups are tried"
    )
    assign: Assign = Field("complete", description="how to make groups from overlaps")
    start: Literal["common", "mean"] = Field(
        "common", description="the initial weights of groups: FedAvg's start, or the mean of their clients"
    )
    regroup_every: int | None = Field(
        None, ge=1, le=param_limits.TIMES, description="rounds after which groups are made again; null: never"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return a state without groups and trained weights; UserError without common validation rows."""
        correctness_overlap.check_common_rows("selective", setup)
        return ServerState(
            numbers={**correctness_overlap.initial_numbers(), "since": 0}, private={LOCAL: {}, TRAINED: {}}
        )

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train alone in phase 1 and group at its end; train with the group in phase 2. Late clients catch up."""
        grouping: OverlapClusters | None = None
        if not state.numbers["group"]:
            state, updates = _train_alone(state, round, round.clients)
            if round.number >= self.local_rounds:
                state, grouping = self._end_phase_1(state, round)
            warnings = correctness_overlap.missing_classes_message(round.setup) if grouping else ()
            return state, _report(updates, state, round, grouping, warnings)
        late = [client for client in round.clients if client not in state.numbers["group"]]
        if self.regroup_every and (round.number - self.local_rounds) % self.regroup_every == 0:
            state, updates, grouping = self._train_and_regroup(state, round)
        else:
            members, since = participants(correctness_overlap.groups_of(state), round), state.numbers["since"]
            weights, updates = train_groups(round, state.tensors["weights"], members, since=since)
            state = state.with_tensors(weights=weights)
        state, caught_up = self._admit_late(state, round, late)
        return state, _report([*updates, *caught_up], state, round, grouping)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return each client's own weights in phase 1, its group's in phase 2; unknown clients have the first group's."""
        clients, group = setup.silos.clients, state.numbers["group"]
        if not group:
            return _local_model(state, setup, clients)
        return grouped_model(setup, state.tensors["weights"], {client: group.get(client, 0) for client in clients})

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """Return the model, with clients that have no group trained alone as in phase 1 and admitted to a group.

        After the last round of phase 1 clients still have their own weights if groups start from the common weights.
        """
        group = state.numbers["group"]
        if group:
            state, _ = self._admit_late(state, round, [client for client in round.clients if client not in group])
        if group and state.numbers["since"] == round.number:
            return _local_model(state, round.setup, round.clients)
        return self.model(state, round.setup)

    def figures(self) -> Sequence[FigureWriter]:
        """Draw the groups of the clients over rounds."""
        return (group_history,)

    def _end_phase_1(self, state: ServerState, round: RoundContext) -> tuple[ServerState, OverlapClusters]:
        """Group the clients of the last round of phase 1 and initialize the groups' weights."""
        state, grouping = self._regroup(state, round, _local_model(state, round.setup, round.clients))
        initial = round.setup.initial_weights()
        if self.start == "common":  # phase 2 equals FedAvg from its first round, also in streams and optimizer states
            round.optimisers.forget(round.clients)
            state, starts = state.with_numbers(since=round.number), [initial] * len(grouping.groups)
        else:
            groups = correctness_overlap.groups_of(state)
            starts = [_mean(_local_model(state, round.setup, names), round, initial) for names in groups]
        return state.with_tensors(weights=stack_groups(starts)), grouping

    def _train_and_regroup(
        self, state: ServerState, round: RoundContext
    ) -> tuple[ServerState, list[Update], OverlapClusters]:
        """Train a round of phase 2 and regroup by the trained weights before averaging."""
        setup, before, group = round.setup, state.tensors["weights"], state.numbers["group"]
        updates: list[Update] = []
        for index, clients in enumerate(participants(correctness_overlap.groups_of(state), round)):
            model = Model(setup.network, shared=select_group(before, index), clients=tuple(clients))
            silos = round.silos.select(clients)
            updates += round.train(local_train, model, silos, since=state.numbers["since"], keep=TRAINED)
        refs = {client: ref for update in updates for client, ref in update.private[TRAINED].items()}

        def trained(names: Sequence[str]) -> Model:
            return Model(
                setup.network, {}, ClientStateRefs(TRAINED, refs), clients=tuple(c for c in names if c in refs)
            )

        state, grouping = self._regroup(state, round, trained(round.clients))
        after = correctness_overlap.groups_of(state)
        means = [_mean(trained(names), round, select_group(before, group[names[0]])) for names in after]
        return state.with_tensors(weights=stack_groups(means)), updates, grouping

    def _regroup(self, state: ServerState, round: RoundContext, model: Model) -> tuple[ServerState, OverlapClusters]:
        """Collect the bits of the model's clients and group all clients that ever reported bits."""
        messages = correctness_overlap.latest_correctness(state, correctness_overlap.collect_correctness(model, round))
        seed = None
        if not isinstance(self.threshold, float):
            seed = correctness_overlap.halving_seed(round, each_round=self.threshold == "gap")
        threshold = self._threshold(state, round, messages, seed)
        rows = correctness_overlap.num_common_rows(round)
        labels = correctness_overlap.common_labels(round.setup) if self.threshold == "gap" else None
        grouping = round.run_on_server(overlap, messages, rows, self.overlap, threshold, self.assign, seed, labels)
        return correctness_overlap.with_groups(state, messages, grouping.groups, grouping.threshold), grouping

    def _threshold(
        self, state: ServerState, round: RoundContext, messages: Sequence[CorrectnessBits], seed: int | None
    ) -> float | None:
        """Return the threshold of params.yaml, or the most accurate one, chosen at the first grouping; None for the gap."""
        if seed is None or self.threshold != "accuracy":
            return None if self.threshold == "gap" else float(self.threshold)
        if state.numbers["threshold"] is not None:
            return float(state.numbers["threshold"])
        initial = round.setup.initial_weights()

        def start(names: Sequence[str]) -> Weights:
            return initial if self.start == "common" else _mean(_local_model(state, round.setup, names), round, initial)

        return best_threshold(messages, round, seed, self.overlap, self.assign, self.trial_rounds, start)

    def _admit_late(
        self, state: ServerState, round: RoundContext, late: Sequence[str]
    ) -> tuple[ServerState, list[Update]]:
        """Train late clients as in phase 1 and admit each to the group that it fits; other clients keep their groups."""
        if not late:
            return state, []
        refs = {client: ref for client, ref in state.private[LOCAL].items() if client not in late}
        state = replace(state, private={**state.private, LOCAL: refs})
        updates: list[Update] = []
        round.optimisers.forget(late)
        # streams count rounds from the initialization, as in phase 1
        for local_round in range(1, self.local_rounds + 1):
            state, updates = _train_alone(state, round, late, since=round.number - local_round)
            round.optimisers.next_round(late)
        if self.start == "common":
            round.optimisers.forget(late)
        messages = correctness_overlap.collect_correctness(_local_model(state, round.setup, late), round)
        (stored,) = correctness_overlap.stored_correctness(state)
        before, threshold = correctness_overlap.groups_of(state), state.numbers["threshold"]
        after = round.run_on_server(
            admit, messages, before, stored, correctness_overlap.num_common_rows(round), self.overlap, threshold
        )
        initial, new = round.setup.initial_weights(), after[len(before) :]
        new_weights = [_mean(_local_model(state, round.setup, names), round, initial) for names in new]
        weights = [select_group(state.tensors["weights"], index) for index in range(len(before))]
        state = correctness_overlap.with_groups(state, [stored, *messages], after, threshold)
        return state.with_tensors(weights=stack_groups([*weights, *new_weights])), updates


def _train_alone(
    state: ServerState, round: RoundContext, clients: Sequence[str], since: int = 0
) -> tuple[ServerState, list[Update]]:
    """Train these clients for a round of phase 1."""
    silos = round.setup.silos.select(clients)
    updates = round.train(local_train, _local_model(state, round.setup, clients), silos, since=since)
    for update in updates:
        state = state.with_private(LOCAL, update.private[LOCAL])
    return state, updates


def _local_model(state: ServerState, setup: TrainingSetup, clients: Sequence[str]) -> Model:
    """Return the clients' weights of phase 1; a client that has not trained has the initial ones."""
    personal = ClientStateRefs(LOCAL, state.private[LOCAL], setup.initial_weights())
    return Model(setup.network, {}, personal, clients=tuple(clients))


def _mean(model: Model, round: RoundContext, default: Weights) -> Weights:
    """Average the weights of the model's clients by rows; return `default` if they have stored none."""
    sent = round.map_clients(send_weights, model, round.setup.silos.select(model.clients))
    mean: Weights = round.run_on_server(aggregate, sent, default)
    return mean


def _report(
    updates: Sequence[Update],
    state: ServerState,
    round: RoundContext,
    grouping: OverlapClusters | None,
    warnings: Sequence[str] = (),
) -> RoundReport:
    """Report the groups of clients; after a grouping, also its margins and the warnings."""
    group = state.numbers["group"]
    metrics = {"groups": float(len(correctness_overlap.groups_of(state)))}
    if grouping is not None:
        margins = {"overlap/within": grouping.within, "overlap/across": grouping.across}
        margins["overlap/threshold"] = grouping.threshold
        metrics |= {name: value for name, value in margins.items() if value is not None}
    group_of = {client: float(group[client]) for client in round.clients if client in group}
    client_metrics = {"group": group_of} if group else {}
    messages = (correctness_overlap.groups_message(grouping), *warnings) if grouping else ()
    return RoundReport.from_updates(updates).merge(RoundReport(metrics, client_metrics, messages))
