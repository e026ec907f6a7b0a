"""What the machine can do at most: products of large matrices, and copies of memory, with so many torch threads."""

import json
import sys
import time
from collections.abc import Callable

import torch

_SIDE = 1024  # of a square matrix, 4 MB
_BYTES = 2**28  # of a copy: more than any cache
_TURNS = 8


def main() -> None:
    """Prints {"flop_per_second": ..., "bytes_per_second": ...}, the best of a few turns."""
    torch.set_num_threads(int(sys.argv[1]))
    first, second, product = (torch.rand(_SIDE, _SIDE) for _ in range(3))
    source, target = (torch.rand(_BYTES // 4) for _ in range(2))
    print(
        json.dumps(
            {
                "flop_per_second": 2 * _SIDE**3 / _least(lambda: torch.mm(first, second, out=product)),
                "bytes_per_second": 2 * _BYTES / _least(lambda: target.copy_(source)),  # read, and written
            }
        )
    )


def _least(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


if __name__ == "__main__":
    main()
