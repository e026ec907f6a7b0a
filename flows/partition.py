"""Defines the flow `partition`: it splits a source into silos under data/, and DVC records their version."""

from flows.orchestration.flow_decorator import from_overrides, project_flow
from flows.project.make_partition import make
from flows.project.project import Project
from tasks.tracking import prefect_artifacts
from tasks.tracking.result_types.project_results import PartitionResult


@project_flow(run_name="partition")
def partition(project: Project = from_overrides()) -> PartitionResult:
    """Write the folder of data/ that params.yaml describes, and update data.dvc; return what was written.

    Args:
        overrides: Values that replace those of params.yaml, each as section.key=value, for example training.rounds=20.
    """
    prefect_artifacts.name_flow_run(f"partition {project.params.data.name}")
    return make(project)
