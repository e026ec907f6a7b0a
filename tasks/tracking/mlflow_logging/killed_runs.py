"""Runs that MLflow has as running, although the process that worked on them is gone.

A file of its own: a command that imports `connection` has MLflow imported while its server starts.
"""

from collections.abc import Callable, Mapping

from tasks.tracking.mlflow_logging.connection import connect, impatient, usable_experiment


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
