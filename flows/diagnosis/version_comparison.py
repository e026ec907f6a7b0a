"""Compares each silo with itself in an earlier version of data/, which is not changed."""

from pathlib import Path
from typing import Any

from flows.console import progress
from flows.diagnosis.load_version import load_version
from flows.diagnosis.query_clients import (
    agree_on_query,
    bytes_reported,
    dependent_rows,
    label_column,
    no_answers_message,
    query_clients,
)
from flows.diagnosis.report import report_of_versions
from flows.diagnosis.text.findings_page import version_report_text
from flows.experiment.project import Project
from models.shift.fomichev_distances import Readings
from silos.errors import UserError, shown
from silos.privacy.silo_policy import check_named_silos, least_rows_of
from tasks.diagnosis.compare_silos import VersionComparison, compare_versions
from tasks.execution.task_runner import Runner


def compare_with_version(project: Project, runner: Runner, revision: str) -> tuple[VersionComparison, dict[str, Any]]:
    """Compare each silo with itself in a version: return the comparison, and the report as plain JSON.

    UserError as in `load_version`, and if no silo existed in the version.
    """
    params, data = project.params.diagnose, project.params.data.name
    if params.second_look:
        raise UserError(
            "params.yaml: diagnose.second_look is at pairs of silos, and --against compares each silo with itself; add "
            "--set diagnose.second_look=false."
        )
    private = project.ledgers
    with load_version(project, revision) as before:
        check_named_silos(Path(private.folder), project.manifest.names)
        now, then = project.silos.federated(), before.federated()
        shared = [client for client in now.clients if client in {*then.clients}]
        if not shared:
            raise UserError(
                f"no silo of data/{data} was there in {shown(revision)}; `siloflow data diff` shows who was."
            )
        versions = [silos.select(shared) for silos in (then, now)]
        query, first_answers = agree_on_query(  # equal for both versions, so that their bins agree
            now,
            params,
            private,
            lambda first: [query_clients(runner, silos, private, first, params) for silos in versions],
        )
        old, new = (query_clients(runner, silos, private, query, params) for silos in versions)
    refusals = {**old.refusals, **new.refusals}
    if len(refusals) == len(shared):
        raise UserError(no_answers_message(refusals))
    readings = Readings(**params.paper.model_dump(), grid="federation")
    comparison: VersionComparison = runner.run_on_server(
        compare_versions, old.messages, new.messages, query, params.verdict, readings, progress.current().say
    )
    return comparison, version_report_text(
        {
            "verdict": params.verdict,
            "noise": params.noise.model_dump() if params.noise else None,
            "label": label_column(now),
            "least_rows": [*least_rows_of(Path(private.folder), shared)],
            **report_of_versions(comparison, query, project.manifest.classes),
            **dependent_rows(now, [old, new]),
            "came": sorted({*now.clients} - {*shared}),
            "left": sorted({*then.clients} - {*shared}),
            "refused": refusals,
            "bytes": bytes_reported([*first_answers, old, new]),
            "against": shown(revision),
            "since": before.version,
            "data_version": now.version,
        }
    )
