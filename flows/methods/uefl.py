"""UEFL: clients whose predictions stay uncertain get words of their own (Zhang, Cao and Liu 2025, arXiv 2402.18888).

stage: repeat: every client k trains encoder, classifier and its words from w and codes(k) for E local epochs;
               w, and the shared words, <- sum_k n_k w_k / sum_k n_k;  a client's own words stay with it
       e_k <- mean over k's validation rows of the entropy of the mean of T passes with dropout on;  only e_k leaves
       U <- {k: e_k > (1 + gamma) min_j e_j};  none, or the last stage: done
       every k in U: V more words, the k-means centres of its own features
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from flows.experiment.figure_context import FigureWriter
from flows.methods.base import Method, RoundReport
from flows.methods.common import codebook_stages
from flows.methods.common.codebook_stages import SECTION, Check, Until
from flows.methods.common.codebook_transfer import Unseen, common_codebooks, doubts, lend, with_classes, with_codes
from flows.methods.common.method_figures import codewords, stages
from flows.methods.common.network_checks import fitting
from flows.methods.context import RoundContext, TrainingSetup, uniform_by_client
from models.client_model import Model
from models.networks.network_factory import Network
from models.prng import server_stream
from models.server_state import ServerState
from silos import param_types
from tasks.codebook_extend import Fill, codebook_extend
from tasks.messages.message_policy import LEAST_ROWS

_ARMS: Mapping[str, Mapping[str, Any]] = {
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
_WAITS = f"words start once a client with {LEAST_ROWS} different training rows takes part"


class UEFL(Method):
    """`tolerance` is the paper's gamma (null: nobody is ever uncertain), `words` its V, `passes` its T.

    `arm` sets what is not set beside it: `paper`, the text; `ours`, what worked on evidence (docs/methods/uefl.md). Of a
    deep ensemble every member has a book and words of its own.
    """

    tested_model = "personal"

    arm: Literal["paper", "ours"] = Field(
        "ours", description="sets what is not set beside it: the paper's text, or what worked"
    )
    words: int = Field(32, ge=1, le=param_types.CHANNELS, description="V: words at the start and of each extension")
    segments: Annotated[int, Field(ge=1, le=param_types.CHANNELS)] | Literal["auto"] = Field(
        1, description="slices of the channels that take a word each"
    )
    commitment: float = Field(
        0.25, ge=0, le=param_types.MAX_REAL, description="weight that draws features to their words"
    )
    code_weight: float = Field(
        1.0, ge=0, le=param_types.MAX_REAL, description="weight of the codebook's loss beside the objective"
    )
    warm_up: int = Field(0, ge=0, le=param_types.TIMES, description="rounds without words; with start centres")
    start: Literal["normal", "centres"] = Field(
        "normal", description="the first words: random, or centres that clients tell"
    )
    start_scale: float = Field(1.0, gt=0, le=param_types.MAX_REAL, description="spread of the words with start normal")
    first_rounds: int = Field(20, ge=1, le=param_types.TIMES, description="rounds of the first stage")
    more_rounds: int = Field(10, ge=1, le=param_types.TIMES, description="rounds of every later stage")
    stages: int = Field(5, ge=1, le=param_types.TIMES, description="stages at most")
    most: int | None = Field(
        None, ge=1, le=param_types.CLIENTS, description="clients extended at once at most, the most uncertain first"
    )
    passes: int = Field(20, ge=0, le=param_types.PASSES, description="T: passes with dropout whose mean is judged")
    check_on: Literal["validation", "train"] = Field(
        "validation", description="rows on which clients are asked for their doubt"
    )
    tolerance: float | None = Field(
        0.3,
        ge=-1,
        le=param_types.MAX_REAL,
        description="gamma: doubt above the least by this is uncertain; null: never",
    )
    threshold: Literal["first", "each_stage"] = Field(
        "first", description="the limit of the first check stays, or is anew each stage"
    )
    extend: Literal["uncertain", "random", "shared"] = Field(
        "uncertain", description="who gets words; random and shared are controls"
    )
    fill: Fill = Field("kmeans", description="new words: centres of the client's features, or random")
    until: Until = Field("certain", description="certain ends the run when nobody is uncertain")
    unseen: Unseen = Field("shared", description="the words that a client reads which never trained")
    joining: Literal["own", "shared"] = Field(
        "own", description="the words of a client that comes after the first check"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_arm(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {**_ARMS.get(str(given.get("arm", cls.model_fields["arm"].default)), {}), **given}

    def init(self, setup: TrainingSetup) -> ServerState:
        """One draw of weights, FedAvg's, and of shared words; nobody has words of its own."""
        setup = with_classes("uefl", setup)
        network = self._network(setup, words=0 if self.start == "centres" else self.words)
        fitting(self._network(setup, self.words), "method.uefl.words")
        return codebook_stages.begin(network.init(server_stream(setup.seed, 0, "init")))

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train everywhere, average; at a stage's end ask for doubts, and give words to those that doubt."""
        state, news = self._started(state, round)
        state, report = codebook_stages.train(state, round, self._model(state, round.setup, round.clients), news)
        begun = round.number > self.warm_up and codebook_stages.common(state) > 0
        state = state.with_numbers(since=state.numbers["since"] + begun)
        if not codebook_stages.is_over(state, self.first_rounds, self.more_rounds):
            return state, codebook_stages.also(report, {"stage": state.numbers["stage"]})
        check = self._check(state, round)
        extended = self._chosen(check.uncertain, round) if state.numbers["stage"] < self.stages else []
        if extended:
            state = self._common_book(state, round) if self.extend == "shared" else self._more(state, round, extended)
        return codebook_stages.conclude(state, round, report, check, extended, self.words, self.until)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """The same network for everybody, each client with its own words beside the shared ones."""
        return self._model(state, setup, setup.silos.clients)

    def figures(self) -> tuple[FigureWriter, ...]:
        """Stages and codewords."""
        return stages, codewords

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """A client that never took part reads the words that `unseen` says, once there are any."""
        model = self.model(state, round.setup)
        fresh = [client for client in round.clients if client not in state.private[SECTION]]
        if not fresh or self.unseen == "shared" or not codebook_stages.common(state):
            return model
        if self.unseen == "own":
            return self.model(self._more(state, round, fresh), round.setup)
        return lend(self.unseen, model, round, fresh)

    def _started(self, state: ServerState, round: RoundContext) -> tuple[ServerState, tuple[str, ...]]:
        """With shared words once the warm-up is over, and words of their own for those who come late; what to say of it."""
        if round.number > self.warm_up and not codebook_stages.common(state):
            state = self._common_book(state, round)
            if not codebook_stages.common(state):
                return state, (_WAITS,)
        never = self.tolerance is None or self.stages == 1 or self.joining == "shared" or self.extend == "shared"
        late = [] if never else codebook_stages.newcomers(state, round)
        if not late:
            return state, ()
        return self._more(state, round, late), codebook_stages.greeting(late)

    def _check(self, state: ServerState, round: RoundContext) -> Check:
        """What clients tell of their doubts, and (1 + gamma) times the least entropy of the first stage (equation 7)."""
        numbers = doubts(round, self._model(state, round.setup, round.clients), self.check_on, self.passes)
        limit = state.numbers["limit"]
        if limit is None or self.threshold == "each_stage":
            limit = math.inf if self.tolerance is None else (1 + self.tolerance) * min(numbers["entropy"].values())
        return Check(numbers, limit)

    def _chosen(self, uncertain: list[str], round: RoundContext) -> list[str]:
        """Who gets words: the most uncertain, or, a control, as many that are drawn."""
        chosen = uncertain[: self.most]
        if self.extend != "random":
            return chosen
        ticket = uniform_by_client(round.setup, round.clients, round.number, "extend")
        return sorted(sorted(round.clients, key=lambda c: (ticket[c], c))[: len(chosen)])

    def _more(self, state: ServerState, round: RoundContext, extended: Sequence[str]) -> ServerState:
        """The state in which these clients have more words, of an ensemble in every member."""
        held = state.numbers["words"]
        most = max(held.get(one.prefix + c, 0) for one in round.setup.network.single_networks for c in extended)
        room = max(state.numbers["room"], most + self.words)
        model = self._model(state, round.setup, codebook_stages.storing(state, round, extended))
        return codebook_stages.extend(state, round, codebook_extend, model, extended, self.words, room, fill=self.fill)

    def _common_book(self, state: ServerState, round: RoundContext) -> ServerState:
        """Shared words anew, where the clients' features are: k-means over the centres that each tells of its own.

        As before, if none of these clients tells any.
        """
        (books,) = common_codebooks(round, [self._model(state, round.setup, round.clients)], self.words)
        return (
            state.with_tensors(weights={**state.tensors["weights"], **books})
            if all(map(len, books.values()))
            else state
        )

    def _model(self, state: ServerState, setup: TrainingSetup, clients: Sequence[str]) -> Model:
        network = self._network(setup, codebook_stages.common(state), state.numbers["room"])
        return codebook_stages.worded(state, network, clients)

    def _network(self, setup: TrainingSetup, words: int, room: int = 0) -> Network:
        options: dict[str, Any] = self.model_dump(include={"segments", "commitment", "code_weight", "start_scale"})
        return with_codes("uefl", setup.network, words=words, room=room, **options)
