"""Audit private training: train on a copy of the silos, with canaries in one of them, and bound what answers reveal."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flows.core.config.params_schema import PrivacyParams
from flows.core.config.validation_errors import nearest_hint
from flows.core.console import progress
from flows.core.console.process_control import raise_if_interrupted
from flows.methods.base import start_method
from flows.methods.fedavg import FedAvg
from flows.methods.round_context import RoundContext, TrainingSetup
from flows.project.project import Project
from flows.project.run_sets import scratch_dir
from flows.training.training_setup import training_setup
from models.networks.network import learned
from models.privacy_accounting import epsilon, rho
from models.privacy_audit import Guesses, MeasuredMu
from models.server_state import Weights
from models.training.engine import Privacy, Rows, broadcast_weights
from models.training.optimizers import SGD
from models.training.private_training import clipped_sums
from silos.client_store import ClientStore
from silos.cohort import Silos, Stack
from silos.dataset import ClientRows, Clients, Partition
from silos.errors import RefusalError, UserError, some
from silos.io.memory_and_disk import must_fit
from silos.privacy.owner_file import OWNER_FILE, make_store, policy_of_run
from silos.sources.source_params import Digits
from silos.storage.partition_store import open_client, open_units, write_partition
from tasks.execution.load_client_data import load_rows
from tasks.execution.task_runner import PlainRunner
from tasks.privacy.record_answers import shares_of_rows
from tasks.tracking.result_types.model_results import AuditResult, Fault, RevealedPrivacy

LEAST_CANARIES, MOST_CANARIES = 20, 10_000
_FAR = 3.0  # deviations from the mean, in each feature of a canary
_Z = 4.2649  # of a normal number above which one in 100,000 lies, since each kind of weights is a test
_LEAST_NOISE = 1e-3  # of the claimed one, with which scores are weighed at least
_NUMBERS = 2**24  # of canaries' gradients that are held at a time


@dataclass(frozen=True)
class _Copy:
    """A copy of silos in which one also has canaries.

    Attributes:
        silos: The silos that train.
        canaries: A silo of all canaries, which trains nothing.
        inside: Which canaries the audited silo has, (canaries,) bool.
        audited: That silo.
        rows: The number of its own training rows, which come first.
    """

    silos: Silos
    canaries: Silos
    inside: np.ndarray
    audited: str
    rows: int


def audit_privacy(project: Project, canaries: int = 200, seed: int = 0, client: str | None = None) -> AuditResult:
    """Train FedAvg with `training.privacy` on a copy of the silos, and compare what it reveals with what it claims.

    In the copy one silo also has canaries, half of which a coin takes in again. Its ledger pays nothing, since nothing of
    the copy is kept. The audit knows all other rows, all weights and the noise's law, but not the coins.

    Args:
        project: The project.
        canaries: The number of canaries.
        seed: The seed of training, of the canaries and of the coins.
        client: The silo that gets them; by default the one with the most training rows.

    Raises:
        UserError: If params set no privacy, or training of another form.
        RefusalError: If the owner of the rows does not allow that they are read without a guard.
    """
    silos = project.silos
    silos.must_be_here()
    setup = _one_step_a_round(training_setup(project, seed))
    privacy, rate = _privacy_and_rate(setup)
    rows = setup.silos.rows("train")
    if client is None:
        client = max(rows, key=lambda name: rows[name])
    elif client not in rows:
        raise UserError(f"--client: got no silo {client!r} that trains{nearest_hint(client, sorted(rows), '.')}")
    # without secure sums the noise of other silos would only hide what this one reveals
    taking_part = [name for name, count in rows.items() if count] if privacy.secure else [client]
    store = Path(project.ledgers.folder)
    closed = [name for name in taking_part if not policy_of_run(store, name).owners_view]
    if closed and not silos.manifest.is_public:
        raise RefusalError(
            f"audit: got silos of which only their owner reads rows: {some(closed)}. Their owner may set owners_view: true "
            f"in {store / OWNER_FILE}, audit, and set it back."
        )
    with scratch_dir(project.root / "cache" / "audit") as scratch:
        copy = _copy(project, setup, scratch, taking_part, client, canaries, seed)
        setup = replace(setup, silos=copy.silos)
        seen = _observe(setup, copy, ClientStore(str(scratch / "private" / "audit" / "run")), privacy, rate)
    return {
        "client": client,
        "silos": len(taking_part),
        "rows": copy.rows,
        "rounds": privacy.rounds,
        "seed": seed,
        "canaries": canaries,
        "inside": int(copy.inside.sum()),
        **_judge(project.params.training.privacy, setup, seen, copy.inside, privacy.rounds),
    }


def _judge(
    params: PrivacyParams, setup: TrainingSetup, seen: "_Observed", inside: np.ndarray, rounds: int
) -> RevealedPrivacy:
    """Compare what was seen with what params claim, whatever noise the training was given."""
    assert params.epsilon is not None, "the caller has checked"
    claimed = math.sqrt(2 * rho(params.epsilon, params.delta))
    sigma, sizes = math.sqrt(rounds) / claimed, {name: len(own) for name, own in seen.squares.items()}
    noise = {name: math.sqrt(float(own.sum()) / (len(own) * rounds)) / sigma for name, own in seen.squares.items()}
    numbers = sum(sizes.values())
    deviation = math.sqrt(sum(noise[name] ** 2 * size for name, size in sizes.items()) / numbers)
    of_sum = float(seen.noise.norm()) / math.sqrt(numbers * rounds) / sigma
    # by the number of draws, since few of them may have a small deviation by chance
    weakest = min(sizes, key=lambda name: (noise[name] - 1) * math.sqrt(2 * sizes[name] * rounds))
    scores = seen.scores(max(deviation, _LEAST_NOISE) * sigma)
    mu, guesses = MeasuredMu.of(scores, inside), Guesses.of(scores, inside)
    faults: dict[Fault, bool] = {
        "noise": noise[weakest] < 1 - _Z / math.sqrt(2 * sizes[weakest] * rounds),
        "related noise": abs(of_sum - deviation) > deviation * _Z / math.sqrt(2 * numbers),
        "canaries": mu.exceeds(claimed),
    }
    return {
        "claimed": {"epsilon": params.epsilon, "delta": params.delta, "mu": claimed},
        "noise": deviation,
        "weakest": {"weights": weakest, "noise": noise[weakest]},
        "noise_of_sum": of_sum,
        "mu": mu.value,
        "mu_error": mu.error,
        "least_mu": mu.least,
        "least_epsilon": epsilon(mu.least**2 / 2, params.delta),
        "guesses": guesses.made,
        "right": guesses.right,
        "least_epsilon_by_guesses": guesses.least_epsilon(params.delta),
        "most_epsilon_by_guesses": guesses.ceiling.least_epsilon(params.delta),
        "faults": [fault for fault, was_found in faults.items() if was_found],
    }


def _one_step_a_round(setup: TrainingSetup) -> TrainingSetup:
    """Return a setup whose local epochs are rounds of one step: for a silo alone the same steps, all of them sent."""
    training = setup.training
    if training.privacy is None:
        return setup
    privacy = replace(training.privacy, rounds=training.privacy.rounds * training.epochs)
    return replace(setup, training=replace(training, epochs=1, privacy=privacy))


def _privacy_and_rate(setup: TrainingSetup) -> tuple[Privacy, float]:
    """Return the noise and the step size; UserError if what is sent is no multiple of one noisy sum a round."""
    training = setup.training
    if training.privacy is None:
        raise UserError(
            "params.yaml: training.privacy.epsilon: got null, expected a number, since there is no guarantee to audit. Add "
            "`--set training.privacy.epsilon=4`."
        )
    if not isinstance(training.optimiser, SGD) or training.optimiser.weight_decay or training.keeps:
        raise UserError(
            "params.yaml: training.optimiser: got a step that is no multiple of the noisy sum, expected {kind: sgd} without "
            "weight_decay, with state: reset. An audit reads the sum from the step."
        )
    return training.privacy, training.optimiser.learning_rate


def _copy(
    project: Project, setup: TrainingSetup, scratch: Path, names: list[str], audited: str, count: int, seed: int
) -> _Copy:
    """Write the silos with canaries to a folder; they count as public there, so that they are on no register."""
    silos, random = setup.silos, np.random.default_rng(seed)
    folder, manifest = Path(silos.folder), silos.manifest
    clients = []
    for name in names:
        (entry,) = silos.entries(name)
        x, y = open_client(folder, entry, "train")
        clients.append(ClientRows(name, "", x, y, np.full(len(y), "train"), unit=open_units(folder, [entry], "train")))
    place = names.index(audited)
    own, inside = clients[place], random.random(count) < 0.5
    made = _canaries(own, len(manifest.classes), count, random)
    clients[place] = _joined(own, made.take(inside))
    aside = "canaries" + "_" * (1 + max((len(name) for name in names), default=0))
    clients.append(replace(made, name=aside))
    data = project.params.data.model_copy(update={"name": "audit", "source": Digits(kind="digits")})
    make_store(scratch / "private" / "audit", data)
    partition = Partition(
        Clients.concatenate(clients), [*manifest.classes], task=manifest.task, features=manifest.features
    )
    write_partition(scratch / "data", data, partition)
    # rows are cached by their version, and the folder is that of an audit before
    whole = Silos.open(scratch / "data", f"audit {secrets.token_hex(8)}")
    return _Copy(whole.select(names), whole.select([aside]), inside, audited, len(own.y))


def _joined(own: ClientRows, more: ClientRows) -> ClientRows:
    x, y, split = (np.concatenate([getattr(own, name), getattr(more, name)]) for name in ("x", "y", "split"))
    unit = None if own.unit is None or more.unit is None else np.concatenate([own.unit, more.unit])
    return replace(own, x=x, y=y, split=split, unit=unit)


def _canaries(own: ClientRows, classes: int, count: int, random: np.random.Generator) -> ClientRows:
    """Make rows that are far from all others and from each other, with labels of no meaning, each a unit of its own."""
    if own.x.dtype == np.uint8:
        x = random.choice(np.array([0, 255], np.uint8), (count, *own.x.shape[1:]))
    else:
        deviation = own.x.std(0)
        signs = random.choice([-_FAR, _FAR], (count, *own.x.shape[1:]))
        x = (own.x.mean(0) + signs * np.where(deviation > 0, deviation, 1.0)).astype(np.float32)
    if classes:
        y = random.integers(0, classes, count)
    else:
        y = (own.y.mean() + random.choice([-_FAR, _FAR], count) * (own.y.std() or 1.0)).astype(own.y.dtype)
    unit = None if own.unit is None else random.integers(0, 2**63, count, dtype=np.uint64)
    return ClientRows("", "", x, y, np.full(count, "train"), unit=unit)


@dataclass
class _Observed:
    """What an audit adds up over rounds, in units of the clip norm.

    Attributes:
        products: Canaries' gradients times what was sent, less what rows that are no canaries add: (canaries,).
        gram: Products of canaries' gradients with each other: (canaries, canaries).
        noise: The noise, added up over rounds: (numbers,), of all weights that gradients move.
        squares: The squares of the noise, added up over rounds, by the name of the weights: (numbers of these,).
    """

    products: Tensor
    gram: Tensor
    noise: Tensor
    squares: dict[str, Tensor]

    def add(self, sent: Tensor, gradients: Tensor, inside: Tensor) -> None:
        """Add a round: what was sent, (numbers,), and canaries' gradients, (canaries, numbers)."""
        self.products += gradients @ sent
        self.gram += gradients @ gradients.T
        noise = sent - gradients[inside].sum(0)
        self.noise += noise
        for squares, own in zip(self.squares.values(), noise.split([*map(len, self.squares.values())]), strict=True):
            squares += own.square()

    def scores(self, deviation: float) -> np.ndarray:
        """Return the estimate of each coin, less its mean of 1/2, that is linear and has the least squared error."""
        half = torch.full_like(self.products, 0.5)
        prior = torch.eye(len(half), dtype=half.dtype) * (4 * deviation**2)  # a coin's variance is 1/4
        return torch.linalg.solve(self.gram + prior, self.products - self.gram @ half).numpy()


