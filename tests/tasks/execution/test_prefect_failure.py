"""An error of Prefect's API is told from others; one of a full disk costs no result and names the file system."""

import os
import subprocess
import sys

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.execution.prefect_failure import failure_sentence, ignore_prefect_failure, is_prefect_failure

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


API = "http://prefect.example:4200/api"


def refused(url: str, code: int = 503) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", url)
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(code, request=request))


def raised(error: Exception, cause: Exception | None = None, context: Exception | None = None) -> Exception:
    error.__cause__, error.__context__, error.__suppress_context__ = cause, context, cause is not None
    return error


def raised_from_none(error: Exception, context: Exception) -> Exception:
    error.__context__, error.__suppress_context__ = context, True
    return error


@pytest.mark.parametrize(
    ("error", "is_prefects"),
    [
        (refused(f"{API}/flow_runs/"), True),
        (httpx.ConnectError("away", request=httpx.Request("GET", f"{API}/health")), True),
        (raised(RuntimeError(), cause=refused(f"{API}/logs/")), True),
        (raised(RuntimeError(), context=raised(ValueError(), context=refused(f"{API}/logs/"))), True),
        (refused("http://model-hub.example/api/weights"), False),  # of a source or plugin of the user's
        (httpx.ConnectError("away", request=httpx.Request("GET", "http://127.0.0.1:9/api")), False),
        (httpx.ConnectError("no request is known"), False),
        (raised(ValueError(), cause=KeyError(), context=refused(f"{API}/logs/")), False),
        (raised_from_none(ValueError(), context=refused(f"{API}/logs/")), False),
        (ConnectionError("of another library"), False),
        (None, False),
    ],
)
def test_only_an_error_of_the_api_that_prefect_uses_is_prefects(error, is_prefects):
    with temporary_settings({PREFECT_API_URL: API}):
        assert is_prefect_failure(error) == is_prefects
        if error is not None and is_prefects:
            with ignore_prefect_failure():
                raise error
        elif error is not None:
            with pytest.raises(type(error)), ignore_prefect_failure():
                raise error
    with temporary_settings({PREFECT_API_URL: None}):
        assert not is_prefect_failure(error)


def test_what_the_api_answers_is_told_by_its_code():
    with temporary_settings({PREFECT_API_URL: API}):
        assert (
            failure_sentence(refused(API, 503))
            == f"Prefect's API at {API} responds with code 503. See the log of its server"
        )
        away = httpx.ConnectError("away", request=httpx.Request("GET", API))
        assert failure_sentence(away).startswith(f"Prefect's API at {API} does not respond any more. ")


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
