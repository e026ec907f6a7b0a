"""Counter-based random streams, one for each (seed, client, round, purpose).

A stream is one int64 number; its values are a function of that number and a counter (SplitMix64, Steele et al. 2014).
So a client's row orders, dropout and noise are the same in any stack, on any worker, inside or outside `vmap`. No
global generator is used.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import cast

import torch
from torch import Tensor


def _signed(number: int) -> int:
    """Return the 64-bit number in two's complement, as torch's int64 wraps."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >= 1 << 63 else number


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


class Sketch:
    """A stand-in for a stream when only shapes are needed: tensors drawn from it have a shape and no values.

    torch's `meta` device does the same, but imports a compiler for 3 s.
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.shape = tuple(shape)

    def numel(self) -> int:
        """Return the number of elements, as for a tensor."""
        return math.prod(self.shape)

    def _same(self, *_: object) -> "Sketch":
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __xor__ = __and__ = __rshift__ = _same

    @classmethod
    def __torch_function__(
        cls, function: object, types: object, args: Sequence[object] = (), kwargs: object = None
    ) -> "Sketch":
        return next(a for a in args if isinstance(a, Sketch))


def client_streams(seed: int, clients: Sequence[str], round: int, purpose: str) -> Tensor:
    """Return one stream per client, (clients,) int64; it depends on the client's name, not on its position.

    Args:
        seed: The seed of the run.
        clients: The clients' names.
        round: The round, counted from 1; 0 for what is drawn once a run.
        purpose: Tells apart the streams of one round, such as "local_train".
    """
    return torch.tensor([_hash_name(seed, name, round, purpose) for name in clients], dtype=torch.int64)


def server_stream(seed: int, round: int, purpose: str) -> Tensor:
    """Return the server's stream, () int64.

    Args:
        seed: The seed of the run.
        round: The round, counted from 1; 0 for what is drawn once a run.
        purpose: Tells apart the streams of one round.
    """
    return torch.tensor(_hash_name(seed, "", round, purpose), dtype=torch.int64)


def fold_in(stream: Tensor, number: int | Tensor) -> Tensor:
    """Derive an independent stream for each number, such as an epoch, step or layer."""
    step = _GOLDEN * (number + 1)
    return _mix(stream + (step if isinstance(step, Tensor) else _signed(step)))


def random_bits(stream: Tensor, count: int) -> Tensor:
    """Draw (..., count) int64 of 64 random bits each, for streams (...)."""
    counter = torch.arange(1, count + 1, device=stream.device, dtype=torch.int64)
    return _mix(_mix(stream).unsqueeze(-1) + counter * _GOLDEN)


def uniform(stream: Tensor, shape: Sequence[int]) -> Tensor:
    """Draw (..., *shape) float32 in [0, 1), in steps of 2^-24, for streams (...)."""
    if isinstance(stream, Sketch):
        return cast(Tensor, Sketch(shape))
    high = _shift_right(random_bits(stream, math.prod(shape)), 40)
    return high.to(torch.float32).mul(2.0**-24).reshape((*stream.shape, *shape))


def normal(stream: Tensor, shape: Sequence[int]) -> Tensor:
    """Draw (..., *shape) standard normal float32 (Box and Muller 1958)."""
    radius = torch.sqrt(-2 * torch.log(1 - uniform(fold_in(stream, 0), shape)))
    return radius * torch.cos(2 * math.pi * uniform(fold_in(stream, 1), shape))


def shuffle(stream: Tensor, width: int, rows: Tensor) -> Tensor:
    """Shuffle the positions of rows, and put padding last.

    Args:
        stream: Streams, (...).
        width: The number of positions.
        rows: How many of them are no padding, (...).

    Returns:
        (..., width) int64.
    """
    keys = _shift_right(random_bits(stream, width), 1)
    position = torch.arange(width, device=stream.device)
    real = position < rows.unsqueeze(-1)
    return torch.argsort(torch.where(real, keys, torch.iinfo(torch.int64).max), dim=-1, stable=True)


def _hash_name(seed: int, client: str, round: int, purpose: str) -> int:
    name = f"{seed}\x1f{round}\x1f{purpose}\x1f{client}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little", signed=True)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift logically; torch's own shift keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
