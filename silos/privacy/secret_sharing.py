"""Shamir's secret sharing (1979): `threshold` shares give a secret, and fewer of them say nothing about it.

A secret is the value at 0 of a polynomial of degree threshold - 1 over a prime field. Share i is the value at i.
"""

import hashlib
from collections.abc import Mapping

SECRET_BYTES = 32
SHARE_BYTES = 66

_PRIME = 2**521 - 1  # a Mersenne prime above all secrets
_WIDTH = SHARE_BYTES + 8  # bytes of a coefficient before its remainder, which is uniform but for 2^-64 then


def split_secret(secret: bytes, count: int, threshold: int, key: bytes) -> list[bytes]:
    """Split a secret into shares 1 to `count`, each of SHARE_BYTES.

    Args:
        secret: SECRET_BYTES.
        count: The number of shares.
        threshold: The number of shares that give the secret.
        key: What the coefficients follow from: secret, and never used for another secret.

    Raises:
        ValueError: If the secret has another length, or the threshold is not between 1 and `count`.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"secret: got {len(secret)} bytes, expected {SECRET_BYTES}")
    if not 1 <= threshold <= count:
        raise ValueError(f"threshold: got {threshold} of {count} shares, expected 1 to {count}")
    stream = hashlib.shake_256(key).digest(_WIDTH * (threshold - 1))
    parts = (stream[start : start + _WIDTH] for start in range(0, len(stream), _WIDTH))
    coefficients = [int.from_bytes(secret, "big"), *(int.from_bytes(part, "big") % _PRIME for part in parts)]
    shares = []
    for point in range(1, count + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % _PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "big"))
    return shares


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of shares by their numbers, from 1 on; ValueError for shares of no secret.

    Shares of another secret, or fewer than the threshold, give other bytes or this error.
    """
    points = list(shares)
    if not points or min(points) < 1:
        raise ValueError(f"shares: got the numbers {points}, expected some from 1 on")
    secret = 0
    for point in points:  # Lagrange's interpolation at 0
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % _PRIME
                below = below * (other - point) % _PRIME
        secret += int.from_bytes(shares[point], "big") * above * pow(below, -1, _PRIME)
    secret %= _PRIME
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise ValueError(
            "shares: got some that give no secret, expected shares of one secret, as many as its threshold"
        )
    return secret.to_bytes(SECRET_BYTES, "big")
