"""`prefect deploy` with the prefect.yaml that comes along, and a process worker that runs what it deploys."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.schema_tools.validation import validate

from flows.init_project import create_project
from tests.look import ask

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PREFECT = Path(sys.executable).parent / "prefect"
ONE_ROUND = ["training.rounds=1"]
POOL = "siloflow"
BY_PATH = f"""
  - name: by-path
    entrypoint: flows/compare.py:compare
    work_pool: {{name: {POOL}}}
"""
FLAKY = """
from pathlib import Path

from flows.methods import fedavg
from flows.plugins import register_method


@register_method("flaky")
class Flaky(fedavg.FedAvg):
    def run_round(self, state, round):
        if round.number == 2 and not Path("repaired").exists():
            raise RuntimeError("the machine is out of order")
        return super().run_round(state, round)
"""


@pytest.fixture(scope="module")
def deployed(
    partitioned: Any, tmp_path_factory: pytest.TempPathFactory, server: str, environment: dict[str, str]
) -> Iterator[tuple[Any, Path]]:
    """A project with everything of prefect.yaml deployed, `compare` also by its file, and a worker; to ask Prefect's API."""
    home = tmp_path_factory.mktemp("deployed")
    folder = partitioned[0].copy(home / "project").path
    # as `siloflow init` writes it, and `compare` also by its file
    (folder / "prefect.yaml").write_text(f"{create_project.deployments_text()}\n{BY_PATH}")
    (folder / "flaky.py").write_text(FLAKY)
    params = folder / "params.yaml"
    params.write_text(params.read_text().replace("plugins: [] ", "plugins: [flaky.py] "))
    subprocess.run(["git", "init", "--quiet", folder], check=True)  # likewise
    setting = {**environment, "PREFECT_API_URL": server, "PREFECT_HOME": str(home / "prefect"), "DO_NOT_TRACK": "1"}
    setting["PREFECT_WORKER_QUERY_SECONDS"] = "1"  # else each run waits up to 10 s for its worker

    ask(f"{server}/work_pools/", {"name": POOL, "type": "process"})
    (folder / "flows").symlink_to(ROOT / "flows")  # as in a checkout
    command = [PREFECT, "--no-prompt", "deploy", "--all"]
    done = subprocess.run(command, cwd=folder, env=setting, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    command = [PREFECT, "worker", "start", "--pool", POOL, "--type", "process"]
    with (home / "worker.log").open("w") as log:
        elsewhere = home / "elsewhere"
        elsewhere.mkdir()
        worker = subprocess.Popen(command, cwd=elsewhere, env=setting, stdout=log, stderr=log, start_new_session=True)
    try:
        yield lambda path, body: ask(server + path, body), folder
    finally:
        os.killpg(worker.pid, signal.SIGKILL)  # how Prefect's worker ends is not what is tested, and takes it a minute
        worker.wait()


def ended(api: Any, *asked: tuple[dict[str, Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of these deployments with these parameters, once they are over."""
    started = []
    for deployment, parameters in asked:
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        started.append(api(f"/deployments/{deployment['id']}/create_flow_run", body)["id"])
    return over(api, started)


def over(api: Any, started: list[str]) -> list[dict[str, Any]]:
    """These runs, once they are over."""
    end = time.monotonic() + 250
    while time.monotonic() < end:
        time.sleep(0.5)
        runs = {r["id"]: r for r in api("/flow_runs/filter", {"flow_runs": {"id": {"any_": started}}})}
        if all(runs[id]["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED") for id in started):
            return [runs[id] for id in started]
    raise AssertionError({id: run["state"] for id, run in runs.items()})


def filled(deployment: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """What the page sends: what is filled in, and in all other fields what stands there at the beginning."""
    fields = deployment["parameter_openapi_schema"]["properties"]
    return {name: field["default"] for name, field in fields.items() if "default" in field} | parameters


def test_a_worker_runs_what_is_deployed_in_the_projects_folder_and_tells_a_mistake_in_a_sentence(deployed):
    api, folder = deployed
    there = {d["entrypoint"]: d for d in api("/deployments/filter", {})}
    by_path = there["flows/compare.py:compare"]  # the one whose parameters Prefect checks
    made, *_ = ended(api, (there["flows.partition.partition"], {}))
    assert made["state"]["type"] == "COMPLETED", made["state"]
    compared, wrong = ended(
        api,
        (by_path, filled(by_path, methods=["fedavg"], seeds=[1], overrides=ONE_ROUND)),
        (there["flows.run.run"], {"method": "fedavgg"}),
    )
    assert compared["state"]["type"] == "COMPLETED", compared
    assert len(list(folder.glob("runs/compare-*/fedavg-seed1/result.json"))) == 1
    assert wrong["state"]["type"] == "FAILED"
    assert wrong["state"]["message"] == "method: got 'fedavgg', expected a known method. Did you mean fedavg?"
    logged = api("/logs/filter", {"logs": {"flow_run_id": {"any_": [wrong["id"]]}}})
    assert "method: got 'fedavgg', expected a known method. Did you mean fedavg?" in {
        line["message"] for line in logged
    }
    assert not [line for line in logged if "Traceback" in line["message"]]


def test_a_form_says_what_a_parameter_is_and_what_there_is_to_choose(deployed):
    forms = {d["name"]: d["parameter_openapi_schema"]["properties"] for d in deployed[0]("/deployments/filter", {})}
    assert {"partition", "diagnose", "run", "compare", "advise", "predict", "watch"} <= set(forms)
    assert [name for form in forms.values() for name, field in form.items() if not field.get("description")] == []
    assert {"fedavg", "uefl"} <= set(forms["run"]["method"]["enum"])
    assert {"fedavg", "uefl"} <= set(forms["watch"]["methods"]["items"]["enum"])
    assert forms["watch"]["grade"]["enum"] == ["", "negligible", "moderate", "significant", "critical"]


def test_nothing_runs_by_itself_before_a_schedule_or_a_trigger_is_switched_on(deployed):
    api, _ = deployed
    there = {d["name"]: d for d in api("/deployments/filter", {})}
    scheduled = {name: [s["active"] for s in d["schedules"]] for name, d in there.items() if d["schedules"]}
    assert scheduled == {"diagnose": [False], "compare": [False], "watch": [False]}
    (automation,) = api("/automations/filter", {})
    assert (automation["enabled"], automation["trigger"]["expect"]) == (False, ["siloflow.silo.shifted"])
    assert automation["actions"][0]["deployment_id"] == there["compare"]["id"]


def test_a_retry_of_a_failed_comparison_continues_in_its_folder(deployed):
    api, folder = deployed
    there = {d["name"]: d for d in api("/deployments/filter", {})}
    parameters = {"methods": ["fedavg", "flaky"], "seeds": [3], "overrides": ["training.rounds=3"]}
    (failed,) = ended(api, (there["compare"], parameters))
    assert (failed["state"]["type"], failed["run_count"]) == ("FAILED", 1)
    (first,) = folder.glob("runs/compare-*/fedavg-seed3/result.json")
    before = first.stat().st_mtime_ns
    (folder / "repaired").touch()
    retry = {"type": "SCHEDULED", "name": "AwaitingRetry"}
    api(f"/flow_runs/{failed['id']}/set_state", {"state": retry, "force": True})  # as the page's button does
    (completed,) = over(api, [failed["id"]])
    assert (completed["state"]["type"], completed["run_count"]) == ("COMPLETED", 2)
    (second,) = folder.glob("runs/compare-*/flaky-seed3/result.json")
    assert second.parent.parent == first.parent.parent
    assert first.stat().st_mtime_ns == before
    assert json.loads(second.read_text())["resumed_from_round"] == 1


def test_every_field_of_a_form_can_be_filled_in_and_may_be_left_as_it_is(deployed):
    """Of several types the page makes a switch without a field; and Prefect checks what is left as what is filled in."""
    for deployment in deployed[0]("/deployments/filter", {}):
        form = deployment["parameter_openapi_schema"]
        assert [name for name, field in form["properties"].items() if not isinstance(field.get("type"), str)] == []
        needed = {name: form["properties"][name].get("enum", ["any"])[0] for name in form.get("required", ())}
        assert validate(filled(deployment, **needed), form) == []