def _observe(setup: TrainingSetup, copy: _Copy, private: ClientStore, privacy: Privacy, rate: float) -> _Observed:
    """Train, and add up what all rounds show of canaries and of the noise."""
    method, count = FedAvg(), len(copy.inside)
    state = start_method(method, setup)
    stacks = [Stack((name,), 1) for name in copy.silos.clients]
    known = [_known_rows(copy, stack, setup.device) for stack in stacks]
    canaries = load_rows(copy.canaries, Stack(copy.canaries.clients, 1), "train", setup.device)
    names = sorted(learned(setup.network, state.tensors["weights"]))
    sizes = {name: state.tensors["weights"][name].numel() for name in names}
    numbers = sum(sizes.values())
    must_fit(8 * count * numbers, f"--canaries: got {count:,} gradients of {numbers:,} numbers", "Choose fewer")
    zeros = partial(torch.zeros, dtype=torch.float64)
    observed = _Observed(
        zeros(count), zeros(count, count), zeros(numbers), {n: zeros(size) for n, size in sizes.items()}
    )
    with progress.saying_if_long("training on a copy with canaries"):
        for number in range(1, privacy.rounds + 1):
            raise_if_interrupted()
            before = state.tensors["weights"]
            state, _ = method.run_round(
                state, RoundContext(number, setup, copy.silos.clients, (), PlainRunner(), private)
            )
            after, sent = state.tensors["weights"], dict[str, Tensor]()
            for name in names:
                step = rate * setup.network.lr_multipliers.get(name, 1.0)
                sent[name] = (before[name] - after[name]).double() * (privacy.divisor * len(stacks) / step)
            for stack, rows in zip(stacks, known, strict=True):
                sums = _sums(setup, before, rows, _shares(copy, stack, rows))
                sent = {name: sent[name] - sums[name][0].cpu().double() for name in names}
            gradients = _canary_gradients(setup, before, canaries, names)
            total = torch.cat([sent[name].flatten() for name in names])
            observed.add(total / privacy.clip, gradients / privacy.clip, torch.from_numpy(copy.inside))
    return observed


