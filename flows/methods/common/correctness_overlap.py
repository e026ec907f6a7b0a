"""What the server keeps of the rows that clients are right on, and the groups that it made by them.

A threshold of overlap by what it is worth: groups that it would make train for a while, and are tried.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from flows.experiment.client_optimizer_state import ClientOptimizerStates
from flows.methods.common.clusters import members, of_group, train_groups, train_together
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.clustering import Assign, Overlap
from models.prng import server_stream
from models.server_state import ServerState, Weights
from silos.cohort import open_common
from silos.dataset import some
from silos.errors import UserError
from tasks.cluster_clients import OverlapClusters, candidates, correctness_by_client, split_rows
from tasks.messages.clustering_messages import CorrectnessBits, PriorShiftAccuracy
from tasks.regroup import prior_shift_fit, regroup, report_correctness

BITS = "bits"


def nobody_yet() -> dict[str, object]:
    """The numbers of a state before there are groups."""
    return {"group": {}, "names": [], "threshold": None}


def check_common_rows(method: str, setup: TrainingSetup) -> None:
    """UserError where there are no rows on which every client can be right or wrong."""
    if setup.training.objective.task == "regression":
        raise UserError(
            f"params.yaml: the method {method} asks on which rows a client is right, and predicted numbers never are; "
            "use a source with classes, or another method."
        )
    if not setup.silos.common("validation"):
        raise UserError(
            f"params.yaml: the method {method} tries every client on the same rows, and there are none; set "
            "data.split.validation_rows to common and data.split.validation to a share."
        )


def rows_of(round: RoundContext) -> int:
    """How many common validation rows there are."""
    return round.setup.silos.common("validation")


def unasked(setup: TrainingSetup) -> tuple[str, ...]:
    """For a person: the classes of the data that no common row has, if there are such; these rows are nobody's."""
    _, labels = open_common(setup.silos, "validation")
    there = set(np.unique(labels).tolist())
    lacking = [name for code, name in enumerate(setup.silos.manifest.classes) if code not in there]
    if not lacking:
        return ()
    which, it = (f"class {lacking[0]}", "it") if len(lacking) == 1 else (f"the classes {some(lacking)}", "them")
    return (f"none of the {len(labels)} common rows is of {which}, so clients are not compared on {it}",)


def halving(round: RoundContext, anew: bool) -> int:
    """The seed by which these rows are halved: anew in every round, or once for all rounds."""
    return int(server_stream(round.setup.seed, round.number if anew else 0, "halves")) & 0x7FFFFFFF


def asked(model: Model, round: RoundContext) -> list[CorrectnessBits]:
    """The bits of the model's clients."""
    silos = round.setup.silos.select(model.clients)
    return round.map_clients(regroup, model, silos, training=round.setup.training, evidence=report_correctness)


def kept(state: ServerState) -> list[CorrectnessBits]:
    """What clients told when they were asked last."""
    if BITS not in state.tensors:
        return []
    return [CorrectnessBits(tuple(state.numbers["names"]), state.tensors[BITS]["right"])]


def latest(state: ServerState, answers: Sequence[CorrectnessBits]) -> list[CorrectnessBits]:
    """Of everybody who told once the last: these answers, and what is kept of the others."""
    told = {client for answer in answers for client in answer.clients}
    others = []
    for answer in kept(state):
        places = [at for at, name in enumerate(answer.clients) if name not in told]
        names = tuple(answer.clients[at] for at in places)
        others.append(CorrectnessBits(names, answer.bits[places]))
    return [*answers, *others]


def grouped_as(
    state: ServerState, answers: Sequence[CorrectnessBits], groups: Sequence[Sequence[str]], threshold: float
) -> ServerState:
    """The state with these groups, and the bits of all who told them."""
    names, bits = correctness_by_client(answers)
    group = {client: number for number, clients in enumerate(groups) for client in clients}
    return state.with_tensors(bits={"right": torch.from_numpy(bits)}).with_numbers(
        group=group, names=names, threshold=threshold
    )


