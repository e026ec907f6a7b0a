"""DisTrans: every client mixes its rows with a picture of its own, which it learns (Yuan et al. 2022, arXiv 2210.15025).

w <- init; every client k: t_k <- the same start
repeat: every client k trains w_k from w, and t_k from its last, for E local epochs on
            cross_entropy(W [g((1 - a) x + a t_k); g((1 + a) x - a t_k)] + b, y)
        w <- sum_k n_k w_k / sum_k n_k;  t_k stays with the client
"""

from pydantic import Field

from flows.experiment.comparison.search_space import Axis, axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.common.network_checks import apart, ending_in_a_layer
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.wrappers.distrans_network import OffsetNetwork
from models.prng import server_stream
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_types
from tasks.aggregate import aggregate
from tasks.local_train import local_train

SECTION = "offset"


class DisTrans(fedavg.FedAvg):
    """`mix` is the paper's a, `offset_rate` the offset's learning rate in those of the model."""

    tested_model = "personal"
    takes_members = False

    tuned = axes(mix=Axis(values=(0.2, 0.4), most=0.8))

    mix: float = Field(0.2, ge=0, lt=1, description="a: how much of the client's picture is mixed in")
    offset_rate: float = Field(
        0.2, ge=0, le=param_types.MAX_REAL, description="the picture's learning rate, in those of the model"
    )
    start_scale: float = Field(
        1.0, ge=0, le=param_types.MAX_REAL, description="the picture starts uniform from 0 to this"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """FedAvg's draw with a wider last layer; nobody has stored an offset yet."""
        sections, _ = self._start(setup)
        return ServerState(sections, private={SECTION: {}})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """FedAvg of the shared weights; every client keeps its offset."""
        updates = round.train(local_train, self.model(state, round.setup))
        for update in updates:
            state = state.with_private(SECTION, update.private[SECTION])
        weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), RoundReport.of(updates)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """The shared weights with each client's offset; one that has not trained has the start."""
        _, start = self._start(setup)
        offset = ClientStateRefs(SECTION, state.private[SECTION], start)
        return Model(self._network(setup), state.tensors["weights"], offset, clients=setup.silos.clients)

    def _start(self, setup: TrainingSetup) -> tuple[dict[str, Weights], Weights]:
        network = self._network(setup)
        return apart(network.init(server_stream(setup.seed, 0, "init")), network.personal)

    def _network(self, setup: TrainingSetup) -> OffsetNetwork:
        inner, shape = ending_in_a_layer(setup), tuple(setup.silos.manifest.shape)
        return OffsetNetwork(inner, shape, self.mix, self.offset_rate, self.start_scale)
