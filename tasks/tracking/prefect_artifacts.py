"""Writes to Prefect's page of a flow run: its name, lines of its log, and texts."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from tasks.execution.prefect_failure import ignore_prefect_failure
from tasks.tracking.metric_names import as_markdown

_log = logging.getLogger("siloflow")  # not one of Prefect's, which logs every task
_log.setLevel(logging.INFO)
_log.propagate = False
_log.addHandler(APILogHandler())


@dataclass
class LogStats:
    """Counts the log lines of this process and the seconds its work waited for them; a background thread sends them."""

    lines: int = 0
    seconds: float = 0.0


log_stats = LogStats()


def name_flow_run(name: str) -> str:
    """Set the name of the flow run, if there is one, and return it."""
    if flow_run.id:
        with ignore_prefect_failure(), get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=name)
    return name


def log_artifact(line: str) -> None:
    """Log a line of the flow run; a background thread sends the lines of some seconds together."""
    if flow_run.id:
        began = time.perf_counter()
        _log.info("%s", line)
        log_stats.lines += 1
        log_stats.seconds += time.perf_counter() - began


def flow_run_tags(name: str | None = None) -> dict[str, str]:
    """Return MLflow tags that name this flow run, or `name` if it was renamed; empty outside of a flow."""
    return {"prefect.flow_run": name or flow_run.name, "prefect.flow_run_id": flow_run.id} if flow_run.id else {}


def flow_run_markdown(name: str | None = None) -> str:
    """Return Markdown with a link to this flow run; empty outside of a flow."""
    if not flow_run.id:
        return ""
    page = url_for("flow-run", obj_id=flow_run.id)
    text = as_markdown(name or flow_run.name)
    return f"Tasks in Prefect, while `siloflow ui` or another server of Prefect runs: [{text}]({page})"


def file_link(path: Path) -> str:
    """Return Markdown with a link to a report in the folder of a run, which MLflow has too."""
    return f"Report to hand on: [{as_markdown(f'{path.parent.name}/{path.name}')}]({path.as_uri()}), also in MLflow."


def show_markdown(key: str, markdown: str) -> None:
    """Show a text on the flow run's page; `key`, in lower-case letters and dashes, is the same for all such texts."""
    if flow_run.id:
        with ignore_prefect_failure():
            create_markdown_artifact(markdown, key=key)
