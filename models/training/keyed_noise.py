"""Normal numbers from a client's secret: Box and Muller's transform of an AES-256 key stream in counter mode.

Without the key, the numbers cannot be distinguished from random ones unless AES is broken. A radius has 63 bits and is
computed in float64: with 32, radii beyond five deviations lie farther apart than the grid that noise is rounded to, so
that some noisy sums are possible for one sum and impossible for another.
"""

import math

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

_CHUNK = 1 << 14  # pairs, which stay in the cache


class KeyedNormals:
    """A stream of standard normal numbers, the same for the same key of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        # a key is used for one stream only, so the counter may start at 0
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def fill(self, numbers: Tensor) -> None:
        """Write the next numbers to a tensor, (count,) float64 on the CPU."""
        for part in numbers.split(2 * _CHUNK):
            pairs = (len(part) + 1) // 2
            cosines, sines = part[:pairs], part[pairs:]
            radius, angle = self._pairs(pairs)
            torch.mul(torch.cos(angle), radius, out=cosines)
            torch.mul(angle.sin_()[: len(sines)], radius[: len(sines)], out=sines)

    def _pairs(self, count: int) -> tuple[Tensor, Tensor]:
        """Draw radii and angles, (count,) float64 each."""
        bits = np.frombuffer(self._stream.update(bytes(16 * count)), "<i8").copy()
        drawn = torch.from_numpy(bits).double()
        # the absolute value keeps small uniforms exact, from which the largest radii are made
        radius = drawn[:count].abs_().add_(0.5).mul_(2.0**-63).clamp_max_(1.0).log_().mul_(-2).sqrt_()
        return radius, drawn[count:].mul_(math.pi * 2.0**-63)
