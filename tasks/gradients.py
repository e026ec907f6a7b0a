"""Report the gradient of each client's loss, or train with a term that corrects it (SCAFFOLD, FedDyn)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

from models.client_model import Model
from models.networks.network_factory import learned
from models.networks.wrappers.domain_generalisation import GradientMatching, gradients
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Rows, Trained, Training, train
from models.training.engine import full_gradient as gradient_of
from models.training.optimizers import SGD
from silos.client_store import ClientStore, StateKind
from silos.cohort import Cohort, Stack
from tasks.evaluate import ValidationLosses
from tasks.execution.load_client_data import load_client_state, load_stacks, load_streams, may_report
from tasks.execution.steps import step
from tasks.local_train import build_update, store_client_state, weighted_sum
from tasks.messages.round_messages import Gradients, HeadGradients, Update

VARIATE = "variate/"
"""Prefix of the names under which an update sends the change of the clients' variates, times rows."""


@step
def full_gradient(
    cohort: Cohort, model: Model, training: Training, private: ClientStore, seed: int, round: int, device: str = "cpu"
) -> list[Gradients]:
    """Report gradients of the shared weights over all training rows (FedSGD, McMahan et al. 2017).

    Args:
        cohort: The clients, in stacks.
        model: The model at which gradients are computed.
        training: The local training; its epochs and optimiser have no effect.
        private: Where clients keep private state.
        seed: The seed of the run. Random draws are those of the round's local training.
        round: The round of the run.
        device: Where clients are computed, such as "cpu".

    Returns:
        One record per stack, with sums over its clients.
    """
    messages = []
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, "local_train", device)
        gradients, loss = gradient_of(model.network, weights, context, rows, training, streams)
        counts, clients = rows.counts.cpu(), len(stack.clients)
        sums = {name: weighted_sum(gradients[name].cpu(), counts) for name in model.shared}
        messages.append(Gradients(stack.clients, counts[:clients], sums, loss[:clients].cpu()))
    return messages


@step
def head_gradient(
    cohort: Cohort, model: Model, training: Training, private: ClientStore, device: str = "cpu"
) -> list[HeadGradients]:
    """Report gradients of the last layer's weights over the clients' training rows; one record per stack.

    `model.network` is a `GradientMatching`, and nothing is trained. A client with fewer different rows than the
    policy of its store requires is not in the sums.
    """
    messages, network = [], cast(GradientMatching, model.network)
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        clients = slice(len(stack.clients))
        by_client = gradients(network, weights, context, rows, training.objective, training.engine)
        excluded = ~may_report(cohort.silos, stack, "train", rows, private)[clients]
        sums = {}
        for name, gradient in by_client.items():
            mask = excluded.view(-1, *[1] * (gradient.ndim - 1))
            sums[name] = gradient[clients].cpu().double().masked_fill(mask, 0).sum(0)
        messages.append(HeadGradients(stack.clients, rows.counts[clients].cpu().masked_fill(excluded, 0), sums))
    return messages


class _Corrected(NamedTuple):
    """A trained stack; `stored` are the terms that its clients had before."""

    stack: Stack
    rows: Rows
    start: Weights
    streams: Tensor
    stored: Weights
    trained: Trained


def _train_corrected(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    terms: ClientStateRefs,
    streams_of: tuple[int, int],
    device: str,
    kind: StateKind,
    server: Weights | None = None,
    proximal: float = 0.0,
) -> Iterator[_Corrected]:
    """Train each stack with the gradient `server - stored term` added.

    Args:
        terms: Where clients store their terms.
        streams_of: The seed and the round of the random streams.
        kind: What the terms are.
        server: The server's term; None is 0.
        proximal: Factor of the proximal term around the received weights.
    """
    for stack, rows, weights, _ in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, *streams_of, "local_train", device)
        stored = load_client_state(terms, stack, private, device, kind)
        offset = {name: (0 if server is None else server[name].to(device)) - term for name, term in stored.items()}
        trained = train(model.network, weights, {}, rows, training, streams, proximal, offset=offset)
        yield _Corrected(stack, rows, weights, streams, stored, trained)


