"""Each silo beside itself in an earlier version of data/, which leaves data/ alone."""

from typing import Any

from flows.console import progress
from flows.diagnosis.build_query import build_query, first_query
from flows.diagnosis.load_version import load_version
from flows.diagnosis.query_clients import bytes_reported, no_reports, query_clients
from flows.diagnosis.report import report_of_versions
from flows.diagnosis.text.findings_page import version_report_text
from flows.experiment.project import Project
from models.shift.fomichev.distances import Readings
from silos.errors import UserError, shown
from tasks.diagnosis.compare_versions import ComparedVersions, compare_versions
from tasks.diagnosis.report_summary import summaries
from tasks.execution.task_runner import Runner


def compare_with_version(project: Project, runner: Runner, revision: str) -> tuple[ComparedVersions, dict[str, Any]]:
    """What was found, and the same as plain JSON with the words for it.

    UserError as of `earlier`, and where no silo was there then.
    """
    params, data = project.params.diagnose, project.params.data.name
    if params.second_look:
        raise UserError(
            "params.yaml: diagnose.second_look is at pairs of silos, and --against compares each silo with itself; add "
            "--set diagnose.second_look=false."
        )
    private = project.ledgers
    with load_version(project, revision) as before:
        now, then = project.silos.federated(), before.federated()
        both = [client for client in now.clients if client in {*then.clients}]
        if not both:
            raise UserError(
                f"no silo of data/{data} was there in {shown(revision)}; `siloflow data diff` shows who was."
            )
        versions = [silos.select(both) for silos in (then, now)]
        first = first_query(now, params)
        to_first = [query_clients(runner, silos, private, first, params) for silos in versions] if first else []
        told = summaries([m for answers in to_first for m in answers.messages]) if first else None
        asked = build_query(now, params, told)  # the same of both versions: bins that either has rows in
        old, new = (query_clients(runner, silos, private, asked, params) for silos in versions)
    silent = {**old.silent, **new.silent}
    if len(silent) == len(both):
        raise UserError(no_reports(silent))
    readings = Readings(**params.paper.model_dump(), grid="federation")
    found: ComparedVersions = runner.once(
        compare_versions, old.messages, new.messages, asked, params.verdict, readings, progress.current().say
    )
    return found, version_report_text(
        {
            "verdict": params.verdict,
            "noise": params.noise.model_dump() if params.noise else None,
            **report_of_versions(found, asked),
            "came": sorted({*now.clients} - {*both}),
            "left": sorted({*then.clients} - {*both}),
            "silent": silent,
            "bytes": bytes_reported([*to_first, old, new]),
            "against": shown(revision),
            "since": before.version,
            "data_version": now.version,
        }
    )
