"""The flow `diagnose`: how silos differ, by reports on their rows, with a second look at pairs in doubt.

It also compares each silo with itself in an earlier version of data/, which is not changed.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flows.core.config.diagnose_params import DiagnoseParams
from flows.core.console import progress
from flows.diagnosis.build_report import report, report_of_versions
from flows.diagnosis.data_faults import data_faults
from flows.diagnosis.load_version import load_version
from flows.diagnosis.new_rows import compare_new_rows, with_new_rows
from flows.diagnosis.not_compared import not_compared
from flows.diagnosis.query_clients import (
    Responses,
    agree_on_query,
    bytes_reported,
    collect_answers,
    dependent_rows,
    first_query,
    label_column,
    no_answers_message,
    query_clients,
)
from flows.diagnosis.text.findings_page import refusal_sentences, report_text, version_report_text
from flows.orchestration.flow_decorator import Text, from_overrides, project_flow
from flows.project.project import Project
from flows.project.project_workers import project_workers
from flows.results.reports.diagnosis_report import save_report
from models.diagnosis.client_summaries.model_predictions import Design
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.diagnose_pairs import explaining_products
from models.diagnosis.fomichev_distances import Readings
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import UserError, shown
from silos.privacy.owner_file import check_named_silos, least_rows_of, policy_of_run
from tasks.diagnosis.compare_feature_pairs import (
    FeaturePairs,
    pair_question,
    refine_by_feature_pairs,
    report_feature_pairs,
    target_moments,
)
from tasks.diagnosis.compare_odd_silos import compare_odd_silos
from tasks.diagnosis.compare_silos import (
    Comparison,
    VersionComparison,
    compare_silos,
    compare_versions,
    named_summaries,
)
from tasks.diagnosis.report_predictions import doubtful_pairs, refine_pairs, report_models, report_predictions
from tasks.execution.prefect_runner import PrefectRunner
from tasks.execution.task_runner import Runner
from tasks.messages.message_policy import Message
from tasks.messages.statistics_messages import FeatureCorrelations, HalfModels, PredictedCounts
from tasks.tracking.result_types.diagnosis_result import (
    DiagnosisResult,
    NoiseRecord,
    SecondLook,
    SecondLookClients,
    SiloReport,
    VersionReport,
)


def refine(
    runner: Runner, silos: Silos, private: ClientStore, query: Query, responses: Responses, comparison: Comparison
) -> tuple[Comparison, SecondLook]:
    """Check with models whether inputs explain differing rules: the comparison then, and what was checked.

    Only silos of pairs in doubt are queried: first for models of their labels, then for predictions on their rows.
    These are by their own models and by those of their partners in such pairs. If groups are compared, since there are
    many silos, none is queried.
    """
    pairs = doubtful_pairs(comparison)
    indices = np.unique([comparison.pairs.first[pairs], comparison.pairs.second[pairs]])
    clients = [comparison.clients[index] for index in indices]
    if not clients:
        return comparison, _report(comparison, comparison, {})
    products = explaining_products(comparison.pairs, pairs)
    design = Design.from_summaries(query, named_summaries(responses.messages, query)[1], products)
    received, refusals = collect_answers(runner, report_models, silos.select(clients), private=private, design=design)
    models = [m for m in received if isinstance(m, HalfModels)]
    weights = {client: own for m in models for client, own in zip(m.clients, m.weights.numpy(), strict=True)}
    of_partners = _of_partners(comparison, weights)
    if not of_partners:
        return comparison, _report(comparison, comparison, refusals, models)
    received, more_refusals = collect_answers(
        runner, report_predictions, silos.select(list(of_partners)), private=private, design=design, models=of_partners
    )
    predictions = [m for m in received if isinstance(m, PredictedCounts)]
    owners = {client: tuple(models) for client, models in of_partners.items()}
    refined: Comparison = runner.run_on_server(refine_pairs, comparison, responses.messages, query, owners, predictions)
    return refined, _report(comparison, refined, {**refusals, **more_refusals}, models, predictions)


def _of_partners(comparison: Comparison, weights: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Return the models that each silo predicts with: its own and its partners', for pairs in doubt that have both."""
    models_of: dict[str, dict[str, np.ndarray]] = {}
    for pair in doubtful_pairs(comparison):
        names = [comparison.clients[clients[pair]] for clients in (comparison.pairs.first, comparison.pairs.second)]
        if all(client in weights for client in names):
            for client in names:
                models_of.setdefault(client, {}).update({owner: weights[owner] for owner in names})
    return {client: dict(sorted(models.items())) for client, models in sorted(models_of.items())}


