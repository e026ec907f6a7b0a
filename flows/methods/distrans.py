"""DisTrans: clients mix their rows with a learned offset of their own (Yuan et al. 2022, arXiv 2210.15025).

w <- init;  t_k <- init, the same for all k
repeat: each client k trains w_k from w, and t_k from its last value, for E local epochs on
            cross_entropy(W [g((1 - a) x + a t_k); g((1 + a) x - a t_k)] + b, y)
        w <- sum_k n_k w_k / sum_k n_k;  t_k stays with the client
"""

from pydantic import Field

from flows.core.search_space import Axis, axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.common.network_checks import require_linear_head, split_personal
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.wrappers.distrans_network import OffsetNetwork
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_limits

SECTION = "offset"


class DisTrans(fedavg.FedAvg):
    """`mix` is the paper's a; `offset_rate` is the offset's learning rate as a multiple of the model's."""

    tested_model = "personal"
    takes_members = False

    tuned = axes(mix=Axis(values=(0.2, 0.4), most=0.8))

    mix: float = Field(
        0.2, ge=0, lt=1, description="a: the share of the client's offset image that is mixed into its rows"
    )
    offset_rate: float = Field(
        0.2,
        ge=0,
        le=param_limits.MAX_REAL,
        description="the learning rate of the offset image, as a multiple of the model's",
    )
    start_scale: float = Field(
        1.0, ge=0, le=param_limits.MAX_REAL, description="the upper bound of the uniform start of the offset image"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial state with a wider last layer; no client has stored an offset."""
        sections, _ = self._initial_weights(setup)
        return ServerState(sections, private={SECTION: {}})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Run a round of FedAvg on the shared weights; offsets stay with the clients."""
        return fedavg.fedavg_round(state, round, self.model(state, round.setup), SECTION)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the shared weights with each client's offset; a client that has not trained has the initial one."""
        _, start = self._initial_weights(setup)
        offset = ClientStateRefs(SECTION, state.private[SECTION], start)
        return Model(self._network(setup), state.tensors["weights"], offset, clients=setup.silos.clients)

    def _initial_weights(self, setup: TrainingSetup) -> tuple[dict[str, Weights], Weights]:
        network = self._network(setup)
        return split_personal(setup.initial_weights(network), network.personal)

    def _network(self, setup: TrainingSetup) -> OffsetNetwork:
        inner, shape = require_linear_head(setup), tuple(setup.silos.manifest.shape)
        return OffsetNetwork(inner, shape, self.mix, self.offset_rate, self.start_scale)
