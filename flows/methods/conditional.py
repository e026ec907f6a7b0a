"""Conditional: one shared model of a row and of its client's statistics (Conditioning on Local Statistics, 2503.00378).

once:   every client k computes mu_k from its training rows; it stays with the client
repeat: every client trains f(x, mu_k; w) from w on its rows for E local epochs
        w <- sum_k n_k w_k / sum_k n_k; nothing else is sent, and the protocol is FedAvg's
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from flows.experiment.comparison.search_space import axes
from flows.methods.base import Method, RoundReport
from flows.methods.common.conditioning import Conditioning, FewRows, Source, StatisticsMatrix
from flows.methods.common.network_checks import fitting
from flows.methods.context import RoundContext, TrainingSetup
from flows.methods.fedsgd import gradient_round
from models.client_model import Model
from models.networks.network_factory import Network, kind_of
from models.networks.wrappers.conditional_network import Bilinear, Ensemble
from models.prng import server_stream
from models.server_state import ServerState
from models.statistics.feature_vector import Statistic, make
from models.statistics.spectrum import Loadings
from silos import param_types
from silos.errors import UserError
from silos.param_types import PlainText
from tasks.aggregate import aggregate
from tasks.local_train import local_train, pooled_train


class Conditional(Method):
    """How statistics enter, which they are, what stands in their place, and how the model is trained.

    `form`: joined (to the rows of an mlp, to the features of a cnn), planes (pictures beside the image of a cnn), bilinear
    and ensemble (of `experts`) are the paper's; `source` other than local is a control
    (flows/methods/common/conditioning.py); `arm`: pooled mixes the rows of all clients, as the paper did, fedsgd sends
    one gradient a round. `few_rows`: a client with too few rows for a statistic reads zeros, or is refused.
    """

    tested_model = "personal"
    takes_members = False

    tuned = axes(statistics=([{"kind": "covariance_xy"}], [{"kind": "loadings"}]))

    statistics: Annotated[tuple[dict[str, Any], ...], PlainText()] = Field(
        ({"kind": "covariance_xy"},), description="what a client says of its rows: docs/statistics.md"
    )
    form: Literal["joined", "planes", "bilinear", "ensemble"] = Field(
        "joined", description="how statistics enter the network: docs/methods/conditional.md"
    )
    constant: bool = Field(False, description="with form bilinear: a 1 at the end of the statistics")
    experts: int = Field(3, ge=1, le=param_types.COPIES, description="with form ensemble: so many linear models")
    source: Source = Field("local", description="what stands in the statistics' place; all but local are controls")
    arm: Literal["fedavg", "fedsgd", "pooled"] = Field(
        "fedavg", description="how weights are trained: pooled is no federation"
    )
    few_rows: FewRows = Field("zeros", description="a client with too few rows reads zeros, or ends the run")

    @field_validator("statistics")
    @classmethod
    def _there_are(cls, statistics: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for spec in statistics:
            make(spec)
        if not statistics:
            raise ValueError("names no statistic; one is {kind: covariance_xy}")
        return statistics

    def init(self, setup: TrainingSetup) -> ServerState:
        """One draw of weights; nobody has described their rows yet."""
        network = fitting(self._network(setup), "method.conditional")
        weights = network.init(server_stream(setup.seed, 0, "init"))
        return StatisticsMatrix().within(ServerState({"weights": weights}))

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Who takes part for the first time computes its statistics; then a round of the arm."""
        setup = round.setup
        before = StatisticsMatrix.of(state)
        known = self._conditions.ask(round, self._bare(state, setup), round.clients, before)
        state, model = known.within(state), self._model(state, setup, round.clients, known)
        if self.arm == "fedsgd":
            state, report = gradient_round(state, round, model)
        else:
            if self.arm == "pooled":
                bare = replace(model, context={})
                updates = round.train(pooled_train, bare, silos=round.silos.pool(), context=model.context)
            else:
                updates = round.train(local_train, model)
            weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
            state, report = state.with_tensors(weights=weights), RoundReport.of(updates)
        doubted = {"clients/undetermined": len(known.undetermined), "clients/unsteady": len(known.unsteady)}
        return state, report.merge(RoundReport(doubted, messages=self._conditions.doubt(before, known)))

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """The same weights for everybody, each with its own statistics; for clients that have computed them."""
        known = StatisticsMatrix.of(state)
        there = [c for c in setup.silos.clients if c in known.refs or not self._conditions.private]
        return self._model(state, setup, there, known)

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """A client that never took part computes its statistics now, from its training rows; it trains nothing."""
        setup = round.setup
        known = self._conditions.ask(round, self._bare(state, setup), setup.silos.clients, StatisticsMatrix.of(state))
        return self._model(state, setup, setup.silos.clients, known)

    def conditioning(self) -> Conditioning:
        """The statistics, or what stands in their place."""
        return self._conditions

    @cached_property
    def _records(self) -> tuple[Statistic, ...]:
        return tuple(make(spec) for spec in self.statistics)

    @property
    def _conditions(self) -> Conditioning:
        return Conditioning(self._records, self.source, self.few_rows)

    def _bare(self, state: ServerState, setup: TrainingSetup) -> Model:
        """The weights alone, for tasks that need no context."""
        return Model(self._network(setup), shared=state.tensors["weights"], clients=setup.silos.clients)

    def _model(
        self, state: ServerState, setup: TrainingSetup, clients: Sequence[str], known: StatisticsMatrix
    ) -> Model:
        context = self._conditions.context(setup.silos, clients, known, setup.seed)
        return replace(self._bare(state, setup), context=context, clients=tuple(clients))

    def _network(self, setup: TrainingSetup) -> Network:
        """The one of params.yaml with room for the statistics, or the paper's linear forms; UserError if they do not fit."""
        count, network = self._conditions.count(setup.silos), setup.network
        manifest = setup.silos.manifest
        inputs, outputs = math.prod(manifest.shape), len(manifest.classes) or 1
        if self.form == "bilinear":
            return Bilinear(inputs, outputs, count, self.constant)
        if self.form == "ensemble":
            return Ensemble(inputs, outputs, count, self.experts)
        joined = network.reading(count)
        if joined is None:
            raise UserError(f"params.yaml: model.kind {kind_of(network)} takes no statistics; use mlp or cnn.")
        if self.form == "joined":
            return joined
        pictures = [r.components for r in self._records if isinstance(r, Loadings) and r.sign != "free"]
        named = self.source in ("client_id", "cluster_id")
        fit = len(pictures) == len(self._records) and not named
        beside = network.reading(count, planes=sum(pictures)) if fit else None
        if beside is None:
            raise UserError(
                "params.yaml: method.conditional.form is planes, which needs a cnn on images of one channel and the "
                "statistics [{kind: loadings, sign: ones}] (any sign but free, which is no picture), and no client_id or "
                "cluster_id in their place; use joined otherwise."
            )
        return beside
