"""VIRTUAL: a Bayesian federation, in which every client's rows are a factor of the posterior (Corinzia et al. 2019).

s(w) = p(w) prod_k t_k(w), all Gaussian; every site t_k, 1 at first, stays with its client
repeat: every client k trains q_k from s:  minimise  E_q[loss] + kappa KL(q || s / t_k) / n_k
        r_k = (q_k / s)^a_k,  a_k = damping n_k / sum_j n_j
        t_k <- t_k r_k;  s <- s prod_k r_k
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from pydantic import Field, field_validator, model_validator

from flows.experiment.comparison.search_space import axes
from flows.methods.base import Method, RoundReport
from flows.methods.common import ep_sites
from flows.methods.common.ep_sites import KNOWN, POSTERIOR
from flows.methods.common.network_checks import dense_only, not_normalising
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.gaussians import Noise
from models.networks.network import Network
from models.networks.wrappers.client_columns import ClientColumns, Lateral
from models.networks.wrappers.ep_update import SiteTraining
from models.networks.wrappers.tilted_posterior import Site, Tilted
from models.networks.wrappers.variational import Bias, Variational, without
from models.prng import server_stream
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_types
from tasks.expectation_propagation import update_site
from tasks.messages.update_messages import SiteUpdates

_KL_IN_TURN = 1e-2

Answer = Literal["server", "own", "own_called", "own_refreshed"]


class Virtual(Method):
    """`kl_weight` is kappa: 1 is Bayes; 0.01 where it is not set and visits are sequential, else 0.001.

    `deviation`: what training starts from while the server knows nothing. `columns`: dense layers of every client's own,
    which stay with it. `answers`: whose posteriors are scored, the first of them as the method's: the server's; every
    client's own last one; that of those who were called in the round; every client's after one visit more.
    """

    takes_members = False

    tuned = axes(kl_weight=(1e-4, 1e-3))

    kl_weight: float = Field(1e-3, ge=0, le=param_types.MAX_REAL, description="kappa: weight of the prior; 1 is Bayes")
    prior_precision: float = Field(1.0, gt=0, le=param_types.MAX_REAL, description="of every weight's prior")
    deviation: float = Field(
        0.0067, gt=0, le=param_types.MAX_REAL, description="of weights where training starts and nothing is known"
    )
    noise: Noise = Field("local", description="how noise of weights reaches rows: by layer, by row, by batch")
    bias: Bias = Field("point", description="biases are numbers, Gaussians or none")
    site: Site = Field("nonneg", description="a client's factor adds precision only, is cut off at none, or is free")
    visits: Literal["parallel", "sequential"] = Field(
        "parallel", description="clients of a round at once, or one after another"
    )
    refinements: int = Field(1, ge=1, le=param_types.TIMES, description="visits of each client in a round")
    share: ep_sites.Share = Field("rows", description="a_k: by rows or equal among clients of a visit, or whole")
    damping: float = Field(1.0, ge=0, le=1, description="factor of share")
    upload: float = Field(1.0, gt=0, le=1, description="share of the weights whose steps are sent, the largest first")
    columns: Lateral | None = Field(None, description="layers of every client's own, and how they read the shared ones")
    draws: int = Field(10, ge=0, le=param_types.PASSES, description="draws of the weights for an answer; 0: their mean")
    answers: tuple[Answer, ...] = Field(
        ("server", "own"), min_length=1, description="whose posteriors are scored; the first as the method's"
    )

    @model_validator(mode="before")
    @classmethod
    def _in_turn(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Visits one after another forget what was learned before with the divergence of visits at once."""
        return {"kl_weight": _KL_IN_TURN, **given} if given.get("visits") == "sequential" else given

    @field_validator("answers")
    @classmethod
    def _once(cls, answers: tuple[Answer, ...]) -> tuple[Answer, ...]:
        if len({*answers}) < len(answers):
            raise ValueError("an answer is named twice")
        return answers

    @property
    def tested_model(self) -> Literal["global", "personal"]:  # type: ignore[override]
        """As the first answer says."""
        return "global" if self.answers[0] == "server" else "personal"

    def init(self, setup: TrainingSetup) -> ServerState:
        """The prior, and no sites; FedAvg's draw of what is not Gaussian."""
        not_normalising(setup)
        if self.columns:
            dense_only(setup, "method.virtual.columns")
        return ep_sites.begin(setup, self.bias, self.prior_precision, self.site == "free", self.columns is not None)

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Everybody at once, or one client after another; so often as `refinements` says."""
        turns = [[*round.clients]] if self.visits == "parallel" else [[client] for client in round.clients]
        told: list[SiteUpdates] = []
        taken: list[float] = []
        for again in range(self.refinements):
            told = []
            for clients in turns:
                messages = self._visit(state, round, clients, again)
                state, damping = ep_sites.absorbed(state, round, messages, self._least, self._kept)
                told += messages
                taken.append(damping)
        return state.with_numbers(called=list(round.clients)), ep_sites.report(state, told, taken)

    def leave(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Their sites are divided out; what they believed themselves is what they are still scored with."""
        state, taken = ep_sites.departed(state, round, self._least)
        if taken == 1:
            return state, RoundReport()
        said = (
            f"{', '.join(round.clients)}: of what their rows said {taken:g} is taken out; more would leave precisions below "
            "a tenth of the prior's, and the rest stays"
        )
        return state, RoundReport({"leave/taken": taken}, messages=(said,))

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """The server's posterior for everybody."""
        law = ep_sites.law(state.tensors[KNOWN])
        return Model(self._answering(setup.network), shared=law, clients=setup.silos.clients)

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """The first of the answers."""
        return self._answer(self.answers[0], state, round)

    def other_models(self, state: ServerState, round: RoundContext) -> Mapping[str, Model]:
        """The rest of them."""
        return {name: self._answer(name, state, round) for name in self.answers[1:]}

    def _answer(self, name: Answer, state: ServerState, round: RoundContext) -> Model:
        if name == "server":
            return self.model(state, round.setup)
        if name == "own_refreshed":
            for message in self._visit(state, round, [c for c in round.clients if round.silos.rows("train")[c]], 0):
                state = state.with_private(POSTERIOR, message.private[POSTERIOR])
        clients = [c for c in round.clients if name != "own_called" or c in state.numbers["called"]]
        network = self._network(round.setup)
        never = {
            **ep_sites.law(state.tensors[KNOWN]),
            **ep_sites.fresh_law(self._column(round.setup), self.bias, self.deviation),
        }
        own = ClientStateRefs(POSTERIOR, state.private[POSTERIOR], dict(sorted(never.items())))
        return Model(self._answering(network), {}, own, clients=tuple(clients))

    def _visit(self, state: ServerState, round: RoundContext, clients: Sequence[str], again: int) -> list[SiteUpdates]:
        network = Tilted(self._network(round.setup), self.noise, self.bias, self.site, self.draws)
        column = ep_sites.fresh(self._column(round.setup), self.bias, self.deviation)
        told = round.train(
            update_site,
            ep_sites.known_to(network, state, round.setup, clients, column),
            round.setup.silos.select(clients),
            how=SiteTraining(self.kl_weight, self.deviation, self.prior_precision, self.upload),
            shares=ep_sites.shares(round.setup, clients, self.share, self.damping),
            start=ep_sites.start(state, round.setup, self.bias),
            again=again,
        )
        return cast(list[SiteUpdates], told)

    @property
    def _least(self) -> float | None:
        """Least precision of the server and of cavities, where the server holds the sites; without it nothing guards."""
        return self.prior_precision / 10

    @property
    def _kept(self) -> float:
        """What a site takes of its step, where the server holds the sites; the server takes the whole."""
        return 1.0

    def _answering(self, network: Network) -> Variational:
        return Variational(network, self.noise, self.bias, self.draws, self.deviation)

    def _network(self, setup: TrainingSetup) -> Network:
        """What clients train: the problem's network, with a column of their own if they have one."""
        return ClientColumns(setup.network, self.columns) if self.columns else setup.network

    def _column(self, setup: TrainingSetup) -> Weights:
        """A column as a client begins with it, which is with what it is drawn for everybody."""
        network = self._network(setup)
        drawn = network.own(server_stream(setup.seed, 0, "init column")) if isinstance(network, ClientColumns) else {}
        return without(drawn, self.bias)
