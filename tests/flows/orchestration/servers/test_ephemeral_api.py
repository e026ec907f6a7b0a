"""The server of Prefect that verbs called from Python share, in a process that was forked from theirs."""

import os
import subprocess
import sys
from typing import Any

import pytest

from flows.orchestration.servers import ephemeral_api

SCRIPT = """
from flows.core.console import progress
from flows.orchestration.flow_decorator import project_flow

class Printing(progress.ProgressSink):
    def say(self, line):
        print("said:", line)

@project_flow(run_name="inner")
def inner():
    return 6

@project_flow(run_name="whole")
def whole():
    return 7

@project_flow(run_name="outer")
def outer(nested, resume: bool = False):
    with open(".prefect/ballast", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    return inner() if nested else 5

progress.use(Printing())
print("result:", outer(False))
import os
os.truncate(".prefect/ballast", 0)
for flow, nested in ((outer, (True,)), (whole, ())):
    try:
        flow(*nested)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_forked_process_leaves_the_server_to_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ephemeral_api, "_server", object())
    with ephemeral_api._one_at_a_time:
        child = os.fork()
        if child == 0:
            free: Any = ephemeral_api._one_at_a_time.acquire(blocking=False)
            os._exit(0 if ephemeral_api._server is None and free else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ephemeral_api._server is not None


@pytest.mark.slow
def test_a_result_outlives_the_full_disk_and_what_had_not_ended_is_a_users_mistake(tmp_path, small_disk):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    (tmp_path / "params.yaml").touch()  # makes the folder a project
    with small_disk(tmp_path / ".prefect", 16):
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    full = f"Prefect's server cannot write {tmp_path}/.prefect: the file system {tmp_path}/.prefect is full"
    assert done.returncode == 0, done.stderr
    said, result, mistake, of_whole = done.stdout.splitlines()
    assert (
        said
        == f"said: {full}. Free some space; the result is complete, but Prefect's page does not show the end of the run."
    )
    assert result == "result: 5"
    assert mistake == f"UserError {full}. Free some space. Then --resume continues after the last complete round."
    assert of_whole == f"UserError {full}. Free some space. Then run the command again."  # it has no `resume`
    assert done.stderr == ""
