"""`siloflow watch` without --once looks on after a problem that may pass."""

import json
from pathlib import Path
from typing import Any

import pytest

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