def _report(
    before: Comparison,
    after: Comparison,
    refusals: Mapping[str, str],
    models: Sequence[HalfModels] = (),
    predictions: Sequence[PredictedCounts] = (),
) -> SecondLook:
    reported: SecondLookClients = {"models": _clients(models), "predictions": _clients(predictions)}
    bytes_up = sum(m.bytes_up for m in (*models, *predictions))
    return {
        "silos": sorted({*reported["models"], *refusals}),
        "reported": reported,
        "of_groups": before.of_groups,
        "pairs": len(doubtful_pairs(before)),
        "explained": len(doubtful_pairs(before)) - len(doubtful_pairs(after)),
        "refused": dict(sorted(refusals.items())),
        "bytes": {"up": bytes_up, "up_of_a_client": bytes_up // max(1, len(reported["models"]))},
    }


def _clients(messages: Sequence[Message]) -> list[str]:
    return sorted(client for m in messages for client in m.clients)


@project_flow(run_name="diagnose")
def diagnose(against: Text = "", project: Project = from_overrides()) -> DiagnosisResult:
    """Query every silo, compare all pairs, and save the report.

    Args:
        against: The version that each silo is compared with instead of others: a git revision, or the start of a data
            version.
        overrides: Values that replace those of params.yaml, each as section.key=value, for example training.rounds=20.
    """
    with project.data.working("diagnose"), project_workers(project) as workers:
        runner = PrefectRunner(workers)
        if against:
            return save_report(project, *compare_with_version(project, runner, against))
        return save_report(project, *run_diagnosis(project, runner))


def compares_feature_pairs(query: Query, params: DiagnoseParams, silos: Silos) -> bool:
    """Return whether silos are queried for pairs of features.

    They are if they have tables of independent rows, and report counts without noise.
    """
    independent = dependent_rows(silos, ())["unit"] is None
    return params.verdict == "guarded" and query.counts and not query.rho and query.pictures is None and independent


def _noise(params: DiagnoseParams) -> NoiseRecord | None:
    noise = params.noise
    if noise is None:
        return None
    return {"epsilon": noise.epsilon, "delta": noise.delta, "budget": noise.budget}


class _ByFeaturePairs(NamedTuple):
    """The comparison, and what silos have reported of pairs of features and, in a regression, of their targets."""

    comparison: Comparison
    first_responses: list[Responses]
    pairs: FeaturePairs | None = None
    targets: Mapping[str, np.ndarray] | None = None
    messages: Sequence[FeatureCorrelations] = ()


def _query_feature_pairs(
    runner: Runner, project: Project, query: Query, responses: Responses, found: _ByFeaturePairs
) -> _ByFeaturePairs:
    """Query the silos for pairs of features, and in a regression for moments of targets if these were not agreed on."""
    params, silos, private = project.params.diagnose, project.silos.federated(), project.ledgers
    question = pair_question(found.comparison, responses.messages, query)
    received, _ = collect_answers(runner, report_feature_pairs, silos, private=private, question=question)
    messages = [m for m in received if isinstance(m, FeatureCorrelations)]
    first, first_responses, targets = first_query(silos, params), found.first_responses, None
    if first and first.targets:
        with suppress(UserError):  # all silos refuse: targets are compared in their groups only
            first_responses = first_responses or [query_clients(runner, silos, private, first, params)]
            targets = target_moments(first_responses[0].messages, first)
    resolve = not params.second_look  # which decides by models of rows
    parts = (found.comparison, responses.messages, messages, question, targets, resolve)
    comparison, pairs = runner.run_on_server(refine_by_feature_pairs, *parts)
    return _ByFeaturePairs(comparison, first_responses, pairs, targets, messages)


def run_diagnosis(project: Project, runner: Runner) -> tuple[Comparison, SiloReport]:
    """Run the diagnosis as a function: return the comparison, and the report with its sentences."""
    params, silos = project.params.diagnose, project.silos.federated()
    private = project.ledgers
    check_named_silos(Path(private.folder), project.silos.manifest.names)
    query, first_responses = agree_on_query(
        silos, params, private, lambda first: [query_clients(runner, silos, private, first, params)]
    )
    responses = query_clients(runner, silos, private, query, params)
    summaries = named_summaries(responses.messages, query)[1]
    readings = Readings(**params.paper.model_dump(), grid="federation")
    log = progress.current().say
    comparison: Comparison = runner.run_on_server(
        compare_silos, responses.messages, query, params.verdict, readings, log
    )
    by_pairs = _ByFeaturePairs(comparison, first_responses)
    if compares_feature_pairs(query, params, silos):
        by_pairs = _query_feature_pairs(runner, project, query, responses, by_pairs)
        comparison = by_pairs.comparison
    second_look = None
    if params.second_look:
        comparison, second_look = refine(runner, silos, private, query, responses, comparison)
    # after pairs of features and models have explained what they can: a silo is odd by the differences that are left
    odd = runner.run_on_server(
        compare_odd_silos,
        comparison,
        responses.messages,
        query,
        params.verdict,
        readings,
        by_pairs.pairs,
        not params.second_look,
        log,
    )
    dependent = dependent_rows(silos, [responses])
    least = {client: policy_of_run(Path(private.folder), client).least_rows for client in silos.clients}
    report_ = report_text(
        {
            "verdict": params.verdict,
            "noise": _noise(params),
            "label": label_column(silos),
            "least_rows": [min(least.values()), max(least.values())],
            **report(comparison, query, project.silos.manifest.classes, by_pairs.pairs, by_pairs.targets, odd),
            "data_faults": data_faults(
                comparison, query, summaries, dependent["persons"], dependent["unit"] is not None
            ),
            "not_compared": not_compared(
                comparison,
                query,
                summaries,
                by_pairs.pairs,
                least,
                dependent["unit"] is not None,
                second_look is not None,
                dependent["persons"],
            ),
            **dependent,
            "refused": dict(responses.refusals),
            "bytes": bytes_reported([*by_pairs.first_responses, responses], second_look, by_pairs.messages),
            "second_look": second_look,
            "data_version": silos.version,
        }
    )
    return comparison, {**report_, "sentences": [*report_["sentences"], *refusal_sentences(responses.refusals)]}


def _shared_silos(now: Silos, then: Silos, revision: str, data: str) -> list[str]:
    """Return the silos that data/ has now and had in the revision; UserError if there are none."""
    shared = [client for client in now.clients if client in {*then.clients}]
    if not shared:
        raise UserError(
            f"--against: got {shown(revision)}, which has no silo of data/{data}, expected a version that has one. "
            "`siloflow data diff` lists the silos of both versions."
        )
    return shared


def compare_with_version(project: Project, runner: Runner, revision: str) -> tuple[VersionComparison, VersionReport]:
    """Compare each silo with itself in a version: return the comparison, and the report with its sentences.

    UserError as in `load_version`, and if no silo existed in the version.
    """
    params = project.params.diagnose
    if params.second_look:
        raise UserError(
            "params.yaml: diagnose.second_look: got true, expected false with --against, which compares each silo with "
            "itself: a second look compares pairs of silos. Add `--set diagnose.second_look=false`."
        )
    private = project.ledgers
    with load_version(project, revision) as before:
        check_named_silos(Path(private.folder), project.silos.manifest.names)
        now, then = project.silos.federated(), before.federated()
        shared = _shared_silos(now, then, revision, project.params.data.name)
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
        new_rows = compare_new_rows(runner, versions[1], before, private, query, params)
    readings = Readings(**params.paper.model_dump(), grid="federation")
    comparison: VersionComparison = runner.run_on_server(
        compare_versions, old.messages, new.messages, query, params.verdict, readings, progress.current().say
    )
    report_ = version_report_text(
        {
            "verdict": params.verdict,
            "noise": _noise(params),
            "label": label_column(now),
            "least_rows": [*least_rows_of(Path(private.folder), shared)],
            **report_of_versions(comparison, query, project.silos.manifest.classes),
            **dependent_rows(now, [old, new]),
            "came": sorted({*now.clients} - {*shared}),
            "left": sorted({*then.clients} - {*shared}),
            "refused": refusals,
            "new_rows": new_rows,
            "bytes": bytes_reported([*first_answers, old, new]),
            "against": shown(revision),
            "since": before.version,
            "data_version": now.version,
        }
    )
    return comparison, with_new_rows(report_)
