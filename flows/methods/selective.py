"""Selective averaging: clients that are right on the same common rows average together (Liu, Lee and Julien 2020).

phase 1, E1 rounds:  every client k trains w_k from w_0 alone; it stays with the client
regroup:             S_k, a bit for every common validation row: is w_k right there; the overlap of all pairs makes groups
phase 2, repeat:     a round of FedAvg within every group, from w_0 or from the mean of its clients' w_k
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from flows.experiment.figure_context import FigureWriter
from flows.methods.base import Method, RoundReport
from flows.methods.common import correctness_overlap
from flows.methods.common.clusters import model_of_groups, of_group, train_groups, train_together
from flows.methods.common.correctness_overlap import best_threshold
from flows.methods.common.method_figures import group_history
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.clustering import Assign, Overlap
from models.prng import server_stream
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_types
from tasks.aggregate import aggregate, send_weights
from tasks.cluster_clients import OverlapClusters, admit, overlap
from tasks.local_train import local_train
from tasks.messages.clustering_messages import CorrectnessBits
from tasks.messages.update_messages import Update

LOCAL, TRAINED = "weights", "trained"
"""Of a client, in its store: the weights of phase 1, and those that wait for groups to be made anew."""


class Selective(Method):
    """`threshold` is the overlap from which two clients are together; `gap` and `accuracy` find it.

    `accuracy` tries the groups of every threshold for `trial_rounds`.

    `start` is what groups begin with; `regroup_every` makes groups anew after so many rounds of phase 2, by what clients
    have trained in the last of them, before it is averaged.
    """

    tested_model = "personal"

    local_rounds: int = Field(5, ge=1, le=param_types.TIMES, description="E1: rounds alone, before groups are made")
    overlap: Overlap = Field("jaccard", description="how alike two clients' right rows are")
    threshold: Annotated[float, Field(ge=0, le=1)] | Literal["gap", "accuracy"] = Field(
        "gap", description="overlap from which clients are together; gap and accuracy find it"
    )
    trial_rounds: int = Field(
        5, ge=1, le=param_types.TIMES, description="with threshold accuracy: rounds that groups are tried for"
    )
    assign: Assign = Field("complete", description="how groups are made of overlaps")
    start: Literal["common", "mean"] = Field(
        "common", description="what groups begin with: FedAvg's start, or their clients' mean"
    )
    regroup_every: int | None = Field(
        None, ge=1, le=param_types.TIMES, description="groups are made anew after so many rounds; null: never"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Nobody has trained, and there are no groups; UserError without rows on which every client can be tried."""
        correctness_overlap.check_common_rows("selective", setup)
        return ServerState(numbers={**correctness_overlap.nobody_yet(), "since": 0}, private={LOCAL: {}, TRAINED: {}})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Alone in phase 1, at whose end groups are made; with one's group in phase 2. Who comes later catches up."""
        made: OverlapClusters | None = None
        if not state.numbers["group"]:
            state, updates = _alone(state, round, round.clients)
            if round.number >= self.local_rounds:
                state, made = self._grouped(state, round)
            return state, _report(updates, state, round, made, correctness_overlap.unasked(round.setup) if made else ())
        late = [client for client in round.clients if client not in state.numbers["group"]]
        if self.regroup_every and (round.number - self.local_rounds) % self.regroup_every == 0:
            state, updates, made = self._regrouped(state, round)
        else:
            since = state.numbers["since"]
            weights, updates = train_groups(round, state.tensors["weights"], _present(state, round), since=since)
            state = state.with_tensors(weights=weights)
        state, caught_up = self._joined(state, round, late)
        return state, _report([*updates, *caught_up], state, round, made)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Each client's own weights in phase 1, its group's in phase 2; one that was never met has the first group's."""
        clients, group = setup.silos.clients, state.numbers["group"]
        if not group:
            return _local(state, setup, clients)
        return model_of_groups(setup, state.tensors["weights"], {client: group.get(client, 0) for client in clients})

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """A fresh or unseen client trains alone as the others did in phase 1, and is in the group that it fits.

        After the last round of phase 1 clients still have their own weights where groups begin with the common start.
        """
        group = state.numbers["group"]
        if group:
            state, _ = self._joined(state, round, [client for client in round.clients if client not in group])
        if group and state.numbers["since"] == round.number:
            return _local(state, round.setup, round.clients)
        return self.model(state, round.setup)

    def figures(self) -> Sequence[FigureWriter]:
        """Who was with whom, and when."""
        return (group_history,)

    def _grouped(self, state: ServerState, round: RoundContext) -> tuple[ServerState, OverlapClusters]:
        """The end of phase 1, for those that take part in its last round."""
        state, made = self._groups(state, round, _local(state, round.setup, round.clients))
        drawn = _drawn(round.setup)
        if self.start == "common":  # then FedAvg among the group, from its first round on, also for streams, optimisers
            round.optimisers.forget(round.clients)
            state, starts = state.with_numbers(since=round.number), [drawn] * len(made.groups)
        else:
            groups = correctness_overlap.groups_of(state)
            starts = [_mean(_local(state, round.setup, names), round, drawn) for names in groups]
        return state.with_tensors(weights=train_together(starts)), made

    def _regrouped(self, state: ServerState, round: RoundContext) -> tuple[ServerState, list[Update], OverlapClusters]:
        """A round of phase 2 after which groups are made anew, before what was trained is averaged."""
        setup, before, group = round.setup, state.tensors["weights"], state.numbers["group"]
        updates: list[Update] = []
        for number, clients in enumerate(_present(state, round)):
            model = Model(setup.network, shared=of_group(before, number), clients=tuple(clients))
            silos = round.silos.select(clients)
            updates += round.train(local_train, model, silos, since=state.numbers["since"], keep=TRAINED)
        refs = {client: ref for update in updates for client, ref in update.private[TRAINED].items()}

        def trained(names: Sequence[str]) -> Model:
            return Model(
                setup.network, {}, ClientStateRefs(TRAINED, refs), clients=tuple(c for c in names if c in refs)
            )

        state, made = self._groups(state, round, trained(round.clients))
        after = correctness_overlap.groups_of(state)
        means = [_mean(trained(names), round, of_group(before, group[names[0]])) for names in after]
        return state.with_tensors(weights=train_together(means)), updates, made

    def _groups(self, state: ServerState, round: RoundContext, model: Model) -> tuple[ServerState, OverlapClusters]:
        """Everybody who told their bits once in groups, after the model's clients have told theirs."""
        answers = correctness_overlap.latest(state, correctness_overlap.asked(model, round))
        seed = (
            None if isinstance(self.threshold, float) else correctness_overlap.halving(round, self.threshold == "gap")
        )
        threshold = self._threshold(state, round, answers, seed)
        made = round.run_on_server(
            overlap, answers, correctness_overlap.rows_of(round), self.overlap, threshold, self.assign, seed
        )
        return correctness_overlap.grouped_as(state, answers, made.groups, made.threshold), made

    def _threshold(
        self, state: ServerState, round: RoundContext, answers: Sequence[CorrectnessBits], seed: int | None
    ) -> float | None:
        """The number that params give, or that was found worth most when groups were first made; None for the gap."""
        if seed is None or self.threshold != "accuracy":
            return None if self.threshold == "gap" else float(self.threshold)
        if state.numbers["threshold"] is not None:
            return float(state.numbers["threshold"])
        drawn = _drawn(round.setup)

        def start(names: Sequence[str]) -> Weights:
            return drawn if self.start == "common" else _mean(_local(state, round.setup, names), round, drawn)

        return best_threshold(answers, round, seed, self.overlap, self.assign, self.trial_rounds, start)

    def _joined(self, state: ServerState, round: RoundContext, late: Sequence[str]) -> tuple[ServerState, list[Update]]:
        """Late clients go through phase 1 in this round, and each is let into the group that it fits; nobody else moves."""
        if not late:
            return state, []
        refs = {client: ref for client, ref in state.private[LOCAL].items() if client not in late}
        state = replace(state, private={**state.private, LOCAL: refs})
        updates: list[Update] = []
        round.optimisers.forget(late)
        for number in range(1, self.local_rounds + 1):  # as if they had been there: streams count from the draw
            state, updates = _alone(state, round, late, since=round.number - number)
            round.optimisers.next_round(late)
        if self.start == "common":
            round.optimisers.forget(late)
        told, (known,) = (
            correctness_overlap.asked(_local(state, round.setup, late), round),
            correctness_overlap.kept(state),
        )
        before, threshold = correctness_overlap.groups_of(state), state.numbers["threshold"]
        after = round.run_on_server(
            admit, told, before, known, correctness_overlap.rows_of(round), self.overlap, threshold
        )
        drawn, new = _drawn(round.setup), after[len(before) :]
        fresh = [_mean(_local(state, round.setup, names), round, drawn) for names in new]
        weights = [of_group(state.tensors["weights"], number) for number in range(len(before))]
        state = correctness_overlap.grouped_as(state, [known, *told], after, threshold)
        return state.with_tensors(weights=train_together([*weights, *fresh])), updates


