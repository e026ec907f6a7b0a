"""UEFL of its authors' code: who doubts on test rows sets off other words for all (destiny301/uefl; arXiv 2402.18888).

stage: repeat: every client k trains encoder, classifier and words from w, its copy of the shared words and codes(k);
               w <- sum_k n_k w_k / sum_k n_k;  all words stay with their client
       e_k <- mean over k's TEST rows of the entropy of one pass without dropout
       U <- {k: e_k > (1 + gamma) mean_j e_j};  none, or the last stage: done
       every k goes on with the words of the client that came last;  k-means centres of its own features then take the place
       of its last own words if it is in U or has any, else of its copy of the shared words
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from flows.experiment.figure_context import FigureWriter
from flows.methods.base import Method, RoundReport
from flows.methods.common import codebook_stages
from flows.methods.common.codebook_stages import SECTION, Check, Until
from flows.methods.common.codebook_transfer import doubts, with_classes, with_codes
from flows.methods.common.method_figures import stages
from flows.methods.common.network_checks import fitting
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.deep_ensemble import plain
from models.networks.network_factory import Network
from models.networks.wrappers.codebook_network import SHARED
from models.prng import server_stream
from models.server_state import ServerState
from silos import param_types
from tasks.codebook_extend import codebook_extend, codebook_replace
from tasks.execution.task_types import ClientStep


class UEFLAuthors(Method):
    """Names of options are uefl's. Their code has no bound of stages."""

    tested_model = "personal"

    words: int = Field(64, ge=1, le=param_types.CHANNELS, description="V: words at the start and of each extension")
    segments: int = Field(1, ge=1, le=param_types.CHANNELS, description="slices of the channels that take a word each")
    commitment: float = Field(
        0.25, ge=0, le=param_types.MAX_REAL, description="weight that draws features to their words"
    )
    code_weight: float = Field(
        1.0, ge=0, le=param_types.MAX_REAL, description="weight of the codebook's loss beside the objective"
    )
    start_scale: float = Field(1.0, gt=0, le=param_types.MAX_REAL, description="spread of the first words")
    first_rounds: int = Field(20, ge=1, le=param_types.TIMES, description="rounds of the first stage")
    more_rounds: int = Field(10, ge=1, le=param_types.TIMES, description="rounds of every later stage")
    stages: int = Field(5, ge=1, le=param_types.TIMES, description="stages at most")
    tolerance: float = Field(
        0.1, ge=-1, le=param_types.MAX_REAL, description="gamma: doubt above the mean by this is uncertain"
    )
    until: Until = Field("certain", description="certain ends the run when nobody is uncertain")

    def init(self, setup: TrainingSetup) -> ServerState:
        """FedAvg's start, and the same words from N(0, start_scale^2) for everybody to have a copy of."""
        network = fitting(self._network(with_classes("uefl_authors", setup)), "method.uefl_authors.words")
        weights = network.init(server_stream(setup.seed, 0, "init"))
        return codebook_stages.begin(weights, copies=[name for name in weights if plain(name) == SHARED])

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train everywhere, average all but words; at a stage's end, if somebody doubts, give words to all."""
        state, news = self._joined(state, round)
        state, report = codebook_stages.train(state, round, self._model(state, round.setup, round.clients), news)
        state = state.with_numbers(since=state.numbers["since"] + 1)
        if not codebook_stages.is_over(state, self.first_rounds, self.more_rounds):
            return state, codebook_stages.also(report, {"stage": state.numbers["stage"]})
        check = self._check(state, round)
        extended = check.uncertain if state.numbers["stage"] < self.stages else []
        if extended:
            state = self._replaced(state, round, extended)
        return codebook_stages.conclude(state, round, report, check, extended, self.words, self.until)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """The same network for everybody, each client with its own words; one that never took part reads the first ones."""
        return self._model(state, setup, setup.silos.clients)

    def figures(self) -> tuple[FigureWriter, ...]:
        """Stages; each client's words are its own, so there is no common plane."""
        return (stages,)

    def _check(self, state: ServerState, round: RoundContext) -> Check:
        """What clients tell of their doubts, and (1 + gamma) times the mean entropy of the first stage."""
        numbers = doubts(round, self._model(state, round.setup, round.clients), split="test", passes=0)
        entropy, limit = numbers["entropy"].values(), state.numbers["limit"]
        return Check(numbers, (1 + self.tolerance) * (sum(entropy) / len(entropy)) if limit is None else limit)

    def _joined(self, state: ServerState, round: RoundContext) -> tuple[ServerState, tuple[str, ...]]:
        """With words for those who come late; what to say of it."""
        late = codebook_stages.newcomers(state, round) if self.stages > 1 else []
        if not late:
            return state, ()
        return self._extended(state, round, codebook_extend, late), codebook_stages.greeting(late)

    def _replaced(self, state: ServerState, round: RoundContext, uncertain: Sequence[str]) -> ServerState:
        """Everybody has the last client's words, and then others in their place."""
        last = state.private[SECTION][round.clients[-1]]
        state = state.with_private(SECTION, dict.fromkeys(state.private[SECTION], last))
        return self._extended(state, round, codebook_replace, uncertain)

    def _extended(
        self, state: ServerState, round: RoundContext, task: ClientStep, clients: Sequence[str]
    ) -> ServerState:
        model = self._model(state, round.setup, codebook_stages.storing(state, round, clients))
        room = max(state.numbers["room"], self.words)
        return codebook_stages.extend(state, round, task, model, clients, self.words, room)

    def _model(self, state: ServerState, setup: TrainingSetup, clients: Sequence[str]) -> Model:
        return codebook_stages.worded(state, self._network(setup, state.numbers["room"]), clients)

    def _network(self, setup: TrainingSetup, room: int = 0) -> Network:
        options: dict[str, Any] = self.model_dump(
            include={"words", "segments", "commitment", "code_weight", "start_scale"}
        )
        return with_codes("uefl_authors", setup.network, room=room, **options)
