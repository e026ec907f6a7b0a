"""Builds what every method of a seed trains with: silos, network, training settings, and the sampler of clients.

Loads torchvision's weights from `model.pretrained`, and checks params against the data.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from flows.core.config.clients_params import ClientsParams, OwnSampler
from flows.core.config.params_schema import EngineParams, FocalParams, Params, TrainingParams, layers_of
from flows.core.config.plugin_params import OwnNetwork
from flows.core.plugin_loader import user_code_errors
from flows.methods.client_sampler import PluginSampler, Sampler, validation_rows
from flows.methods.round_context import TrainingSetup
from flows.plugins import SAMPLERS
from flows.project.project import Project
from models.metrics.client_metrics import ClientMetric
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.network_factory import Network, build, kind_of, size
from models.networks.pretrained_encoder import Pretrained
from models.networks.torch_module import ModuleRefusedError, wrap_module
from models.training import objectives, optimizers
from models.training.engine import Privacy, SecureSums, Training
from models.training.engine_and_stack_size import pick_kernel
from models.training.execution_plan import Kind
from models.training.optimizers import PARAMETER_BYTES
from models.training.private_training import refusal
from silos.cohort import Silos, Stack, open_stack
from silos.dataset import SPLITS
from silos.errors import UserError, near_names, shown, some
from silos.io.atomic_io import is_there
from silos.io.memory_and_disk import must_fit
from silos.plugin_registry import options_of, run_entry
from silos.privacy.masked_sums import SumSession
from silos.schema import is_table
from silos.standardizer import NO_STANDARDIZATION, Standardization
from silos.storage.manifest import Manifest, schema_of
from tasks.aggregate import Aggregation
from tasks.messages.message_policy import LEAST_ROWS
from tasks.privacy.record_answers import mean_refusal, noise_for


def load_pretrained(network: Pretrained, path: Path) -> Pretrained:
    """Return the network that starts from this file, identified by its SHA-256.

    torch reads tensors only: a file that would run code is refused. Nothing is downloaded.

    Raises:
        UserError: If the file is missing, or is no state dict of this network.
    """
    hint = (
        f"Name a state dict of torchvision's {kind_of(network)} (torchvision downloads to "
        "~/.cache/torch/hub/checkpoints), or set model.pretrained to null"
    )
    prefix = f"params.yaml: model.pretrained: {path}"
    if not is_there(path):
        raise UserError(f"{prefix}: got no such file, expected a state dict. {hint}.")
    with path.open("rb") as file:
        network = replace(network, pretrained=hashlib.file_digest(file, "sha256").hexdigest())
        if network.is_stored:
            return network
        file.seek(0)
        try:
            network.load_pretrained(_check_state_dict(torch.load(file, map_location="cpu", weights_only=True)))
        except ValueError as error:
            raise UserError(f"{prefix}: {error}. {hint}.") from None
        except Exception as error:  # torch raises whatever pickle, zipfile and its own readers do
            raise UserError(
                f"{prefix}: got a file that cannot be read as tensors ({type(error).__name__}), "
                f"expected a state dict. {hint}."
            ) from error
    return network


def _check_state_dict(content: object) -> dict[str, Tensor]:
    if not isinstance(content, dict) or not all(isinstance(w, Tensor) for w in content.values()):
        raise ValueError("got something other than named tensors, expected a state dict")
    return content


_BATCH_OF_STACKS = 16
"""The rows of a batch by which private training chooses its stacks, whatever `training.batch` is."""

_OBJECTIVES: Mapping[str, type[objectives.Objective]] = {
    "cross_entropy": objectives.CrossEntropy,
    "focal": objectives.Focal,
    "squared_error": objectives.SquaredError,
}


def training_setup(project: Project, seed: int, scaling: Standardization = NO_STANDARDIZATION) -> TrainingSetup:
    """Return what every method of a seed trains with: the federated silos, the network for their rows, how it trains.

    Args:
        project: The project.
        seed: The seed of training.
        scaling: The standardization that the clients agreed on.

    Raises:
        UserError: If params and data do not fit together.
    """
    params, silos = project.params, replace(project.silos, scaling=scaling)
    project.once("metric is defined", lambda: check_metric(params, project.quantity, project.scored))
    manifest, engine, device = silos.manifest, params.engine, device_of(params.engine)
    _check_task(params, manifest.task)
    _check_standardization(params, manifest)
    own_columns(params, manifest)
    _check_focal(params, len(manifest.classes))
    federated = silos.federated()
    _check_joins(params, federated)
    _check_leaves(params, federated)
    _check_improving(params, federated)
    try:
        network = _network(params, manifest, project.root)
        # the clients of a stack are part of a private question, and the batch size is not
        batch = params.training.batch if params.training.privacy.epsilon is None else _BATCH_OF_STACKS
        kernel = pick_kernel(network, batch, device, engine.kind, engine.stack)
    except ValueError as error:
        raise UserError(f"params.yaml: model: {error}") from None
    _check_memory(params, network, min(kernel.stack, len(federated.clients)), device)
    aggregation = Aggregation(**params.aggregation.model_dump())
    training = _training(params, kernel.kind, federated)
    _check_privacy(params, network, training, federated)
    return TrainingSetup(federated, network, training, seed, kernel.stack, aggregation, device)


def device_of(params: EngineParams) -> str:
    """Return the device that computes clients; UserError if params name a missing one."""
    is_available = torch.cuda.is_available()
    if params.device == "cuda" and not is_available:
        raise UserError(
            "params.yaml: engine.device: got cuda, expected auto or cpu, since torch finds no GPU. Use one of these."
        )
    return "cuda" if params.device == "cuda" or (params.device == "auto" and is_available) else "cpu"


def check_metric(params: Params, quantity: TaskMetrics, scored: Silos, selects: bool = False) -> None:
    """Raise a UserError if no scored client's rows define the chosen metric.

    Clients are opened up to the first one whose rows do. Validation rows are opened if they choose a round or settings,
    or if the caller `selects` by them.
    """
    if not isinstance(quantity, ClientMetric) or not quantity.undefined_if:
        return
    selects = selects or params.evaluation.report == "best" or params.comparison.tune > 0
    silos = scored.federated()
    if silos.manifest.places:  # labels stay there; scores say which clients have no such metric
        return
    for split in ("test", "validation") if selects else ("test",):
        clients = [client for client, rows in silos.rows(split).items() if rows]
        targets = (open_stack(silos, Stack((client,), 1), split) for client in clients)
        if clients and not any(
            quantity.is_defined(rows.y[0, : rows.rows[0]], len(silos.manifest.classes)) for rows in targets
        ):
            raise UserError(
                f"params.yaml: evaluation.metric: got {quantity.name}, expected a metric that some client has, since "
                f"{split} rows of every client have {quantity.undefined_if}. Use "
                f"{TASK_METRICS[quantity.task].name}, or another data.scheme or data.split."
            )


def client_sampler(params: ClientsParams) -> Sampler:
    """Build the sampler that params name."""
    common_options = {name: getattr(params, name) for name in ("fraction", "dropout", "join", "leave")}
    section = params.sampling
    if not isinstance(section, OwnSampler):
        sampler = SAMPLERS.find(section.kind)(**common_options, **section.model_dump(exclude={"kind"}))
    elif isinstance(section.entry.target, type):
        sampler = run_entry(section, **common_options)
    else:
        sampler = PluginSampler(**common_options, entry=section)
    if not isinstance(sampler, Sampler):
        raise UserError(
            f"sampler {section.kind!r}: got {type(sampler).__name__}, expected a function or a class of Sampler."
        )
    return sampler


def _network(params: Params, manifest: Manifest, root: Path) -> Network:
    """Build the network that params describe for rows of this shape, with pretrained weights if params name a file."""
    if isinstance(params.model, OwnNetwork):
        network = plugin_network(params.model, manifest.shape, len(manifest.classes) or 1)
    else:
        options = layers_of(params.model)
        path = options.pop("pretrained", None)
        network = build(params.model.kind, manifest.shape, len(manifest.classes) or 1, options)
        if path is not None:
            network = load_pretrained(cast(Pretrained, network), root / Path(path).expanduser())
    return DeepEnsemble(network, params.model.members) if params.model.members > 1 else network


def plugin_network(params: OwnNetwork, shape: Sequence[int], outputs: int) -> Network:
    """Build a plugin's network for rows of this shape; a torch module is wrapped. UserError if it is neither."""
    target = params.entry.target
    options = options_of(params)
    with user_code_errors(params.entry.module):
        if isinstance(target, type) and issubclass(target, Network):
            return target.for_rows(shape, outputs, **options)
        try:
            return wrap_module(params.kind, target, shape, outputs, options)
        except ModuleRefusedError as error:
            raise UserError(f"params.yaml: model.kind {params.kind}: {error}") from None


