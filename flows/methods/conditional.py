"""Conditional: one shared model that reads a row and its client's statistics (Conditioning on Local Statistics, 2503.00378).

once:   each client k computes statistics mu_k of its training rows, which stay with the client
repeat: each client k trains f(x, mu_k; w_k) from w on its rows for E local epochs
        w <- sum_k n_k w_k / sum_k n_k;  nothing else is sent, as in FedAvg
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from flows.core.search_space import axes
from flows.methods.base import Method, RoundReport
from flows.methods.common.conditioning import Conditioning, FewRows, Source, StatisticsMatrix
from flows.methods.common.network_checks import require_memory
from flows.methods.fedsgd import gradient_round
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.network_factory import Network, kind_of
from models.networks.wrappers.conditional_network import Bilinear, Ensemble
from models.server_state import ServerState
from models.statistics.feature_vector import Statistic, make
from models.statistics.spectrum import Loadings
from silos import param_limits
from silos.errors import UserError
from silos.param_types import PlainText
from tasks.aggregate import aggregate
from tasks.local_train import local_train, pooled_train


class Conditional(Method):
    """The options choose the statistics, how the network reads them, and how it is trained.

    `form`: joined (to the rows of an mlp, to the features of a cnn), planes (additional channels of a cnn's images),
    bilinear and ensemble (of `experts`) are the paper's. A `source` other than local is a control
    (flows/methods/common/conditioning.py). `arm`: pooled mixes the rows of all clients, as the paper did, and fedsgd sends
    one gradient a round. `few_rows`: a client with too few rows for a statistic reads zeros, or ends the run.
    """

    tested_model = "personal"
    takes_members = False

    tuned = axes(statistics=([{"kind": "covariance_xy"}], [{"kind": "loadings"}]))

    statistics: Annotated[tuple[dict[str, Any], ...], PlainText()] = Field(
        ({"kind": "covariance_xy"},), description="what a client computes from its rows: docs/statistics.md"
    )
    form: Literal["joined", "planes", "bilinear", "ensemble"] = Field(
        "joined", description="how statistics enter the network: docs/methods/conditional.md"
    )
    constant: bool = Field(False, description="with form bilinear: append a 1 to the statistics")
    experts: int = Field(3, ge=1, le=param_limits.COPIES, description="with form ensemble: the number of linear models")
    source: Source = Field("local", description="what replaces the statistics; all but local are controls")
    arm: Literal["fedavg", "fedsgd", "pooled"] = Field(
        "fedavg", description="how weights are trained; pooled is not federated"
    )
    few_rows: FewRows = Field(
        "zeros", description="what to do with too few rows of a client: read zeros, or end the run"
    )

    @property
    def pools_rows(self) -> bool:  # type: ignore[override]
        """Return whether rows are pooled."""
        return self.arm == "pooled"

    @field_validator("statistics")
    @classmethod
    def _check_statistics(cls, statistics: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for spec in statistics:
            make(spec)
        if not statistics:
            raise ValueError("got no statistic, expected at least one. Add one, such as {kind: covariance_xy}")
        return statistics

    def init(self, setup: TrainingSetup) -> ServerState:
        """Initialize the weights; no client has computed statistics."""
        network = require_memory(self._network(setup), "method.conditional")
        return StatisticsMatrix().add_to(ServerState({"weights": setup.initial_weights(network)}))

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Let new clients compute their statistics, then run a round of the arm."""
        setup = round.setup
        before = StatisticsMatrix.from_state(state)
        stored = self.conditioning().collect(round, self._bare_model(state, setup), round.clients, before)
        state, model = stored.add_to(state), self._model(state, setup, round.clients, stored)
        if self.arm == "fedsgd":
            state, report = gradient_round(state, round, model)
        else:
            if self.arm == "pooled":
                without_context = replace(model, context={})
                updates = round.train(pooled_train, without_context, silos=round.silos.pool(), context=model.context)
            else:
                updates = round.train(local_train, model)
            weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
            state, report = state.with_tensors(weights=weights), RoundReport.from_updates(updates)
        counts = {"clients/undetermined": len(stored.undetermined), "clients/unsteady": len(stored.unsteady)}
        warning = self.conditioning().noise_warning(before, stored)
        return state, report.merge(RoundReport(counts, messages=warning))

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the shared weights with the statistics of the clients that have computed them."""
        stored = StatisticsMatrix.from_state(state)
        clients = [c for c in setup.silos.clients if c in stored.refs or not self.conditioning().private]
        return self._model(state, setup, clients, stored)

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """Return the model after clients that never took part have computed their statistics, without training."""
        setup, stored = round.setup, StatisticsMatrix.from_state(state)
        clients = setup.silos.clients
        stored = self.conditioning().collect(round, self._bare_model(state, setup), clients, stored)
        return self._model(state, setup, clients, stored)

    def conditioning(self) -> Conditioning:
        """Return the statistics that the model reads."""
        return Conditioning(self._statistics, self.source, self.few_rows)

    @cached_property
    def _statistics(self) -> tuple[Statistic, ...]:
        return tuple(make(spec) for spec in self.statistics)

    def _bare_model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the model without statistics."""
        return Model(self._network(setup), shared=state.tensors["weights"], clients=setup.silos.clients)

    def _model(
        self, state: ServerState, setup: TrainingSetup, clients: Sequence[str], stored: StatisticsMatrix
    ) -> Model:
        context = self.conditioning().context(setup.silos, clients, stored, setup.seed)
        return replace(self._bare_model(state, setup), context=context, clients=tuple(clients))

    def _network(self, setup: TrainingSetup) -> Network:
        """Return the network of params.yaml extended by the statistics, or a linear form; UserError if they do not fit."""
        count, network = self.conditioning().count(setup.silos), setup.network
        manifest = setup.silos.manifest
        inputs, outputs = math.prod(manifest.shape), len(manifest.classes) or 1
        if self.form == "bilinear":
            return Bilinear(inputs, outputs, count, self.constant)
        if self.form == "ensemble":
            return Ensemble(inputs, outputs, count, self.experts)
        joined = network.with_statistics(count)
        if joined is None:
            raise UserError(
                f"params.yaml: model.kind: got {kind_of(network)}, expected mlp or cnn, which take "
                "statistics. Use one of them."
            )
        if self.form == "joined":
            return joined
        planes = [s.components for s in self._statistics if isinstance(s, Loadings) and s.sign != "free"]
        all_planes = len(planes) == len(self._statistics) and self.source not in ("client_id", "cluster_id")
        with_planes = network.with_statistics(count, planes=sum(planes)) if all_planes else None
        if with_planes is None:
            raise UserError(
                "params.yaml: method.conditional.form: got planes, expected joined. Planes need a cnn on images of one "
                "channel, no statistics but loadings of a fixed sign, and a source that is not client_id or cluster_id. Use "
                "joined, or change these."
            )
        return with_planes
