"""What a person who reaches Prefect's page can have a schedule do, and what not."""

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.schema_tools.validation import validate

from tests.look import ask

NEVER_SOON = "0 0 29 2 *"
EVIL = """
from pathlib import Path

from flows.methods import fedavg
from flows.plugins import register_method

Path("been-here").touch()


@register_method("evil")
class Evil(fedavg.FedAvg):
    pass
"""


@pytest.fixture(scope="module")
def schedule(partitioned: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder in which a comparison is scheduled for later, with a page of the user's own, and Prefect's address."""
    home = tmp_path_factory.mktemp("schedule")
    folder = partitioned[0].copy(home / "project")
    for name in ("own", "evil"):
        (folder.path / f"{name}.py").write_text(
            EVIL.replace("been-here", f"{name}-was-here").replace('"evil"', f'"{name}"')
        )
    fixed = ("--set", "plugins=[own.py]", "--set", "training.rounds=3")
    with (home / "screen.txt").open("w+") as screen:
        process = folder.start("schedule", NEVER_SOON, "fedavg", *fixed, out=screen)
        end = time.monotonic() + 120
        while "ctrl-C" not in (said := Path(screen.name).read_text()) and time.monotonic() < end:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        yield folder, re.search(r"Prefect's page: (\S+)", said)[1] + "/api"
        process.send_signal(signal.SIGINT)
        process.wait(200)


def offered(api: str) -> Any:
    """The one deployment, once it is there."""
    end = time.monotonic() + 60
    while not (found := ask(f"{api}/deployments/filter", {})):
        assert time.monotonic() < end
        time.sleep(0.2)
    (deployment,) = found
    return deployment


def test_a_schedule_offers_its_comparison_on_prefects_page_for_a_later_time(schedule):
    _, api = schedule
    deployment = offered(api)
    assert deployment["parameters"] == {"methods": ["fedavg"], "seeds": []}
    assert [one["schedule"]["cron"] for one in deployment["schedules"]] == [NEVER_SOON]
    assert validate(deployment["parameters"], deployment["parameter_openapi_schema"]) == [], "as the form checks it"


@pytest.mark.slow
def test_a_run_from_prefects_page_takes_numbers_and_the_schedules_own_settings_but_no_code(schedule):
    folder, api = schedule
    deployment = offered(api)
    rounds = ["training.rounds=1", "training.epochs=1"]
    asked = {
        "own": {"methods": ["own"], "seeds": [0], "reference": "own", "overrides": rounds},
        "evil": {"methods": ["evil"], "reference": "evil", "overrides": [*rounds, "plugins=[evil.py]"]},
    }
    url = f"{api}/deployments/{deployment['id']}/create_flow_run"
    started = {name: ask(url, {"parameters": p, "state": {"type": "SCHEDULED"}})["id"] for name, p in asked.items()}
    states: dict[str, Any] = {}
    end = time.monotonic() + 250
    while len(states) < len(started) and time.monotonic() < end:
        time.sleep(0.5)
        for run in ask(f"{api}/flow_runs/filter", {"flow_runs": {"id": {"any_": list(started.values())}}}):
            if run["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED"):
                states[run["id"]] = run["state"]
    ended = {name: states[id] for name, id in started.items()}
    assert {name: state["type"] for name, state in ended.items()} == {"own": "COMPLETED", "evil": "FAILED"}
    assert "plugins: got a value in a flow run's parameters, expected none" in ended["evil"]["message"]
    assert (folder.path / "own-was-here").exists()
    assert not (folder.path / "evil-was-here").exists()
    (comparison,) = folder.path.glob("runs/compare-*/comparison.json")
    (run,) = json.loads(comparison.read_text())["runs"]
    assert (run["method"], run["rounds"]) == ("own", 1)
