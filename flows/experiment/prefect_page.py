"""What Prefect's page shows of a flow run besides its tasks."""

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run


def called(name: str) -> None:
    """On Prefect's page the flow run is called as it is on MLflow's."""
    if flow_run.id:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=name)


def shown(key: str, markdown: str) -> None:
    """Text on the flow run's page; key: lower-case letters and dashes, the same for all such texts."""
    if flow_run.id:
        create_markdown_artifact(markdown, key=key)