def _known_rows(copy: _Copy, stack: Stack, device: str) -> Rows:
    """Load the rows of a silo that are no canaries."""
    rows = load_rows(copy.silos, stack, "train", device)
    if stack.clients != (copy.audited,):
        return rows
    return Rows(rows.x[:, : copy.rows], rows.y[:, : copy.rows], torch.full_like(rows.counts, copy.rows))


def _shares(copy: _Copy, stack: Stack, rows: Rows) -> Tensor:
    shares = shares_of_rows(copy.silos, stack, load_rows(copy.silos, stack, "train", "cpu"))
    return shares[:, : rows.y.shape[1]].to(rows.x)


def _sums(setup: TrainingSetup, weights: Weights, rows: Rows, shares: Tensor) -> dict[str, Tensor]:
    device = rows.x.device
    own = broadcast_weights({name: w.to(device) for name, w in weights.items()}, len(rows.y))
    stacked = {name: w.contiguous() for name, w in own.items()}
    return clipped_sums(setup.network, stacked, {}, rows, setup.training, shares)


def _canary_gradients(setup: TrainingSetup, weights: Weights, canaries: Rows, names: Sequence[str]) -> Tensor:
    """Return the clipped gradient of each canary, (canaries, numbers) float64."""
    chunk = max(1, _NUMBERS // sum(w.numel() for w in weights.values()))
    parts = []
    for x, y in zip(canaries.x[0].split(chunk), canaries.y[0].split(chunk), strict=True):
        each = Rows(x[:, None], y[:, None], torch.ones(len(y), dtype=torch.int64, device=x.device))
        gradients = _sums(setup, weights, each, torch.ones(len(y), 1, dtype=x.dtype, device=x.device))
        parts.append(torch.cat([gradients[name].flatten(1).cpu().double() for name in names], 1))
    return torch.cat(parts)
