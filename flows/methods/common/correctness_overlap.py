"""Collects the common rows that clients classify correctly, and chooses the threshold of overlap.

The task `overlap` of tasks/cluster_clients.py makes the groups.

A threshold can be chosen by accuracy: the groups of each threshold are trained for some rounds and evaluated.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from flows.methods.common.group_training import group_members, select_group, stack_groups, train_groups
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.clustering import CHANCE, Assign, Overlap
from models.prng import server_stream
from models.server_state import ServerState, Weights
from silos.cohort import open_common
from silos.errors import UserError, some
from tasks.client_optimizer_state import ClientOptimizerStates
from tasks.cluster_clients import OverlapClusters, candidates, correctness_by_client, split_rows
from tasks.messages.message_policy import messages_of
from tasks.messages.round_messages import CorrectnessBits, PriorShiftAccuracy
from tasks.report_evidence import prior_shift_fit, report_correctness, report_evidence

BITS = "bits"
"""Section of the state with the correctness bits of clients."""


def initial_numbers() -> dict[str, object]:
    """Return the numbers of a state without groups."""
    return {"group": {}, "names": [], "threshold": None}


def check_common_rows(method: str, setup: TrainingSetup) -> None:
    """Raise a UserError for a regression, or if there are no common validation rows."""
    if setup.training.objective.task == "regression":
        raise UserError(
            f"params.yaml: data.source: got numeric targets, expected classes, since {method} needs to know which "
            "rows a client predicts correctly. Use a source with classes, or another method."
        )
    if not setup.silos.common("validation"):
        raise UserError(
            f"params.yaml: data.split.validation_rows: got no common rows, expected some, on which {method} tests "
            "every client. Set it to common and data.split.validation to a share, then run `siloflow partition`."
        )


def num_common_rows(round: RoundContext) -> int:
    """Return the number of common validation rows."""
    return round.setup.silos.common("validation")


def common_labels(setup: TrainingSetup) -> np.ndarray:
    """Return the classes of the common validation rows, (rows,) int64; no client owns common rows."""
    _, labels = open_common(setup.silos, "validation")
    return np.asarray(labels)


def missing_classes_message(setup: TrainingSetup) -> tuple[str, ...]:
    """Return a message that names the classes of the data without common rows, if any."""
    labels = common_labels(setup)
    present = set(np.unique(labels).tolist())
    missing = [name for code, name in enumerate(setup.silos.manifest.classes) if code not in present]
    if not missing:
        return ()
    classes, pronoun = (f"class {missing[0]}", "it") if len(missing) == 1 else (f"the classes {some(missing)}", "them")
    return (f"none of the {len(labels)} common rows belongs to {classes}, so clients are not compared on {pronoun}",)


def halving_seed(round: RoundContext, each_round: bool) -> int:
    """Return the seed that halves the common rows: a new one in each round, or one for all rounds."""
    return int(server_stream(round.setup.seed, round.number if each_round else 0, "halves")) & 0x7FFFFFFF


def collect_correctness(model: Model, round: RoundContext) -> list[CorrectnessBits]:
    """Collect the correctness bits of the model's clients on the common rows."""
    silos = round.setup.silos.select(model.clients)
    sent = round.map_clients(report_evidence, model, silos, training=round.setup.training, evidence=report_correctness)
    return messages_of(CorrectnessBits, sent)


def stored_correctness(state: ServerState) -> list[CorrectnessBits]:
    """Return the bits that clients reported last, from the state."""
    if BITS not in state.tensors:
        return []
    return [CorrectnessBits(tuple(state.numbers["names"]), state.tensors[BITS]["right"])]


def latest_correctness(state: ServerState, messages: Sequence[CorrectnessBits]) -> list[CorrectnessBits]:
    """Return the messages, and the stored bits of all other clients that ever reported."""
    reported = {client for message in messages for client in message.clients}
    others = []
    for message in stored_correctness(state):
        indices = [i for i, name in enumerate(message.clients) if name not in reported]
        names = tuple(message.clients[i] for i in indices)
        others.append(CorrectnessBits(names, message.bits[indices]))
    return [*messages, *others]


def with_groups(
    state: ServerState, messages: Sequence[CorrectnessBits], groups: Sequence[Sequence[str]], threshold: float
) -> ServerState:
    """Return the state with these groups, their threshold and the reported bits."""
    names, bits = correctness_by_client(messages)
    group = {client: index for index, clients in enumerate(groups) for client in clients}
    return state.with_tensors(bits={"right": torch.from_numpy(bits)}).with_numbers(
        group=group, names=names, threshold=threshold
    )


