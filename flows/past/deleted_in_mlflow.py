"""What runs that somebody deleted on MLflow's page still hold on disk."""

from pathlib import Path

from tasks.tracking.mlflow_logging.connection import connect, own_store

_DELETED, _ALL = 2, 3  # MLflow's ViewType


def artifacts_of_deleted_runs(root: Path) -> list[Path]:
    """Their folders under runs/artifacts/, of this folder's own store."""
    folders = {place.name: place for place in sorted((root / "runs" / "artifacts").glob("*/*")) if place.is_dir()}
    if not folders or not (root / "runs" / "mlflow.db").is_file():
        return []
    client = connect(own_store(root))
    experiments = [one.experiment_id for one in client.search_experiments(view_type=_ALL)]
    found, token = [], None
    while experiments:
        page = client.search_runs(experiments, run_view_type=_DELETED, max_results=1000, page_token=token)
        found += [folders[run.info.run_id] for run in page if run.info.run_id in folders]
        token = page.token
        if not token:
            break
    return found
