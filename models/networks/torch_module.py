"""Any torch.nn.Module as a network: its parameters and buffers are the weights, and `functional_call` is its function.

A module is examined before it is used. It must be a function of its parameters, buffers and rows: a module that keeps other
state, draws from a global generator or mixes rows is refused. Batch normalisation of torch is replaced by one that leaves
padding out; dropout comes from `Dropout` here, which draws from the project's streams.
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
from ..training.batch import ClientBatch
from ..training.objectives import Objective
from .mlp import dense, drop, within
from .network import Network
from .protocols import EncoderHeadCost, LinearHead
from .vision.grouped_layers import MOMENTUM
from .wrappers.per_row_context import join

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_HEAD = "dense0"
_STATISTICS = 2**17  # of a stream: the weights of a client's statistics
_BUILDING = threading.RLock()  # torch's global generator is borrowed meanwhile


class ModuleRefusedError(ValueError):
    """A module that cannot be trained for many clients, with the reason and the way out."""


class _Pass(threading.local):
    """What the layers here read during a forward: which rows are used, and the stream of dropout."""

    used: Tensor | None = None
    stream: Tensor | None = None
    drops: int = 0


_pass = _Pass()


class Dropout(nn.Module):
    """Dropout of single numbers, from the client's stream: takes the place of torch.nn.Dropout in a plugin's module."""

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
    """Batch normalisation whose batch is the rows that are used, as `images.client_layers` computes it."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (rows, channels, *places), where each of the batch's rows may have become several."""
        mean, variance = self.running_mean, self.running_var
        if self.training and _pass.used is not None:
            mean, variance = self._of_batch(x, _pass.used.to(x.dtype))
        assert mean is not None
        assert variance is not None
        shape = (1, -1, *[1] * (x.dim() - 2))
        scale = (variance + self.eps).rsqrt()
        shift = torch.zeros_like(mean)
        if self.affine:
            scale, shift = scale * self.weight, self.bias
        return (x - mean.view(shape)) * scale.view(shape) + shift.view(shape)

    def _of_batch(self, x: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the used rows; the running ones move as with torch."""
        places = [axis for axis in range(x.dim()) if axis != 1]
        share = used.repeat_interleave(x.shape[0] // used.shape[0]).view(-1, *[1] * (x.dim() - 1))
        count = used.sum() * (x.numel() // (x.shape[1] * used.shape[0]))
        mean = (x * share).sum(places) / count.clamp_min(1)
        spread = (x - mean.view(1, -1, *[1] * (x.dim() - 2))) ** 2
        variance = (spread * share).sum(places) / count.clamp_min(1)
        unbiased = variance * count / (count - 1).clamp_min(1)
        for running, statistic in ((self.running_mean, mean), (self.running_var, unbiased)):
            assert running is not None
            running.copy_(torch.where(count > 1, running.lerp(statistic.detach(), MOMENTUM), running))
        return mean, variance


@dataclass(frozen=True)
class Facts:
    """What was found out about a module: names of its weights by what they are, and numbers of its largest layer."""

    learned: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    normalising: tuple[str, ...] = ()
    max_width: int = 0
    dropout: float = 0.0
    maps: bool = True
    head: str = ""  # the Linear that gives the output, if there is one
    features: int = 0  # that it reads


Make = Callable[..., nn.Module]


@dataclass(frozen=True)
class TorchModule(Network):
    """The module that `make(shape, outputs, **options)` gives; `kind` is the name that it is registered under."""

    make: Make
    shape: tuple[int, ...]
    outputs: int
    options: tuple[tuple[str, Any], ...] = ()
    facts: Facts = field(default_factory=Facts)
    kind: str = ""  # type: ignore[misc]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the module in a process that the network has come to."""
        self.__dict__.update(state)
        _master(self)

    @property
    def dropout(self) -> float:
        """The largest of its Dropout layers."""
        return self.facts.dropout

    @property
    def max_width(self) -> int:
        """Numbers of one row in its largest layer."""
        return self.facts.max_width

    @property
    def buffers(self) -> tuple[str, ...]:
        """Persistent buffers of floats, and parameters that no gradient moves."""
        return self.facts.buffers

    @property
    def normalising(self) -> tuple[str, ...]:
        """Of its layers of batch normalisation: scale, shift and running statistics."""
        return self.facts.normalising

    @property
    def maps(self) -> bool:
        """Whether torch can map it over clients."""
        return self.facts.maps

    @property
    def portable(self) -> bool:
        """Its code is a plugin's; a logged model has it as a program (see exported_network)."""
        return False

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The module's own first weights, drawn from the stream."""
        if isinstance(stream, Sketch):
            return self._named(_prototype(self))
        return self._named(_built(self, int(stream)))

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """The module in evaluation mode; a stream switches its Dropout layers on."""
        return self._forward(weights, x, stream, None)[0]

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of the module in training mode, and the buffers as it leaves them."""
        logits, buffers = self._forward(weights, batch.x, batch.stream, batch.used)
        return batch.loss(objective, logits), buffers

    def _named(self, module: nn.Module) -> dict[str, Tensor]:
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: held[name].detach().clone() for name in (*self.facts.learned, *self.facts.buffers)}

    def _forward(
        self, weights: Weights, x: Tensor, stream: Tensor | None, used: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The module's answer; with `used` in training mode, and then the buffers after it."""
        module = _copy_of(self, x.device)
        training = used is not None
        if module.training != training:
            module.train(training)
        there, own = {*weights}, dict(module.named_parameters())
        # a method may leave biases out
        held = {n: weights[n] if n in there else torch.zeros_like(own[n]) for n in self._read}
        if training:
            held |= {name: held[name].clone() for name in self.buffers}
        with _passing(stream, used):
            answer = functional_call(module, held, (x,))
        return answer, {name: held[name] for name in self.buffers} if training else {}

    @cached_property
    def _read(self) -> tuple[str, ...]:
        """The weights that the module itself reads."""
        return (*self.facts.learned, *self.facts.buffers)


@dataclass(frozen=True)
class EndedModule(EncoderHeadCost, LinearHead, TorchModule):
    """A module that ends in a Linear: methods may read or replace that layer, whose weights are `dense0` (in, out).

    `statistics` numbers of the client join what the layer reads.
    """

    statistics: int = 0

    @property
    def last(self) -> int:
        """The number of that layer."""
        return 0

    @property
    def encoded(self) -> tuple[int, int]:
        """One place with all features."""
        return self.facts.features, 1

    def reading(self, statistics: int, planes: int = 0) -> "EndedModule | None":
        """Beside the features."""
        return None if planes else replace(self, statistics=statistics)

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What the last layer reads: (rows, features, 1)."""
        features, buffers = self._forward(weights, x, None, used)
        return features.unsqueeze(-1), buffers

    def settle(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """The client's statistics join."""
        return join(z.squeeze(-1), context, self.statistics)

    def represent(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> Tensor:
        """What the last layer reads."""
        return settled

    def conclude(self, scores: Tensor, stream: Tensor | None) -> Tensor:
        """What the last layer gives."""
        return scores

    def finish(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> Tensor:
        """The last layer."""
        return dense(weights, 0, settled)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The module's own first weights; those of statistics are uniform in ±1/√features."""
        weights = super().init(stream)
        if self.statistics:
            name = f"{_HEAD}.weight"
            size: dict[str, tuple[int, ...]] = {name: (self.statistics, weights[name].shape[1])}
            more = within(fold_in(stream, _STATISTICS), self.facts.features**-0.5, size)[name]
            if isinstance(more, Sketch):
                more = weights[name].new_zeros(more.shape)
            weights[name] = torch.cat([weights[name], more])
        return weights

    def _named(self, module: nn.Module) -> dict[str, Tensor]:
        head = cast(nn.Linear, module.get_submodule(self.facts.head))
        own = {f"{_HEAD}.weight": head.weight.detach().T.contiguous(), f"{_HEAD}.bias": head.bias.detach().clone()}
        held = {**dict(module.named_parameters()), **dict(module.named_buffers()), **own}
        return {name: held[name].detach().clone() for name in (*self.facts.learned, *self.facts.buffers)}

    @cached_property
    def _read(self) -> tuple[str, ...]:
        return tuple(name for name in super()._read if not name.startswith(f"{_HEAD}."))


def wrapped(kind: str, make: Make, shape: Sequence[int], outputs: int, options: Mapping[str, Any]) -> TorchModule:
    """Examine a module and make a network of it.

    Args:
        kind: The name that it is registered under.
        make: Called with `shape`, `outputs` and the options; gives the module.
        shape: Of one row, as the data have it.
        outputs: Numbers that the module answers with for a row.
        options: From params.yaml.

    Raises:
        ModuleRefusedError: for a module that is no function of its parameters, buffers and single rows.
    """
    frozen = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in options.items())
    bare = TorchModule(make, tuple(shape), outputs, frozen, kind=kind)
    with _BUILDING:
        held = _examined.setdefault(make, {})
        key = repr((kind, bare.shape, outputs, frozen))
        if key not in held:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # passes of few rows
            try:
                held[key] = _examine(bare)
            finally:
                torch.set_num_threads(threads)
    return held[key]


_examined: WeakKeyDictionary[Make, dict[str, TorchModule]] = WeakKeyDictionary()


_masters: WeakKeyDictionary[Make, dict[Any, nn.Module]] = WeakKeyDictionary()


def _key(network: TorchModule) -> tuple[Any, ...]:
    return network.shape, network.outputs, repr(network.options), network.facts.head


def _master(network: TorchModule) -> nn.Module:
    """The module of this process whose copies are called; it is made outside of torch's transformations."""
    with _BUILDING:
        held = _masters.setdefault(network.make, {})
        if _key(network) not in held:
            module = _prototype(network)
            held[_key(network)] = _headless(module, network.facts.head) if network.facts.head else module
        return held[_key(network)]


class _Copies(threading.local):
    """`functional_call` swaps the parameters of the module that it is given, so each thread has modules of its own."""

    def __init__(self) -> None:
        self.held: WeakKeyDictionary[Make, dict[Any, nn.Module]] = WeakKeyDictionary()


_copies = _Copies()


def _copy_of(network: TorchModule, device: torch.device) -> nn.Module:
    held = _copies.held.setdefault(network.make, {})
    key = (_key(network), str(device))
    if key not in held:
        master = _master(network)
        shared = [*master.parameters(), *master.buffers()] if device.type == "cpu" else []
        held[key] = copy.deepcopy(master, {id(tensor): tensor for tensor in shared}).to(device)
    return held[key]


def _headless(module: nn.Module, head: str) -> nn.Module:
    """Without the last Linear, which EndedModule computes itself."""
    parent, _, name = head.rpartition(".")
    setattr(module.get_submodule(parent), name, nn.Identity())
    return module


def _prototype(network: TorchModule) -> nn.Module:
    """The module itself, whose weights do not matter."""
    return _built(network, 0)


def _built(network: TorchModule, seed: int) -> nn.Module:
    """A module whose first weights follow from the seed, with the layers of this page in place of torch's."""
    torch.backends.mha.set_fastpath_enabled(False)  # it has other bits than training, and cannot be mapped
    torch.backends.cuda.enable_flash_sdp(False)  # also the CPU's, which cannot be mapped
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
def _passing(stream: Tensor | None, used: Tensor | None) -> Iterator[None]:
    before = _pass.stream, _pass.used, _pass.drops
    _pass.stream, _pass.used, _pass.drops = stream, used, 0
    try:
        yield
    finally:
        _pass.stream, _pass.used, _pass.drops = before


_ROWS = 3


def _examine(bare: TorchModule) -> TorchModule:
    """See `wrapped`; rows are 0 and 1, which tokens, pixels and numbers may all be."""
    first, again, other = (_built(bare, seed) for seed in (0, 0, 1))
    learned, buffers = _weights_of(first)
    if not learned:
        raise ModuleRefusedError("has no parameters that are learned. Give it layers")
    drawn, redrawn = first.state_dict(), again.state_dict()
    if any(not _equal(drawn[name], redrawn[name]) for name in drawn):
        raise ModuleRefusedError(
            "draws its first weights from another generator than torch's. Draw them with torch, without a generator"
        )
    if _beside(first, buffers) != _beside(other, buffers):
        raise ModuleRefusedError(
            "draws state outside its parameters and buffers when it is made. Register it as a buffer"
        )
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (_ROWS, *bare.shape), generator=draw).float()
    widest, head, features = _layers(first, x, bare.outputs)
    _check_state(again, buffers, x)
    norms = [name for name, layer in first.named_modules() if isinstance(layer, _BatchNorm)]
    names = [f"{norm}.{part}" for norm in norms for part in ("weight", "bias", "running_mean", "running_var")]
    rates = [layer.p for layer in first.modules() if isinstance(layer, Dropout)]
    facts = Facts(
        learned=learned,
        buffers=buffers,
        normalising=tuple(name for name in names if name in learned or name in buffers),
        max_width=widest,
        dropout=max(rates, default=0.0),
    )
    network = replace(bare, facts=facts)
    stream = torch.tensor(1)
    _master(network)
    weights = network.init(stream)
    facts = _without_gradient(network, weights, x, stream)
    network = replace(network, facts=replace(facts, maps=_maps(replace(network, facts=facts), weights, x, stream)))
    _check_rows(network, weights, x, stream)
    if head and not network.dropout and f"{head}.weight" in network.facts.learned:
        return _ended(network, head, features)
    return network


def _ended(network: TorchModule, head: str, features: int) -> TorchModule:
    names = {f"{head}.{part}": f"{_HEAD}.{part}" for part in ("weight", "bias")}
    learned = tuple(names.get(name, name) for name in network.facts.learned)
    facts = replace(network.facts, learned=learned, head=head, features=features)
    ended = EndedModule(network.make, network.shape, network.outputs, network.options, facts, network.kind)
    _master(ended)
    return ended


def _weights_of(module: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of what is learned, and of what travels besides; buffers of integers and those that are not saved stay."""
    learned = [name for name, p in module.named_parameters() if p.requires_grad]
    fixed = [name for name, p in module.named_parameters() if not p.requires_grad]
    saved = module.state_dict().keys()
    floats = [name for name, b in module.named_buffers() if b.is_floating_point() and name in saved]
    wrong = [name for name, p in module.named_parameters() if p.dtype != torch.float32]
    if wrong:
        raise ModuleRefusedError(f"has the parameter {wrong[0]} of another type than float32. Use real numbers")
    return tuple(learned), tuple(fixed + floats)


_OF_TORCH = {"_parameters", "_buffers", "_modules", "training"}


def _beside(module: nn.Module, weights: Sequence[str]) -> dict[str, Any]:
    """All state of a module besides its weights: its attributes, and the buffers that do not travel."""
    state: dict[str, Any] = {
        name: _seen(buffer) for name, buffer in module.named_buffers() if name not in weights and buffer is not None
    }
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for name, layer in module.named_modules():
        state |= {f"{name}.{key}": _seen(value, own) for key, value in vars(layer).items() if key not in _OF_TORCH}
    return state


def _seen(value: Any, own: Collection[int] = ()) -> Any:
    """A value by its content, as far as it is made of plain parts; else by its type. `own` are ids of weights."""
    if id(value) in own:
        return "weights"
    if isinstance(value, Tensor):
        return ("tensor", tuple(value.shape), value.detach().reshape(-1).tolist())
    if isinstance(value, np.ndarray):
        return ("array", value.shape, value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _seen(one, own) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_seen(one, own) for one in (sorted(value, key=repr) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, str | bytes | int | float | complex | bool | None):
        return value
    if hasattr(value, "__dict__") and not isinstance(value, type | nn.Module) and not callable(value):
        return (type(value).__name__, {key: _seen(one, own) for key, one in vars(value).items()})
    return type(value).__name__


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else torch.equal(one, other)


def _check_state(module: nn.Module, buffers: Sequence[str], x: Tensor) -> None:
    """Refuse a module that fails, draws from a global generator, or keeps something between two passes."""
    for mode, name in ((True, "training"), (False, "evaluation")):
        module.train(mode)
        before, drawn = _beside(module, buffers), _generators()
        moving = {key: buffer.clone() for key, buffer in module.named_buffers() if key in buffers}
        answers = []
        for _ in range(2):
            answers.append(_called(module, x))
            for key, buffer in module.named_buffers():
                if key in moving:
                    buffer.copy_(moving[key])
            after = _beside(module, buffers)
            if after != before:
                was = next(key for key, value in after.items() if before.get(key, before) != value)
                raise ModuleRefusedError(
                    f"keeps state outside its parameters and buffers: {was.strip('.')} changes in {name}. "
                    "Compute it in forward, or register a buffer of floats"
                )
        if drawn != _generators() or not _equal(*answers):
            raise ModuleRefusedError(
                f"draws from a global generator in {name}, as torch.nn.Dropout does. Set dropout to 0, or use "
                "models.networks.torch_module.Dropout"
            )


def _generators() -> tuple[bytes, bytes]:
    """The states of torch's and NumPy's global generators."""
    legacy: Any = np.random.get_state(legacy=False)
    return torch.get_rng_state().numpy().tobytes(), legacy["state"]["key"].tobytes() + bytes(
        [legacy["state"]["pos"] % 256]
    )


def _called(module: nn.Module, x: Tensor) -> Tensor:
    with _passing(torch.tensor(1), torch.ones(len(x))), torch.no_grad():
        return cast(Tensor, module(x))


class _Layer(NamedTuple):
    name: str
    output: Tensor
    read: Tensor


def _layers(module: nn.Module, x: Tensor, outputs: int) -> tuple[int, str, int]:
    """Numbers of one row in the largest layer; the Linear whose output is the module's, if any, and what it reads."""
    sizes, linears = [x[0].numel(), outputs], []

    def hook(name: str) -> Callable[..., None]:
        def seen(layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                sizes.append(output.numel() // len(x))
                if type(layer) is nn.Linear and given and isinstance(given[0], Tensor):
                    linears.append(_Layer(name, output, given[0]))

        return seen

    tried = module.eval()
    handles = [layer.register_forward_hook(hook(name)) for name, layer in tried.named_modules()]
    try:
        answer = _called(tried, x)
    except Exception as error:
        raise ModuleRefusedError(
            f"fails on rows of shape {tuple(x.shape[1:])}: {type(error).__name__}: {error}. Images come as (height, "
            "width) or (height, width, channels)"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(answer, Tensor) or answer.shape != (len(x), outputs):
        got = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise ModuleRefusedError(f"answers with {got}, expected a tensor (rows, {outputs})")
    ends = [one for one in linears if one.output is answer and one.read.dim() == 2 and one.name]
    if len(ends) == 1 and sum(one.name == ends[0].name for one in linears) == 1:
        head = cast(nn.Linear, tried.get_submodule(ends[0].name))
        if head.bias is not None and not _tied(tried, ends[0].name):
            return max(sizes), ends[0].name, head.in_features
    return max(sizes), "", 0


def _tied(module: nn.Module, head: str) -> bool:
    """Whether another layer has the weight of this one."""
    weight = cast(nn.Linear, module.get_submodule(head)).weight
    return sum(p is weight for _, p in module.named_parameters(remove_duplicate=False)) > 1


def _without_gradient(network: TorchModule, weights: Weights, x: Tensor, stream: Tensor) -> Facts:
    """The facts, with parameters that the answer does not follow from among the buffers."""
    facts, module = network.facts, _prototype(network).train()
    held = dict(module.named_parameters())
    with _passing(stream, torch.ones(len(x))):
        found = _gradients(module(x), [held[name] for name in facts.learned])
    direct = dict(zip(facts.learned, found, strict=True))
    leaves = {name: weights[name].clone().requires_grad_() for name in facts.learned}
    answer, _ = network._forward({**weights, **leaves}, x, stream, torch.ones(len(x)))
    found = _gradients(answer, list(leaves.values()))
    past = [name for name, gradient in zip(leaves, found, strict=True) if gradient is None and direct[name] is not None]
    if past:
        raise ModuleRefusedError(
            f"reads its parameter {past[0]} from another place than the module that holds it, as torch's recurrent layers "
            "do where functional_call does not reach. Read it as an attribute in forward"
        )
    unused = tuple(name for name, gradient in zip(leaves, found, strict=True) if gradient is None)
    learned = tuple(name for name in facts.learned if name not in unused)
    return replace(facts, learned=learned, buffers=(*facts.buffers, *unused))


def _gradients(answer: Tensor, leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(answer.sum(), leaves, allow_unused=True)


def _maps(network: TorchModule, weights: Weights, x: Tensor, stream: Tensor) -> bool:
    """Whether torch maps the module over two clients, with what each would answer alone."""
    two = {name: torch.stack([w, w]) for name, w in weights.items()}

    def of_one(weights: Weights, x: Tensor, stream: Tensor, used: Tensor) -> Tensor:
        return network._forward(weights, x, stream, used)[0]

    stack = torch.stack([x, x.flip(0)])
    streams, used = torch.stack([stream, fold_in(stream, 1)]), torch.ones(2, len(x))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it maps by a slow loop
            mapped = vmap(of_one)(two, stack, streams, used)
            evaluated = vmap(lambda w, x: network._forward(w, x, None, None)[0])(two, stack)
    except (RuntimeError, ValueError, UserWarning):
        return False
    alone = of_one(weights, stack[1], streams[1], used[1])
    plain = network._forward(weights, stack[1], None, None)[0]
    return torch.allclose(mapped[1], alone, 1e-3, 1e-4) and torch.allclose(evaluated[1], plain, 1e-3, 1e-4)


def _check_rows(network: TorchModule, weights: Weights, x: Tensor, stream: Tensor) -> None:
    """Refuse a module whose answer for a row follows from padding, or in evaluation from any other row."""
    used = torch.ones(len(x))
    used[-1] = 0
    padded = x.clone()
    padded[-1] = 1 - padded[-1]
    (one, moved), (two, moved_too) = (network._forward(weights, rows, stream, used) for rows in (x, padded))
    few = network._forward(weights, x[:2], None, None)[0]
    all_of_it = network._forward(weights, x, None, None)[0]
    same = torch.allclose(one[:-1], two[:-1], 1e-3, 1e-4) and torch.allclose(few, all_of_it[:2], 1e-3, 1e-4)
    if not same or any(not torch.allclose(moved[name], moved_too[name], 1e-3, 1e-4) for name in moved):
        raise ModuleRefusedError(
            "mixes the rows of a batch, of which some are padding. Only torch.nn.BatchNorm1d, 2d and 3d may do so"
        )
