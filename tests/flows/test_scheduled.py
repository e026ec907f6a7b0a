"""How a schedule ends where Prefect's API fails."""

from pathlib import Path

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.results.run_history import abandoned_runs
from flows.schedule import cron_schedule, serve
from silos.errors import UserError


def test_an_api_that_fails_ends_a_schedule_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = "http://127.0.0.1:9/api"

    def fail(root: Path) -> None:
        raise httpx.ConnectError("refused", request=httpx.Request("GET", f"{api}/deployments"))

    monkeypatch.setattr(abandoned_runs, "delete_deployment", fail)
    with (
        temporary_settings({PREFECT_API_URL: api}),
        pytest.raises(UserError, match=r"^Prefect's API at .* does not respond"),
    ):
        serve(tmp_path, cron_schedule("@daily"), api, {}, [])
    assert (tmp_path / abandoned_runs.SCHEDULE).is_file(), "the next command deletes what was planned"
