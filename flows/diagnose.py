"""The flow `diagnose`: how silos differ, from what they tell of their rows."""

from typing import Any

from flows.config.override_policy import open_project
from flows.console import progress
from flows.diagnosis.build_query import build_query, first_query
from flows.diagnosis.query_clients import bytes_reported, query_clients
from flows.diagnosis.refine import refine
from flows.diagnosis.report import report
from flows.diagnosis.save_report import save_report
from flows.diagnosis.text.findings_page import report_text
from flows.diagnosis.text.version_sentences import silences
from flows.diagnosis.version_comparison import compare_with_version
from flows.entrypoints.flow_decorator import project_flow
from flows.entrypoints.parameter_schemas import Overrides
from flows.experiment.project import Project
from models.shift.fomichev.distances import Readings
from tasks.diagnosis.compare_silos import Compared, compare_silos
from tasks.diagnosis.report_summary import summaries
from tasks.execution.task_runner import PrefectRunner, Runner


@project_flow(run_name="diagnose")
def diagnose(against: str | None = None, overrides: Overrides = ()) -> dict[str, Any]:
    """Asks every silo, compares all pairs, and writes down what was found.

    Args:
        against: Each silo is compared with itself in this version, a git revision or the start of a data version.
        overrides: Values over those of params.yaml, each as section.key=value, for example training.rounds=20.
    """
    project = open_project(overrides)
    with project.working("diagnose"), project.workers() as workers:
        runner = PrefectRunner(workers)
        if against is not None:
            return save_report(project, *compare_with_version(project, runner, against))
        return save_report(project, *examined(project, runner))


def examined(project: Project, runner: Runner) -> tuple[Compared, dict[str, Any]]:
    """The work of the flow, as a function: what was found, and the same as plain JSON with the words for it."""
    params, silos = project.params.diagnose, project.silos.federated()
    private = project.ledgers
    first = first_query(silos, params)
    to_first = [query_clients(runner, silos, private, first, params)] if first else []
    asked = build_query(silos, params, summaries(to_first[0].messages) if first else None)
    answers = query_clients(runner, silos, private, asked, params)
    readings = Readings(**params.paper.model_dump(), grid="federation")
    found: Compared = runner.once(
        compare_silos, answers.messages, asked, params.verdict, readings, progress.current().say
    )
    found, look = refine(runner, silos, private, asked, answers, found) if params.second_look else (found, None)
    answer = report_text(
        {
            "verdict": params.verdict,
            "noise": params.noise.model_dump() if params.noise else None,
            **report(found, asked),
            "silent": dict(answers.silent),
            "bytes": bytes_reported([*to_first, answers], look),
            "second_look": look,
            "data_version": silos.version,
        }
    )
    return found, {**answer, "sentences": [*answer["sentences"], *silences(answers.silent)]}
