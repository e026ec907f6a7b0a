"""Train with differential privacy at the clients: each adds noise from its own secret to every step."""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from models.client_model import Model
from models.networks.network_factory import Network
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Rows, Trained, Training
from models.training.keyed_noise import KeyedNormals
from models.training.private_training import train_privately
from silos.client_store import ClientStore
from silos.cohort import Silos, Stack
from silos.errors import RefusalError
from silos.privacy.training_ledger import TrainingLedger
from tasks.privacy.record_answers import AnswerRecord, digest_of, layout_of, rehearse, shares_of_rows


def train_with_noise(
    silos: Silos,
    stack: Stack,
    rows: Rows,
    network: Network,
    weights: Weights,
    context: Weights,
    training: Training,
    private: ClientStore,
    proximal: float = 0.0,
    anchor: Weights | None = None,
    optimiser: Weights | None = None,
) -> Trained:
    """Train each client of a stack as `train_privately` does, and record answer and cost before the answer leaves.

    The rows of pooled silos are one client's: one noise on their clipped sum, divided by the total of their divisors. It is
    what secure sums reach at best.

    Args:
        silos: The silos.
        stack: The clients, and the size to which they are padded.
        rows: Their padded rows.
        network: The network.
        weights: The received weights, names to (stack size, ...).
        context: What is not trained, names to (stack size, ...).
        training: The local training with its privacy.
        private: The run's private store, which lies in the silos' own.
        proximal: As of `train`.
        anchor: As of `train`.
        optimiser: As of `train`.

    Raises:
        RefusalError: If an answer exceeds a client's budget, or the silos have no store; nothing leaves then.
    """
    privacy = training.privacy
    assert privacy is not None, "the caller has checked"
    record = AnswerRecord.open(silos, stack, training, private)
    rehearse(silos, rows, network, weights, context, training)
    received = {"weights": weights, "context": context, "anchor": anchor or {}, "optimiser": optimiser or {}}
    questions = record.questions(network, received, proximal, silos.members, layout_of(stack, rows))
    # pooled rows have one noise, which each of their owners pays for as for noise of its own
    streams = [_stream(each, silos.partition, own) for each, own in zip(record.ledgers, questions, strict=True)]
    draw = partial(draw_noise, streams, rows.x.device)
    total = replace(training, privacy=replace(privacy, divisor=privacy.divisor * max(1, len(silos.members))))
    shares = shares_of_rows(silos, stack, rows)
    trained = train_privately(network, weights, context, rows, total, draw, shares, proximal, anchor, optimiser)
    for index, question in enumerate(questions):
        record.record(rows, index, question, digest_of("", {"weights": trained.weights}, index))
    return trained


def check_received(model: Model) -> None:
    """Raise RefusalError for a model with weights or context that clients keep: one row could change all gradients."""
    if isinstance(model.personal, ClientStateRefs) or isinstance(model.context, ClientStateRefs):
        raise RefusalError(
            "training.privacy: got a model with weights or statistics that clients keep, expected none, since they follow "
            "from rows without noise. Use fedavg, fedprox, fedopt or finetune, or set training.privacy.epsilon to null."
        )


def _stream(ledgers: Sequence[TrainingLedger], partition: str, question: str) -> KeyedNormals:
    """Return the noise of an answer, which cannot be computed without the secret of every owner of the rows."""
    keys = [ledger.noise_key(partition, question) for ledger in ledgers]
    return KeyedNormals(keys[0] if len(keys) == 1 else hmac.digest(b"".join(keys), b"pooled", "sha256"))


def draw_noise(
    streams: list[KeyedNormals], device: torch.device, shapes: Mapping[str, torch.Size]
) -> Mapping[str, Tensor]:
    """Draw each client's noise of a step from its own stream, (clients, ...) by name; padding gets none."""
    drawn = {name: torch.empty(shape) for name, shape in shapes.items()}
    for index, stream in enumerate(streams):
        for tensor in drawn.values():
            stream.fill(tensor[index].view(-1))
    for tensor in drawn.values():
        tensor[len(streams) :] = 0
    return {name: tensor.to(device) for name, tensor in drawn.items()}
