"""A server of Prefect's whose disk is full costs no result, and is told in a sentence that names the file system."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
from flows.console import progress
from flows.flow_decorator import project_flow

class Printing(progress.ProgressSink):
    def say(self, line):
        print("said:", line)

@project_flow(run_name="inner")
def inner(resume: bool = False):
    return 6

@project_flow(run_name="whole")
def whole():
    return 7

@project_flow(run_name="outer")
def outer(nested):
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
