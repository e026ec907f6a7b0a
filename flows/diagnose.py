"""The flow `diagnose`: how silos differ, from what they tell of their rows.

Silos that seem to differ in inputs and in rule are asked again: do their inputs explain what seems another rule?
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flows.config.override_policy import open_project
from flows.console import progress
from flows.diagnosis.query_clients import Responses, answered, build_query, bytes_reported, first_query, query_clients
from flows.diagnosis.report import report
from flows.diagnosis.save_report import save_report
from flows.diagnosis.text.findings_page import report_text, silences
from flows.diagnosis.version_comparison import compare_with_version
from flows.experiment.project import Project
from flows.flow_decorator import Overrides, project_flow
from models.shift.client_summaries.model_predictions import Design
from models.shift.client_summaries.query import Query
from models.shift.fomichev_distances import Readings
from silos.client_store import ClientStore
from silos.cohort import Silos
from tasks.diagnosis.compare_silos import Compared, compare_silos, reports_of
from tasks.diagnosis.report_predictions import doubtful_pairs, refine_pairs, report_models, report_predictions
from tasks.diagnosis.report_summary import summaries
from tasks.execution.task_runner import PrefectRunner, Runner
from tasks.messages.diagnosis_messages import HalfModels, PredictedCounts
from tasks.messages.message_policy import Message


def refine(
    runner: Runner, silos: Silos, private: ClientStore, asked: Query, answers: Responses, found: Compared
) -> tuple[Compared, dict[str, Any]]:
    """What is found then, and of it in plain JSON: who was asked, told and silent, pairs in doubt and explained, bytes.

    Only silos of pairs in doubt are asked: first for models of their labels, then what these of their own and of the others
    in such a pair with them foresee of their rows. Where groups are compared, since there are so many silos, none is.
    """
    pairs = doubtful_pairs(found)
    places = np.unique([found.pairs.first[pairs], found.pairs.second[pairs]])
    clients = [found.clients[at] for at in places]
    if not clients:
        return found, _report(found, found, {})
    design = Design.of(asked, reports_of(answers.messages, asked)[1])
    told, silent = answered(runner, report_models, silos.select(clients), private=private, design=design)
    models = [m for m in told if isinstance(m, HalfModels)]
    weights = {client: own for m in models for client, own in zip(m.clients, m.weights.numpy(), strict=True)}
    of_partners = _of_partners(found, weights)
    if not of_partners:
        return found, _report(found, found, silent, models)
    told, more = answered(
        runner, report_predictions, silos.select(list(of_partners)), private=private, design=design, models=of_partners
    )
    foreseen = [m for m in told if isinstance(m, PredictedCounts)]
    owners = {client: tuple(models) for client, models in of_partners.items()}
    again: Compared = runner.run_on_server(refine_pairs, found, answers.messages, asked, owners, foreseen)
    return again, _report(found, again, {**silent, **more}, models, foreseen)


def _of_partners(found: Compared, weights: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Of each silo of a pair in doubt that both told models, its own and those of all silos in such a pair with it."""
    asked: dict[str, dict[str, np.ndarray]] = {}
    for pair in doubtful_pairs(found):
        both = [found.clients[at[pair]] for at in (found.pairs.first, found.pairs.second)]
        if all(client in weights for client in both):
            for client in both:
                asked.setdefault(client, {}).update({owner: weights[owner] for owner in both})
    return {client: dict(sorted(models.items())) for client, models in sorted(asked.items())}


def _report(
    before: Compared,
    after: Compared,
    silent: Mapping[str, str],
    models: Sequence[HalfModels] = (),
    foreseen: Sequence[PredictedCounts] = (),
) -> dict[str, Any]:
    told = {name: _clients(messages) for name, messages in (("models", models), ("foreseen", foreseen))}
    up = sum(m.bytes_up for m in (*models, *foreseen))
    return {
        "silos": sorted({*told["models"], *silent}),
        "told": told,
        "of_groups": before.of_groups,
        "pairs": len(doubtful_pairs(before)),
        "explained": len(doubtful_pairs(before)) - len(doubtful_pairs(after)),
        "silent": dict(sorted(silent.items())),
        "bytes": {"up": up, "up_of_a_client": up // max(1, len(told["models"]))},
    }


def _clients(messages: Sequence[Message]) -> list[str]:
    return sorted(client for m in messages for client in m.clients)


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
    found: Compared = runner.run_on_server(
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
