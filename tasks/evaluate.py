"""A model is scored on each client's own rows, there."""

import time
from dataclasses import replace

import torch
from torch import Tensor

from models.cohort import Outcomes, Training, outcomes
from models.model import Model
from silos.cohort import Cohort, Stack
from silos.private import PrivateStore
from tasks.messages import Scores
from tasks.opening import open_rows, open_weights
from tasks.step import step

OUTCOMES = "outcomes"


@step
def evaluate(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: PrivateStore,
    splits: tuple[str, ...] = ("validation", "test"),
    device: str = "cpu",
    keep_outcomes: bool = False,
) -> list[Scores]:
    """One record a stack and split; `keep_outcomes` lets each client keep which rows were right, for paired comparisons."""
    start = time.perf_counter()
    scores = []
    for stack in cohort.stacks:
        weights, context = open_weights(model, stack, private, device)
        for split in splits:
            rows = open_rows(cohort.silos, stack, split, device)
            found = outcomes(model.network, weights, context, rows, training.objective, training.engine)
            kept = _keep(stack, found.correct, private) if keep_outcomes else {}
            scores.append(_scores(stack, split, rows.counts, found, kept))
    scores[0] = replace(scores[0], seconds=time.perf_counter() - start)
    return scores


def _keep(stack: Stack, correct: Tensor, private: PrivateStore) -> dict[str, str]:
    right = correct[: len(stack.clients)].to(torch.uint8).cpu().numpy()
    return private.save(OUTCOMES, stack.clients, {"correct": right})


def _scores(stack: Stack, split: str, count: Tensor, found: Outcomes, kept: dict[str, str]) -> Scores:
    own = slice(len(stack.clients))
    correct, loss, entropy = found.correct.sum(1)[own].cpu(), found.loss.double(), found.entropy.double()
    return Scores(
        stack.clients,
        split,
        count[own].cpu(),
        correct,
        loss.sum(1)[own].cpu(),
        entropy.sum(1)[own].cpu(),
        kept,
    )
