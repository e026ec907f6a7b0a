"""UEFL: clients that stay uncertain get codewords of their own (Zhang, Cao and Liu 2025, arXiv 2402.18888).

w <- init: encoder, classifier and V shared codewords;  C_k <- {}: own codewords of client k
stage: repeat: each client k trains (w_k, C_k) from (w, C_k) for E local epochs
               w <- sum_k n_k w_k / sum_k n_k;  C_k stays with the client
       e_k <- mean entropy on k's validation rows of the mean of T dropout passes;  e_k alone decides
       U <- {k: e_k > (1 + gamma) min_j e_j};  stop if U is empty or the stage is the last
       each k in U:  C_k <- C_k and V more codewords, the k-means centroids of k's features
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from flows.methods.base import Method, RoundReport
from flows.methods.common import codebook_stages
from flows.methods.common.codebook_stages import SECTION, Check, Until
from flows.methods.common.codebook_transfer import (
    Unseen,
    common_codebooks,
    lend_codewords,
    measure_uncertainty,
    quantize_network,
    require_classes,
    require_rows,
)
from flows.methods.common.method_figures import codewords, stages
from flows.methods.common.network_checks import require_memory
from flows.methods.figure_context import FigureWriter
from flows.methods.round_context import RoundContext, TrainingSetup, uniform_by_client
from models.client_model import Model
from models.networks.network_factory import Network
from models.server_state import ServerState
from silos import param_limits
from silos.privacy.owner_file import least_rows_of
from tasks.codebook_extend import Fill, codebook_extend

_ARMS: Mapping[str, Mapping[str, object]] = {
    "paper": {},
    "ours": {
        "start": "centres",
        "warm_up": 10,
        "segments": "auto",
        "words": 64,
        "tolerance": 0.05,
        "first_rounds": 10,
        "until": "budget",
    },
}


class UEFL(Method):
    """`tolerance` is the paper's gamma (null: no client is ever uncertain), `words` its V, `passes` its T.

    `arm` sets the options that are not set: `paper` as in the text, `ours` as the experiments suggest
    (docs/methods/uefl.md). Each member of a deep ensemble has its own codebook and codewords.
    """

    tested_model = "personal"

    arm: Literal["paper", "ours"] = Field(
        "ours", description="the defaults of the other options: the paper's, or ours, which worked here"
    )
    words: int = Field(
        32, ge=1, le=param_limits.CHANNELS, description="V: codewords at the start and of each extension"
    )
    segments: Annotated[int, Field(ge=1, le=param_limits.CHANNELS)] | Literal["auto"] = Field(
        1, description="segments of the channels, each with a codeword of its own"
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
    warm_up: int = Field(0, ge=0, le=param_limits.TIMES, description="rounds without a codebook; with start centres")
    start: Literal["normal", "centres"] = Field(
        "normal", description="the initial codewords: random, or centres of clients' features"
    )
    start_scale: float = Field(
        1.0, gt=0, le=param_limits.MAX_REAL, description="standard deviation of the codewords with start normal"
    )
    first_rounds: int = Field(20, ge=1, le=param_limits.TIMES, description="rounds of the first stage")
    more_rounds: int = Field(10, ge=1, le=param_limits.TIMES, description="rounds of every later stage")
    stages: int = Field(5, ge=1, le=param_limits.TIMES, description="the maximal number of stages")
    most: int | None = Field(
        None,
        ge=1,
        le=param_limits.CLIENTS,
        description="the maximal number of clients extended at once, the most uncertain first",
    )
    passes: int = Field(20, ge=0, le=param_limits.PASSES, description="T: passes with dropout whose mean is used")
    check_on: Literal["validation", "train"] = Field(
        "validation", description="the rows on which clients compute their uncertainty"
    )
    tolerance: float | None = Field(
        0.3,
        ge=-1,
        le=param_limits.MAX_REAL,
        description="gamma: uncertainty above the least by this counts as uncertain; null: never",
    )
    threshold: Literal["first", "each_stage"] = Field(
        "first", description="whether the limit of the first check stays, or is computed again in each stage"
    )
    extend: Literal["uncertain", "random", "shared"] = Field(
        "uncertain", description="which clients get codewords; random and shared are controls"
    )
    fill: Fill = Field("kmeans", description="new codewords: centres of the client's features, or random")
    until: Until = Field("certain", description="certain ends the run when no client is uncertain")
    unseen: Unseen = Field("shared", description="the codewords that a client without training reads")
    joining: Literal["own", "shared"] = Field(
        "own", description="the codewords of a client that joins after the first check"
    )

    @model_validator(mode="before")
    @classmethod
    def _arm_defaults(cls, options: dict[str, object]) -> dict[str, object]:
        return {**_ARMS.get(str(options.get("arm", cls.model_fields["arm"].default)), {}), **options}

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial weights and shared codewords, which are none yet if they start as centres."""
        require_classes("uefl", setup)
        require_rows(setup.silos, self.check_on)
        network = self._network(setup, 0 if self.start == "centres" else self.words)
        require_memory(self._network(setup, self.words), "method.uefl.words")
        return codebook_stages.initial_state(setup.initial_weights(network))

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train and average; at the end of a stage measure uncertainty and extend uncertain clients' codewords."""
        state, messages = self._prepare_round(state, round)
        state, report = codebook_stages.train(state, round, self._model(state, round.setup, round.clients), messages)
        begun = codebook_stages.num_shared_codewords(state) > 0
        state = state.with_numbers(since=state.numbers["since"] + begun)
        if not codebook_stages.is_over(state, self.first_rounds, self.more_rounds):
            return state, report.merge(RoundReport({"stage": state.numbers["stage"]}))
        check = self._check(state, round)
        extended = self._select_extended(check.uncertain, round) if state.numbers["stage"] < self.stages else []
        if extended:
            shared = self.extend == "shared"
            state = self._with_common_codebook(state, round) if shared else self._extend(state, round, extended)
        return codebook_stages.conclude(state, round, report, check, extended, self.words, self.until)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the shared network, with each client's own codewords besides the shared ones."""
        return self._model(state, setup, setup.silos.clients)

    def figures(self) -> tuple[FigureWriter, ...]:
        """Draw the stages and the codewords."""
        return stages, codewords

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """Return the model; clients that never took part read codewords according to `unseen`, once there are any."""
        model = self.model(state, round.setup)
        fresh = [client for client in round.clients if client not in state.private[SECTION]]
        if not fresh or self.unseen == "shared" or not codebook_stages.num_shared_codewords(state):
            return model
        if self.unseen == "own":
            return self.model(self._extend(state, round, fresh), round.setup)
        return lend_codewords(self.unseen, model, round, fresh)

    def _prepare_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, tuple[str, ...]]:
        """Initialize the shared codebook after the warm-up and extend late clients; return the state and messages."""
        if round.number > self.warm_up and not codebook_stages.num_shared_codewords(state):
            state = self._with_common_codebook(state, round)
            if not codebook_stages.num_shared_codewords(state):
                least, _ = least_rows_of(Path(round.private.folder), round.setup.silos.clients)
                return state, (f"codewords start when a client with {least} different training rows takes part",)
        never = self.tolerance is None or self.stages == 1 or self.joining == "shared" or self.extend == "shared"
        late = [] if never else codebook_stages.late_clients(state, round)
        if not late:
            return state, ()
        return self._extend(state, round, late), codebook_stages.late_clients_message(late)

    def _check(self, state: ServerState, round: RoundContext) -> Check:
        """Measure uncertainty; the limit is (1 + gamma) times the minimum entropy (equation 7).

        It is set by the first check, or by each check with `threshold: each_stage`.
        """
        scores = measure_uncertainty(round, self._model(state, round.setup, round.clients), self.check_on, self.passes)
        limit = state.numbers["limit"]
        if limit is None or self.threshold == "each_stage":
            limit = math.inf if self.tolerance is None else (1 + self.tolerance) * min(scores["entropy"].values())
        return Check(scores, limit)

    def _select_extended(self, uncertain: list[str], round: RoundContext) -> list[str]:
        """Select the clients to extend: the most uncertain, or as many random clients (a control)."""
        most_uncertain = uncertain[: self.most]
        if self.extend != "random":
            return most_uncertain
        keys = uniform_by_client(round.setup, round.clients, round.number, "extend")
        return sorted(sorted(round.clients, key=lambda c: (keys[c], c))[: len(most_uncertain)])

    def _extend(self, state: ServerState, round: RoundContext, extended: Sequence[str]) -> ServerState:
        """Give these clients more codewords, in each member of an ensemble."""
        counts, members = state.numbers["words"], round.setup.network.single_networks
        max_count = max(counts.get(member.prefix + client, 0) for member in members for client in extended)
        room = max(state.numbers["room"], max_count + self.words)
        model = self._model(state, round.setup, codebook_stages.clients_with_codewords(state, round, extended))
        return codebook_stages.extend(state, round, codebook_extend, model, extended, self.words, room, fill=self.fill)

    def _with_common_codebook(self, state: ServerState, round: RoundContext) -> ServerState:
        """Replace the shared codewords by k-means over the centroids that clients report of their features.

        The codewords stay if no client reports centroids.
        """
        (codebooks,) = common_codebooks(round, [self._model(state, round.setup, round.clients)], self.words)
        if not all(map(len, codebooks.values())):
            return state
        return state.with_tensors(weights={**state.tensors["weights"], **codebooks})

    def _model(self, state: ServerState, setup: TrainingSetup, clients: Sequence[str]) -> Model:
        network = self._network(setup, codebook_stages.num_shared_codewords(state), state.numbers["room"])
        return codebook_stages.model_with_codewords(state, network, clients)

    def _network(self, setup: TrainingSetup, num_codewords: int, room: int = 0) -> Network:
        options: dict[str, Any] = self.model_dump(include={"segments", "commitment", "code_weight", "start_scale"})
        return quantize_network("uefl", setup.network, words=num_codewords, room=room, **options)