def _check_task(params: Params, task: str) -> None:
    """Raise a UserError if the data's task does not fit the objective, or cannot be predicted by an ensemble."""
    kind = params.training.objective.kind
    if _OBJECTIVES[kind].task != task:
        expected = "squared_error" if task == "regression" else "cross_entropy or focal"
        raise UserError(
            f"params.yaml: training.objective.kind: got {kind}, expected {expected}, since data/"
            f"{params.data.name} is a {task}. Use {expected}."
        )
    if task == "regression" and params.model.members > 1:
        raise UserError(
            f"params.yaml: model.members: got {params.model.members}, expected 1, since data/{params.data.name} "
            "is a regression and a deep ensemble averages class probabilities. Set model.members to 1."
        )


def _check_standardization(params: Params, manifest: Manifest) -> None:
    """Raise a UserError if pixels or class labels would be standardised."""
    data = f"data/{params.data.name}"
    if params.model.inputs != "none" and manifest.dtype == "uint8":
        raise UserError(
            f"params.yaml: model.inputs: got {params.model.inputs}, expected none, since {data} has pixels, which "
            "are always divided by 255. Set it to none."
        )
    if params.model.targets != "none" and manifest.task != "regression":
        raise UserError(
            f"params.yaml: model.targets: got {params.model.targets}, expected none, since {data} is a "
            f"{manifest.task}, whose labels are not numbers. Set it to none."
        )


