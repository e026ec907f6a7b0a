"""Train layers that stay with a client apart from the shared ones (FedRep), and measure statistics of normalising layers."""

from dataclasses import replace

from models.client_model import Model
from models.prng import fold_in, server_stream
from models.server_state import ClientStateRefs
from models.training.engine import Training, measure_batchnorm, train
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.evaluate import ValidationLosses
from tasks.execution.load_client_data import load_rows, load_stacks, load_streams, load_weights
from tasks.execution.steps import step
from tasks.local_train import build_update
from tasks.messages.round_messages import Update
from tasks.messages.statistics_messages import CommonNorms, OwnNorms


@step
def head_then_body(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    head_epochs: int,
    body: bool = True,
    device: str = "cpu",
    each: bool = False,
    validate: bool = False,
) -> list[Update]:
    """Train the personal weights, then the shared ones, each with the others fixed (FedRep, Collins et al. 2021).

    Args:
        cohort: The clients, in stacks.
        model: The model that each client starts from.
        training: The local training of the shared weights.
        private: Where clients keep private state.
        seed: The seed of the run.
        round: The round of the run.
        head_epochs: Epochs of the personal weights; those of the shared weights are `training.epochs`.
        body: Whether the shared weights are trained and sent; otherwise the client only fits its personal weights.
        device: Where clients are computed, such as "cpu".
        each: Whether shared weights are also sent client by client.
        validate: Whether clients also report their losses on validation rows (see tasks.evaluate).

    Returns:
        One update per stack.
    """
    updates = []
    losses = ValidationLosses(cohort.silos, model.network, training, private, device, validate)
    for stack, rows, start, context in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, "local_train", device)
        head = [name for name in start if name not in model.shared]
        # the body has the stream of `local_train`, and the head one of its own
        heads = replace(training, epochs=head_epochs)
        trained = train(model.network, start, context, rows, heads, fold_in(streams, 1), only=head)
        if body:
            trained = train(model.network, trained.weights, context, rows, training, streams, only=model.shared)
        update = build_update(stack, model, trained, rows, private, each=each)
        if not body:
            update = replace(update, sums={})
        update = losses.add(update, stack, before=start, after=trained.weights, context=context)
        updates.append(update)
    return updates


@step
def local_batchnorm_statistics(
    cohort: Cohort, model: Model, training: Training, private: ClientStore, seed: int, round: int, device: str = "cpu"
) -> list[OwnNorms]:
    """Measure statistics on each client's training rows, and store them with the model's private part; one record per stack.

    ValueError if clients store nothing of the model.
    """
    if not isinstance(model.personal, ClientStateRefs):
        raise ValueError("local_batchnorm_statistics: got a model without private weights, expected some")
    messages = []
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, "own_norms", device)
        measured = {**weights, **measure_batchnorm(model.network, weights, context, rows, training, streams)}
        arrays = {name: measured[name][: len(stack.clients)].cpu().numpy() for name in model.personal.start}
        messages.append(OwnNorms(stack.clients, private.save(model.personal.section, stack.clients, arrays)))
    return messages


@step
def common_batchnorm_statistics(
    cohort: Cohort, model: Model, training: Training, private: ClientStore, seed: int, round: int, device: str = "cpu"
) -> list[CommonNorms]:
    """Measure statistics on the common validation rows, which are the same for all clients; one record per stack.

    ValueError if validation rows belong to clients, because their statistics would leave.
    """
    if not cohort.silos.common("validation"):
        raise ValueError(
            "common_batchnorm_statistics: got validation rows of clients, expected common rows, since statistics "
            "of clients' rows would leave"
        )
    messages = []
    for stack in cohort.stacks:
        weights, context = load_weights(model, stack, private, device)
        rows = load_rows(cohort.silos, stack, "validation", device)
        streams = server_stream(seed, round, "common_norms").to(device).expand(stack.size)
        statistics = measure_batchnorm(model.network, weights, context, rows, training, streams)
        slots = slice(len(stack.clients))
        messages.append(CommonNorms(stack.clients, {name: t[slots].cpu() for name, t in statistics.items()}))
    return messages
