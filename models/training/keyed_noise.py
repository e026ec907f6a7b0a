"""Normal numbers from a client's secret: Box and Muller's transform of an AES-256 key stream in counter mode.

Without the key, the numbers cannot be distinguished from random ones unless AES is broken. A radius has 63 bits: with 32,
radii beyond five deviations lie so far apart that some noisy sums are possible for one sum and impossible for another.
Numbers are float32, some 100,000 of them in a cell of the grid that noisy sums are rounded to, or float64 for a finer grid.
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
        """Write the next numbers to a tensor, (count,) float32 or float64 on the CPU."""
        for part in numbers.split(2 * _CHUNK) if len(numbers) else ():
            pairs = (len(part) + 1) // 2
            cosines, sines = part[:pairs], part[pairs:]
            radius, angle = self._pairs(pairs, 8 if numbers.dtype == torch.float64 else 4)
            torch.mul(torch.cos(angle), radius, out=cosines)
            torch.mul(angle.sin_()[: len(sines)], radius[: len(sines)], out=sines)

    def _pairs(self, count: int, size: int) -> tuple[Tensor, Tensor]:
        """Draw radii and angles, (count,) floats of `size` bytes each."""
        drawn = self._stream.update(bytes((8 + size) * count))
        wide, narrow = np.frombuffer(drawn, "<i8", count), np.frombuffer(drawn, f"<i{size}", offset=8 * count)
        # the absolute value keeps small uniforms precise, from which the largest radii are made
        uniform = torch.from_numpy(wide.astype(f"<f{size}")).abs_().add_(0.5).mul_(2.0**-63).clamp_max_(1.0)
        angle = torch.from_numpy(narrow.astype(f"<f{size}")).mul_(math.pi * 2.0 ** (1 - 8 * size))
        return uniform.log_().mul_(-2).sqrt_(), angle
