"""Record the answers of private training on each client's ledger before they leave, and count what they cost."""

import hashlib
import itertools
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.networks.network_factory import Network, to_json
from models.privacy_accounting import epsilon, rho
from models.server_state import Weights
from models.training.engine import Privacy, Rows, Training
from models.training.private_training import clipped_sums, refusal
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack
from silos.errors import RefusalError, UserError
from silos.privacy.owner_file import policy_of, store_of_run
from silos.privacy.report_rules import Unit
from silos.privacy.reported_rows import RowRegister
from silos.privacy.training_ledger import Purchase, TrainingLedger
from silos.storage.partition_store import open_units
from tasks.diagnosis.report_summary import LocalSummary
from tasks.execution.steps import step
from tasks.messages.statistics_messages import PrivacyCost


def cost_of_run(privacy: Privacy, epochs: int) -> float:
    """Return the cost ρ of all answers of a run to a client: a step of Gaussian noise costs 1 / (2 noise_multiplier^2)."""
    return privacy.rounds * epochs / (2 * privacy.noise_multiplier**2)


def noise_for(target: float, delta: float, steps: int) -> float:
    """Return the noise multiplier with which `steps` steps have `target` as their epsilon at this delta."""
    return math.sqrt(steps / (2 * rho(target, delta)))


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
            ledger = open_ledger(private, client)
            purchase = _purchase(cohort.silos, ledger, training)
            spent, left = ledger.account(purchase)
            accounts.append((spent, purchase.budget, ledger.policy.delta, float(left)))
        messages.append(PrivacyCost(stack.clients, *torch.tensor(accounts, dtype=torch.float64).T.contiguous()))
    return messages


def open_ledger(private: ClientStore, client: str) -> TrainingLedger:
    """Open the training ledger of a client in the store that a run's folder lies in; RefusalError if there is none."""
    folder = store_of_run(Path(private.folder))
    return TrainingLedger(str(folder), client, policy_of(folder, client))