def groups_of(state: ServerState) -> list[list[str]]:
    """The clients of each group, sorted."""
    group = state.numbers["group"]
    return members(sorted(group), group, max(group.values(), default=-1) + 1)


def sentence(overlapping: OverlapClusters) -> str:
    """For a person: who is with whom, from which overlap on, how far apart groups are, and who was kept alone."""
    groups = "; ".join(" ".join(names) for names in overlapping.groups)
    flagged = ", ".join(overlapping.flagged)
    alone = f"; right on no common row, so alone: {flagged}" if flagged else ""
    count = "one group" if len(overlapping.groups) == 1 else f"{len(overlapping.groups)} groups"
    return f"{count} at an overlap of {overlapping.threshold:.3f}: {groups}{_apart(overlapping)}{alone}"


def _apart(overlapping: OverlapClusters) -> str:
    """Whether a pair of two groups overlaps less than every pair of one; nothing where there is no such pair."""
    within, across = overlapping.within, overlapping.across
    if within is None or across is None:
        return ""
    if within > across:
        return f"; pairs overlap {within:.3f} or more in a group, {across:.3f} or less across"
    return f"; not clear-cut: a pair in a group overlaps {within:.3f}, and one across {across:.3f}"


Names = tuple[str, ...]


def best_threshold(
    answers: Sequence[CorrectnessBits],
    round: RoundContext,
    seed: int,
    kind: Overlap,
    assign: Assign,
    rounds: int,
    start: Callable[[Sequence[str]], Weights],
) -> float:
    """The threshold whose groups' models are right most often, over clients, on rows of each client's own law.

    All groups that any threshold makes of clients that take part train for some rounds from `start` of these, each once;
    they are tried on the half of the common rows that thresholds are chosen on, by `seed`. Of equals the least. Nothing is
    tried where all thresholds make the same groups.
    """
    rows = rows_of(round)
    made: list[tuple[float, tuple[Names, ...]]] = round.run_on_server(candidates, answers, rows, kind, assign, seed)
    if len(made) == 1:
        return made[0][0]
    there = list(dict.fromkeys(names for _, groups in made for names in groups))
    fits = _fits(there, _trained(there, round, rounds, start), round, split_rows(rows, seed)[0].tolist())

    def worth(groups: Sequence[Names]) -> float:
        last = {client: names for names in groups for client in names}
        values = [fits[names][client] for client, names in last.items()]
        known = [value for value in values if math.isfinite(value)]
        return math.fsum(known) / max(len(known), 1)

    return max(made, key=lambda one: (worth(one[1]), -one[0]))[0]


def _trained(
    groups: Sequence[Names], round: RoundContext, rounds: int, start: Callable[[Sequence[str]], Weights]
) -> list[Weights]:
    """FedAvg in each of the groups, as the first rounds of phase 2 would be; with optimisers of its own."""
    weights = train_together([start(names) for names in groups])
    trial = replace(round, optimisers=ClientOptimizerStates(), validation=None)
    for number in range(1, rounds + 1):
        weights, _ = train_groups(trial, weights, groups, since=round.number - number)
        trial.optimisers.next_round(round.clients)
    return [of_group(weights, number) for number in range(len(groups))]


def _fits(
    groups: Sequence[Names], weights: Sequence[Weights], round: RoundContext, places: Sequence[int]
) -> dict[Names, dict[str, float]]:
    """Group to how right its model is for each of its clients."""
    evidence = partial(prior_shift_fit, places=places)
    fits: dict[Names, dict[str, float]] = {}
    for names, of_names in zip(groups, weights, strict=True):
        model = Model(round.setup.network, of_names, clients=names)
        silos = round.setup.silos.select(names)
        answers: list[PriorShiftAccuracy] = round.map_clients(
            regroup, model, silos, training=round.setup.training, evidence=evidence
        )
        fits[names] = {c: v for a in answers for c, v in zip(a.clients, a.accuracy.tolist(), strict=True)}
    return fits
