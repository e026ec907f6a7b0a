"""Work that is silent for long is named on stderr."""

import threading

import pytest

from flows.core.console import progress


class Heard(progress.ProgressSink):
    """Keeps lines, and sets an event after so many."""

    def __init__(self, lines: int) -> None:
        self.lines: list[str] = []
        self.enough, self._count = threading.Event(), lines

    def say(self, line: str) -> None:
        self.lines.append(line)
        if len(self.lines) >= self._count:
            self.enough.set()


@pytest.fixture
def hear(monkeypatch: pytest.MonkeyPatch) -> Heard:
    heard = Heard(2)
    monkeypatch.setattr(progress, "_current", heard)
    return heard


def test_long_work_is_named_again_and_again_until_it_ends(hear: Heard) -> None:
    with progress.saying_if_long("reading rows.csv", seconds=0.001):
        assert hear.enough.wait(60)
    said = len(hear.lines)
    assert {line.partition(" (")[0] for line in hear.lines} == {"reading rows.csv"}
    assert len(hear.lines) == said


def test_short_work_is_silent_also_if_it_fails(hear: Heard) -> None:
    with pytest.raises(ZeroDivisionError), progress.saying_if_long("reading rows.csv"):
        _ = 1 / 0
    assert hear.lines == []
    assert not [thread for thread in threading.enumerate() if thread.name == "saying_if_long"]
