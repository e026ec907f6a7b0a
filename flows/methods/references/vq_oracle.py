"""VQ oracle: words in place of features, one codebook for each true domain, which no method is told (UEFL, section 4.1).

every client k of domain g trains encoder, classifier and words_g from w for E local epochs;
w <- sum_k n_k w_k / sum_k n_k;  words_g <- the same over the clients of g
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from flows.methods.base import Method, RoundReport
from flows.methods.common.clusters import members
from flows.methods.common.codebook_transfer import common_codebooks, with_codes
from flows.methods.common.network_checks import apart, fitting
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.network_factory import Network
from models.networks.wrappers.codebook_network import SHARED
from models.prng import server_stream
from models.server_state import ServerState
from silos import param_types
from silos.cohort import Silos
from tasks.aggregate import aggregate
from tasks.local_train import local_train
from tasks.messages.message_policy import LEAST_ROWS

_WAITS = f"words start once every domain has a client with {LEAST_ROWS} different training rows in the same round"


class VQOracle(Method):
    """The options are uefl's, with the defaults of its arm `ours`."""

    tested_model = "personal"
    takes_members = False

    words: int = Field(64, ge=1, le=param_types.CHANNELS, description="words of each domain")
    segments: Annotated[int, Field(ge=1, le=param_types.CHANNELS)] | Literal["auto"] = Field(
        "auto", description="slices of the channels that take a word each"
    )
    commitment: float = Field(
        0.25, ge=0, le=param_types.MAX_REAL, description="weight that draws features to their words"
    )
    code_weight: float = Field(
        1.0, ge=0, le=param_types.MAX_REAL, description="weight of the codebook's loss beside the objective"
    )
    warm_up: int = Field(10, ge=0, le=param_types.TIMES, description="rounds without words; with start centres")
    start: Literal["normal", "centres"] = Field(
        "centres", description="the first words: random, or centres that clients tell"
    )
    start_scale: float = Field(1.0, gt=0, le=param_types.MAX_REAL, description="spread of the words with start normal")

    def init(self, setup: TrainingSetup) -> ServerState:
        """FedAvg's start, and the same words for every domain, or none yet."""
        domains = setup.silos.training_domains()
        network = self._network(setup, 0 if self.start == "centres" else self.words)
        fitting(self._network(setup, self.words), "method.vq_oracle.words", len(domains))
        sections, book = apart(network.init(server_stream(setup.seed, 0, "init")), (SHARED,))
        books = {name: torch.stack([words] * len(domains)) for name, words in book.items()}
        return ServerState({**sections, "books": books}, {"domains": domains})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train everywhere; average weights over all clients, and words over those of a domain."""
        state = self._with_words(state, round)
        books, updates = list(state.tensors["books"][SHARED]), []
        for domain, clients in enumerate(_by_domain(state, round)):
            if clients:
                model = self._of(state, round.setup, domain, clients)
                mine = round.train(local_train, model, round.silos.select(clients))
                books[domain] = round.run_on_server(aggregate, mine, model.shared)[SHARED]
                updates += mine
        averaged = round.run_on_server(aggregate, updates, {**state.tensors["weights"], SHARED: books[0]})
        sections, _ = apart(averaged, (SHARED,))
        report = RoundReport.of(updates)
        if round.number > self.warm_up and not books[0].numel():
            report = replace(report, messages=(_WAITS,))
        return state.with_tensors(**sections, books={SHARED: torch.stack(books)}), report

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """One network, each client with its domain's words."""
        books, clients = state.tensors["books"][SHARED], setup.silos.clients
        words = books[[_domain_of(setup.silos, state)[client] for client in clients]]
        network = self._network(setup, books.shape[1])
        return Model(network, state.tensors["weights"], {SHARED: words}, clients=clients)

    def silos_with_a_model(self, silos: Silos) -> Silos:
        """A client of a domain that nobody trained on has no words."""
        known = silos.training_domains()
        return silos.select([client for client in silos.clients if silos.domain(client) in known])

    def _with_words(self, state: ServerState, round: RoundContext) -> ServerState:
        """After the warm-up, once every domain has somebody there: k-means over the centres that its clients tell."""
        groups = _by_domain(state, round)
        if state.tensors["books"][SHARED].shape[1] or round.number <= self.warm_up or not all(groups):
            return state
        models = [self._of(state, round.setup, domain, clients) for domain, clients in enumerate(groups)]
        books = [tensors[SHARED] for tensors in common_codebooks(round, models, self.words)]
        return state.with_tensors(books={SHARED: torch.stack(books)})

    def _of(self, state: ServerState, setup: TrainingSetup, domain: int, clients: Sequence[str]) -> Model:
        book = state.tensors["books"][SHARED][domain]
        shared = {**state.tensors["weights"], SHARED: book}
        return Model(self._network(setup, len(book)), shared, clients=tuple(clients))

    def _network(self, setup: TrainingSetup, words: int) -> Network:
        options: dict[str, Any] = self.model_dump(include={"segments", "commitment", "code_weight", "start_scale"})
        return with_codes("vq_oracle", setup.network, words=words, **options)


def _by_domain(state: ServerState, round: RoundContext) -> list[list[str]]:
    """The clients of each domain that take part."""
    return members(round.clients, _domain_of(round.setup.silos, state), len(state.numbers["domains"]))


def _domain_of(silos: Silos, state: ServerState) -> dict[str, int]:
    return {client: state.numbers["domains"].index(silos.domain(client)) for client in silos.clients}
