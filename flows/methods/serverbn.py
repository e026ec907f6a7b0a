"""Server-side batch norm: FedAvg whose server measures the running statistics of the average, on rows that are nobody's.

repeat: a round of FedAvg;  running statistics of w <- those of the common validation rows under w
"""

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.server_state import ServerState, Weights
from models.training.batchnorm_statistics import normalisation_statistics
from silos.errors import UserError
from tasks.measure_batchnorm import common_batchnorm_statistics


class ServerBN(fedavg.FedAvg):
    """No options of its own; a network without batch normalisation is FedAvg's."""

    def init(self, setup: TrainingSetup) -> ServerState:
        """FedAvg's; UserError where there are statistics to measure, and no rows that are nobody's."""
        if normalisation_statistics(setup.network) and not setup.silos.common("validation"):
            raise UserError(
                "params.yaml: the method serverbn measures running statistics on rows that no client owns, and there are "
                "none; set data.split.validation_rows to common and data.split.validation to a share."
            )
        return super().init(setup)

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """FedAvg's, then the statistics."""
        state, report = super().run_round(state, round)
        return state.with_tensors(weights=measured_in_common(state.tensors["weights"], round)), report


def measured_in_common(weights: Weights, round: RoundContext) -> Weights:
    """These weights with the statistics of the common validation rows, which any one client reads."""
    setup, reader = round.setup, round.clients[:1]
    if not normalisation_statistics(setup.network):
        return weights
    averaged, silos = Model(setup.network, shared=weights, clients=reader), setup.silos.select(reader)
    told = round.map_clients(
        common_batchnorm_statistics, averaged, silos, training=setup.training, seed=setup.seed, round=round.number
    )
    return {**weights, **{name: t[0] for answer in told for name, t in answer.statistics.items()}}
