"""Uses any torch.nn.Module as a network: its parameters and buffers are the weights, and `functional_call` computes it.

A module is examined before use. It must be a function of its parameters, buffers and rows: modules that keep other
state, draw from a global generator or mix rows are refused. Torch's batch normalisation is replaced by one that ignores
padding. Dropout must be this module's `Dropout`, which draws from the project's streams.
"""

import copy
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..prng import Sketch, fold_in
from ..server_state import Weights
from ..training.objectives import ClientBatch, Objective
from .grouped_layers import MOMENTUM
from .mlp import dense, drop, uniform_weights
from .network import Network
from .network_abilities import EncoderHeadCost, LinearHead
from .statistics_context import append_statistics

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_HEAD = "dense0"
_STATISTICS = 2**17  # stream number of the weights of a client's statistics
_BUILDING = threading.RLock()  # torch's global generator is in use while a module is built


class ModuleRefusedError(ValueError):
    """A module that cannot be trained for many clients, with the reason and a remedy."""


class _Pass(threading.local):
    """State that layers read during a forward pass: the used rows, and the stream of dropout."""

    used: Tensor | None = None
    stream: Tensor | None = None
    drops: int = 0


_pass = _Pass()


class Dropout(nn.Module):
    """Elementwise dropout from the client's stream, which replaces torch.nn.Dropout in a plugin's module."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p: got {p}, expected a number from 0 to below 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop and scale by 1 / (1 - p) if the pass has a stream, else return x."""
        _pass.drops += 1
        return drop(x, self.p, _pass.stream, _pass.drops)


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation over the used rows, computed as in `grouped_layers`."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (rows, channels, *positions); each row of the batch may have become several rows of x."""
        mean, variance = self.running_mean, self.running_var
        if self.training and _pass.used is not None:
            mean, variance = self._batch_statistics(x, _pass.used.to(x.dtype))
        assert mean is not None
        assert variance is not None
        shape = (1, -1, *[1] * (x.dim() - 2))
        scale = (variance + self.eps).rsqrt()
        shift = torch.zeros_like(mean)
        if self.affine:
            scale, shift = scale * self.weight, self.bias
        return (x - mean.view(shape)) * scale.view(shape) + shift.view(shape)

    def _batch_statistics(self, x: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the used rows, and update the running statistics as torch does."""
        axes = [axis for axis in range(x.dim()) if axis != 1]
        share = used.repeat_interleave(x.shape[0] // used.shape[0]).view(-1, *[1] * (x.dim() - 1))
        count = used.sum() * (x.numel() // (x.shape[1] * used.shape[0]))
        mean = (x * share).sum(axes) / count.clamp_min(1)
        squares = (x - mean.view(1, -1, *[1] * (x.dim() - 2))) ** 2
        variance = (squares * share).sum(axes) / count.clamp_min(1)
        unbiased = variance * count / (count - 1).clamp_min(1)
        for running, statistic in ((self.running_mean, mean), (self.running_var, unbiased)):
            assert running is not None
            running.copy_(torch.where(count > 1, running.lerp(statistic.detach(), MOMENTUM), running))
        return mean, variance


@dataclass(frozen=True)
class ModuleFacts:
    """Results of examining a module: names of its weights by role, and sizes."""

    learned: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    normalising: tuple[str, ...] = ()
    max_width: int = 0
    dropout: float = 0.0
    maps: bool = True
    head: str = ""  # the name of the Linear that computes the output, if there is one
    features: int = 0  # the inputs of that Linear


Make = Callable[..., nn.Module]


@dataclass(frozen=True)
class TorchModule(Network):
    """A network from the module that `make(shape, outputs, **options)` returns; `kind` is its registered name."""

    make: Make
    shape: tuple[int, ...]
    outputs: int
    options: tuple[tuple[str, object], ...] = ()
    facts: ModuleFacts = field(default_factory=ModuleFacts)
    kind: str = ""  # type: ignore[misc]

    def __setstate__(self, state: dict[str, object]) -> None:
        """Build the module when the network arrives in another process."""
        self.__dict__.update(state)
        _master(self)

    @property
    def dropout(self) -> float:
        """Return the largest rate of its Dropout layers."""
        return self.facts.dropout

    @property
    def max_width(self) -> int:
        return self.facts.max_width

    @property
    def buffers(self) -> tuple[str, ...]:
        """Return persistent float buffers, and parameters without gradients."""
        return self.facts.buffers

    @property
    def normalising(self) -> tuple[str, ...]:
        """Return scale, shift and running statistics of its batch normalisation layers."""
        return self.facts.normalising

    @property
    def maps(self) -> bool:
        """Whether torch.vmap can map it over clients."""
        return self.facts.maps

    @property
    def portable(self) -> bool:
        """Return False: its code is a plugin's, so a logged model stores it as a program (see exported_network)."""
        return False

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the module's own initial weights from the stream."""
        if isinstance(stream, Sketch):
            return self._weights_of(_build(self, 0))
        return self._weights_of(_build(self, int(stream)))

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Apply the module in evaluation mode; a stream switches its Dropout layers on."""
        return self._forward(weights, x, stream, None)[0]

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the objective of the module in training mode, and its new buffers."""
        logits, buffers = self._forward(weights, batch.x, batch.stream, batch.used)
        return batch.loss(objective, logits), buffers

    def _weights_of(self, module: nn.Module) -> dict[str, Tensor]:
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: tensors[name].detach().clone() for name in (*self.facts.learned, *self.facts.buffers)}

    def _forward(
        self, weights: Weights, x: Tensor, stream: Tensor | None, used: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the module's output; `used` selects training mode, which also returns the new buffers."""
        module = _copy_of(self, x.device)
        training = used is not None
        if module.training != training:
            module.train(training)
        given, parameters = {*weights}, dict(module.named_parameters())
        # some methods drop biases
        tensors = {name: weights[name] if name in given else torch.zeros_like(parameters[name]) for name in self._read}
        if training:
            tensors |= {name: tensors[name].clone() for name in self.buffers}
        with _pass_state(stream, used):
            output = functional_call(module, tensors, (x,))
        return output, {name: tensors[name] for name in self.buffers} if training else {}

    @cached_property
    def _read(self) -> tuple[str, ...]:
        """Return the names of the weights that the module itself reads."""
        return (*self.facts.learned, *self.facts.buffers)


@dataclass(frozen=True)
class HeadedModule(EncoderHeadCost, LinearHead, TorchModule):
    """A module that ends in a Linear, whose weights `dense0` (in, out) methods can read or replace.

    `statistics` client statistics are appended to that layer's input.
    """

    statistics: int = 0

    @property
    def last(self) -> int:
        """Return the index of the last layer."""
        return 0

    @property
    def encoded(self) -> tuple[int, int]:
        """Return all features as the channels of one position."""
        return self.facts.features, 1

    def with_statistics(self, statistics: int, planes: int = 0) -> "HeadedModule | None":
        """Append the statistics to the features."""
        return None if planes else replace(self, statistics=statistics)

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the last layer's inputs: (rows, features, 1)."""
        features, buffers = self._forward(weights, x, None, used)
        return features.unsqueeze(-1), buffers

    def pre_head(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Append the client's statistics."""
        return append_statistics(z.squeeze(-1), context, self.statistics)

    def represent(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> Tensor:
        """Return the last layer's inputs."""
        return embedding

    def to_logits(self, scores: Tensor, stream: Tensor | None) -> Tensor:
        """Return the last layer's outputs."""
        return scores

    def apply_head(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> Tensor:
        """Apply the last layer."""
        return dense(weights, 0, embedding)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the module's own initial weights; weights of statistics are uniform in ±1/√features."""
        weights = super().init(stream)
        if self.statistics:
            name = f"{_HEAD}.weight"
            shapes: dict[str, tuple[int, ...]] = {name: (self.statistics, weights[name].shape[1])}
            rows = uniform_weights(fold_in(stream, _STATISTICS), self.facts.features**-0.5, shapes)[name]
            if isinstance(rows, Sketch):
                rows = weights[name].new_zeros(rows.shape)
            weights[name] = torch.cat([weights[name], rows])
        return weights

    def _weights_of(self, module: nn.Module) -> dict[str, Tensor]:
        head = cast(nn.Linear, module.get_submodule(self.facts.head))
        head_weights = {
            f"{_HEAD}.weight": head.weight.detach().T.contiguous(),
            f"{_HEAD}.bias": head.bias.detach().clone(),
        }
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **head_weights}
        return {name: tensors[name].detach().clone() for name in (*self.facts.learned, *self.facts.buffers)}

    @cached_property
    def _read(self) -> tuple[str, ...]:
        return tuple(name for name in super()._read if not name.startswith(f"{_HEAD}."))


def wrap_module(
    kind: str, make: Make, shape: Sequence[int], outputs: int, options: Mapping[str, object]
) -> TorchModule:
    """Examine a module and wrap it as a network.

    Args:
        kind: The name that it is registered under.
        make: Called with `shape`, `outputs` and the options; returns the module.
        shape: The shape of one row in the data.
        outputs: The number of outputs per row.
        options: Options from params.yaml.

    Raises:
        ModuleRefusedError: If the module is not a function of its parameters, buffers and single rows.
    """
    frozen = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in options.items())
    bare = TorchModule(make, tuple(shape), outputs, frozen, kind=kind)
    with _BUILDING:
        examined = _examined.setdefault(make, {})
        key = repr((kind, bare.shape, outputs, frozen))
        if key not in examined:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # the passes have few rows
            try:
                examined[key] = _examine(bare)
            finally:
                torch.set_num_threads(threads)
    return examined[key]


_Key = tuple[tuple[int, ...], int, str, str]
_examined: WeakKeyDictionary[Make, dict[str, TorchModule]] = WeakKeyDictionary()
_masters: WeakKeyDictionary[Make, dict[_Key, nn.Module]] = WeakKeyDictionary()


def _key(network: TorchModule) -> _Key:
    return network.shape, network.outputs, repr(network.options), network.facts.head


def _master(network: TorchModule) -> nn.Module:
    """Return this process's module, which threads copy; it is built outside of torch's transformations."""
    with _BUILDING:
        masters = _masters.setdefault(network.make, {})
        if _key(network) not in masters:
            module = _build(network, 0)
            masters[_key(network)] = _remove_head(module, network.facts.head) if network.facts.head else module
        return masters[_key(network)]


class _Copies(threading.local):
    """Modules of one thread, because `functional_call` swaps the parameters of the module it is given."""

    def __init__(self) -> None:
        self.modules: WeakKeyDictionary[Make, dict[tuple[_Key, str], nn.Module]] = WeakKeyDictionary()


_copies = _Copies()


def _copy_of(network: TorchModule, device: torch.device) -> nn.Module:
    copies = _copies.modules.setdefault(network.make, {})
    key = (_key(network), str(device))
    if key not in copies:
        master = _master(network)
        shared = [*master.parameters(), *master.buffers()] if device.type == "cpu" else []
        copies[key] = copy.deepcopy(master, {id(tensor): tensor for tensor in shared}).to(device)
    return copies[key]


def _remove_head(module: nn.Module, head: str) -> nn.Module:
    """Replace the last Linear by an identity, because HeadedModule computes that layer itself."""
    parent, _, name = head.rpartition(".")
    setattr(module.get_submodule(parent), name, nn.Identity())
    return module


def _build(network: TorchModule, seed: int) -> nn.Module:
    """Build a module with initial weights from the seed, and replace torch's batch normalisation by this module's."""
    # the fast path's bits differ from training's, and vmap does not support it
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.cuda.enable_flash_sdp(False)  # also disables the CPU's, which vmap does not support
    with _BUILDING:
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(seed)
        try:
            module = network.make(shape=network.shape, outputs=network.outputs, **dict(network.options))
            if not isinstance(module, nn.Module):
                raise ModuleRefusedError(f"gives a {type(module).__name__}, expected a torch.nn.Module")
            module = module.float()
            if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
                with torch.no_grad():
                    module.eval()(torch.zeros(2, *network.shape))
        finally:
            torch.set_rng_state(before)
    for name, layer in module.named_modules():
        if type(layer) in _NORMS:
            if layer.momentum != MOMENTUM or not layer.track_running_stats:
                raise ModuleRefusedError(
                    f"its layer {name} normalises with momentum {layer.momentum} and track_running_stats "
                    f"{layer.track_running_stats}, expected {MOMENTUM} and True. Set them in the plugin file"
                )
            layer.__class__ = _BatchNorm
            layer.num_batches_tracked = None
    return module


@contextmanager
def _pass_state(stream: Tensor | None, used: Tensor | None) -> Iterator[None]:
    """Set the state that layers read during a pass."""
    before = _pass.stream, _pass.used, _pass.drops
    _pass.stream, _pass.used, _pass.drops = stream, used, 0
    try:
        yield
    finally:
        _pass.stream, _pass.used, _pass.drops = before


_ROWS = 3


def _examine(bare: TorchModule) -> TorchModule:
    """Examine a module for `wrap_module`; rows contain 0 and 1, which are valid tokens, pixels and numbers."""
    # two of one seed must be equal, also in what is not a weight to a third of another seed
    first, rebuilt, reseeded = (_build(bare, seed) for seed in (0, 0, 1))
    learned, buffers = _weight_names(first)
    if not learned:
        raise ModuleRefusedError("has no trained parameters. Give it layers")
    initial, repeated = first.state_dict(), rebuilt.state_dict()
    if any(not _equal(initial[name], repeated[name]) for name in initial):
        raise ModuleRefusedError(
            "draws its first weights from another generator than torch's. Draw them with torch, without a generator"
        )
    if _other_state(first, buffers) != _other_state(reseeded, buffers):
        raise ModuleRefusedError(
            "draws state outside its parameters and buffers when it is made. Register it as a buffer"
        )
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (_ROWS, *bare.shape), generator=generator).float()
    max_width, head, features = _inspect_layers(first, x, bare.outputs)
    # one row as well, since a batch may have a single row and a served model is queried with one
    for rows in (x, x[:1]):
        for training in (False, True):
            _output(first.train(training), rows, bare.outputs)
    _check_state(rebuilt, buffers, x)
    norms = [name for name, layer in first.named_modules() if isinstance(layer, _BatchNorm)]
    names = [f"{norm}.{part}" for norm in norms for part in ("weight", "bias", "running_mean", "running_var")]
    rates = [layer.p for layer in first.modules() if isinstance(layer, Dropout)]
    facts = ModuleFacts(
        learned=learned,
        buffers=buffers,
        normalising=tuple(name for name in names if name in learned or name in buffers),
        max_width=max_width,
        dropout=max(rates, default=0.0),
    )
    network = replace(bare, facts=facts)
    stream = torch.tensor(1)
    # built now, since the passes below may run inside torch's transformations
    _master(network)
    weights = network.init(stream)
    facts = _move_unused(network, weights, x, stream)
    network = replace(network, facts=replace(facts, maps=_can_map(replace(network, facts=facts), weights, x, stream)))
    _check_rows(network, weights, x, stream)
    if head and not network.dropout and f"{head}.weight" in network.facts.learned:
        return _with_head(network, head, features)
    return network


def _with_head(network: TorchModule, head: str, features: int) -> TorchModule:
    """Convert a network to a HeadedModule."""
    names = {f"{head}.{part}": f"{_HEAD}.{part}" for part in ("weight", "bias")}
    learned = tuple(names.get(name, name) for name in network.facts.learned)
    facts = replace(network.facts, learned=learned, head=head, features=features)
    headed = HeadedModule(network.make, network.shape, network.outputs, network.options, facts, network.kind)
    _master(headed)
    return headed


def _weight_names(module: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of trainable weights and of other weights; integer and non-persistent buffers are neither."""
    learned = [name for name, p in module.named_parameters() if p.requires_grad]
    fixed = [name for name, p in module.named_parameters() if not p.requires_grad]
    saved = module.state_dict().keys()
    floats = [name for name, b in module.named_buffers() if b.is_floating_point() and name in saved]
    unsupported = [name for name, p in module.named_parameters() if p.dtype != torch.float32]
    if unsupported:
        raise ModuleRefusedError(f"has the parameter {unsupported[0]} of another type than float32. Use real numbers")
    return tuple(learned), tuple(fixed + floats)


_MODULE_ATTRIBUTES = {"_parameters", "_buffers", "_modules", "training"}
_HOOKS = vars(nn.Module()).keys() - _MODULE_ATTRIBUTES


def _other_state(module: nn.Module, weights: Sequence[str]) -> dict[str, object]:
    """Return all state of a module besides its weights: attributes, and buffers that are not weights."""
    state: dict[str, object] = {
        name: _content(buffer) for name, buffer in module.named_buffers() if name not in weights and buffer is not None
    }
    weight_ids = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for name, layer in module.named_modules():
        state |= {
            # torch numbers hooks by a counter of the process
            f"{name}.{key}": _content(list(value.values()) if key in _HOOKS and value else value, weight_ids)
            for key, value in vars(layer).items()
            if key not in _MODULE_ATTRIBUTES
        }
    return state


def _content(value: object, weight_ids: Collection[int] = ()) -> object:
    """Describe a value by its content if it consists of plain parts, else by its type; `own` are the ids of weights."""
    if id(value) in weight_ids:
        return "weights"
    if isinstance(value, Tensor):
        return ("tensor", tuple(value.shape), value.detach().reshape(-1).tolist())
    if isinstance(value, np.ndarray):
        return ("array", value.shape, value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _content(item, weight_ids) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [
            _content(item, weight_ids)
            for item in (sorted(value, key=repr) if isinstance(value, set | frozenset) else value)
        ]
    if isinstance(value, str | bytes | int | float | complex | bool | None):
        return value
    if hasattr(value, "__dict__") and not isinstance(value, type | nn.Module) and not callable(value):
        return (type(value).__name__, {key: _content(item, weight_ids) for key, item in vars(value).items()})
    return type(value).__name__


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num()) if a.is_floating_point() else torch.equal(a, b)


def _check_state(module: nn.Module, buffers: Sequence[str], x: Tensor) -> None:
    """Refuse a module that fails, draws from a global generator, or keeps state between two passes."""
    for mode, name in ((True, "training"), (False, "evaluation")):
        module.train(mode)
        before, generators = _other_state(module, buffers), _generators()
        initial_buffers = {key: buffer.clone() for key, buffer in module.named_buffers() if key in buffers}
        outputs = []
        for _ in range(2):
            outputs.append(_call(module, x))
            for key, buffer in module.named_buffers():
                if key in initial_buffers:
                    buffer.copy_(initial_buffers[key])
            after = _other_state(module, buffers)
            if after != before:
                changed = next(key for key, value in after.items() if before.get(key, before) != value)
                raise ModuleRefusedError(
                    f"keeps state outside its parameters and buffers: {changed.strip('.')} changes in {name}. "
                    "Compute it in forward, or register a buffer of floats"
                )
        if generators != _generators() or not _equal(*outputs):
            raise ModuleRefusedError(
                f"draws from a global generator in {name}, as torch.nn.Dropout does. Set dropout to 0, or use "
                "models.networks.torch_module.Dropout"
            )


def _generators() -> tuple[bytes, bytes]:
    """Return the states of torch's and NumPy's global generators."""
    legacy: Any = np.random.get_state(legacy=False)
    return torch.get_rng_state().numpy().tobytes(), legacy["state"]["key"].tobytes() + bytes(
        [legacy["state"]["pos"] % 256]
    )


def _call(module: nn.Module, x: Tensor) -> Tensor:
    with _pass_state(torch.tensor(1), torch.ones(len(x))), torch.no_grad():
        return cast(Tensor, module(x))


class _LinearCall(NamedTuple):
    name: str
    output: Tensor
    inputs: Tensor


def _inspect_layers(module: nn.Module, x: Tensor, outputs: int) -> tuple[int, str, int]:
    """Return the number of values of one row in the largest layer, and the Linear that computes the output.

    The Linear is given by its name, empty if there is none, and its number of inputs.
    """
    sizes, linears = [x[0].numel(), outputs], []

    def hook(name: str) -> Callable[..., None]:
        def record(layer: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            if isinstance(output, Tensor):
                sizes.append(output.numel() // len(x))
                if type(layer) is nn.Linear and inputs and isinstance(inputs[0], Tensor):
                    linears.append(_LinearCall(name, output, inputs[0]))

        return record

    evaluated = module.eval()
    handles = [layer.register_forward_hook(hook(name)) for name, layer in evaluated.named_modules()]
    try:
        output = _output(evaluated, x, outputs)
    finally:
        for handle in handles:
            handle.remove()
    ends = [call for call in linears if call.output is output and call.inputs.dim() == 2 and call.name]
    if len(ends) == 1 and sum(call.name == ends[0].name for call in linears) == 1:
        head = cast(nn.Linear, evaluated.get_submodule(ends[0].name))
        if head.bias is not None and not _is_tied(evaluated, ends[0].name):
            return max(sizes), ends[0].name, head.in_features
    return max(sizes), "", 0


def _output(module: nn.Module, x: Tensor, outputs: int) -> Tensor:
    """Return the output for these rows; ModuleRefusedError if it is none, or of another shape than (rows, outputs)."""
    advice = ". A layer drops the axis of rows, as .squeeze() does: name another axis" if len(x) == 1 else ""
    try:
        output = _call(module, x)
    except Exception as error:
        raise ModuleRefusedError(
            f"fails on {len(x)} row{'s' * (len(x) > 1)} of shape {tuple(x.shape[1:])}: {type(error).__name__}: {error}"
            f"{advice or '. Images come as (height, width) or (height, width, channels)'}"
        ) from error
    if not isinstance(output, Tensor) or output.shape != (len(x), outputs):
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        mode = "training" if module.training else "evaluation"
        raise ModuleRefusedError(
            f"returns {got} for {len(x)} row{'s' * (len(x) > 1)} in {mode}, expected a tensor (rows, {outputs}){advice}"
        )
    return output


def _is_tied(module: nn.Module, head: str) -> bool:
    """Whether another layer shares this layer's weight."""
    weight = cast(nn.Linear, module.get_submodule(head)).weight
    return sum(p is weight for _, p in module.named_parameters(remove_duplicate=False)) > 1


def _move_unused(network: TorchModule, weights: Weights, x: Tensor, stream: Tensor) -> ModuleFacts:
    """Return the facts, with parameters that do not affect the output listed as buffers."""
    facts, module = network.facts, _build(network, 0).train()
    parameters = dict(module.named_parameters())
    with _pass_state(stream, torch.ones(len(x))):
        gradients = _gradients(module(x), [parameters[name] for name in facts.learned])
    direct = dict(zip(facts.learned, gradients, strict=True))
    leaves = {name: weights[name].clone().requires_grad_() for name in facts.learned}
    output, _ = network._forward({**weights, **leaves}, x, stream, torch.ones(len(x)))
    gradients = _gradients(output, list(leaves.values()))
    bypassed = [
        name for name, gradient in zip(leaves, gradients, strict=True) if gradient is None and direct[name] is not None
    ]
    if bypassed:
        raise ModuleRefusedError(
            f"reads its parameter {bypassed[0]} from elsewhere than the module that owns it, as torch's recurrent "
            "layers do, so functional_call cannot replace it. Read it as an attribute in forward"
        )
    unused = tuple(name for name, gradient in zip(leaves, gradients, strict=True) if gradient is None)
    learned = tuple(name for name in facts.learned if name not in unused)
    return replace(facts, learned=learned, buffers=(*facts.buffers, *unused))


def _gradients(answer: Tensor, leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(answer.sum(), leaves, allow_unused=True)


def _can_map(network: TorchModule, weights: Weights, x: Tensor, stream: Tensor) -> bool:
    """Whether torch.vmap maps the module over two clients with the results of computing each separately."""
    stacked_weights = {name: torch.stack([w, w]) for name, w in weights.items()}

    def apply_client(weights: Weights, x: Tensor, stream: Tensor, used: Tensor) -> Tensor:
        return network._forward(weights, x, stream, used)[0]

    stack = torch.stack([x, x.flip(0)])
    streams, used = torch.stack([stream, fold_in(stream, 1)]), torch.ones(2, len(x))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it maps by a slow loop
            mapped = vmap(apply_client)(stacked_weights, stack, streams, used)
            evaluated = vmap(lambda w, x: network._forward(w, x, None, None)[0])(stacked_weights, stack)
    except (RuntimeError, ValueError, UserWarning):
        return False
    alone = apply_client(weights, stack[1], streams[1], used[1])
    plain = network._forward(weights, stack[1], None, None)[0]
    return torch.allclose(mapped[1], alone, 1e-3, 1e-4) and torch.allclose(evaluated[1], plain, 1e-3, 1e-4)


def _check_rows(network: TorchModule, weights: Weights, x: Tensor, stream: Tensor) -> None:
    """Refuse a module whose output for a row depends on padding, or in evaluation on other rows."""
    used = torch.ones(len(x))
    used[-1] = 0
    padded = x.clone()
    padded[-1] = 1 - padded[-1]
    (out, moved), (padded_out, padded_moved) = (network._forward(weights, rows, stream, used) for rows in (x, padded))
    few = network._forward(weights, x[:2], None, None)[0]
    all_rows = network._forward(weights, x, None, None)[0]
    same = torch.allclose(out[:-1], padded_out[:-1], 1e-3, 1e-4) and torch.allclose(few, all_rows[:2], 1e-3, 1e-4)
    if not same or any(not torch.allclose(moved[name], padded_moved[name], 1e-3, 1e-4) for name in moved):
        raise ModuleRefusedError(
            "mixes the rows of a batch, some of which are padding. Only torch.nn.BatchNorm1d, 2d and 3d may do so"
        )
