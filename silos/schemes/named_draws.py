"""Random streams that are named, so that one draw never shifts another."""

import hashlib
import json

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.RandomState:
    """The random stream of (seed, names), the same on any machine and with any version of NumPy.

    RandomState and not Generator: NumPy promises that its draws never change (NEP 19), and the version of
    the data hangs on them.
    """
    text = json.dumps([str(part) for part in (seed, *names)])  # unlike a join, no two lists look the same
    key = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype="<u4")
    return np.random.RandomState(key.astype(np.uint32))
