"""VQ oracle: features quantized with a codebook for each true domain (UEFL, section 4.1).

the domains are those that the partition recorded, which no method may read
w <- init: encoder and classifier;  C_g <- init: codewords of domain g
repeat: each client k of domain g trains (w_k, C_k) from (w, C_g) for E local epochs
        w <- sum_k n_k w_k / sum_k n_k;  C_g <- sum_k n_k C_k / sum_k n_k  over the clients k of g
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from flows.methods.base import Method, RoundReport
from flows.methods.common.codebook_transfer import common_codebooks, quantize_network
from flows.methods.common.group_training import domain_indices, group_members, select_trained_domains
from flows.methods.common.network_checks import require_memory, split_personal
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.network_factory import Network
from models.networks.wrappers.codebook_network import SHARED
from models.server_state import ServerState
from silos import param_limits
from silos.cohort import Silos
from silos.privacy.owner_file import least_rows_of
from tasks.aggregate import aggregate
from tasks.local_train import local_train

_WAITS = "codewords start when every domain has a client with {} different training rows in the same round"


class VQOracle(Method):
    """The options are those of uefl, with the defaults of its arm `ours`."""

    tested_model = "personal"
    is_bound = True
    takes_members = False

    words: int = Field(64, ge=1, le=param_limits.CHANNELS, description="codewords of each domain")
    segments: Annotated[int, Field(ge=1, le=param_limits.CHANNELS)] | Literal["auto"] = Field(
        "auto", description="segments of the channels, each with a codeword of its own"
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
    warm_up: int = Field(10, ge=0, le=param_limits.TIMES, description="rounds without a codebook; with start centres")
    start: Literal["normal", "centres"] = Field(
        "centres", description="the initial codewords: random, or centres of clients' features"
    )
    start_scale: float = Field(
        1.0, gt=0, le=param_limits.MAX_REAL, description="standard deviation of the codewords with start normal"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial weights and the same codewords for each domain, or none before the warm-up ends."""
        domains = setup.silos.training_domains()
        network = self._network(setup, 0 if self.start == "centres" else self.words)
        require_memory(self._network(setup, self.words), "method.vq_oracle.words", len(domains))
        sections, codebook = split_personal(setup.initial_weights(network), (SHARED,))
        books = {name: torch.stack([codewords] * len(domains)) for name, codewords in codebook.items()}
        return ServerState({**sections, "books": books}, {"domains": domains})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train on each client; average weights over all clients, and codewords over the clients of a domain."""
        state = self._with_codebooks(state, round)
        books, updates = list(state.tensors["books"][SHARED]), []
        for domain, clients in enumerate(_by_domain(state, round)):
            if clients:
                model = self._domain_model(state, round.setup, domain, clients)
                sent = round.train(local_train, model, round.silos.select(clients))
                books[domain] = round.run_on_server(aggregate, sent, model.shared)[SHARED]
                updates += sent
        averaged = round.run_on_server(aggregate, updates, state.tensors["weights"])
        report = RoundReport.from_updates(updates)
        if round.number > self.warm_up and not books[0].numel():
            least, _ = least_rows_of(Path(round.private.folder), round.setup.silos.clients)
            report = replace(report, messages=(_WAITS.format(least),))
        return state.with_tensors(weights=averaged, books={SHARED: torch.stack(books)}), report

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the shared network with each client's domain's codewords."""
        books, clients = state.tensors["books"][SHARED], setup.silos.clients
        domain_of = domain_indices(setup.silos, state.numbers["domains"])
        codewords = books[[domain_of[client] for client in clients]]
        network = self._network(setup, books.shape[1])
        return Model(network, state.tensors["weights"], {SHARED: codewords}, clients=clients)

    def silos_with_a_model(self, silos: Silos) -> Silos:
        """Select the clients of domains that have a training client; other domains have no codewords."""
        return select_trained_domains(silos)

    def _with_codebooks(self, state: ServerState, round: RoundContext) -> ServerState:
        """Initialize codebooks after the warm-up, once each domain has a client: k-means over reported centroids."""
        groups = _by_domain(state, round)
        if state.tensors["books"][SHARED].shape[1] or round.number <= self.warm_up or not all(groups):
            return state
        models = [self._domain_model(state, round.setup, domain, clients) for domain, clients in enumerate(groups)]
        books = [tensors[SHARED] for tensors in common_codebooks(round, models, self.words)]
        return state.with_tensors(books={SHARED: torch.stack(books)})

    def _domain_model(self, state: ServerState, setup: TrainingSetup, domain: int, clients: Sequence[str]) -> Model:
        codewords = state.tensors["books"][SHARED][domain]
        shared = {**state.tensors["weights"], SHARED: codewords}
        return Model(self._network(setup, len(codewords)), shared, clients=tuple(clients))

    def _network(self, setup: TrainingSetup, num_codewords: int) -> Network:
        options: dict[str, Any] = self.model_dump(include={"segments", "commitment", "code_weight", "start_scale"})
        return quantize_network("vq_oracle", setup.network, words=num_codewords, **options)


def _by_domain(state: ServerState, round: RoundContext) -> list[list[str]]:
    """List the participating clients of each domain."""
    domains = state.numbers["domains"]
    return group_members(round.clients, domain_indices(round.setup.silos, domains), len(domains))
