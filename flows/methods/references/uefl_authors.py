"""UEFL of its authors' code: clients uncertain on test rows change all codewords (destiny301/uefl; arXiv 2402.18888).

w <- init: encoder and classifier;  S_k <- init: k's copy of the shared codewords;  C_k <- {}: own codewords of client k
stage: repeat: each client k trains (w_k, S_k, C_k) from (w, S_k, C_k)
               w <- sum_k n_k w_k / sum_k n_k;  S_k and C_k stay with the client
       e_k <- mean entropy on k's TEST rows of one pass without dropout
       U <- {k: e_k > (1 + gamma) mean_j e_j};  stop if U is empty or the stage is the last
       each k:  (S_k, C_k) <- those of the round's last client;  the k-means centroids of k's features then replace its
       last own codewords if k is in U or has any, else S_k
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from flows.methods.base import Method, RoundReport
from flows.methods.common import codebook_stages
from flows.methods.common.codebook_stages import SECTION, Check, Until
from flows.methods.common.codebook_transfer import measure_uncertainty, quantize_network, require_classes, require_rows
from flows.methods.common.method_figures import stages
from flows.methods.common.network_checks import require_memory
from flows.methods.figure_context import FigureWriter
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.deep_ensemble import plain
from models.networks.network_factory import Network
from models.networks.wrappers.codebook_network import SHARED
from models.server_state import ServerState
from silos import param_limits
from tasks.codebook_extend import codebook_extend, codebook_replace
from tasks.execution.steps import ClientStep


class UEFLAuthors(Method):
    """The options have the names of uefl's. The authors' code has no maximum number of stages."""

    tested_model = "personal"

    words: int = Field(
        64, ge=1, le=param_limits.CHANNELS, description="V: codewords at the start and of each extension"
    )
    segments: int = Field(
        1, ge=1, le=param_limits.CHANNELS, description="segments of the channels, each with a codeword of its own"
    )
    commitment: float = Field(
        0.25,
        ge=0,
        le=param_limits.MAX_REAL,
        description="weight that pulls features towards their codewords",
    )
    code_weight: float = Field(
        1.0, ge=0, le=param_limits.MAX_REAL, description="weight of the codebook's loss relative to the objective"
    )
    start_scale: float = Field(
        1.0, gt=0, le=param_limits.MAX_REAL, description="standard deviation of the initial codewords"
    )
    first_rounds: int = Field(20, ge=1, le=param_limits.TIMES, description="rounds of the first stage")
    more_rounds: int = Field(10, ge=1, le=param_limits.TIMES, description="rounds of every later stage")
    stages: int = Field(5, ge=1, le=param_limits.TIMES, description="the maximal number of stages")
    tolerance: float = Field(
        0.1,
        ge=-1,
        le=param_limits.MAX_REAL,
        description="gamma: a client is uncertain if its uncertainty exceeds the mean by this",
    )
    until: Until = Field("certain", description="certain ends the run when no client is uncertain")

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial weights, and codewords from N(0, start_scale^2) of which each client has a copy."""
        require_classes("uefl_authors", setup)
        require_rows(setup.silos, "test")
        weights = setup.initial_weights(require_memory(self._network(setup), "method.uefl_authors.words"))
        return codebook_stages.initial_state(weights, copies=[name for name in weights if plain(name) == SHARED])

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train and average all but codewords; at the end of a stage, if a client is uncertain, change all codewords."""
        state, messages = self._extend_late_clients(state, round)
        state, report = codebook_stages.train(state, round, self._model(state, round.setup, round.clients), messages)
        state = state.with_numbers(since=state.numbers["since"] + 1)
        if not codebook_stages.is_over(state, self.first_rounds, self.more_rounds):
            return state, report.merge(RoundReport({"stage": state.numbers["stage"]}))
        check = self._check(state, round)
        extended = check.uncertain if state.numbers["stage"] < self.stages else []
        if extended:
            state = self._replace_codewords(state, round, extended)
        return codebook_stages.conclude(state, round, report, check, extended, self.words, self.until)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the shared network with each client's codewords; a client that never took part has the initial ones."""
        return self._model(state, setup, setup.silos.clients)

    def figures(self) -> tuple[FigureWriter, ...]:
        """Draw the stages; codewords differ between clients, so they have no common plane."""
        return (stages,)

    def _check(self, state: ServerState, round: RoundContext) -> Check:
        """Measure uncertainty; the limit is (1 + gamma) times the mean entropy of the first stage."""
        scores = measure_uncertainty(round, self._model(state, round.setup, round.clients), split="test", passes=0)
        entropy, limit = scores["entropy"].values(), state.numbers["limit"]
        return Check(scores, (1 + self.tolerance) * (sum(entropy) / len(entropy)) if limit is None else limit)

    def _extend_late_clients(self, state: ServerState, round: RoundContext) -> tuple[ServerState, tuple[str, ...]]:
        """Extend clients that joined after the first check; return the state and messages."""
        late = codebook_stages.late_clients(state, round) if self.stages > 1 else []
        if not late:
            return state, ()
        return self._extend(state, round, codebook_extend, late), codebook_stages.late_clients_message(late)

    def _replace_codewords(self, state: ServerState, round: RoundContext, uncertain: Sequence[str]) -> ServerState:
        """Give all clients the last client's codewords, then replace some by centroids of their own features."""
        last = state.private[SECTION][round.clients[-1]]
        state = state.with_private(SECTION, dict.fromkeys(state.private[SECTION], last))
        return self._extend(state, round, codebook_replace, uncertain)

    def _extend(self, state: ServerState, round: RoundContext, task: ClientStep, clients: Sequence[str]) -> ServerState:
        model = self._model(state, round.setup, codebook_stages.clients_with_codewords(state, round, clients))
        room = max(state.numbers["room"], self.words)
        return codebook_stages.extend(state, round, task, model, clients, self.words, room)

    def _model(self, state: ServerState, setup: TrainingSetup, clients: Sequence[str]) -> Model:
        return codebook_stages.model_with_codewords(state, self._network(setup, state.numbers["room"]), clients)

    def _network(self, setup: TrainingSetup, room: int = 0) -> Network:
        options: dict[str, Any] = self.model_dump(
            include={"words", "segments", "commitment", "code_weight", "start_scale"}
        )
        return quantize_network("uefl_authors", setup.network, room=room, **options)
