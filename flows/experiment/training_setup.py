"""From params and silos to what every method of a seed is given, and who is called.

model.pretrained: a file of torchvision's weights becomes what an encoder starts from.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from flows.config.clients_params import SAMPLERS, ClientsParams, OwnSampler
from flows.config.params_schema import FocalParams, Params, layers_of
from flows.config.plugin_params import OwnNetwork
from flows.experiment.plugin_loader import user_code_errors
from flows.methods.context import TrainingSetup
from flows.methods.samplers.client_sampler import PluginSampler, Sampler, validation_rows
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.network_factory import Network, build, kind_of, size
from models.networks.torch_module import ModuleRefusedError, wrap_module
from models.networks.vision.pretrained import Pretrained
from models.training import objectives, optimizers
from models.training.engine import Training
from models.training.execution_plan import Kind, pick_kernel
from models.training.optimizers import PARAMETER_BYTES
from silos.cohort import Silos
from silos.errors import UserError
from silos.io.atomic_io import is_there
from silos.io.free_memory import must_fit
from silos.plugin_registry import options_of, run_entry
from silos.storage.manifest import Manifest
from tasks.messages.message_policy import LEAST_ROWS


def load_pretrained(network: Pretrained, path: Path) -> Pretrained:
    """The network that starts from this file, known by its SHA-256; UserError if it is not there or holds something else.

    torch opens it as tensors only: a file that would run code is refused. Nothing is downloaded.
    """
    way_out = (
        f"name a state dict of torchvision's {kind_of(network)} (what torchvision has downloaded lies in "
        "~/.cache/torch/hub/checkpoints), or set model.pretrained to null"
    )
    where = f"params.yaml: model.pretrained: {path}"
    if not is_there(path):
        raise UserError(f"{where} is no file; {way_out}.")
    with path.open("rb") as file:
        network = replace(network, pretrained=hashlib.file_digest(file, "sha256").hexdigest())
        if network.is_stored:
            return network
        file.seek(0)
        try:
            network.load_pretrained(_state(torch.load(file, map_location="cpu", weights_only=True)))
        except ValueError as error:
            raise UserError(f"{where} {error}; {way_out}.") from None
        except Exception as error:  # torch raises whatever pickle, zipfile and its own readers do
            raise UserError(f"{where} cannot be read as tensors ({type(error).__name__}); {way_out}.") from error
    return network


def _state(content: Any) -> dict[str, Tensor]:
    if not isinstance(content, dict) or not all(isinstance(w, Tensor) for w in content.values()):
        raise ValueError("holds something else than named tensors")
    return content


_OBJECTIVES: Mapping[str, Any] = {
    "cross_entropy": objectives.CrossEntropy,
    "focal": objectives.Focal,
    "squared_error": objectives.SquaredError,
}


def training_setup(params: Params, silos: Silos, device: str, seed: int, root: Path) -> TrainingSetup:
    """The federated silos, the network for their rows, and how it trains; UserError for what does not fit together.

    `root` is the project's folder, in which files are named.
    """
    manifest, engine = silos.manifest, params.engine
    _suits(params, manifest.task)
    _scalable(params, manifest)
    _focal(params, len(manifest.classes))
    federated = silos.federated()
    _join(params, federated)
    _leave(params, federated)
    _improving(params, federated)
    try:
        network = _network(params, manifest, root)
        kernel = pick_kernel(network, params.training.batch, device, engine.kind, engine.stack)
    except ValueError as error:
        raise UserError(f"params.yaml: model: {error}") from None
    _fits(params, network, min(kernel.stack, len(federated.clients)), device)
    return TrainingSetup(federated, network, _training(params, kernel.kind), seed, kernel.stack)


def client_sampler(params: ClientsParams) -> Sampler:
    """Who is called in a round, as params say."""
    shared = {name: getattr(params, name) for name in ("fraction", "dropout", "join", "leave")}
    own = params.sampling
    if not isinstance(own, OwnSampler):
        sampler = SAMPLERS.find(own.kind)(**shared, **own.model_dump(exclude={"kind"}))
    elif isinstance(own.entry.target, type):
        sampler = run_entry(own, **shared)
    else:
        sampler = PluginSampler(**shared, entry=own)
    if not isinstance(sampler, Sampler):
        raise UserError(
            f"sampler {own.kind!r}: got {type(sampler).__name__}, expected a function or a class of Sampler."
        )
    return sampler


def _network(params: Params, manifest: Manifest, root: Path) -> Network:
    """As params describe it for rows of this shape, starting from the file that they name, if any."""
    if isinstance(params.model, OwnNetwork):
        network = own_network(params.model, manifest.shape, len(manifest.classes) or 1)
        return DeepEnsemble(network, params.model.members) if params.model.members > 1 else network
    options = layers_of(params.model)
    path = options.pop("pretrained", None)
    network = build(params.model.kind, manifest.shape, len(manifest.classes) or 1, options)
    if path is not None:
        network = load_pretrained(cast(Pretrained, network), root / Path(path).expanduser())
    return DeepEnsemble(network, params.model.members) if params.model.members > 1 else network


def own_network(params: OwnNetwork, shape: Sequence[int], outputs: int) -> Network:
    """A plugin's network for rows of this shape: a Network as it is, a module of torch wrapped; UserError if neither."""
    target = params.entry.target
    options = options_of(params)
    with user_code_errors(params.entry.module):
        if isinstance(target, type) and issubclass(target, Network):
            return target.for_rows(shape, outputs, **options)
        try:
            return wrap_module(params.kind, target, shape, outputs, options)
        except ModuleRefusedError as error:
            raise UserError(f"params.yaml: model.kind {params.kind}: {error}") from None