def groups_of(state: ServerState) -> list[list[str]]:
    """List the clients of each group, sorted by name."""
    group = state.numbers["group"]
    return group_members(sorted(group), group, max(group.values(), default=-1) + 1)


def groups_message(overlapping: OverlapClusters) -> str:
    """Describe the groups, the threshold, the separation of groups and the clients that are alone."""
    groups = "; ".join(" ".join(names) for names in overlapping.groups)
    flagged = ", ".join(overlapping.flagged)
    alone = f"; correct on no common row, so alone: {flagged}" if flagged else ""
    count = "one group" if len(overlapping.groups) == 1 else f"{len(overlapping.groups)} groups"
    chance = overlapping.chance
    if chance is not None and chance > CHANCE:
        return f"{count}, since clients of one law may overlap like this by chance (p = {chance:.2f}): {groups}{alone}"
    return f"{count} at an overlap of {overlapping.threshold:.3f}: {groups}{_separation(overlapping)}{alone}"


def _separation(overlapping: OverlapClusters) -> str:
    """Describe whether pairs across groups overlap less than all pairs within a group; empty without such pairs."""
    within, across = overlapping.within, overlapping.across
    if within is None or across is None:
        return ""
    if within > across:
        return f"; pairs overlap by {within:.3f} or more within groups, by {across:.3f} or less across"
    return (
        f"; not clearly separated: a pair within a group overlaps by {within:.3f}, and one across groups by "
        f"{across:.3f}"
    )


Names = tuple[str, ...]


def best_threshold(
    messages: Sequence[CorrectnessBits],
    round: RoundContext,
    seed: int,
    kind: Overlap,
    assign: Assign,
    rounds: int,
    start: Callable[[Sequence[str]], Weights],
) -> float:
    """Choose the threshold with the highest mean accuracy of the groups' models, over clients.

    Each distinct group of any threshold is trained once. Accuracies are weighted by the class shares of each client, and
    measured on the half of the common rows that chooses thresholds. The smallest threshold wins ties. Nothing is trained
    if all thresholds make the same groups.

    Args:
        messages: The correctness bits of the clients that take part.
        seed: The seed that halves the common rows.
        kind: The measure of overlap.
        assign: The rule that makes groups of overlaps.
        rounds: The rounds of FedAvg for which each group is trained.
        start: Clients of a group to its initial weights.
    """
    rows = num_common_rows(round)
    options: list[tuple[float, tuple[Names, ...]]] = round.run_on_server(candidates, messages, rows, kind, assign, seed)
    if len(options) == 1:
        return options[0][0]
    distinct = list(dict.fromkeys(names for _, groups in options for names in groups))
    accuracy = _accuracies(
        distinct, _trained(distinct, round, rounds, start), round, split_rows(rows, seed)[0].tolist()
    )

    def mean_accuracy(groups: Sequence[Names]) -> float:
        last_group = {client: names for names in groups for client in names}
        values = [accuracy[names][client] for client, names in last_group.items()]
        # a client with too few training rows to report its class shares sends NaN
        finite = [value for value in values if math.isfinite(value)]
        return math.fsum(finite) / max(len(finite), 1)

    return max(options, key=lambda option: (mean_accuracy(option[1]), -option[0]))[0]


def _trained(
    groups: Sequence[Names], round: RoundContext, rounds: int, start: Callable[[Sequence[str]], Weights]
) -> list[Weights]:
    """Run FedAvg in each group, as in the first rounds of phase 2, with separate optimizer states."""
    weights = stack_groups([start(names) for names in groups])
    trial = replace(round, optimisers=ClientOptimizerStates(), validation=None)
    for trial_round in range(1, rounds + 1):
        weights, _ = train_groups(trial, weights, groups, since=round.number - trial_round)
        trial.optimisers.next_round(round.clients)
    return [select_group(weights, group) for group in range(len(groups))]


def _accuracies(
    groups: Sequence[Names], weights: Sequence[Weights], round: RoundContext, rows: Sequence[int]
) -> dict[Names, dict[str, float]]:
    """Return group to client to the accuracy of the group's model on these common rows, by the client's class shares."""
    evidence = partial(prior_shift_fit, places=rows)
    accuracies: dict[Names, dict[str, float]] = {}
    for names, of_names in zip(groups, weights, strict=True):
        model = Model(round.setup.network, of_names, clients=names)
        silos = round.setup.silos.select(names)
        sent = round.map_clients(report_evidence, model, silos, training=round.setup.training, evidence=evidence)
        messages = messages_of(PriorShiftAccuracy, sent)
        accuracies[names] = {c: a for m in messages for c, a in zip(m.clients, m.accuracy.tolist(), strict=True)}
    return accuracies
