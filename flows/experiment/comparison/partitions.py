"""Draws more partitions for a comparison, under further data seeds, and says what a published comparison needs."""

from collections.abc import Mapping, Sequence
from typing import Any

from flows.console import progress
from flows.experiment.comparison.trials import Plan
from flows.experiment.project import Project
from silos.data_params import Column, DataParams, assignment_at
from silos.errors import UserError
from silos.sources.source_params import OwnSource, Synthetic
from silos.sources.source_registry import load_source

PUBLISHED = 5
"""The seeds, and the partitions where they can be drawn, of a comparison that names a winner under --publish."""


def can_draw(data: DataParams) -> bool:
    """Return whether another data seed makes other silos of the same source."""
    if isinstance(data.source, Synthetic | OwnSource):
        return True
    return not isinstance(data.scheme[assignment_at(data.scheme)], Column)


def check_partitions(project: Project) -> None:
    """Raise a UserError if params ask for several partitions of natural silos."""
    partitions, data = project.params.comparison.partitions, project.params.data
    if partitions > 1 and not can_draw(data):
        raise UserError(
            f"comparison.partitions: got {partitions}, expected 1, since the silos of data/{data.name} are natural: "
            "data.scheme takes them from a column, and no seed draws others. For other silos like these, set "
            "comparison.over to silos."
        )


def draw_partitions(project: Project, count: int) -> list[Project]:
    """Return the project, and one for each further data seed; every partition is made once, in the cache of partitions.

    Raises:
        UserError: If a partition cannot be made, or equals the one before it.
    """
    projects = [project]
    for index in range(1, count):
        seed = project.params.data.seed + index
        progress.current().say(f"partition {index + 1} of {count}: data seed {seed}")
        drawn = project.with_data_seed(seed)
        before, rows = (one.manifest.clients for one in (projects[-1], drawn))
        if before.names == rows.names and before.digest.tobytes() == rows.digest.tobytes():
            raise UserError(
                f"comparison.partitions: got the same silos with data seeds {seed - 1} and {seed}, expected others. Set "
                "comparison.partitions to 1, or use a scheme that draws."
            )
        projects.append(drawn)
    return projects


def shared_test_rows(project: Project) -> float:
    """Return the share of a partition's test rows that another partition tests on too.

    It is 1 if the source marks its test rows, 0 if the source itself is drawn by the data seed, else the share of the
    source's rows that are tested.
    """
    data, silos = project.params.data, project.silos
    if isinstance(data.source, Synthetic):
        return 0.0
    rows = load_source(data.source, project.root, data.seed, data.features)
    if rows.split is not None and (rows.split == "test").any():
        return 1.0
    tested = silos.common("test") or int(silos.rows_array("test").sum())
    return min(tested / len(rows.y), 1.0)


def missing_for_publication(project: Project, plan: Plan, paired: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a comparison under --publish lacks, as `5 seeds (got 3)`; empty without --publish."""
    if not project.params.comparison.publish:
        return []
    seeds = min((len(pair["seeds"]) for pair in paired), default=len(plan.seeds))
    lacking = [f"{PUBLISHED} seeds (got {seeds})"] if seeds < PUBLISHED else []
    if can_draw(project.params.data) and plan.partitions < PUBLISHED:
        lacking.append(f"{PUBLISHED} partitions (got {plan.partitions})")
    return lacking if plan.tune else [*lacking, "--tune"]
