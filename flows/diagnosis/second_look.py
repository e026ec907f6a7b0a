"""Silos that seem to differ in inputs and in rule are asked again: do their inputs explain what seems another rule?"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flows.diagnosis.asking import Answers, answered
from models.shift.told.foreseen import Design
from models.shift.told.question import Question
from silos.cohort import Silos
from silos.private import PrivateStore
from tasks.diagnosis.compare_silos import Compared, told_of
from tasks.diagnosis.look_again import doubted, look_again
from tasks.diagnosis.tell_foreseen import tell_foreseen
from tasks.diagnosis.tell_models import tell_models
from tasks.messages import ForeseenCounts, HalfModels, Message
from tasks.running.runner import Runner


def second_look(
    runner: Runner, silos: Silos, private: PrivateStore, asked: Question, answers: Answers, found: Compared
) -> tuple[Compared, dict[str, Any]]:
    """What is found then, and of it in plain JSON: who was asked, pairs in doubt and explained, bytes, who was silent.

    Only silos of pairs in doubt are asked: first for models of their labels, then what all these models foresee of their
    rows. Where groups are compared, since there are so many silos, none is.
    """
    pairs = doubted(found)
    places = np.unique([found.pairs.first[pairs], found.pairs.second[pairs]])
    clients = [found.clients[at] for at in places]
    if not clients:
        return found, _report(found, found, {}, [])
    design = Design.of(asked, told_of(answers.messages, asked)[1])
    told, silent = answered(runner, tell_models, silos.select(clients), private=private, design=design)
    models = [m for m in told if isinstance(m, HalfModels)]
    weights = {client: own for m in models for client, own in zip(m.clients, m.weights.numpy(), strict=True)}
    if not weights:
        return found, _report(found, found, dict(silent), models)
    owners = tuple(sorted(weights))
    sent = {"owners": owners, "weights": np.stack([weights[owner] for owner in owners])}
    told, more = answered(runner, tell_foreseen, silos.select(owners), private=private, design=design, **sent)
    foreseen = [m for m in told if isinstance(m, ForeseenCounts)]
    again: Compared = runner.once(look_again, found, answers.messages, asked, owners, foreseen)
    return again, _report(found, again, {**silent, **more}, [*models, *foreseen])


def _report(before: Compared, after: Compared, silent: dict[str, str], messages: Sequence[Message]) -> dict[str, Any]:
    asked = sorted({client for m in messages for client in m.clients} | {*silent})
    up = sum(m.bytes_up for m in messages)
    return {
        "silos": asked,
        "of_groups": before.of_groups,
        "pairs": len(doubted(before)),
        "explained": len(doubted(before)) - len(doubted(after)),
        "silent": silent,
        "bytes": {"up": up, "up_of_a_client": up // max(1, len(asked))},
    }
