"""Train with differential privacy at the clients: noise from each client's secret, and its cost on each client's ledger."""

import hashlib
import hmac
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.networks.network_factory import Network, to_json
from models.privacy_accounting import epsilon, rho
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Privacy, Rows, Trained, Training
from models.training.keyed_noise import KeyedNormals
from models.training.private_training import train_privately
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack
from silos.errors import RefusalError
from silos.privacy.owner_file import policy_of, store_of_run
from silos.privacy.report_rules import Unit
from silos.privacy.reported_rows import RowRegister
from silos.privacy.training_ledger import Purchase, TrainingLedger
from silos.storage.partition_store import open_units
from tasks.diagnosis.report_summary import LocalSummary
from tasks.execution.prefect_tasks import step
from tasks.messages.statistics_messages import PrivacyCost


def cost_of_run(privacy: Privacy, epochs: int) -> float:
    """Return the cost ρ of all answers of a run to a client: a step of Gaussian noise costs 1 / (2 noise_multiplier^2)."""
    return privacy.rounds * epochs / (2 * privacy.noise_multiplier**2)


def noise_for(target: float, delta: float, steps: int) -> float:
    """Return the noise multiplier with which `steps` steps have `target` as their epsilon at this delta."""
    return math.sqrt(steps / (2 * rho(target, delta)))


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
    what secure sums would reach at best.

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
    # pooled rows have one noise, which each of their owners pays for as for noise of its own
    owners = [silos.members or (client,) for client in stack.clients]
    ledgers = [[_ledger(private, owner) for owner in each] for each in owners]
    received = {"weights": weights, "context": context, "anchor": anchor or {}, "optimiser": optimiser or {}}
    if silos.scaling.own_columns:
        raise RefusalError(
            "clients.align: got columns that each client aligns by its own rows, expected none with training.privacy, since "
            "one row would change all others. Set clients.align.kind to none."
        )
    # the batch size and where state is kept change no answer
    settled = replace(training, batch=1, keeps=False)
    settings = json.dumps([repr(settled), to_json(network), repr(silos.scaling), proximal, silos.members], default=repr)
    questions = [_digest(settings, received, index) for index in range(len(stack.clients))]
    streams = [_stream(each, silos.partition, question) for each, question in zip(ledgers, questions, strict=True)]
    draw = partial(draw_noise, streams, rows.x.device)
    total = replace(training, privacy=replace(privacy, divisor=privacy.divisor * max(1, len(silos.members))))
    trained = train_privately(
        network, weights, context, rows, total, draw, _shares(silos, stack, rows), proximal, anchor, optimiser
    )
    for index, (client, question) in enumerate(zip(stack.clients, questions, strict=True)):
        answer = _digest("", {"weights": trained.weights}, index)
        registers = _registers(silos, client, owners[index], rows, index)
        for ledger, register in zip(ledgers[index], registers, strict=True):
            ledger.record(_purchase(silos, ledger, training), question, answer, partial(register, ledger))
    return trained


def check_received(model: Model) -> None:
    """Raise RefusalError for a model with weights or context that clients keep: one row could change all gradients."""
    if isinstance(model.personal, ClientStateRefs) or isinstance(model.context, ClientStateRefs):
        raise RefusalError(
            "training.privacy: got a model with weights or statistics that clients keep, expected none, since they follow "
            "from rows without noise. Use fedavg, fedprox, fedopt or finetune, or set training.privacy.epsilon to null."
        )


@step
def report_privacy_cost(
    cohort: Cohort, training: Training, private: ClientStore, device: str = "cpu"
) -> list[PrivacyCost]:
    """Report what each client has spent of its budget, before it trains; no row is read.

    Args:
        cohort: The clients, in stacks.
        training: The local training with its privacy.
        private: The store of a run, or of the silos.
        device: No effect.
    """
    messages = []
    for stack in cohort.stacks:
        accounts = []
        for client in stack.clients:
            ledger = _ledger(private, client)
            purchase = _purchase(cohort.silos, ledger, training)
            spent, left = ledger.account(purchase)
            accounts.append((spent, purchase.budget, ledger.policy.delta, float(left)))
        messages.append(PrivacyCost(stack.clients, *torch.tensor(accounts, dtype=torch.float64).T.contiguous()))
    return messages


