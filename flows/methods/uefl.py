"""UEFL: clients whose predictions stay uncertain get words of their own (Zhang, Cao and Liu 2025, arXiv 2402.18888).

stage: repeat: every client k trains encoder, classifier and its words from w and codes(k) for E local epochs;
               w, and the shared words, <- sum_k n_k w_k / sum_k n_k;  a client's own words stay with it
       e_k <- mean over k's validation rows of the entropy of the mean of T passes with dropout on;  only e_k leaves
       U <- {k: e_k > (1 + gamma) min_j e_j};  none, or the last stage: done
       every k in U: V more words, the k-means centres of its own features
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from flows.method import Method, Report
from flows.methods.shared.borrowed_codewords import Unseen, lend
from flows.methods.shared.codewords import common_books, counted, doubts, own_words, said, with_words
from flows.methods.shared.network_checks import apart, fitting
from flows.round import Problem, Round, tickets
from models.method_networks.codebook import OWN, SHARED
from models.model import Model
from models.networks.deep_ensemble import members_of, plain
from models.networks.registry import Network
from models.state import Private, State, Weights
from models.streams import server_stream
from silos import bounds
from tasks.aggregate import aggregate
from tasks.codebook_extend import Fill, codebook_extend
from tasks.local_train import local_train
from tasks.messages import LEAST_ROWS

SECTION = "codewords"

_ARMS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "authors": {
        "passes": 0,
        "benchmark": "mean",
        "tolerance": 0.1,
        "words": 64,
        "check_on": "test",
        "usable": "latest",
        "shared": "local",
        "everybody": True,
    },
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
    """`tolerance` is the paper's gamma (null: nobody is ever uncertain), `words` its V, `passes` its T.

    `arm` sets what is not set beside it: `paper`, the text; `authors`, their code; `ours`, what worked on evidence
    (docs/methods/uefl.md). Of a deep ensemble every member has a book and words of its own.
    """

    tests = "personal"

    arm: Literal["paper", "authors", "ours"] = "ours"
    words: int = Field(32, ge=1, le=bounds.CHANNELS)
    segments: Annotated[int, Field(ge=1, le=bounds.CHANNELS)] | Literal["auto"] = 1
    commitment: float = Field(0.25, ge=0, le=bounds.REAL)
    code_weight: float = Field(1.0, ge=0, le=bounds.REAL)
    warm_up: int = Field(0, ge=0, le=bounds.TIMES)
    start: Literal["normal", "centres"] = "normal"
    start_scale: float = Field(1.0, gt=0, le=bounds.REAL)
    first_rounds: int = Field(20, ge=1, le=bounds.TIMES)
    more_rounds: int = Field(10, ge=1, le=bounds.TIMES)
    stages: int = Field(5, ge=1, le=bounds.TIMES)
    most: int | None = Field(None, ge=1, le=bounds.CLIENTS)
    passes: int = Field(20, ge=0, le=bounds.PASSES)
    check_on: Literal["validation", "train", "test"] = "validation"
    benchmark: Literal["min", "mean"] = "min"
    tolerance: float | None = Field(0.3, ge=-1, le=bounds.REAL)
    threshold: Literal["first", "each_stage"] = "first"
    extend: Literal["uncertain", "random", "shared"] = "uncertain"
    fill: Fill = "kmeans"
    usable: Literal["all", "latest"] = "all"
    shared: Literal["averaged", "local"] = "averaged"
    everybody: bool = False
    until: Literal["certain", "budget"] = "certain"
    unseen: Unseen = "shared"
    joining: Literal["own", "shared"] = "own"

    @model_validator(mode="before")
    @classmethod
    def _of_arm(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {**_ARMS.get(str(given.get("arm", cls.model_fields["arm"].default)), {}), **given}

    @model_validator(mode="after")
    def _fits_together(self) -> "UEFL":
        if self.shared == "local" and (self.start != "normal" or self.extend == "shared"):
            raise ValueError("with shared local there is no common book: start is normal, and extend is not shared")
        if self.everybody and (self.shared, self.usable) != ("local", "latest"):
            raise ValueError("everybody is what the authors' code does, with shared local and usable latest")
        return self

    def init(self, problem: Problem) -> State:
        """One draw of weights, FedAvg's, and of shared words; nobody has words of its own."""
        network = self._network(problem, words=0 if self.start == "centres" else self.words)
        fitting(self._network(problem, self.words), "method.uefl.words")
        weights = network.init(server_stream(problem.seed, 0, "init"))
        numbers: dict[str, Any] = {"stage": 1, "since": 0, "limit": None, "room": 0, "words": {}, "settled": None}
        return self._split(State({}, numbers), weights).with_private(SECTION, {})

    def one_round(self, state: State, round: Round) -> tuple[State, Report]:
        """Train everywhere, average; at a stage's end ask for doubts, and give words to those that doubt."""
        waits: tuple[str, ...] = ()
        if round.number > self.warm_up and not _common(state):
            state = self._common_book(state, round)
            if not _common(state):
                waits = (f"words start once a client with {LEAST_ROWS} different training rows takes part",)
        newcomers = self._newcomers(state, round)
        joined: tuple[str, ...] = ()
        if newcomers:
            state = self._extended(state, round, newcomers)
            joined = (f"joined with words of their own: {', '.join(newcomers)}",)
        model = self._model(state, round.problem, round.clients)
        updates = round.train(local_train, model)
        averaged = round.once(aggregate, updates, model.shared)
        state = self._split(state, {**state.tensors["start"], **averaged})
        for update in updates:
            state = state.with_private(SECTION, update.private[SECTION])
        report = replace(Report.of(updates), said=(*waits, *joined))
        begun = round.number > self.warm_up and not waits
        state = _with(state, since=state.numbers["since"] + begun)
        length = self.first_rounds if state.numbers["stage"] == 1 else self.more_rounds
        if state.numbers["since"] < length or state.numbers["settled"]:
            return state, _also(report, {"stage": state.numbers["stage"]})
        state, more = self._end_stage(state, round)
        return state, replace(_also(report, more.numbers, more.rows), said=(*joined, *more.said))

    def model(self, state: State, problem: Problem) -> Model:
        """The same network for everybody, each client with its own words beside the shared ones."""
        return self._model(state, problem, problem.silos.clients)

    def answer(self, state: State, round: Round) -> Model:
        """A client that never took part reads the words that `unseen` says, once there are any."""
        model = self.model(state, round.problem)
        fresh = [client for client in round.clients if client not in state.private[SECTION]]
        if not fresh or self.unseen == "shared" or not _common(state):
            return model
        if self.unseen == "own":
            return self.model(self._extended(state, round, fresh), round.problem)
        return lend(self.unseen, model, round, fresh)

    def _newcomers(self, state: State, round: Round) -> list[str]:
        """Who takes part for the first time, and too late for the first check."""
        checked = state.numbers["stage"] > 1 or state.numbers["settled"]
        nobody = self.tolerance is None or self.stages == 1
        if not checked or nobody or self.joining == "shared" or self.extend == "shared":
            return []
        return [client for client in round.clients if client not in state.private[SECTION]]

    def _end_stage(self, state: State, round: Round) -> tuple[State, Report]:
        """Algorithm 1's check: who doubts, and what follows."""
        told = doubts(round, self._model(state, round.problem, round.clients), self.check_on, self.passes)
        entropy, stage = told["entropy"], state.numbers["stage"]
        limit = state.numbers["limit"]
        if limit is None or self.threshold == "each_stage":
            limit = self._limit(list(entropy.values()))
        uncertain = sorted((client for client, e in entropy.items() if e > limit), key=lambda c: (-entropy[c], c))
        extended = self._chosen(uncertain, round) if stage < self.stages else []
        numbers = {"stage": stage, "check/limit": limit, "clients/uncertain": len(uncertain)}
        numbers |= {"clients/extended": len(extended)}
        numbers |= {f"check/{name}": sum(of.values()) / len(of) for name, of in told.items()}
        rows = {f"check_{name}": of for name, of in told.items()}
        rows["extended"] = {client: float(client in extended) for client in entropy}
        state = _with(state, limit=limit)
        if not extended:
            why = "certain" if not uncertain else "stages"
            report = Report(numbers, rows, said(told, limit, why, self.words))
            return (_with(state, settled=why) if self.until == "budget" else replace(state, finished=why)), report
        each = " in each member" if len(members_of(round.problem.network)) > 1 else ""
        what = f"{len(extended)} get {self.words} words{each}: {', '.join(extended)}"
        if self.extend == "shared":
            state = self._common_book(state, round)
        else:
            state = self._extended(state, round, extended, self.everybody)
        own = own_words(round.problem.network, round.problem.silos.clients, state.numbers["words"])
        rows["words"] = {client: self.words + count for client, count in own.items()}
        numbers["words/own"] = sum(own.values())
        return _with(state, stage=stage + 1, since=0), Report(numbers, rows, said(told, limit, what, self.words))

    def _limit(self, entropy: list[float]) -> float:
        """(1 + gamma) times the least or the mean entropy (equation 7)."""
        if self.tolerance is None:
            return math.inf
        benchmark = min(entropy) if self.benchmark == "min" else sum(entropy) / len(entropy)
        return (1 + self.tolerance) * benchmark

    def _chosen(self, uncertain: list[str], round: Round) -> list[str]:
        """Who gets words: the most uncertain, or, a control, as many that are drawn."""
        chosen = uncertain[: self.most]
        if self.extend != "random":
            return chosen
        ticket = tickets(round.problem, round.clients, round.number, "extend")
        return sorted(sorted(round.clients, key=lambda c: (ticket[c], c))[: len(chosen)])

    def _extended(self, state: State, round: Round, extended: list[str], everybody: bool = False) -> State:
        """The state in which these clients have more words, of an ensemble in every member; or, the authors', everybody."""
        problem, numbers = round.problem, state.numbers
        own = dict(numbers["words"])
        if everybody:  # their code goes on with the words of the silo that came last
            last = state.private[SECTION][round.clients[-1]]
            state = state.with_private(SECTION, dict.fromkeys(state.private[SECTION], last))
        most = max(own.get(one.prefix + c, 0) for one in members_of(problem.network) for c in extended)
        room = max(numbers["room"], self.words if self.usable == "latest" else most + self.words)
        there = [client for client in problem.silos.clients if client in {*state.private[SECTION], *extended}]
        done = round.each(
            codebook_extend,
            self._model(state, problem, problem.silos.clients),
            silos=problem.silos.select(there),
            training=problem.training,
            extend=tuple(extended),
            words=self.words,
            room=room,
            seed=problem.seed,
            round=round.number,
            fill=self.fill,
            latest=self.usable == "latest",
            everybody=everybody,
        )
        for message in done:
            state = state.with_private(SECTION, message.refs)
            own |= message.held
        return _with(state, room=room, words={client: count for client, count in own.items() if count})

    def _common_book(self, state: State, round: Round) -> State:
        """Shared words anew, where the clients' features are: k-means over the centres that each tells of its own.

        As before, if none of these clients tells any.
        """
        (books,) = common_books(round, [self._model(state, round.problem, round.clients)], self.words)
        if not all(map(len, books.values())):
            return state
        return self._split(state, {**_everything(state), **books})

    def _split(self, state: State, weights: Weights) -> State:
        """Weights that the server averages; where every client has a copy of the shared words, those start there."""
        copies = [name for name in weights if plain(name) == SHARED and self.shared == "local"]
        sections, start = apart(weights, copies)
        return state.with_tensors(**sections, start=start)

    def _model(self, state: State, problem: Problem, clients: Sequence[str]) -> Model:
        shared, room = state.tensors["weights"], state.numbers["room"]
        network = self._network(problem, _common(state), room)
        empty = {one.prefix + OWN: torch.zeros(room, one.network.length) for one in members_of(network)}
        personal = Private(SECTION, state.private[SECTION], {**state.tensors["start"], **empty})
        context = counted(network, clients, state.numbers["words"]) if room else {}
        return Model(network, shared, personal, context, tuple(clients))

    def _network(self, problem: Problem, words: int, room: int = 0) -> Network:
        options: dict[str, Any] = self.model_dump(include={"segments", "commitment", "code_weight", "start_scale"})
        return with_words("uefl", problem.network, words=words, room=room, **options)


def _everything(state: State) -> dict[str, Tensor]:
    """Weights and what clients start with, shared words among them wherever they are."""
    return {**state.tensors["start"], **state.tensors["weights"]}


def _common(state: State) -> int:
    """How many words a shared book has; those of an ensemble's members have as many."""
    return next(len(w) for name, w in _everything(state).items() if plain(name) == SHARED)


def _with(state: State, **numbers: Any) -> State:
    return replace(state, numbers={**state.numbers, **numbers})


def _also(
    report: Report, numbers: Mapping[str, float], rows: Mapping[str, Mapping[str, float]] | None = None
) -> Report:
    return replace(report, numbers={**report.numbers, **numbers}, rows={**report.rows, **(rows or {})})
