"""VIRTUAL: Bayesian; clients' rows are factors of one posterior (Corinzia et al. 2019).

s(w) = p(w) prod_k t_k(w), all Gaussian;  t_k <- 1;  each site t_k stays with its client
repeat: each client k trains q_k from s to minimize  E_q[loss] + kappa KL(q || s / t_k) / n_k
        r_k <- (q_k / s)^a_k,  a_k = damping n_k / sum_j n_j
        t_k <- t_k r_k;  s <- s prod_k r_k
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, field_validator, model_validator

from flows.core.search_space import axes
from flows.methods.base import Method, RoundReport
from flows.methods.common import posterior_sites
from flows.methods.common.network_checks import reject_batchnorm, require_mlp
from flows.methods.common.posterior_sites import KNOWN, POSTERIOR
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.gaussians import Noise
from models.networks.network import Network
from models.networks.wrappers.client_columns import ClientColumns, Lateral
from models.networks.wrappers.posterior_update import Site, SiteTraining, Tilted
from models.networks.wrappers.variational import Bias, Variational, drop_biases
from models.prng import server_stream
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_limits
from tasks.expectation_propagation import update_site
from tasks.messages.round_messages import SiteUpdates

_SEQUENTIAL_KL_WEIGHT = 1e-2

PosteriorName = Literal["server", "own", "own_called", "own_refreshed"]


class Virtual(Method):
    """`kl_weight` is kappa: 1 is Bayes; the default is 0.01 if visits are sequential, else 0.001.

    `deviation` is the initial standard deviation while the server has only the prior. `columns` are dense layers of each
    client's own, which stay with it. `answers` lists the posteriors that are scored; the first is the method's. They are
    the server's, each client's own last one, that of the clients called in the round, and each client's after one more
    visit.
    """

    takes_aggregation = False

    takes_members = False

    tuned = axes(kl_weight=(1e-4, 1e-3))

    kl_weight: float = Field(1e-3, ge=0, le=param_limits.MAX_REAL, description="kappa: weight of the prior; 1 is Bayes")
    prior_precision: float = Field(
        1.0, gt=0, le=param_limits.MAX_REAL, description="precision of the prior of every weight"
    )
    deviation: float = Field(
        0.0067, gt=0, le=param_limits.MAX_REAL, description="standard deviation of the weights where training starts"
    )
    noise: Noise = Field("local", description="how noise of weights reaches rows: by layer, by row, by batch")
    bias: Bias = Field("point", description="whether biases are numbers, Gaussians or absent")
    site: Site = Field(
        "nonneg", description="whether a client's factor only adds precision, is cut off at none, or is free"
    )
    visits: Literal["parallel", "sequential"] = Field(
        "parallel", description="whether clients of a round train at once, or one after another"
    )
    refinements: int = Field(1, ge=1, le=param_limits.TIMES, description="visits of each client in a round")
    share: posterior_sites.Share = Field("rows", description="a_k: by rows or equal among clients of a visit, or full")
    damping: float = Field(1.0, ge=0, le=1, description="factor of share")
    upload: float = Field(1.0, gt=0, le=1, description="share of the weights whose steps are sent, the largest first")
    columns: Lateral | None = Field(
        None, description="private layers of each client, and how they read the shared ones"
    )
    draws: int = Field(
        10, ge=0, le=param_limits.PASSES, description="samples of the weights for a prediction; 0: their mean"
    )
    answers: tuple[PosteriorName, ...] = Field(
        ("server", "own"), min_length=1, description="whose posteriors are scored; the first is the method's"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_kl_weight(cls, options: dict[str, object]) -> dict[str, object]:
        """Raise the default for sequential visits, which forget earlier clients with the default of parallel ones."""
        return {"kl_weight": _SEQUENTIAL_KL_WEIGHT, **options} if options.get("visits") == "sequential" else options

    @field_validator("answers")
    @classmethod
    def _unique_answers(cls, answers: tuple[PosteriorName, ...]) -> tuple[PosteriorName, ...]:
        if len({*answers}) < len(answers):
            raise ValueError("got a model twice, expected it once. Remove one of them")
        return answers

    @property
    def tested_model(self) -> Literal["global", "personal"]:  # type: ignore[override]
        """Global if the first posterior that is scored is the server's."""
        return "global" if self.answers[0] == "server" else "personal"

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return the prior, zero sites and FedAvg's initial point weights."""
        reject_batchnorm(setup)
        if self.columns:
            require_mlp(setup, "method.virtual.columns")
        return posterior_sites.initial_state(
            setup, self.bias, self.prior_precision, self.site == "free", self.columns is not None
        )

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Visit the clients in parallel or one after another, `refinements` times."""
        turns = [[*round.clients]] if self.visits == "parallel" else [[client] for client in round.clients]
        messages: list[SiteUpdates] = []
        applied: list[float] = []
        for refinement in range(self.refinements):
            messages = []
            for clients in turns:
                sent = self._visit(state, round, clients, refinement)
                state, share = posterior_sites.absorb_updates(state, round, sent, self._min_precision, self._kept)
                messages += sent
                applied.append(share)
        return state.with_numbers(called=list(round.clients)), posterior_sites.report_round(state, messages, applied)

    def leave(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Divide out the sites of leaving clients; they are still scored with their last posteriors."""
        state, share = posterior_sites.remove_clients(state, round, self._min_precision)
        if share == 1:
            return state, RoundReport()
        message = (
            f"{', '.join(round.clients)}: a share {share:g} of their factor was removed; more would leave "
            "precisions below a tenth of the prior's, so the rest stays"
        )
        return state, RoundReport({"leave/taken": share}, messages=(message,))

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the server's posterior for all clients."""
        weights = posterior_sites.variational_weights(state.tensors[KNOWN])
        return Model(self._variational(setup.network), shared=weights, clients=setup.silos.clients)

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """Return the first of the posteriors that are scored."""
        return self._posterior(self.answers[0], state, round)

    def other_models(self, state: ServerState, round: RoundContext) -> Mapping[str, Model]:
        """Return the other posteriors that are scored."""
        return {name: self._posterior(name, state, round) for name in self.answers[1:]}

    def _posterior(self, name: PosteriorName, state: ServerState, round: RoundContext) -> Model:
        if name == "server":
            return self.model(state, round.setup)
        if name == "own_refreshed":
            for message in self._visit(state, round, [c for c in round.clients if round.silos.rows("train")[c]], 0):
                state = state.with_private(POSTERIOR, message.private[POSTERIOR])
        clients = [c for c in round.clients if name != "own_called" or c in state.numbers["called"]]
        network = self._network(round.setup)
        column = posterior_sites.variational_column(self._initial_column(round.setup), self.bias, self.deviation)
        start = dict(sorted({**posterior_sites.variational_weights(state.tensors[KNOWN]), **column}.items()))
        personal = ClientStateRefs(POSTERIOR, state.private[POSTERIOR], start)
        return Model(self._variational(network), {}, personal, clients=tuple(clients))

    def _visit(
        self, state: ServerState, round: RoundContext, clients: Sequence[str], refinement: int
    ) -> list[SiteUpdates]:
        network = Tilted(self._network(round.setup), self.noise, self.bias, self.site, self.draws)
        column = posterior_sites.trainable_column(self._initial_column(round.setup), self.bias, self.deviation)
        return round.train(
            update_site,
            posterior_sites.site_model(network, state, round.setup, clients, column),
            round.setup.silos.select(clients),
            how=SiteTraining(self.kl_weight, self.deviation, self.prior_precision, self.upload),
            shares=posterior_sites.step_weights(round.setup, clients, self.share, self.damping),
            start=posterior_sites.initial_means(state, round.setup, self.bias),
            again=refinement,
        )

    @property
    def _min_precision(self) -> float | None:
        """Minimum precision of the server and of cavities if the server stores the sites; None does not guard them."""
        return self.prior_precision / 10

    @property
    def _kept(self) -> float:
        """Factor of a site's step if the server stores the sites; the server applies the whole step."""
        return 1.0

    def _variational(self, network: Network) -> Variational:
        return Variational(network, self.noise, self.bias, self.draws, self.deviation)

    def _network(self, setup: TrainingSetup) -> Network:
        """Return the network that clients train, with a column of their own if `columns` is set."""
        return ClientColumns(setup.network, self.columns) if self.columns else setup.network

    def _initial_column(self, setup: TrainingSetup) -> Weights:
        """Return the initial weights of a client's column, the same for all clients."""
        network = self._network(setup)
        weights = (
            network.init_column(server_stream(setup.seed, 0, "init column"))
            if isinstance(network, ClientColumns)
            else {}
        )
        return drop_biases(weights, self.bias)
