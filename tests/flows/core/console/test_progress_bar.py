"""One bar counts whole rounds over all runs, says how long the others take, and fits where it is shown."""

import io

import pytest

from flows.core.console.progress_bar import Terminal
from flows.core.console.safe_text import PlainConsole, short_duration, shortened


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def terminal(width: int = 80, is_terminal: bool = True) -> tuple[Terminal, Clock, io.StringIO]:
    clock, out = Clock(), io.StringIO()
    console = PlainConsole(file=out, width=width, force_terminal=is_terminal, no_color=True, legacy_windows=False)
    return Terminal(console, clock), clock, out


def play(screen: Terminal, clock: Clock, run: str, rounds: range, of: int, seconds: float) -> None:
    screen.begin(run, rounds.start - 1, of)
    for number in rounds:
        clock.now += seconds
        screen.round(run, number, "accuracy 0.912")


def shown(screen: Terminal, width: int) -> str:
    """The bar as it is drawn now, without its colours."""
    out = io.StringIO()
    PlainConsole(file=out, width=width).print(screen._bar)
    return out.getvalue().rstrip("\n")


def test_rounds_of_all_runs_are_counted_and_the_others_take_as_long_as_those_that_were_made():
    screen, clock, _ = terminal()
    screen.plan(6, 60)
    assert screen.seconds_left is None
    play(screen, clock, "fedavg-seed0", range(1, 6), 10, 2.0)
    assert (screen.done, screen.seconds_left) == (5, pytest.approx(110.0))
    for number in range(6, 11):
        clock.now += 2.0
        screen.round("fedavg-seed0", number, None)
    screen.end("fedavg-seed0", "accuracy 0.912", 20.0)
    play(screen, clock, "ifca-seed0", range(1, 11), 10, 4.0)
    assert (screen.done, screen.seconds_left) == (20, pytest.approx(40 * 3.0))


def test_what_was_done_before_counts_at_once_and_tells_nothing_of_the_pace():
    screen, clock, out = terminal()
    screen.plan(6, 60, 3, 30)
    assert (screen.done, screen.seconds_left) == (30, None)
    play(screen, clock, "ifca-seed1", range(8, 9), 10, 5.0)  # goes on after round 7
    assert (screen.done, screen.seconds_left) == (38, pytest.approx(22 * 5.0))
    screen.round("ifca-seed1", 10, None)
    screen.end("ifca-seed1", "accuracy 0.912", 1.0)
    assert "  4 of 6  ifca-seed1" in out.getvalue()


def test_rounds_that_a_run_spares_or_loses_do_not_come_and_are_not_waited_for():
    screen, clock, _ = terminal()
    screen.plan(3, 30)
    play(screen, clock, "uefl-seed0", range(1, 5), 10, 1.0)
    screen.end("uefl-seed0", "accuracy 0.912", 4.0)  # it ended itself
    assert (screen.done, screen.seconds_left) == (10, pytest.approx(20.0))
    play(screen, clock, "own-seed0", range(1, 3), 10, 1.0)
    screen.fail("own-seed0", "the loss is no number")
    assert (screen.done, screen.seconds_left) == (20, pytest.approx(10.0))
    screen.fail("own-seed1", "it did not begin")
    assert (screen.done, screen.seconds_left) == (30, 0.0)


def test_a_run_that_fails_after_its_end_is_counted_once():
    out = io.StringIO()
    bar = Terminal(PlainConsole(file=out, width=80), clock=lambda: 0.0)
    bar.plan(2, 20)
    for run in ("fedavg-seed0", "fedavg-seed1"):
        bar.begin(run, 0, 10)
        bar.round(run, 10, None)
        bar.end(run, None, 1.0)
    bar.fail("fedavg-seed1", "Prefect did not answer")
    counts = [line.strip().split("  ")[0] for line in out.getvalue().splitlines()]
    assert counts == ["1 of 2", "2 of 2", "2 of 2"]
    assert bar.done == 20


def test_runs_that_take_turns_are_counted_apart():
    screen, clock, out = terminal(is_terminal=False)
    screen.plan(2, 20)
    for run in ("fedavg-seed0", "ifca-seed0"):
        screen.begin(run, 0, 10)
    for number in (1, 2, 3):
        clock.now += 2.0
        screen.round("fedavg-seed0", number, None)
        screen.round("ifca-seed0", 2 * number, None)
    assert (screen.done, screen.seconds_left) == (9, pytest.approx(11 * 6.0 / 9))
    screen.end("ifca-seed0", None, 6.0)  # after 6 of 10 rounds
    clock.now += 100.0
    screen.round("fedavg-seed0", 4, None)
    assert screen.done == 14
    assert "fedavg-seed0: round 4 of 10" in out.getvalue()


def test_what_comes_on_top_is_counted_with_what_is_done():
    screen, clock, _ = terminal()
    screen.plan(2, 20, 1, 10)
    play(screen, clock, "fedavg-seed0", range(1, 11), 10, 1.0)
    screen.end("fedavg-seed0", None, 10.0)
    screen.plan(4, 40, 2, 20)  # both are on disk now
    assert (screen.done, screen.seconds_left) == (20, pytest.approx(20.0))


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("run", ["fedavg-seed0", "setting7-selective_authors_and_more-seed2147483647"])
def test_the_bar_fits_on_its_line_with_every_number(width: int, run: str):
    screen, clock, _ = terminal(width)
    screen.plan(45, 45 * 500)
    play(screen, clock, run, range(1, 121), 500, 3.0)
    line = shown(screen, width)
    assert len(line.splitlines()) == 1
    assert len(line) <= width
    assert "120/22500" in line
    assert "18 h 39 min left" in line
    name = line.split()[0]
    assert name.startswith(run[:3])
    assert name.endswith(run[-2:])
    assert ("accuracy 0.912" in line) == (width >= 60)


def test_a_pipe_gets_lines_and_nothing_that_moves_a_cursor():
    screen, clock, out = terminal(is_terminal=False)
    with screen:
        screen.plan(2, 200)
        play(screen, clock, "fedavg-seed0", range(1, 101), 100, 2.0)
        screen.end("fedavg-seed0", "accuracy 0.912", 200.0)
    said = out.getvalue()
    assert {c for c in said if not c.isprintable()} == {"\n"}
    *rounds, last = said.splitlines()
    assert rounds[0] == "fedavg-seed0: round 31 of 100; 31 of all 200; 6 min left"
    assert len(rounds) == 3
    assert last.split() == ["1", "of", "2", "fedavg-seed0", "accuracy", "0.912", "200.0", "s"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (99, "99 s"), (100, "2 min"), (5999, "1 h 40 min"), (7260, "2 h 1 min"), (2e5, "2 d 7 h")],
)
def test_durations_are_short(seconds, said):
    assert short_duration(seconds) == said


def test_a_long_name_keeps_both_ends():
    assert shortened("selective_authors-seed12", 16) == "selectiv…-seed12"
    assert shortened("fedavg", 6) == "fedavg"
    assert len(shortened("fedavg-seed0", 3)) == 3
