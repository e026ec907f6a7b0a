"""Server-side batch norm: FedAvg; running statistics are measured on common rows.

repeat: w <- a round of FedAvg
        running statistics of w <- those of the common validation rows, which no client owns, under w
"""

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.server_state import ServerState, Weights
from models.training.engine import normalisation_statistics
from silos.errors import UserError
from tasks.personal_layers import common_batchnorm_statistics


class ServerBN(fedavg.FedAvg):
    """Server-side batch norm has no options; without batch normalization it is FedAvg."""

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial state; UserError if there are statistics to measure and no common rows."""
        if normalisation_statistics(setup.network) and not setup.silos.common("validation"):
            raise UserError(
                "params.yaml: data.split.validation_rows: got no common rows, expected some, on which serverbn "
                "measures running statistics. Set it to common and data.split.validation to a share, then run "
                "`siloflow partition`."
            )
        return super().init(setup)

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Run a round of FedAvg, then measure the statistics."""
        state, report = super().run_round(state, round)
        return state.with_tensors(weights=with_common_statistics(state.tensors["weights"], round)), report


def with_common_statistics(weights: Weights, round: RoundContext) -> Weights:
    """Return the weights with the running statistics of the common validation rows, which the first client reads."""
    setup, reader = round.setup, round.clients[:1]
    if not normalisation_statistics(setup.network):
        return weights
    averaged, silos = Model(setup.network, shared=weights, clients=reader), setup.silos.select(reader)
    messages = round.map_clients(common_batchnorm_statistics, averaged, silos, **round.training_arguments)
    return {**weights, **{name: t[0] for message in messages for name, t in message.statistics.items()}}