@step
def scaffold_train(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    variates: ClientStateRefs,
    variate: Literal["difference", "gradient"],
    device: str = "cpu",
    validate: bool = False,
) -> list[Update]:
    """Train with control variates (Karimireddy et al. 2020, algorithm 1); one update per stack.

    A client with few steps corrects less often, as in the algorithm. The new variate stays with the client; the update
    sends its change, times rows, under names with the prefix VARIATE.

    Args:
        variates: Where clients store their variates.
        variate: How the new variate is computed: from the `difference` of weights (option II), or as the full
            `gradient` at the received weights (option I).
        validate: As in `local_train`.
        model: The server's model; its context is the server's variate, which is sent to the clients.
    """
    server = {name: value[0] for name, value in cast(Weights, model.context).items()}
    rate, decay = cast(SGD, training.optimiser).learning_rate, cast(SGD, training.optimiser).weight_decay
    updates = []
    losses = ValidationLosses(cohort.silos, model.network, training, private, device, validate)
    corrected = _train_corrected(
        cohort, replace(model, context={}), training, private, variates, (seed, round), device, "variates", server
    )
    for stack, rows, start, streams, stored, trained in corrected:
        if variate == "gradient":
            gradient, _ = gradient_of(model.network, start, {}, rows, training, streams)
            # the penalty is a part of the local objective, as it is of the change of weights
            new = {name: gradient[name] + decay * start[name] if decay else gradient[name] for name in stored}
        else:
            steps = training.epochs * -(-rows.counts // training.batch)
            scale = 1 / (rate * steps.clamp_min(1)).to(torch.float32)
            new = {
                name: term - server[name].to(device) + _times(scale, start[name] - trained.weights[name])
                for name, term in stored.items()
            }
        counts = rows.counts.cpu()
        update = build_update(stack, model, trained, rows, private)
        change = {VARIATE + name: weighted_sum((new[name] - stored[name]).cpu(), counts) for name in stored}
        update = replace(update, sums={**update.sums, **change})
        update = losses.add(update, stack, before=start, after=trained.weights, context={})
        updates.append(store_client_state(update, variates.section, new, private, "variates"))
    return updates


@step
def dynamic_train(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    duals: ClientStateRefs,
    alpha: float,
    device: str = "cpu",
    validate: bool = False,
) -> list[Update]:
    """Train with a dynamic regulariser (FedDyn, Acar et al. 2021, algorithm 1).

    The client minimises its loss - <dual, w> + alpha/2 ||w - w_server||^2. Its new dual, dual - alpha (w - w_server),
    stays with it.

    Args:
        cohort: The clients, in stacks.
        model: The model that each client starts from, w_server.
        training: The local training.
        private: Where clients keep private state.
        seed: The seed of the run.
        round: The round of the run.
        duals: Where clients store their duals.
        alpha: The strength of the regulariser.
        device: Where clients are computed, such as "cpu".
        validate: Whether clients also report their losses on validation rows (see tasks.evaluate).

    Returns:
        One update per stack; its sums count every client once, whatever its rows.
    """
    updates = []
    losses = ValidationLosses(cohort.silos, model.network, training, private, device, validate)
    corrected = _train_corrected(
        cohort, model, training, private, duals, (seed, round), device, "duals", proximal=alpha
    )
    for stack, rows, start, _, stored, trained in corrected:
        new = {name: dual - alpha * (trained.weights[name] - start[name]) for name, dual in stored.items()}
        # equal weights, since the server of algorithm 1 averages clients and not rows
        update = build_update(stack, model, trained, rows, private, dict.fromkeys(stack.clients, 1.0))
        update = losses.add(update, stack, before=start, after=trained.weights, context={})
        updates.append(store_client_state(update, duals.section, new, private, "duals"))
    return updates


def zero_terms(model: Model) -> dict[str, Tensor]:
    """Return a zero for every trainable weight of the model."""
    return {name: torch.zeros_like(weight) for name, weight in learned(model.network, model.shared).items()}


def _times(factor: Tensor, values: Tensor) -> Tensor:
    return factor.view(-1, *[1] * (values.ndim - 1)).to(values.dtype) * values
