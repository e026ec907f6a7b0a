"""Sum the noisy gradients of clients so that the server reads only the sum: the steps, and how a round runs them.

The protocol is in silos.privacy.masked_sums. Clients share the noise: the sum has about as much as one client's own answer
would need, and not as much for each client.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.networks.network_factory import Network
from models.server_state import Weights
from models.training.engine import SecureSums, Training
from models.training.keyed_noise import KeyedNormals
from models.training.private_training import SharedNoise, clipped_sums, step_with_sum
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos
from silos.errors import RefusalError, UserError
from silos.privacy.masked_sums import PresentSilos, SumSession, unmask
from silos.privacy.owner_file import policy_of, store_of_run
from silos.privacy.sum_ledger import SECOND, SumLedger
from tasks.execution.load_client_data import load_stacks
from tasks.execution.steps import ByClient, ClientStep, server_step, step
from tasks.execution.task_runner import RoundCost, Runner, map_clients
from tasks.messages.message_policy import Message, SentMessage
from tasks.messages.round_messages import Update
from tasks.messages.sum_messages import Confirmations, LastingKeys, MaskedGradients, RevealedShares, SealedShares
from tasks.privacy.record_answers import AnswerRecord, digest_of, layout_of, rehearse, settings_of, shares_of_rows
from tasks.privacy.train_with_noise import check_received

_MOST_ATTEMPTS = 3  # a client that says that it answered before, and refuses, costs the others as many answers


@step
def report_sum_keys(cohort: Cohort, private: ClientStore, device: str = "cpu") -> list[LastingKeys]:
    """Report each client's lasting public key.

    Args:
        cohort: The clients, in stacks.
        private: The run's private store.
        device: No effect.
    """
    return [
        LastingKeys(
            stack.clients, _bytes(bytes.fromhex(_ledger(private, client).public_key()) for client in stack.clients)
        )
        for stack in cohort.stacks
    ]


@step
def seal_shares(cohort: Cohort, private: ClientStore, session: SumSession, device: str = "cpu") -> list[SealedShares]:
    """Send each client's public key of a sum, and shares of its secrets, encrypted for every invited client.

    Args:
        cohort: The clients, in stacks.
        private: The run's private store.
        session: The invited clients, their keys and the fewest that may be summed.
        device: No effect.

    Raises:
        RefusalError: If the session is not as the client's owner allows, or another client has another key than before.
    """
    messages = []
    for stack in cohort.stacks:
        ledgers = [_ledger(private, client) for client in stack.clients]
        members = [ledger.join(session) for ledger in ledgers]
        keys = _bytes(bytes.fromhex(member.public_key) for member in members)
        shares = torch.stack([_bytes(member.seal_shares()) for member in members])
        messages.append(SealedShares(stack.clients, keys, shares))
    return messages


@step
def mask_gradients(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    session: SumSession,
    present: PresentSilos,
    shares: ByClient[Tensor],
    device: str = "cpu",
) -> list[MaskedGradients]:
    """Send each client's noisy sum of clipped gradients under masks, and record answer and cost before it leaves.

    Args:
        cohort: The clients, in stacks.
        model: The model that each client received.
        training: The local training with its privacy.
        private: The run's private store.
        session: The invited clients.
        present: The clients that sent shares.
        shares: Client to the encrypted shares that these sent to it, (present, bytes) uint8.
        device: Where clients are computed, such as "cpu".

    Raises:
        RefusalError: If the answer exceeds a client's budget, or the client answered another question in this session.
    """
    silos, messages, noise = cohort.silos, [], shared_noise(training, session)
    check_received(model)
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        # all that may be refused is refused before rows enter a number, so that no refusal of these depends on rows
        try:
            noise.check(int(rows.counts.max()))
        except ValueError as error:
            raise UserError(str(error)) from None
        record = AnswerRecord.open(silos, stack, training, private)
        received = {"weights": weights, "context": context}
        rehearse(silos, rows, model.network, weights, context, training)
        questions = record.questions(model.network, received, "secure sum", session.digest, present.digest)
        members = []
        for index, (client, question) in enumerate(zip(stack.clients, questions, strict=True)):
            sums_of = _ledger(private, client)
            members.append(sums_of.join(session))
            members[-1].open_shares(present, _rows_of(shares[client]))  # made by these clients for this session
            record.check(index, question)
            sums_of.bind_question(session, question, present, silos.partition, layout_of(stack, rows))
        sums = clipped_sums(model.network, weights, context, rows, training, shares_of_rows(silos, stack, rows))
        drawn = torch.zeros(len(rows.y), sum(total[0].numel() for total in sums.values()), dtype=torch.float64)
        for index, question in enumerate(questions):
            (ledger,) = record.ledgers[index]  # pooled silos have one noise, and need no sums
            KeyedNormals(ledger.noise_key(silos.partition, question)).fill(drawn[index])
        numbers = noise.integers(sums, drawn)
        total = np.zeros(numbers.shape[1], np.int64)
        for index, (member, question) in enumerate(zip(members, questions, strict=True)):
            own = member.mask(numbers[index].numpy(), question, present)
            record.record(rows, index, question, sha256(own.tobytes()).hexdigest())
            total += own
        by_client = dict(zip(stack.clients, questions, strict=True))
        messages.append(MaskedGradients(stack.clients, torch.from_numpy(total), by_client))
    return messages


@step
def confirm_answered(
    cohort: Cohort,
    private: ClientStore,
    session: SumSession,
    present: PresentSilos,
    question: str,
    answered: tuple[str, ...],
    device: str = "cpu",
) -> list[Confirmations]:
    """Confirm to each client that answered which clients were present and answered; once for a session.

    Args:
        cohort: The clients, in stacks.
        private: The run's private store.
        session: The invited clients.
        present: The clients that sent shares.
        question: The hash that the clients reported with their masked gradients.
        answered: The clients whose masked gradients the server has.
        device: No effect.

    Raises:
        RefusalError: If fewer clients answered than `session.least`, or others were confirmed before.
    """
    messages = []
    for stack in cohort.stacks:
        codes = []
        for client in stack.clients:
            ledger = _ledger(private, client)
            own = ledger.join(session).confirm(question, present, answered)
            ledger.bind_answered(session, question, present, answered)
            codes.append(_bytes(own))
        messages.append(Confirmations(stack.clients, torch.stack(codes)))
    return messages


@step
def reveal_shares(
    cohort: Cohort,
    private: ClientStore,
    session: SumSession,
    present: PresentSilos,
    question: str,
    answered: tuple[str, ...],
    confirmed: tuple[str, ...],
    shares: ByClient[Tensor],
    codes: ByClient[Tensor],
    device: str = "cpu",
) -> list[RevealedShares]:
    """Reveal shares, so that the server can read the sum over the clients that answered.

    Args:
        cohort: The clients, in stacks.
        private: The run's private store.
        session: The invited clients.
        present: The clients that sent shares.
        question: As of `confirm_answered`.
        answered: The clients whose masked gradients the server has.
        confirmed: The clients that confirmed these lists.
        shares: As of `mask_gradients`.
        codes: Client to the codes that these made for it, (confirmed, bytes) uint8.
        device: No effect.

    Raises:
        RefusalError: If fewer clients confirmed the lists than `session.least`, or this client others.
    """
    messages = []
    for stack in cohort.stacks:
        revealed = []
        for client in stack.clients:
            ledger = _ledger(private, client)
            # from now on to other lists this client says no: two lists would open seed and key of one silo, and its numbers
            ledger.check_answered(session, question, present, answered)
            member = ledger.join(session)
            opened = member.open_shares(present, _rows_of(shares[client]))
            received = dict(zip(confirmed, _rows_of(codes[client]), strict=True))
            revealed.append(_bytes(member.reveal_shares(question, present, answered, opened, received)))
        messages.append(RevealedShares(stack.clients, torch.stack(revealed)))
    return messages


@server_step
def read_sum(
    session: SumSession,
    present: PresentSilos,
    question: str,
    masked: list[MaskedGradients],
    revealed: list[RevealedShares],
    network: Network,
    weights: Weights,
    training: Training,
    rows: Mapping[str, int],
) -> Update:
    """Remove the masks from the sum of gradients, and take the step of its mean.

    Args:
        session: The invited clients.
        present: The clients that sent shares.
        question: The hash that the clients reported with their masked gradients.
        masked: The masked gradients.
        revealed: The revealed shares.
        network: The network.
        weights: The weights that the clients received.
        training: The local training with its privacy.
        rows: The clients' numbers of rows, which are public.

    Returns:
        The update of all clients together: each counts the same.

    Raises:
        UserError: If too few clients revealed shares, or wrong ones.
    """
    answered = tuple(client for message in masked for client in message.clients)
    total = sum((message.numbers for message in masked[1:]), masked[0].numbers)
    shares = {
        client: _rows_of(own)
        for message in revealed
        for client, own in zip(message.clients, message.shares, strict=True)
    }
    opened = unmask(total.numpy(), session, question, present, answered, shares)
    # the sum holds the silos' noise already; its size is needed since integers count in parts of it
    noise = shared_noise(training, session)
    new = step_with_sum(network, weights, training, noise, torch.from_numpy(opened), len(answered))
    equal = torch.ones(len(answered), dtype=torch.float64)
    sums = {name: w.double() * len(answered) for name, w in new.items()}
    return Update(answered, torch.tensor([rows[client] for client in answered]), sums, torch.zeros(0), shares=equal)


@dataclass(frozen=True)
class SecureRound:
    """Runs the steps of secure sums on the clients of a round.

    Attributes:
        runner: Where steps run.
        silos: The clients of the round.
        model: The model that they receive.
        training: The local training with its privacy.
        secure: The fewest clients of a sum, and those that may collude.
        private: The run's private store.
        stack: The most clients of a stack.
        device: The device of the clients' steps.
        tally: Counts the cost of the steps.
    """

    runner: Runner
    silos: Silos
    model: Model
    training: Training
    secure: SecureSums
    private: ClientStore
    stack: int
    device: str
    tally: RoundCost

    def train(self, name: str) -> Update:
        """Take one step of all clients together, and return the update of those that answered.

        A resumed run repeats its sum, with the same bytes. If other clients are present, the sum is made again with new
        noise, at most twice. Each repetition costs one more answer.

        Args:
            name: What tells the sums of a run apart, such as its seed and round.

        Raises:
            ClientsAwayError: If fewer clients answer than may be summed.
            UserError: As `SumSession.check`.
        """
        # runs with the same question share a sum, and others have their own
        settings = settings_of(self.silos, self.model.network, self.training, name, self.silos.partition)
        own = digest_of(settings, {"weights": {key: w[None] for key, w in self.model.shared.items()}}, 0)
        for attempt in range(_MOST_ATTEMPTS):
            try:
                return self._sum(own, attempt)
            except RefusalError as error:
                if SECOND not in str(error) or attempt == _MOST_ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _sum(self, name: str, attempt: int) -> Update:
        secure, store = self.secure, {"private": self.private, "device": self.device}
        least = secure.least or len(self.silos.clients)
        keys = self._ask(report_sum_keys, self.silos.clients, least, **store)
        session = SumSession(name, attempt, *_named(_by_client(keys, "keys")), least, secure.colluders)
        session.check()
        sealed = self._ask(seal_shares, session.clients, least, session=session, **store)
        public, boxes = _by_client(sealed, "keys"), _by_client(sealed, "shares")
        present = PresentSilos(*_named({name: public[name] for name in session.clients if name in public}))
        received = _sent_to(present.clients, present.clients, session.clients, boxes)
        options: dict[str, Any] = {"session": session, "present": present, **store}
        training = {"training": self.training, "shares": received}
        masked = self._ask(mask_gradients, present.clients, least, self.model, **training, **options)
        question = self._one_question(masked)
        found = {client for message in masked for client in message.clients}
        answered = tuple(name for name in present.clients if name in found)
        options |= {"question": question, "answered": answered}
        confirmations = self._ask(confirm_answered, answered, least, **options)
        codes = _by_client(confirmations, "codes")
        confirmed = tuple(name for name in answered if name in codes)
        sent = {"codes": _sent_to(answered, confirmed, answered, codes), "shares": received}
        revealed = self._ask(reveal_shares, confirmed, least, confirmed=confirmed, **sent, **options)
        rows, network = self.silos.rows("train"), self.model.network
        read = (session, present, question, masked, revealed, network, dict(self.model.shared), self.training)
        return self.runner.run_on_server(read_sum, *read, {client: rows[client] for client in answered})

    def _one_question(self, masked: Sequence[MaskedGradients]) -> str:
        """Return the question that all clients answered; UserError if some answered another, or not as many numbers."""
        questions = {question for message in masked for question in message.questions.values()}
        if len(questions) != 1:
            raise UserError(
                f"training.privacy.secure_sums: got answers to {len(questions)} questions, expected one: silos have other "
                "settings or other siloflow versions. Compare them."
            )
        count = sum(w.numel() for w in self.model.shared.values())
        for message in masked:
            if message.questions.keys() != {*message.clients} or message.numbers.shape != (count,):
                raise UserError(
                    f"client {message.clients[0]}: got {message.numbers.numel()} masked numbers of {len(message.questions)} "
                    f"clients, expected {count} of {len(message.clients)}. Leave it out by clients.leave."
                )
        return questions.pop()

    def _ask(
        self, task: ClientStep[SentMessage], clients: Sequence[str], least: int, *model: Model, **options: Any
    ) -> list[SentMessage]:
        """Run a step on those of the clients that can be reached; ClientsAwayError if they are fewer than `least`."""
        silos = self.silos.select(clients)
        messages = map_clients(self.runner, task, silos, *model, stack=self.stack, least=least, **options)
        self.tally.count(task.name, sum(part.bytes_down for part in model), messages, silos)
        return messages


def shared_noise(training: Training, session: SumSession) -> SharedNoise:
    """Return the noise that each client adds in a session."""
    assert training.privacy is not None, "the caller has checked"
    return SharedNoise(training.privacy, session.least, session.colluders)


def _ledger(private: ClientStore, client: str) -> SumLedger:
    folder = store_of_run(Path(private.folder))
    return SumLedger(str(folder), client, policy_of(folder, client))


def _bytes(parts: Iterable[bytes]) -> Tensor:
    """Return byte strings of one length as a tensor, (count, length) uint8."""
    return torch.from_numpy(np.stack([np.frombuffer(part, np.uint8) for part in parts]))


def _rows_of(tensor: Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in tensor]


def _by_client(messages: Sequence[Message], field: str) -> dict[str, Tensor]:
    return {
        client: own
        for message in messages
        for client, own in zip(message.clients, getattr(message, field), strict=True)
    }


def _sent_to(
    receivers: Sequence[str], senders: Sequence[str], order: Sequence[str], boxes: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return for each receiver what senders made for it, (senders, bytes), from what they made for clients in this order."""
    return {name: torch.stack([boxes[sender][order.index(name)] for sender in senders]) for name in receivers}


def _named(keys: Mapping[str, Tensor]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return clients, and their keys in hexadecimal digits."""
    return tuple(keys), tuple(key.numpy().tobytes().hex() for key in keys.values())
