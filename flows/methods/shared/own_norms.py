"""What pages share whose clients keep their normalising layers, or the statistics of these, to themselves."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from flows.methods.shared.network_checks import apart
from flows.round import Problem, Round
from models.model import Model
from models.state import Private, State, Weights
from models.streams import server_stream
from models.training.norm_statistics import statistics_of
from silos.errors import UserError
from tasks.batch_statistics import common_norms, own_norms
from tasks.messages import Update

SECTION = "norms"

Own = Collection[str]
"""Names of the weights that stay with clients; none of a network without such layers."""


def start(problem: Problem, own: Own) -> State:
    """One draw of weights, the same for every method of a seed, without what stays with clients."""
    sections, _ = _drawn(problem, own)
    return State(sections, private={SECTION: {}} if own else {})


def model(state: State, problem: Problem, own: Own) -> Model:
    """The shared weights, and what each client keeps; one that keeps nothing yet has the start of that."""
    shared, clients = state.tensors["weights"], problem.silos.clients
    if not own:
        return Model(problem.network, shared=shared, clients=clients)
    _, begin = _drawn(problem, own)
    return Model(problem.network, shared, Private(SECTION, state.private[SECTION], begin), clients=clients)


def with_kept(state: State, updates: Sequence[Update], own: Own) -> State:
    """The state with the references of what these clients keep now."""
    for update in updates if own else ():
        state = state.with_private(SECTION, update.private[SECTION])
    return state


def measured_where_missing(model: Model, round: Round) -> Model:
    """For clients that keep nothing yet the statistics of their own training rows; nothing is trained."""
    if not isinstance(model.personal, Private):
        return model
    refs, silos = dict(model.personal.refs), round.problem.silos
    missing = [client for client in silos.clients if client not in refs]
    for told in round.each(own_norms, model, silos.select(missing), **_when(round)):
        refs |= told.refs
    return replace(model, personal=replace(model.personal, refs=refs))


def check_common_norms(problem: Problem) -> None:
    """UserError where a network has statistics to measure, and there are no rows that are nobody's."""
    if statistics_of(problem.network) and not problem.silos.common("validation"):
        raise UserError(
            "params.yaml: the method serverbn measures running statistics on rows that no client owns, and there are none; "
            "set data.split.validation_rows to common and data.split.validation to a share."
        )


def measured_in_common(weights: Weights, round: Round) -> Weights:
    """These weights with the statistics of the common validation rows, which any one client reads."""
    if not statistics_of(round.problem.network):
        return weights
    one = round.clients[:1]
    averaged = Model(round.problem.network, shared=weights, clients=one)
    told = round.each(common_norms, averaged, round.problem.silos.select(one), **_when(round))
    return {**weights, **{name: t[0] for answer in told for name, t in answer.statistics.items()}}


def _drawn(problem: Problem, own: Own) -> tuple[dict[str, Weights], Weights]:
    return apart(problem.network.init(server_stream(problem.seed, 0, "init")), own)


def _when(round: Round) -> dict[str, Any]:
    return {"training": round.problem.training, "seed": round.problem.seed, "round": round.number}
