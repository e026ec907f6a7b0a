"""SCAFFOLD: control variates correct each client's gradient for the drift between clients (Karimireddy et al. 2020).

w <- init; c <- 0; c_k <- 0
repeat: each client k trains w_k from w with steps  w_k <- w_k - h (g_k(w_k) + c - c_k)
        c_k+ <- c_k - c + (w - w_k) / (K h), or the gradient of all its rows at w
        w <- w + server_rate sum_k n_k (w_k - w) / sum_k n_k;  c <- c + sum_k n_k (c_k+ - c_k) / n;  c_k <- c_k+
"""

from typing import Literal

from pydantic import Field

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.network_factory import learned
from models.server_state import ClientStateRefs, ServerState
from models.training.optimizers import SGD
from silos import param_limits
from silos.errors import UserError
from tasks.aggregate import aggregate
from tasks.gradients import VARIATE, scaffold_train, zero_terms

SECTION = "variates"


class Scaffold(fedavg.FedAvg):
    """`variate` is the paper's option: `difference` is II, `gradient` is I; `server_rate` is its global step size.

    Clients count by rows, as in FedAvg; the paper counts them equally.
    """

    takes_aggregation = False

    variate: Literal["difference", "gradient"] = Field(
        "difference",
        description="the new variate: from the change of weights, or a full gradient",
    )
    server_rate: float = Field(
        1.0,
        gt=0,
        le=param_limits.MAX_REAL,
        description="the server's step towards the mean of the clients",
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial state with zero variates.

        Raises:
            UserError: If the optimizer is not plain SGD, whose steps the variates are defined for.
        """
        optimiser = setup.training.optimiser
        if not isinstance(optimiser, SGD) or optimiser.momentum or setup.network.lr_multipliers:
            layers = " with learning rates by layer" if setup.network.lr_multipliers else ""
            momentum = " with momentum" if isinstance(optimiser, SGD) and optimiser.momentum else ""
            got = f"{type(optimiser).__name__.lower()}{momentum}{layers}"
            raise UserError(
                f"params.yaml: training.optimiser: got {got}, expected plain sgd for scaffold, since a variate is a mean "
                "gradient of its steps. Set kind: sgd without momentum, and a network with one learning rate."
            )
        state = super().init(setup)
        zeros = zero_terms(super().model(state, setup))
        return state.with_tensors(variate=zeros).with_private(SECTION, {})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train with corrected gradients, average the weights and add up the changes of the variates."""
        setup, w, c = round.setup, state.tensors["weights"], state.tensors["variate"]
        variates = ClientStateRefs(SECTION, state.private[SECTION], zero_terms(self.model(state, setup)))
        context = {name: value.expand(len(round.clients), *value.shape) for name, value in c.items()}
        model = Model(setup.network, w, context=context, clients=round.clients)
        updates = round.train(scaffold_train, model, variates=variates, variate=self.variate)
        for update in updates:
            state = state.with_private(SECTION, update.private[SECTION])
        mean = round.run_on_server(aggregate, updates, {**w, **{VARIATE + name: value for name, value in c.items()}})
        moved = {name: w[name] + self.server_rate * (mean[name] - w[name]) for name in learned(setup.network, w)}
        weights = {name: moved.get(name, mean[name]) if self.server_rate != 1 else mean[name] for name in w}
        rows = setup.silos.federated().rows("train")
        share = sum(rows[client] for client in round.clients) / max(sum(rows.values()), 1)
        c = {name: value + share * mean[VARIATE + name] for name, value in c.items()} if updates else c
        return state.with_tensors(weights=weights, variate=c), RoundReport.from_updates(updates)
