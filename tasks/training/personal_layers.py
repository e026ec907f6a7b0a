"""Train the layers that stay with a client and the shared layers one after the other (FedRep, Collins et al. 2021)."""

from dataclasses import replace

from models.client_model import Model
from models.prng import fold_in
from models.training.engine import Training, train
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.evaluate import validation_losses
from tasks.execution.load_client_data import load_stacks, load_streams
from tasks.execution.task_types import step
from tasks.local_train import build_update
from tasks.messages.update_messages import Update


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
    """Train the personal weights, then the shared ones, each with the others fixed; one update per stack.

    Args:
        head_epochs: Epochs of the personal weights; those of the shared weights are `training.epochs`.
        body: Whether the shared weights are trained and sent; otherwise the client only fits its personal weights.
        each: Whether shared weights are also sent client by client.
        validate: Whether clients also report their losses on validation rows (see tasks.evaluate).
    """
    updates = []
    for stack, rows, start, context in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, "local_train", device)
        head = [name for name in start if name not in model.shared]
        heads = replace(training, epochs=head_epochs)
        trained = train(model.network, start, context, rows, heads, fold_in(streams, 1), only=head)
        if body:
            trained = train(model.network, trained.weights, context, rows, training, streams, only=model.shared)
        update = build_update(stack, model, trained, rows, private, each=each)
        if not body:
            update = replace(update, sums={})
        if validate:
            before_after = (start, trained.weights)
            losses = validation_losses(
                cohort.silos, stack, model.network, *before_after, context, training, private, device
            )
            update = replace(update, validation=losses)
        updates.append(update)
    return updates
