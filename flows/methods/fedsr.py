"""FedSR: FedAvg of a representation that is drawn, short, and simple given the class (Nguyen, Torr and Lim 2022).

w <- init; every client k: (r_mu, r_sigma, C)_k <- the same start
repeat: every client k trains w_k from w, and its references from their last, for E local epochs on
            cross_entropy(W z, y) + a E||z|| + c KL(N(C mu, (C sigma)^2) || N(r_mu[y], r_sigma[y]^2)),  z ~ N(mu, sigma^2)
        w <- sum_k n_k w_k / sum_k n_k;  the references stay with the client
"""

from pydantic import Field

from flows.experiment.comparison.search_space import axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.common.network_checks import apart, ending_in_a_layer, fitting
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.wrappers.fedsr_network import StochasticRepresentation
from models.prng import server_stream
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_types
from tasks.aggregate import aggregate
from tasks.local_train import local_train

SECTION = "references"


class FedSR(fedavg.FedAvg):
    """`norm_weight` and `conditional_weight` are the paper's alpha L2R and alpha CMI; `sampled` false is z = mu.

    `width` gives mu a linear layer of its own, as in the authors' code.
    """

    takes_members = False

    tuned = axes(norm_weight=(0.001, 0.01))

    norm_weight: float = Field(
        0.01, ge=0, le=param_types.MAX_REAL, description="alpha L2R: weight of the representation's length"
    )
    conditional_weight: float = Field(
        0.001, ge=0, le=param_types.MAX_REAL, description="alpha CMI: weight of the distance to a class's reference"
    )
    sampled: bool = Field(True, description="draw the representation; false takes its mean")
    width: int | None = Field(
        None,
        ge=1,
        le=param_types.CHANNELS,
        description="numbers of the representation, by a layer of its own; null: as they are",
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """FedAvg's draw with a layer for sigma; nobody has stored references yet."""
        fitting(self._network(setup), "method.fedsr.width")
        sections, _ = self._start(setup)
        return ServerState(sections, private={SECTION: {}})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """FedAvg of the shared weights; every client keeps its references."""
        _, start = self._start(round.setup)
        references = ClientStateRefs(SECTION, state.private[SECTION], start)
        network = self._network(round.setup)
        training = Model(network, state.tensors["weights"], references, clients=round.clients)
        updates = round.train(local_train, training)
        for update in updates:
            state = state.with_private(SECTION, update.private[SECTION])
        weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), RoundReport.of(updates)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """The same weights for everybody: references serve training alone."""
        return Model(self._network(setup), state.tensors["weights"], clients=setup.silos.clients)

    def _start(self, setup: TrainingSetup) -> tuple[dict[str, Weights], Weights]:
        network = self._network(setup)
        return apart(network.init(server_stream(setup.seed, 0, "init")), network.personal)

    def _network(self, setup: TrainingSetup) -> StochasticRepresentation:
        inner = ending_in_a_layer(setup)
        return StochasticRepresentation(inner, self.norm_weight, self.conditional_weight, self.sampled, self.width)
