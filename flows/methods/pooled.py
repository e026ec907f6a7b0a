"""Pooled: one model trained on all rows; the upper reference of the same network.

repeat: w <- w trained for E local epochs on the union of the rows;  with one client this is local_only

With training.privacy it adds one noise to the sum over all rows, which is what secure sums of the silos reach at best.
"""

from typing import ClassVar

from flows.methods import fedavg
from flows.methods.base import PrivateTraining, RoundReport
from flows.methods.round_context import RoundContext
from models.server_state import ServerState


class Pooled(fedavg.FedAvg):
    """Pooled has no options."""

    is_bound = pools_rows = True
    private_training: ClassVar[PrivateTraining] = "noise"

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train one client that has the rows of all clients."""
        return fedavg.fedavg_round(state, round, self.model(state, round.setup), silos=round.silos.pool())
