"""FedBN: FedAvg in which every client keeps its batch normalisation to itself (Li et al. 2021).

w, v_k <- init, v being what is kept of the normalising layers and w all other weights
repeat: every client k trains (w_k, v_k) from (w, v_k) for E local epochs
        w <- sum_k n_k w_k / sum_k n_k;  v_k stays with the client

What clients keep to themselves of normalising layers: all of these, or their running statistics.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from flows.methods.base import Method, RoundReport
from flows.methods.common.network_checks import apart
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.prng import server_stream
from models.server_state import ClientStateRefs, ServerState, Weights
from models.training.batchnorm_statistics import normalisation_statistics
from tasks.aggregate import aggregate
from tasks.local_train import local_train
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


class FedBN(Method):
    """`keep` all of the normalising `layers`, or their running `statistics`, whose weights and biases are then averaged.

    A network without batch normalisation is FedAvg's.
    """

    tested_model = "personal"

    keep: Literal["layers", "statistics"] = Field(
        "layers", description="what stays of normalising layers: all of it, or running statistics"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """FedAvg's draw; nobody has stored normalising layers yet."""
        return start(setup, self._own(setup))

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train everywhere, average what is shared, keep the rest."""
        updates = round.train(local_train, self.model(state, round.setup))
        state = with_kept(state, updates, self._own(round.setup))
        weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), RoundReport.of(updates)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """The same weights for everybody, but for what each client keeps."""
        return model(state, setup, self._own(setup))

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """A client that never trained has the start's scales, and measures the statistics of its own training rows."""
        return measured_where_missing(self.model(state, round.setup), round)

    def _own(self, setup: TrainingSetup) -> Sequence[str]:
        """The names of what clients keep."""
        return setup.network.normalising if self.keep == "layers" else normalisation_statistics(setup.network)