def _suits(params: Params, task: str) -> None:
    """UserError if the data are of another task than the objective, or than an ensemble can answer."""
    kind = params.training.objective.kind
    if _OBJECTIVES[kind].task != task:
        ours = "squared_error" if task == "regression" else "cross_entropy or focal"
        raise UserError(
            f"params.yaml: training.objective.kind is {kind}, and data/{params.data.name} is a {task}; use {ours}."
        )
    if task == "regression" and params.model.members > 1:
        raise UserError(
            f"params.yaml: model.members is {params.model.members}, and data/{params.data.name} is a regression; a deep "
            "ensemble is the mean of probabilities, which a regression does not predict: set model.members to 1."
        )


def _scalable(params: Params, manifest: Manifest) -> None:
    """UserError if pixels or classes would have to be standardised."""
    data = f"data/{params.data.name}"
    if params.model.inputs != "none" and manifest.dtype == "uint8":
        raise UserError(
            f"params.yaml: model.inputs is {params.model.inputs}, and {data} has pixels, which are divided by 255 in any "
            "case; set it to none."
        )
    if params.model.targets != "none" and manifest.task != "regression":
        raise UserError(
            f"params.yaml: model.targets is {params.model.targets}, and {data} is a {manifest.task}, whose labels are no "
            "numbers; set it to none."
        )


def _focal(params: Params, classes: int) -> None:
    """UserError for a focal loss of one class, or with other than a number for each."""
    objective, data = params.training.objective, f"data/{params.data.name}"
    if not isinstance(objective, FocalParams):
        return
    if classes < 2:
        raise UserError(
            f"params.yaml: training.objective.kind is focal, and {data} has one class, of which a network is always sure; "
            "use cross_entropy."
        )
    if isinstance(objective.alpha, tuple) and len(objective.alpha) != classes:
        raise UserError(
            f"params.yaml: training.objective.alpha has {len(objective.alpha)} numbers, and {data} has {classes} classes; "
            "give one for each class, or a single one."
        )


def _fits(params: Params, network: Network, stack: int, device: str) -> None:
    """UserError if the clients of one stack cannot be trained side by side in the memory that there is."""
    members = f" of {params.model.members:,} members" if params.model.members > 1 else ""
    must_fit(
        size(network) * PARAMETER_BYTES * stack,
        f"params.yaml: model has {size(network):,} parameters{members}, and training a stack of {stack:,} clients "
        f"({PARAMETER_BYTES} bytes for each parameter: weight, gradient and optimiser)",
        "set engine.stack to 1" if stack > 1 else "make the model smaller, or its members fewer",
        _free(device),
    )


def _free(device: str) -> int | None:
    """Bytes on a GPU; None for this machine's own memory, which `must_fit` looks at."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if device == "cuda" else None


def _join(params: Params, silos: Silos) -> None:
    """UserError if a client joins that takes no part in training, or if nobody is there in the first round."""
    join = params.clients.join
    for client in join:
        _takes_part(client, "join", params, silos)
        if join[client] > params.training.rounds:
            raise UserError(
                f"params.yaml: clients.join.{client} is {join[client]}, and training.rounds is {params.training.rounds}: "
                "it would never take part; let it join earlier, or train longer."
            )
    if all(join.get(client, 1) > 1 for client in silos.clients):
        raise UserError(
            f"params.yaml: clients.join: nobody is there in round 1; let at least one of {len(join)} start."
        )


def _leave(params: Params, silos: Silos) -> None:
    """UserError if a client leaves that takes no part in training, or before it came, or if nobody remains."""
    join, leave, rounds = params.clients.join, params.clients.leave, params.training.rounds
    for client, number in leave.items():
        _takes_part(client, "leave", params, silos)
        if number > rounds:
            raise UserError(
                f"params.yaml: clients.leave.{client} is {number}, and training.rounds is {rounds}: it would stay to the "
                "end; let it leave earlier, or train longer."
            )
        if number <= join.get(client, 1):
            raise UserError(
                f"params.yaml: clients.leave.{client} is {number}, and its first round is {join.get(client, 1)}: it would "
                "never take part; let it leave later, or keep it out of training (fresh or hold_out in data.scheme)."
            )
    for number in sorted({*leave.values()}):
        if not any(join.get(c, 1) <= number < leave.get(c, number + 1) for c in silos.clients):
            raise UserError(
                f"params.yaml: clients.leave: nobody is there in round {number}; let at least one stay, or another join "
                "by then."
            )


def _takes_part(client: str, key: str, params: Params, silos: Silos) -> None:
    """UserError for a client, named under `clients.key`, that is none of those that train."""
    if client not in silos:
        near = get_close_matches(client, silos.clients, 1) or silos.clients[-1:]
        raise UserError(
            f"params.yaml: clients.{key}: data/{params.data.name} has no client {client!r} that takes part in training; "
            f"did you mean {near[0]}?"
        )


def _improving(params: Params, silos: Silos) -> None:
    """UserError where nobody can tell whether it improves."""
    if params.clients.sampling.kind == "improving" and max(validation_rows(silos).values()) < LEAST_ROWS:
        raise UserError(
            f"params.yaml: clients.sampling.kind is improving, and no client of data/{params.data.name} has {LEAST_ROWS} "
            "validation rows, on which it could tell whether it improves; raise data.split.validation, or use uniform or "
            "by_size."
        )


def _training(params: Params, engine: Kind) -> Training:
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
    kept = training.optimiser.state == "kept"
    return Training(objective, optimiser, training.epochs, training.batch, engine, kept, training.rows)
