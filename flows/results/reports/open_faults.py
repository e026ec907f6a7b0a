"""Finds faults of the data that the newest diagnosis named and that params do not mend, for commands that train on them."""

import shlex
from typing import Any

from flows.diagnosis.text.next_steps import unit_steps
from flows.experiments.advice.candidates import align_setting
from flows.project.project import Project
from flows.results.reports.comparison_report import newest_diagnosis


def open_faults(project: Project, version: str) -> list[str]:
    """Return a sentence for each feature that seems to have another unit at some silos, then a command without the fault.

    A feature that every silo standardises by its own rows has no such fault.

    Args:
        project: The project, whose params may align features.
        version: The data version that was diagnosed.
    """
    newest = newest_diagnosis(project, version)
    if newest is None:
        return []
    folder, report = newest
    try:
        suspected = unit_steps(report)
    except (LookupError, TypeError, ValueError, AttributeError):  # a report of another version
        return []  # a finished comparison does not fail for it
    steps = {name: step for name, step in suspected.items() if not _is_aligned(project, name)}
    if not steps:
        return []
    faults = [f"{folder.name} found a fault that is still open. {step}" for step in steps.values()]
    setting = align_setting(project, list(steps))
    if not setting:
        return faults
    return [*faults, f"Or let each silo standardise by its own rows: `siloflow compare --set {shlex.quote(setting)}`"]


def _is_aligned(project: Project, feature: str) -> bool:
    align: Any = project.params.clients.align
    return align.kind != "none" and (align.features == "all" or feature in align.features)
