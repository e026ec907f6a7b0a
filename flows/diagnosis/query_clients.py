"""What silos are asked: bounds first where none are agreed, then counts on bins that follow from them.

Silos are asked, each through its ledger; those that may not answer are silent, and the others are heard.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.stats import norm

from flows.config.diagnose_params import FEW_BINS, DiagnoseParams
from models.shift.client_summaries.client_summary import Layout, Summaries, of_all
from models.shift.client_summaries.gaussian_mechanism import rho
from models.shift.client_summaries.query import Query
from models.shift.client_summaries.random_projections import bounds, projected
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import UserError
from silos.schema import Schema, is_table
from silos.storage.manifest import schema_of
from tasks.diagnosis.report_summary import report_summary
from tasks.execution.task_runner import Runner, cohort_calls
from tasks.execution.task_types import ClientStep
from tasks.messages.diagnosis_messages import NoisyCounts, Refusal, ShiftNumbers
from tasks.messages.message_policy import Message

_WIDE = 3.0  # deviations around the mean of all rows, beyond which a bin is open
_GROUPS = 5  # of targets, that stand for classes


def first_query(silos: Silos, params: DiagnoseParams) -> Query | None:
    """Moments only: what is asked where bounds of a feature, or groups of targets, are not agreed on; None where they are.

    UserError where they cannot be asked for, since clients add noise.
    """
    schema = schema_of(silos.manifest)
    layout, agreed = _layout(schema, params.bins)
    regression = schema.task == "regression"
    if agreed.all() and not regression:
        return None
    if params.noise is not None:
        open_ends = [name for name, there in zip(layout.names, agreed, strict=True) if not there]
        what = f"feature {open_ends[0]!r} has no bounds" if open_ends else "targets have no agreed groups"
        way = "declare its low and high under data.features" if open_ends else "leave noise out"
        raise UserError(f"params.yaml: diagnose.noise is asked for, and {what}, which rows would tell; {way}.")
    asked = Query(schema.id, layout, _pictures(schema), counts=False)
    return replace(asked, layout=_with_target(layout), targets=True) if regression else asked


def build_query(silos: Silos, params: DiagnoseParams, told: Summaries | None) -> Query:
    """The one that the verdict stands on; told: answers to the first question, if there was one."""
    schema = schema_of(silos.manifest)
    layout, agreed = _layout(schema, min(params.bins, FEW_BINS) if params.noise else params.bins)
    if told is not None:
        whole = of_all(told)
        mean, spread = whole[:, 1], np.where(whole[:, 2] > 0, whole[:, 2], 1.0)
        low, high = (np.nan_to_num(mean + sign * _WIDE * spread)[: len(agreed)] for sign in (-1, 1))
        if schema.task == "regression":
            cuts = mean[-1] + spread[-1] * norm.ppf(np.arange(1, _GROUPS) / _GROUPS)
            layout = replace(layout, targets=tuple(cuts.tolist()), classes=_GROUPS)
        layout = replace(layout, low=np.where(agreed, layout.low, low), high=np.where(agreed, layout.high, high))
    cost = rho(params.noise.epsilon, params.noise.delta) if params.noise else 0.0
    return Query(schema.id, layout, _pictures(schema), counts=params.verdict != "moments", rho=cost)


def _layout(schema: Schema, bins: int) -> tuple[Layout, np.ndarray]:
    """And of which features bounds are agreed on: (features,) bool; they are -1 and 1 of the others."""
    classes, pictures = len(schema.classes), _pictures(schema)
    if pictures:
        light = pictures == "light"
        names = projected(np.zeros((1, *schema.shape)), light)[0]
        low, high = bounds(names) if light else (-np.ones(len(names)), np.ones(len(names)))
        layout = Layout(names, (None,) * len(names), low, high, bins, classes, missing=(False,) * len(names))
        return layout, np.full(len(names), light)
    features = schema.features
    layout = Layout(
        tuple(feature.name for feature in features),
        tuple(_as_kept(feature.categories) or None for feature in features),
        np.array([-1.0 if feature.low is None else feature.low for feature in features]),
        np.array([1.0 if feature.high is None else feature.high for feature in features]),
        bins,
        classes,
        missing=tuple(feature.fill is not None for feature in features),
    )
    return layout, np.array([feature.categories != () or feature.low is not None for feature in features])


def _as_kept(categories: tuple[float, ...]) -> tuple[float, ...]:
    """As rows are: float32."""
    return tuple(np.asarray(categories, np.float32).tolist())


def _with_target(layout: Layout) -> Layout:
    """All rows are one class, and the target is one feature more."""
    low, high = np.append(layout.low, -1.0), np.append(layout.high, 1.0)
    names, categories = (*layout.names, "the target"), (*layout.categories, None)
    return replace(
        layout, names=names, categories=categories, classes=1, missing=(*layout.missing, False), low=low, high=high
    )


def _pictures(schema: Schema) -> Literal["light", "numbers"] | None:
    if is_table(schema.shape, schema.dtype):
        return None
    return "light" if schema.dtype == "uint8" else "numbers"


_STACK = 16  # clients whose rows are opened together


@dataclass(frozen=True)
class Responses:
    """What was told, and why the clients that told nothing did not."""

    messages: list[ShiftNumbers | NoisyCounts]
    silent: Mapping[str, str]


def query_clients(
    runner: Runner, silos: Silos, private: ClientStore, asked: Query, params: DiagnoseParams
) -> Responses:
    """Every client; UserError where none may answer."""
    noise = params.noise
    allowed = {"budget": rho(noise.budget, noise.delta), "delta": noise.delta} if noise else {}
    heard, silent = answered(runner, report_summary, silos, private=private, question=asked, **allowed)
    messages = [m for m in heard if isinstance(m, ShiftNumbers | NoisyCounts)]
    if not messages:
        raise UserError(no_reports(silent))
    return Responses(messages, silent)


def answered(runner: Runner, task: ClientStep, silos: Silos, **options: Any) -> tuple[list[Message], Mapping[str, str]]:
    """What every client answers to a step, and why those that may not did not."""
    calls = cohort_calls(silos, _STACK, runner.workers, **options)
    heard: list[Message] = [message for cohort in runner.map_cohorts(task, calls) for message in cohort]
    silent = {client: why for m in heard if isinstance(m, Refusal) for client, why in m.why.items()}
    return [m for m in heard if not isinstance(m, Refusal)], silent


def bytes_reported(answers: Sequence[Responses], look: Mapping[str, Any] | None = None) -> dict[str, int]:
    """Of all that answered to any of these questions, and the most of one; look: what a second look says of itself.

    A client's answer to a question is as large as any other's.
    """
    up = look["bytes"] if look else {"up": 0, "up_of_a_client": 0}
    of: Counter[str] = Counter()
    for message in (m for one in answers for m in one.messages):
        of.update(dict.fromkeys(message.clients, message.bytes_up // len(message.clients)))
    return {"up": of.total() + up["up"], "up_of_a_client": max(of.values(), default=0) + up["up_of_a_client"]}


def no_reports(silent: Mapping[str, str]) -> str:
    """The sentence where nobody is heard."""
    first = min(silent)
    more = f" (and {len(silent) - 1} more silos likewise)" if len(silent) > 1 else ""
    return f"no silo may answer. {silent[first][:1].upper()}{silent[first][1:]}{more}"