def own_columns(params: Params, manifest: Manifest) -> tuple[int, ...]:
    """Return the columns that each client aligns by its own rows; numeric features only.

    Raises:
        UserError: If the data have no numeric features, or not those that params name.
    """
    align, data = params.clients.align, f"data/{params.data.name}"
    if align.kind == "none":
        return ()
    key = "params.yaml: clients.align"
    if not is_table(manifest.shape, manifest.dtype):
        raise UserError(
            f"{key}.kind: got {align.kind}, expected none, since {data} has no rows of numbers with named features. "
            "Set it to none."
        )
    if manifest.common:
        raise UserError(
            f"{key}.kind: got {align.kind}, expected none, since no client owns the common rows of {data}, so no "
            "client's mean can align them. Set data.split.test_rows and validation_rows to own, or this to none."
        )
    empty = np.flatnonzero(manifest.clients.rows[:, SPLITS.index("train")] == 0)
    if len(empty):
        raise UserError(
            f"{key}.kind: got {align.kind}, expected none, since client {manifest.clients.names[empty[0]]} of {data} has no "
            "training rows to compute its mean from. Change data.scheme or data.split, or set it to none."
        )
    features = schema_of(manifest).features
    numeric = {feature.name: index for index, feature in enumerate(features) if feature.kind == "numeric"}
    names = tuple(numeric) if align.features == "all" else align.features
    if not names:  # a run that aligns nothing would have no record of its alignment
        raise UserError(
            f"{key}.features: got no numeric feature of {data}, expected at least one. Name one, or set "
            "clients.align.kind to none."
        )
    for name in names:
        if name not in numeric:
            raise UserError(
                f"{key}.features: got {shown(repr(name))}, expected numeric features of {data}: "
                f"{', '.join(list(numeric)[:20]) or 'it has none'}. Correct the name."
            )
    return tuple(numeric[name] for name in names)


