"""A threshold of overlap by what it is worth: groups that it would make train for a while, and are tried."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from flows.experiment.kept_optimisers import KeptOptimisers
from flows.methods.shared import selection
from flows.methods.shared.groups import of_group, together, train_groups
from flows.round import Round
from models.clustering import Assign, Overlap
from models.model import Model
from models.state import Weights
from tasks.clustering.overlap_clustering import candidates, halves
from tasks.messages import LawFits, RightRows
from tasks.regroup import fit_of_law, regroup

Names = tuple[str, ...]


def best_threshold(
    answers: Sequence[RightRows],
    round: Round,
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
    rows = selection.rows_of(round)
    made: list[tuple[float, tuple[Names, ...]]] = round.once(candidates, answers, rows, kind, assign, seed)
    if len(made) == 1:
        return made[0][0]
    there = list(dict.fromkeys(names for _, groups in made for names in groups))
    fits = _fits(there, _trained(there, round, rounds, start), round, halves(rows, seed)[0].tolist())

    def worth(groups: Sequence[Names]) -> float:
        last = {client: names for names in groups for client in names}
        values = [fits[names][client] for client, names in last.items()]
        known = [value for value in values if math.isfinite(value)]
        return math.fsum(known) / max(len(known), 1)

    return max(made, key=lambda one: (worth(one[1]), -one[0]))[0]


def _trained(
    groups: Sequence[Names], round: Round, rounds: int, start: Callable[[Sequence[str]], Weights]
) -> list[Weights]:
    """FedAvg in each of the groups, as the first rounds of phase 2 would be; with optimisers of its own."""
    weights = together([start(names) for names in groups])
    trial = replace(round, optimisers=KeptOptimisers(), validation=None)
    for number in range(1, rounds + 1):
        weights, _ = train_groups(trial, weights, groups, since=round.number - number)
        trial.optimisers.next_round(round.clients)
    return [of_group(weights, number) for number in range(len(groups))]


def _fits(
    groups: Sequence[Names], weights: Sequence[Weights], round: Round, places: Sequence[int]
) -> dict[Names, dict[str, float]]:
    """Group to how right its model is for each of its clients."""
    evidence = partial(fit_of_law, places=places)
    fits: dict[Names, dict[str, float]] = {}
    for names, of_names in zip(groups, weights, strict=True):
        model = Model(round.problem.network, of_names, clients=names)
        silos = round.problem.silos.select(names)
        answers: list[LawFits] = round.each(regroup, model, silos, training=round.problem.training, evidence=evidence)
        fits[names] = {c: v for a in answers for c, v in zip(a.clients, a.accuracy.tolist(), strict=True)}
    return fits