def _ledger(private: ClientStore, client: str) -> TrainingLedger:
    """Open the training ledger of a client in the store that a run's folder lies in; RefusalError if there is none."""
    folder = store_of_run(Path(private.folder))
    return TrainingLedger(str(folder), client, policy_of(folder, client))


def _purchase(silos: Silos, ledger: TrainingLedger, training: Training) -> Purchase:
    assert training.privacy is not None, "the caller has checked"
    policy, privacy = ledger.policy, training.privacy
    unit = Unit("epsilon", partial(epsilon, delta=policy.delta), also=f" at delta {policy.delta:g}")
    settings = hashlib.sha256(f"{silos.partition} {privacy!r} {training.epochs}".encode()).hexdigest()
    cost = cost_of_run(privacy, training.epochs)
    return Purchase(silos.partition, settings, privacy.rounds, cost, rho(policy.budget, policy.delta), unit)


def _stream(ledgers: Sequence[TrainingLedger], partition: str, question: str) -> KeyedNormals:
    """Return the noise of an answer, which cannot be computed without the secret of every owner of the rows."""
    keys = [ledger.noise_key(partition, question) for ledger in ledgers]
    return KeyedNormals(keys[0] if len(keys) == 1 else hmac.digest(b"".join(keys), b"pooled", "sha256"))


def _registers(
    silos: Silos, client: str, owners: Sequence[str], rows: Rows, index: int
) -> list[Callable[[TrainingLedger], RowRegister | None]]:
    """Return for each owner of a client's rows what opens the register by which no other silo reports them."""
    alone = replace(silos, clients=tuple(owners), members=())
    counts = [entry.rows["train"] for entry in silos.entries(client)]
    ends = list(itertools.accumulate(counts))
    parts = [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
    return [
        partial(_register, alone, owner, rows.x[index, part], rows.y[index, part])
        for owner, part in zip(owners, parts, strict=True)
    ]


def _register(silos: Silos, client: str, x: Tensor, y: Tensor, ledger: TrainingLedger) -> RowRegister | None:
    """Return the register of a client's rows; None of public rows, which have no owner."""
    if silos.manifest.is_public:
        return None
    local = LocalSummary(silos, client, x.cpu(), y.cpu())
    return RowRegister(ledger.folder, ledger.client, local.partition, local.cells)


def _shares(silos: Silos, stack: Stack, rows: Rows) -> Tensor:
    """Return what each clipped row counts, (stack size, width): 1 over the rows of its unit, or 1; 0 for padding."""
    shares = (torch.arange(rows.y.shape[1], device=rows.y.device) < rows.counts[:, None]).to(rows.x.dtype)
    for index, client in enumerate(stack.clients):
        start = 0
        for entry in silos.entries(client):  # several if pooled; a unit counts once at each owner
            end = start + entry.rows["train"]
            unit = open_units(Path(silos.folder), [entry], "train")
            if unit is not None:
                _, number, count = np.unique(unit, return_inverse=True, return_counts=True)
                shares[index, start:end] /= torch.from_numpy(count[number.ravel()]).to(shares)
            start = end
    return shares


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


def _digest(settings: str, tensors: Mapping[str, Weights], index: int) -> str:
    """Hash a client's part of tensors (clients, ...), with their names and shapes, and the settings."""
    digest = hashlib.sha256(settings.encode())
    for section, named in tensors.items():
        for name, tensor in sorted(named.items()):
            own = tensor[index].detach().cpu().contiguous()
            digest.update(f"\n{section}/{name} {own.dtype} {tuple(own.shape)}\n".encode())
            digest.update(own.numpy().tobytes())
    return digest.hexdigest()
