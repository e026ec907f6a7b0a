"""Runs of MLflow's store whose process is gone, and the artifacts of runs that were deleted there.

A file of its own: a command that imports `connection` has MLflow imported while its server starts.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tasks.tracking.mlflow_logging.connection import connect, impatient, own_store, usable_experiment

_DELETED, _ALL = 2, 3  # MLflow's ViewType


def mark_killed(uri: str, ours: Mapping[str, Mapping[str, Callable[[], bool]]]) -> tuple[list[str], bool]:
    """Give runs on which no process works the status KILLED.

    Args:
        uri: The address of MLflow's store.
        ours: The name of each experiment, to the tags `siloflow.run` of its runs, to whether a process works on the run.

    Returns:
        The names of these runs, and whether MLflow answered. Runs without such a tag are not touched.
    """
    names = []
    try:
        with impatient():
            client = connect(uri)
            for experiment, tags in ours.items():
                _, number = usable_experiment(client, experiment)
                runs = client.search_runs([number], "attributes.status = 'RUNNING'") if number else []
                for run in runs:
                    works = tags.get(run.data.tags.get("siloflow.run"))
                    if works is not None and not works():
                        client.set_terminated(run.info.run_id, "KILLED")
                        names.append(run.info.run_name)
    except Exception:  # MLflow's, its HTTP library's or SQLAlchemy's: the next command tries again
        return names, False
    return names, True


def artifacts_of_deleted_runs(root: Path) -> list[Path]:
    """Return the folders under runs/artifacts/ of runs that were deleted in MLflow, of this folder's own store."""
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
