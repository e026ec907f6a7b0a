"""How far a comparison is, is said where it takes long, and only there."""

from tasks.diagnosis.compare_silos import ProgressReporter


def said_of(seconds_a_step: float, steps: int = 12) -> list[str]:
    """What is said of so many pairs that take so long each."""
    lines: list[str] = []
    now = [0.0]
    told = ProgressReporter(lines.append, lambda: now[0]).callback("types of shift", steps)
    for done in range(1, steps + 1):
        now[0] += seconds_a_step
        told(done)
    return lines


def test_a_comparison_of_less_than_five_seconds_says_nothing():
    assert said_of(4.9 / 12) == []


def test_a_long_one_says_each_five_seconds_how_many_pairs_are_done_and_nothing_of_the_last():
    assert said_of(2.5) == [f"types of shift: {done} of 12 pairs compared" for done in (2, 4, 6, 8, 10)]


def test_parts_of_one_comparison_share_its_pace():
    lines: list[str] = []
    now = [0.0]
    pace = ProgressReporter(lines.append, lambda: now[0])
    one, other = pace.callback("differences", 9), pace.callback("types of shift", 9)
    for part in (one, other):
        now[0] += 4
        part(1)
    assert lines == ["types of shift: 1 of 9 pairs compared"]
