"""FedSR: FedAvg of a short, simple, random representation (Nguyen, Torr and Lim 2022).

w <- init;  (r_mu, r_sigma, C)_k <- init, the same for all k
repeat: each client k trains w_k from w, and (r_mu, r_sigma, C)_k from their last values, for E local epochs on
            cross_entropy(W z, y) + a E||z|| + c KL(N(C mu, (C sigma)^2) || N(r_mu[y], r_sigma[y]^2)),  z ~ N(mu, sigma^2)
        w <- sum_k n_k w_k / sum_k n_k;  (r_mu, r_sigma, C)_k stay with the client
"""

from pydantic import Field

from flows.core.search_space import axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.common.network_checks import require_linear_head, require_memory, split_personal
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.wrappers.domain_generalisation import StochasticRepresentation
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_limits

SECTION = "references"


class FedSR(fedavg.FedAvg):
    """`norm_weight` and `conditional_weight` are the paper's alpha L2R and alpha CMI; `sampled` false is z = mu.

    `width` adds a linear layer for mu, as in the authors' code.
    """

    takes_members = False

    tuned = axes(norm_weight=(0.001, 0.01))

    norm_weight: float = Field(
        0.01, ge=0, le=param_limits.MAX_REAL, description="alpha L2R: weight of the representation's length"
    )
    conditional_weight: float = Field(
        0.001, ge=0, le=param_limits.MAX_REAL, description="alpha CMI: weight of the distance to a class's reference"
    )
    sampled: bool = Field(True, description="sample the representation; false uses its mean")
    width: int | None = Field(
        None,
        ge=1,
        le=param_limits.CHANNELS,
        description="size of the representation, from an extra layer; null: no extra layer",
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial state with a layer for sigma; no client has stored references."""
        require_memory(self._network(setup), "method.fedsr.width")
        sections, _ = self._initial_weights(setup)
        return ServerState(sections, private={SECTION: {}})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Run a round of FedAvg on the shared weights; references stay with the clients."""
        _, start = self._initial_weights(round.setup)
        references = ClientStateRefs(SECTION, state.private[SECTION], start)
        network = self._network(round.setup)
        model = Model(network, state.tensors["weights"], references, clients=round.clients)
        return fedavg.fedavg_round(state, round, model, SECTION)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the shared weights, without the references, which only training reads."""
        return Model(self._network(setup), state.tensors["weights"], clients=setup.silos.clients)

    def _initial_weights(self, setup: TrainingSetup) -> tuple[dict[str, Weights], Weights]:
        network = self._network(setup)
        return split_personal(setup.initial_weights(network), network.personal)

    def _network(self, setup: TrainingSetup) -> StochasticRepresentation:
        inner = require_linear_head(setup)
        return StochasticRepresentation(inner, self.norm_weight, self.conditional_weight, self.sampled, self.width)