def _check_focal(params: Params, classes: int) -> None:
    """Raise a UserError for a focal loss with one class, or if the number of weights is not that of the classes."""
    objective, data = params.training.objective, f"data/{params.data.name}"
    if not isinstance(objective, FocalParams):
        return
    if classes < 2:
        raise UserError(
            f"params.yaml: training.objective.kind: got focal, expected cross_entropy, since {data} has one "
            "class, which is always certain. Use cross_entropy."
        )
    if isinstance(objective.alpha, tuple) and len(objective.alpha) != classes:
        raise UserError(
            f"params.yaml: training.objective.alpha: got {len(objective.alpha)} numbers, expected 1 or {classes}, "
            f"one for each class of {data}. Correct the list."
        )


def _check_memory(params: Params, network: Network, stack: int, device: str) -> None:
    """Raise a UserError if the clients of one stack cannot be trained together in the available memory."""
    members = f" of {params.model.members:,} members" if params.model.members > 1 else ""
    must_fit(
        size(network) * PARAMETER_BYTES * stack,
        f"params.yaml: model: got {size(network):,} parameters{members}, trained in a stack of {stack:,} clients ("
        f"{PARAMETER_BYTES} bytes for each parameter: weight, gradient and optimiser)",
        "Set engine.stack to 1" if stack > 1 else "Make the model smaller, or its members fewer",
        _free_gpu_bytes(device),
    )


def _free_gpu_bytes(device: str) -> int | None:
    """Return the free bytes of a GPU; None for main memory, which `must_fit` reads itself."""
    return int(torch.cuda.mem_get_info()[0]) if device == "cuda" else None


def _check_joins(params: Params, silos: Silos) -> None:
    """Raise a UserError if a joining client takes no part in training, or if no client takes part in the first round."""
    join = params.clients.join
    for client in join:
        _check_takes_part(client, "join", params, silos)
        if join[client] > params.training.rounds:
            raise UserError(
                f"params.yaml: clients.join.{client}: got {join[client]}, expected at most training.rounds "
                f"({params.training.rounds}), or the client never takes part. Let it join earlier, or train longer."
            )
    if all(join.get(client, 1) > 1 for client in silos.clients):
        raise UserError(
            f"params.yaml: clients.join: got no client in round 1, expected at least one. Let one of {len(join)} start."
        )


def _check_leaves(params: Params, silos: Silos) -> None:
    """Raise a UserError if a client leaves before it joins, or if no client remains. From round 1 on, it never trains."""
    join, leave, rounds = params.clients.join, params.clients.leave, params.training.rounds
    for client, left in leave.items():
        _check_takes_part(client, "leave", params, silos)
        if left > rounds:
            raise UserError(
                f"params.yaml: clients.leave.{client}: got {left}, expected at most training.rounds "
                f"({rounds}), or the client never leaves. Let it leave earlier, or train longer."
            )
        if client in join and left <= join[client]:
            raise UserError(
                f"params.yaml: clients.leave.{client}: got {left}, expected a round after {join[client]}, in which it "
                f"joins, or it never takes part. Let it leave later, or drop clients.join.{client} and let it leave in "
                "round 1."
            )
    for left in sorted({*leave.values()}):
        if not any(join.get(c, 1) <= left < leave.get(c, left + 1) for c in silos.clients):
            raise UserError(
                f"params.yaml: clients.leave: got no client left in round {left}, expected at least one. Let one "
                "stay, or another join by then."
            )


def _check_takes_part(client: str, key: str, params: Params, silos: Silos) -> None:
    """Raise a UserError for a client, named under `clients.key`, that does not train."""
    if client not in silos:
        near = near_names(client, silos.clients)
        hint = f"Did you mean {near[0]}?" if near else f"They are {some(silos.clients, 5)}. Correct the name."
        raise UserError(
            f"params.yaml: clients.{key}: got {client!r}, expected a client of data/{params.data.name} that takes "
            f"part in training. {hint}"
        )


def _check_improving(params: Params, silos: Silos) -> None:
    """Raise a UserError if no client has enough validation rows to measure an improvement."""
    if params.clients.sampling.kind == "improving" and max(validation_rows(silos).values()) < LEAST_ROWS:
        raise UserError(
            "params.yaml: clients.sampling.kind: got improving, expected uniform or by_size, since no client of "
            f"data/{params.data.name} has {LEAST_ROWS} validation rows to measure an improvement on. Raise "
            "data.split.validation, or use one of these."
        )


