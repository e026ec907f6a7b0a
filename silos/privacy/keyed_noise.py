"""Normal numbers from a client's secret: Box and Muller's transform of an AES-256 key stream in counter mode.

Without the key, the numbers cannot be distinguished from random ones unless AES is broken. Radii use 32 bits, so the
farthest number is 6.7 deviations out; its chance is 2e-11.
"""

import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_CHUNK = 1 << 15  # pairs, which stay in the cache


class KeyedNormals:
    """A stream of standard normal numbers, the same for the same key of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        # a key is used for one stream only, so the counter may start at 0
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def draw(self, count: int) -> np.ndarray:
        """Return the next numbers: (count,) float32."""
        drawn = np.empty(count, np.float32)
        self.fill(drawn)
        return drawn

    def fill(self, numbers: np.ndarray) -> None:
        """Write the next numbers to an array, (count,) float32."""
        for start in range(0, len(numbers), 2 * _CHUNK):
            part = numbers[start : start + 2 * _CHUNK]
            if len(part) % 2:
                even = np.empty(len(part) + 1, np.float32)
                self._fill(even)
                part[:] = even[:-1]
            else:
                self._fill(part)

    def _fill(self, numbers: np.ndarray) -> None:
        pairs = len(numbers) // 2
        bits = np.frombuffer(self._stream.update(bytes(8 * pairs)), "<u4").astype(np.float32)
        radius = np.sqrt(np.log((bits[:pairs] + np.float32(0.5)) * np.float32(2.0**-32)) * np.float32(-2))
        angle = bits[pairs:] * np.float32(2 * math.pi * 2.0**-32)
        np.multiply(radius, np.cos(angle), out=numbers[:pairs])
        np.multiply(radius, np.sin(angle), out=numbers[pairs:])