@dataclass(frozen=True)
class AnswerRecord:
    """The ledgers of a stack's clients, by which each of them records its answer to a question and pays for it.

    Attributes:
        silos: The silos.
        stack: The clients.
        training: The local training with its privacy.
        owners: For each client, the owners of its rows: several if they are pooled, and each of them pays.
        ledgers: The ledgers of these owners.
    """

    silos: Silos
    stack: Stack
    training: Training
    owners: Sequence[Sequence[str]]
    ledgers: Sequence[Sequence[TrainingLedger]]

    @classmethod
    def open(cls, silos: Silos, stack: Stack, training: Training, private: ClientStore) -> "AnswerRecord":
        """Open the ledgers; RefusalError if a client has none, or if its rows were aligned or filled in by other rows.

        Args:
            silos: The silos.
            stack: The clients.
            training: The local training with its privacy.
            private: The run's private store, which lies in the silos' own.
        """
        owners = [silos.members or (client,) for client in stack.clients]
        ledgers = [[open_ledger(private, owner) for owner in each] for each in owners]
        if silos.scaling.own_columns:
            raise RefusalError(
                "clients.align: got columns that each client aligns by its own rows, expected none with training.privacy, "
                "since one row would change all others. Set clients.align.kind to none."
            )
        if reason := mean_refusal(silos):
            raise RefusalError(f"{reason}.")
        return cls(silos, stack, training, owners, ledgers)

    def questions(self, network: Network, received: Mapping[str, Weights], *more: object) -> list[str]:
        """Hash for each client all that its answer depends on besides its rows and its secret.

        Args:
            network: The network.
            received: The received tensors by section and name, (stack size, ...).
            more: Further settings.
        """
        settings = settings_of(self.silos, network, self.training, *more)
        return [digest_of(settings, received, index) for index in range(len(self.stack.clients))]

    def check(self, index: int, question: str) -> None:
        """Raise RefusalError if a client's answer would exceed a budget; before a row is read."""
        for ledger in self.ledgers[index]:
            ledger.check(_purchase(self.silos, ledger, self.training), question)

    def record(self, rows: Rows, index: int, question: str, answer: str) -> None:
        """Record a client's answer, which may leave then.

        Args:
            rows: The rows of the stack.
            index: The client's place in the stack.
            question: The hash of the question.
            answer: The hash of the answer.

        Raises:
            RefusalError: As `TrainingLedger.record`.
        """
        registers = self._registers(rows, index)
        for ledger, register in zip(self.ledgers[index], registers, strict=True):
            purchase = _purchase(self.silos, ledger, self.training)
            ledger.record(purchase, question, answer, partial(register, ledger))

    def _registers(self, rows: Rows, index: int) -> list[Callable[[TrainingLedger], RowRegister | None]]:
        """Return for each owner of a client's rows what opens the register by which no other silo reports them."""
        owners = self.owners[index]
        alone = replace(self.silos, clients=tuple(owners), members=())
        counts = [entry.rows["train"] for entry in self.silos.entries(self.stack.clients[index])]
        ends = list(itertools.accumulate(counts))
        parts = [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
        return [
            partial(_register, alone, owner, rows.x[index, part], rows.y[index, part])
            for owner, part in zip(owners, parts, strict=True)
        ]


def mean_refusal(silos: Silos) -> str:
    """Say why rows cannot be private that other rows fill in, and the way out; empty if none are.

    It follows from the settings alone, also of columns without missing values.
    """
    means = [feature.name for feature in silos.manifest.features if feature.fill == "mean"]
    if not means:
        return ""
    return (
        f"data: {means[0]}: got missing: {{fill: mean}}, expected a number with training.privacy, since one "
        "row would change all rows that miss a value. Change missing under data.source or data.features, and partition again"
    )


def layout_of(stack: Stack, rows: Rows) -> str:
    """Return what the last bits of an answer depend on besides the question, as JSON.

    In another layout a recorded answer would be repeated or refused, depending on rows.
    """
    machine = [torch.__version__, platform.machine(), torch.backends.cpu.get_cpu_capability()]
    return json.dumps([*machine, rows.x.device.type, stack.clients, stack.size, rows.y.shape[1]])


def rehearse(
    silos: Silos, rows: Rows, network: Network, weights: Weights, context: Weights, training: Training
) -> None:
    """Raise the errors that some rows would raise, whatever the rows are: a refusal must not depend on them.

    It trains on empty rows of every class, one more than there are classes, so that these numbers cannot be confused.

    Args:
        silos: The silos, with the task and the classes.
        rows: The clients' rows, of which types and shapes are read.
        network: The network.
        weights: The received weights, names to (stack size, ...).
        context: What is not trained, names to (stack size, ...).
        training: The local training with its privacy.

    Raises:
        UserError: If the network or the objective does not fit the data, or cannot be private.
    """
    if reason := refusal(network, training):
        raise UserError(f"params.yaml: {reason}, or training.privacy.epsilon to null.")
    manifest, classes = silos.manifest, len(silos.manifest.classes)
    y = torch.arange(classes + 1, device=rows.y.device)[None] % classes if classes else torch.zeros_like(rows.y[:1, :1])
    x = torch.zeros_like(rows.x[:1, :1]).expand(1, y.shape[1], *rows.x.shape[2:])
    empty = Rows(x, y, torch.tensor([y.shape[1]], device=y.device))
    one = {name: w[:1] for name, w in weights.items()}
    with_one = {name: w[:1] for name, w in context.items()}
    try:
        clipped_sums(network, one, with_one, empty, training, torch.ones(y.shape[:2], device=y.device))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise UserError(
            f"training.privacy: got a network or an objective that does not fit the {manifest.task} of {classes} classes "
            f"({type(error).__name__}: {error}), expected one that trains on all of them. Change model or "
            "training.objective."
        ) from None


def settings_of(silos: Silos, network: Network, training: Training, *more: object) -> str:
    """Return the settings that answers depend on, as JSON."""
    # the batch size and where state is kept change no answer
    settled = replace(training, batch=1, keeps=False)
    return json.dumps([repr(settled), to_json(network), repr(silos.scaling), *more], default=repr)


def shares_of_rows(silos: Silos, stack: Stack, rows: Rows) -> Tensor:
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


def digest_of(settings: str, tensors: Mapping[str, Weights], index: int) -> str:
    """Hash a client's part of tensors (clients, ...), with their names and shapes, and the settings."""
    digest = hashlib.sha256(settings.encode())
    for section, named in tensors.items():
        for name, tensor in sorted(named.items()):
            own = tensor[index].detach().cpu().contiguous()
            # with its length, so that no name of a tensor can stand for a name and numbers
            head = json.dumps([section, name, str(own.dtype), own.shape]).encode()
            digest.update(len(head).to_bytes(8, "big") + head + own.numpy().tobytes())
    return digest.hexdigest()


def _purchase(silos: Silos, ledger: TrainingLedger, training: Training) -> Purchase:
    assert training.privacy is not None, "the caller has checked"
    policy, privacy = ledger.policy, training.privacy
    unit = Unit("epsilon", partial(epsilon, delta=policy.delta), also=f" at delta {policy.delta:g}")
    settings = hashlib.sha256(f"{silos.partition} {privacy!r} {training.epochs}".encode()).hexdigest()
    cost = cost_of_run(privacy, training.epochs)
    budget, singly = rho(policy.budget, policy.delta), privacy.secure is not None
    return Purchase(silos.partition, settings, privacy.rounds, cost, budget, unit, singly)


def _register(silos: Silos, client: str, x: Tensor, y: Tensor, ledger: TrainingLedger) -> RowRegister | None:
    """Return the register of a client's rows; None of public rows, which have no owner."""
    if silos.manifest.is_public:
        return None
    local = LocalSummary(silos, client, x.cpu(), y.cpu())
    return RowRegister(ledger.folder, ledger.client, local.partition, local.cells)
