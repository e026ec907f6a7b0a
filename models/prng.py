"""Counter-based random streams, one for each (seed, client, round, purpose).

A stream is one int64 number; what it yields is a function of that number and a counter (SplitMix64, Steele et al. 2014).
So a client's orders, dropout and noise are the same in any stack, on any worker, inside or outside `vmap`, and nothing
draws from a global generator.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, cast

import torch
from torch import Tensor


def _signed(number: int) -> int:
    """The 64-bit number as two's complement, which is how torch's int64 wraps."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >= 1 << 63 else number


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


class Sketch:
    """Stands for a stream where only shapes are asked: what is drawn from it has a shape, and no numbers.

    torch's own device for that, `meta`, imports a compiler for 3 s.
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.shape = tuple(shape)

    def numel(self) -> int:
        """As of a tensor."""
        return math.prod(self.shape)

    def _same(self, *_: Any) -> "Sketch":
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __xor__ = __and__ = __rshift__ = _same

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> "Sketch":
        return next(a for a in args if isinstance(a, Sketch))


def client_streams(seed: int, clients: Sequence[str], round: int, purpose: str) -> Tensor:
    """One stream a client, (clients,) int64; it depends on the client's name, not on its place in the list."""
    return torch.tensor([_named(seed, name, round, purpose) for name in clients], dtype=torch.int64)


def server_stream(seed: int, round: int, purpose: str) -> Tensor:
    """The server's own stream for one purpose, () int64."""
    return torch.tensor(_named(seed, "", round, purpose), dtype=torch.int64)


def fold_in(stream: Tensor, number: int | Tensor) -> Tensor:
    """A stream of its own for each number (epoch, step, layer)."""
    step = _GOLDEN * (number + 1)
    return _mix(stream + (step if isinstance(step, Tensor) else _signed(step)))


def random_bits(stream: Tensor, count: int) -> Tensor:
    """(..., count) int64, every bit random, for streams (...)."""
    counter = torch.arange(1, count + 1, device=stream.device, dtype=torch.int64)
    return _mix(_mix(stream).unsqueeze(-1) + counter * _GOLDEN)


def uniform(stream: Tensor, shape: Sequence[int]) -> Tensor:
    """(..., *shape) float32 in [0, 1), in steps of 2^-24, for streams (...)."""
    if isinstance(stream, Sketch):
        return cast(Tensor, Sketch(shape))
    high = _shift_right(random_bits(stream, math.prod(shape)), 40)
    return high.to(torch.float32).mul(2.0**-24).reshape((*stream.shape, *shape))


def normal(stream: Tensor, shape: Sequence[int]) -> Tensor:
    """Standard normal float32 (Box and Muller 1958)."""
    radius = torch.sqrt(-2 * torch.log(1 - uniform(fold_in(stream, 0), shape)))
    return radius * torch.cos(2 * math.pi * uniform(fold_in(stream, 1), shape))


def shuffle(stream: Tensor, width: int, rows: Tensor) -> Tensor:
    """A random order of the first `rows` of `width` places, the padding last: (..., width) int64 for streams (...)."""
    keys = _shift_right(random_bits(stream, width), 1)
    place = torch.arange(width, device=stream.device)
    real = place < rows.unsqueeze(-1)
    return torch.argsort(torch.where(real, keys, torch.iinfo(torch.int64).max), dim=-1, stable=True)


def _named(seed: int, client: str, round: int, purpose: str) -> int:
    name = f"{seed}\x1f{round}\x1f{purpose}\x1f{client}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little", signed=True)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, places: int) -> Tensor:
    """Logical shift: torch's own keeps the sign."""
    return (x >> places) & ((1 << (64 - places)) - 1)
