"""What Prefect's page shows of a flow run besides its tasks: its name, lines of its log, texts."""

import logging
import time
from dataclasses import dataclass

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from flows.servers.prefect_failure import ignore_prefect_failure
from tasks.tracking.metric_names import as_markdown

_log = logging.getLogger("siloflow")  # none of Prefect's, which is told of every task
_log.setLevel(logging.INFO)
_log.propagate = False
_log.addHandler(APILogHandler())


@dataclass
class Logged:
    """How many lines of logs this process made, and seconds that its work waited for them; they go out in the background."""

    lines: int = 0
    seconds: float = 0.0


so_far = Logged()


def name_flow_run(name: str) -> str:
    """Gives the flow run this name, which says what it does, and answers it."""
    if flow_run.id:
        with ignore_prefect_failure(), get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=name)
    return name


def log_artifact(line: str) -> None:
    """A line in the flow run's log; sent in the background, some seconds' lines together."""
    if flow_run.id:
        begun = time.perf_counter()
        _log.info("%s", line)
        so_far.lines += 1
        so_far.seconds += time.perf_counter() - begun


def link(name: str | None = None) -> dict[str, str]:
    """Tags that name this flow run on MLflow's page; `name`: if it was `called` so. Nothing outside of a flow."""
    return {"prefect.flow_run": name or flow_run.name, "prefect.flow_run_id": flow_run.id} if flow_run.id else {}


def sentence(name: str | None = None) -> str:
    """Markdown that leads to it; nothing outside of a flow."""
    if not flow_run.id:
        return ""
    page = url_for("flow-run", obj_id=flow_run.id)
    text = as_markdown(name or flow_run.name)
    return f"Tasks in Prefect, while `siloflow ui` or Prefect's server runs: [{text}]({page})"


def shown(key: str, markdown: str) -> None:
    """Text on the flow run's page; key: lower-case letters and dashes, the same for all such texts."""
    if flow_run.id:
        with ignore_prefect_failure():
            create_markdown_artifact(markdown, key=key)
