"""Lines that say how far a long comparison is; a short one says nothing."""

import time
from collections.abc import Callable

_EVERY = 5.0  # seconds


class Pace:
    """Says a line each five seconds, the first after as long; `clock`: seconds from any start."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._last = clock()

    def of(self, what: str, pairs: int) -> Callable[[int], None]:
        """What a part of the comparison tells how many of its pairs are done."""

        def told(done: int) -> None:
            now = self._clock()
            if now - self._last >= _EVERY and done < pairs:
                self._last = now
                self._say(f"{what}: {done:,} of {pairs:,} pairs compared")

        return told
