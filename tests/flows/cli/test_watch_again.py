"""`siloflow watch` without --once looks on after a problem that may pass."""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.cli.command_session import Session
from flows.cli.serving_commands import watch
from silos.errors import UserError

UNCHANGED = {"outcome": "unchanged", "sentence": "No silo has changed.", "decision": None}


@pytest.mark.parametrize("first_fails", [False, True])
def test_a_problem_of_a_later_look_ends_nothing_and_one_of_the_first_ends_the_command(
    first_fails: bool, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    busy = UserError("data/ is in use by `siloflow run`. Wait.")
    looks = iter([busy] if first_fails else [UNCHANGED, busy, UNCHANGED])
    slept: list[float] = []

    def look(_: Any) -> Any:
        answer = next(looks)
        if isinstance(answer, UserError):
            raise answer
        return answer

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("flows.results.registry.changed_silos.look", look)
    monkeypatch.setattr("flows.cli.serving_commands.time.sleep", sleep)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        watch(minutes=2, json=True)
    out, err = capsys.readouterr()
    assert ("data/ is in use by `siloflow run`. Wait." in err) is True
    assert [json.loads(line)["outcome"] for line in out.splitlines()] == ["unchanged"] * (0 if first_fails else 2)
    assert slept == ([] if first_fails else [120, 120, 120])
    assert ("The next look is in 2 minutes." in err) != first_fails


def test_each_look_is_recorded_with_its_end_before_the_next_begins(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, all looks ended when `watch` did, and those that failed were answered."""
    monkeypatch.chdir(project)
    looks, lines = iter([UNCHANGED, UserError("data/ is in use."), UNCHANGED]), list[str]()

    @contextmanager
    def recording(*_: Any) -> Iterator[None]:
        lines.append("begins")
        try:
            yield
        except BaseException as error:
            lines.append(str(error))
            raise
        lines.append("answered")

    def look(_: Any) -> Any:
        answer = next(looks)
        if isinstance(answer, UserError):
            raise answer
        return answer

    def sleep(_: float) -> None:
        lines.append("sleeps")
        if lines.count("sleeps") == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("silos.privacy.request_log.recording", recording)
    monkeypatch.setattr("flows.results.registry.changed_silos.look", look)
    monkeypatch.setattr("flows.cli.serving_commands.time.sleep", sleep)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        watch(minutes=2, json=True)
    ends = ["answered", "data/ is in use.", "answered"]
    assert lines == [line for end in ends for line in ("begins", end, "sleeps")]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [(OSError(errno.ENOSPC, "No space left"), "cannot write"), (UserError("requests.log is damaged."), "is damaged")],
)
def test_an_end_that_cannot_be_recorded_is_an_error_with_a_sentence(
    fault: Exception,
    sentence: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project)

    @contextmanager
    def recording(*_: Any) -> Iterator[None]:
        yield
        raise fault

    monkeypatch.setattr("silos.privacy.request_log.recording", recording)
    with pytest.raises(SystemExit) as end, Session() as session:
        session.open_project(None)
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_watch_that_lost_its_server_ends(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    looks = iter([UNCHANGED, UserError("Prefect does not respond.")])

    def look(_: Any) -> Any:
        answer = next(looks)
        if isinstance(answer, UserError):
            raise answer
        return answer

    monkeypatch.setattr("flows.results.registry.changed_silos.look", look)
    monkeypatch.setattr("flows.cli.serving_commands.time.sleep", lambda _: None)
    monkeypatch.setattr("flows.cli.command_session.Session.has_lost_server", lambda _: True)
    with pytest.raises(SystemExit) as end:
        watch(minutes=2, json=True)
    assert end.value.code == 2