def _alone(
    state: ServerState, round: RoundContext, clients: Sequence[str], since: int = 0
) -> tuple[ServerState, list[Update]]:
    """A round of phase 1 for these clients."""
    silos = round.setup.silos.select(clients)
    updates = round.train(local_train, _local(state, round.setup, clients), silos, since=since)
    for update in updates:
        state = state.with_private(LOCAL, update.private[LOCAL])
    return state, updates


def _local(state: ServerState, setup: TrainingSetup, clients: Sequence[str]) -> Model:
    """Each client's weights of phase 1; one that has trained never has the start."""
    return Model(setup.network, {}, ClientStateRefs(LOCAL, state.private[LOCAL], _drawn(setup)), clients=tuple(clients))


def _drawn(setup: TrainingSetup) -> Weights:
    """FedAvg's start."""
    return setup.network.init(server_stream(setup.seed, 0, "init"))


def _mean(model: Model, round: RoundContext, otherwise: Weights) -> Weights:
    """Of the weights that the model's clients keep, by rows; others if they have none."""
    mean: Weights = round.run_on_server(
        aggregate, round.map_clients(send_weights, model, round.setup.silos.select(model.clients)), otherwise
    )
    return mean


def _present(state: ServerState, round: RoundContext) -> list[list[str]]:
    """Those of each group that take part."""
    return [[client for client in names if client in round.clients] for names in correctness_overlap.groups_of(state)]


def _report(
    updates: Sequence[Update],
    state: ServerState,
    round: RoundContext,
    made: OverlapClusters | None,
    unasked: Sequence[str] = (),
) -> RoundReport:
    """Which group everybody is in; if groups were just made, how far apart they are; and what was not asked for them."""
    report, group = RoundReport.of(updates), state.numbers["group"]
    numbers = {**report.metrics, "groups": float(len(correctness_overlap.groups_of(state)))}
    if made is not None:
        margins = {"overlap/within": made.within, "overlap/across": made.across, "overlap/threshold": made.threshold}
        numbers |= {name: value for name, value in margins.items() if value is not None}
    rows = {"group": {client: float(group[client]) for client in round.clients if client in group}} if group else {}
    said = (correctness_overlap.sentence(made), *unasked) if made else ()
    return RoundReport(numbers, {**report.client_metrics, **rows}, said)