def _training(params: Params, engine: Kind, silos: Silos) -> Training:
    training = params.training
    options = training.optimiser.model_dump(exclude={"kind", "state"})
    optimiser: optimizers.Optimizer
    if training.optimiser.kind == "sgd":
        optimiser = optimizers.SGD(**options)
    else:
        optimiser = optimizers.Adam(**options, decoupled=training.optimiser.kind == "adamw")
    objective: objectives.Objective = _OBJECTIVES[training.objective.kind](
        **training.objective.model_dump(exclude={"kind"})
    )
    keeps_state = training.optimiser.state == "kept"
    settings = (objective, optimiser, training.epochs, training.batch, engine, keeps_state, training.rows)
    return Training(*settings, _privacy(training, silos))


def _privacy(training: TrainingParams, silos: Silos) -> Privacy | None:
    """Return the noise with which a whole run has the epsilon that params set; None without one."""
    privacy = training.privacy
    if privacy.epsilon is None:
        return None
    rows = silos.rows("train").values()
    # numbers of rows are public in siloflow; a number that is set depends on none
    divisor = privacy.divisor or max(1, round(sum(rows) / max(len(rows), 1)))
    noise = noise_for(privacy.epsilon, privacy.delta, training.rounds * training.epochs)
    secure = SecureSums(privacy.least or 0, privacy.colluders) if privacy.secure_sums else None
    return Privacy(privacy.clip, noise, float(divisor), training.rounds, secure)


def _check_sums(params: Params, secure: SecureSums, silos: int) -> None:
    """Raise a UserError if no round can have a secure sum, before anything is paid."""
    count = max(1, round(params.clients.fraction * silos))
    names, keys = tuple(map(str, range(count))), tuple(f"{at:064x}" for at in range(count))
    SumSession("check", 0, names, keys, secure.least or count, secure.colluders).check()


def _check_privacy(params: Params, network: Network, training: Training, federated: Silos) -> None:
    """Raise a UserError for settings under which what a client sends of its rows would have no guarantee."""
    if training.privacy is None:
        return
    unfit: dict[str, tuple[object, object, str]] = {
        "model.inputs": (
            params.model.inputs,
            "none",
            "means and scales of rows are sent without noise (scale the file by public numbers)",
        ),
        "model.targets": (
            params.model.targets,
            "none",
            "their mean and scale are sent without noise (scale the file by public numbers)",
        ),
        "clients.align.kind": (params.clients.align.kind, "none", "each client's own statistics would enter every row"),
        "clients.sampling.kind": (
            "improving" if params.clients.sampling.kind == "improving" else "uniform",
            "uniform",
            "clients would report losses without noise",
        ),
    }
    secure: dict[str, tuple[object, object, str]] = {
        "training.epochs": (training.epochs, 1, "all silos take each step together"),
        "training.optimiser.state": (
            params.training.optimiser.state,
            "reset",
            "the server takes the steps, and clients have no state",
        ),
        "aggregation.rule": (params.aggregation.rule, "mean", "the server reads no single update"),
        "aggregation.clip": (params.aggregation.clip, None, "the server reads no single update"),
    }
    if training.privacy.secure is not None:  # the server sees sums over silos, never one silo's numbers
        unfit |= secure
        _check_sums(params, training.privacy.secure, len(federated.clients))
    for key, (got, expected, reason) in unfit.items():
        if got != expected:
            setting = "secure_sums" if key in secure else "epsilon"
            off = "false" if key in secure else "null"
            wanted = "null" if expected is None else expected
            raise UserError(
                f"params.yaml: {key}: got {got}, expected {wanted} with training.privacy.{setting}, since {reason}. Set it "
                f"to {wanted}, or training.privacy.{setting} to {off}."
            )
    if reason := refusal(network, training):
        raise UserError(f"params.yaml: {reason}, or training.privacy.epsilon to null.")
    if reason := mean_refusal(federated):
        raise UserError(f"params.yaml: {reason}, or set training.privacy.epsilon to null.")
