"""Silos that seem to differ in inputs and in rule are asked again: do their inputs explain what seems another rule?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flows.diagnosis.query_clients import Responses, answered
from models.shift.client_summaries.model_predictions import Design
from models.shift.client_summaries.query import Query
from silos.client_store import ClientStore
from silos.cohort import Silos
from tasks.diagnosis.compare_silos import Compared, reports_of
from tasks.diagnosis.refine_pairs import doubtful_pairs, refine_pairs
from tasks.diagnosis.report_models import report_models
from tasks.diagnosis.report_predictions import report_predictions
from tasks.execution.task_runner import Runner
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
    again: Compared = runner.once(refine_pairs, found, answers.messages, asked, owners, foreseen)
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
