"""What Prefect's page shows of a flow run besides its tasks: its name, lines of its log, texts."""

import logging

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run

_log = logging.getLogger("siloflow")  # none of Prefect's, which is told of every task
_log.setLevel(logging.INFO)
_log.propagate = False
_log.addHandler(APILogHandler())


def called(name: str) -> None:
    """The flow run's name, which says what it does."""
    if flow_run.id:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=name)


def logged(line: str) -> None:
    """A line in the flow run's log; sent in the background, some seconds' lines together."""
    if flow_run.id:
        _log.info("%s", line)


def shown(key: str, markdown: str) -> None:
    """Text on the flow run's page; key: lower-case letters and dashes, the same for all such texts."""
    if flow_run.id:
        create_markdown_artifact(markdown, key=key)
