"""What clients keep to themselves of normalising layers: all of these, or their running statistics."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from flows.methods.common.network_checks import apart
from flows.methods.context import RoundContext, TrainingSetup
from models.model import Model
from models.prng import server_stream
from models.state import ClientStateRefs, ServerState, Weights
from tasks.batchnorm_statistics_task import local_batchnorm_statistics
from tasks.messages import Update

SECTION = "norms"

Own = Collection[str]
"""Names of the weights that stay with clients; none of a network without such layers."""


def start(problem: TrainingSetup, own: Own) -> ServerState:
    """One draw of weights, the same for every method of a seed, without what stays with clients."""
    sections, _ = _drawn(problem, own)
    return ServerState(sections, private={SECTION: {}} if own else {})


def model(state: ServerState, problem: TrainingSetup, own: Own) -> Model:
    """The shared weights, and what each client keeps; one that keeps nothing yet has the start of that."""
    shared, clients = state.tensors["weights"], problem.silos.clients
    if not own:
        return Model(problem.network, shared=shared, clients=clients)
    _, begin = _drawn(problem, own)
    return Model(problem.network, shared, ClientStateRefs(SECTION, state.private[SECTION], begin), clients=clients)


def with_kept(state: ServerState, updates: Sequence[Update], own: Own) -> ServerState:
    """The state with the references of what these clients keep now."""
    for update in updates if own else ():
        state = state.with_private(SECTION, update.private[SECTION])
    return state


def measured_where_missing(model: Model, round: RoundContext) -> Model:
    """For clients that keep nothing yet the statistics of their own training rows; nothing is trained."""
    if not isinstance(model.personal, ClientStateRefs):
        return model
    refs, problem = dict(model.personal.refs), round.problem
    missing = problem.silos.select([client for client in problem.silos.clients if client not in refs])
    for told in round.each(
        local_batchnorm_statistics, model, missing, training=problem.training, seed=problem.seed, round=round.number
    ):
        refs |= told.refs
    return replace(model, personal=replace(model.personal, refs=refs))


def _drawn(problem: TrainingSetup, own: Own) -> tuple[dict[str, Weights], Weights]:
    return apart(problem.network.init(server_stream(problem.seed, 0, "init")), own)
