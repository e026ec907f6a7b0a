"""What clients keep to themselves of normalising layers: all of these, or their running statistics."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from flows.methods.common.network_checks import apart
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.prng import server_stream
from models.server_state import ClientStateRefs, ServerState, Weights
from tasks.measure_batchnorm import local_batchnorm_statistics
from tasks.messages.update_messages import Update

SECTION = "norms"

Own = Collection[str]
"""Names of the weights that stay with clients; none of a network without such layers."""


def start(setup: TrainingSetup, own: Own) -> ServerState:
    """One draw of weights, the same for every method of a seed, without what stays with clients."""
    sections, _ = _drawn(setup, own)
    return ServerState(sections, private={SECTION: {}} if own else {})


def model(state: ServerState, setup: TrainingSetup, own: Own) -> Model:
    """The shared weights, and what each client keeps; one that keeps nothing yet has the start of that."""
    shared, clients = state.tensors["weights"], setup.silos.clients
    if not own:
        return Model(setup.network, shared=shared, clients=clients)
    _, begin = _drawn(setup, own)
    return Model(setup.network, shared, ClientStateRefs(SECTION, state.private[SECTION], begin), clients=clients)


def with_kept(state: ServerState, updates: Sequence[Update], own: Own) -> ServerState:
    """The state with the references of what these clients keep now."""
    for update in updates if own else ():
        state = state.with_private(SECTION, update.private[SECTION])
    return state


def measured_where_missing(model: Model, round: RoundContext) -> Model:
    """For clients that keep nothing yet the statistics of their own training rows; nothing is trained."""
    if not isinstance(model.personal, ClientStateRefs):
        return model
    refs, setup = dict(model.personal.refs), round.setup
    missing = setup.silos.select([client for client in setup.silos.clients if client not in refs])
    for told in round.map_clients(
        local_batchnorm_statistics, model, missing, training=setup.training, seed=setup.seed, round=round.number
    ):
        refs |= told.refs
    return replace(model, personal=replace(model.personal, refs=refs))


def _drawn(setup: TrainingSetup, own: Own) -> tuple[dict[str, Weights], Weights]:
    return apart(setup.network.init(server_stream(setup.seed, 0, "init")), own)
