"""An error of Prefect's API is told from others."""

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.execution.prefect_failure import failure_sentence, ignore_prefect_failure, is_prefect_failure

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
