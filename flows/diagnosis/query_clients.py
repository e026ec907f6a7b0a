"""The queries of a diagnosis, bounds first if none are agreed and then counts in bins, and the clients' answers."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.stats import norm

from flows.core.config.diagnose_params import FEW_BINS, DiagnoseParams
from models.diagnosis.client_summaries.client_summary import Layout, Summaries, overall_moments
from models.diagnosis.client_summaries.query import Query, light_bounds, project_pictures
from models.privacy_accounting import rho
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import UserError
from silos.schema import Schema, is_table
from silos.storage.manifest import schema_of
from tasks.diagnosis.report_summary import TARGET_COLUMN, join_summaries, report_summary
from tasks.execution.steps import ClientStep
from tasks.execution.task_runner import Runner, map_clients
from tasks.messages.message_policy import Message
from tasks.messages.statistics_messages import NoisyCounts, Refusal, ShiftNumbers
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.result_types.diagnosis_result import BytesSent, DependentRows, SecondLook

_WIDTH = 3.0  # deviations around the mean of all rows that bounds cover
_GROUPS = 5  # of targets, which serve as classes


def first_query(silos: Silos, params: DiagnoseParams) -> Query | None:
    """Build the query of moments from which bounds or groups of targets are derived; None if all are agreed.

    UserError if they are needed and clients add noise.
    """
    schema = schema_of(silos.manifest)
    layout, has_bounds = _layout(schema, params.bins)
    regression = schema.task == "regression"
    if has_bounds.all() and not regression:
        return None
    if params.noise is not None:
        open_ends = [name for name, bounded in zip(layout.names, has_bounds, strict=True) if not bounded]
        if open_ends:
            raise UserError(
                f"data.features: got no low and high of {open_ends[0]!r}, expected both with diagnose.noise, since bounds "
                "computed from rows would be sent without noise. Declare them."
            )
        raise UserError(
            "diagnose.noise: got a budget, expected none for a regression, since groups of targets computed from rows would "
            "be sent without noise. Leave diagnose.noise out."
        )
    return moments_query(silos)


def moments_query(silos: Silos) -> Query:
    """Build the query of moments by class, and of a regression's target."""
    schema = schema_of(silos.manifest)
    layout, _ = _layout(schema, 1)
    query = Query(schema.id, layout, _pictures(schema), counts=False)
    return replace(query, layout=_with_target(layout), targets=True) if schema.task == "regression" else query


def build_query(
    silos: Silos, params: DiagnoseParams, summaries: Summaries | None, bounds: "Bounds | None" = None
) -> Query:
    """Build the query for the verdict; `summaries` are the answers to the first query, if there was one.

    Bounds that were agreed on before are used again.
    """
    schema = schema_of(silos.manifest)
    layout, agreed = _layout(schema, min(params.bins, FEW_BINS) if params.noise else params.bins)
    if summaries is not None:
        moments = overall_moments(summaries)
        mean, spread = moments[:, 1], np.where(moments[:, 2] > 0, moments[:, 2], 1.0)
        low, high = (np.nan_to_num(mean + sign * _WIDTH * spread)[: len(agreed)] for sign in (-1, 1))
        if schema.task == "regression":
            cuts = mean[-1] + spread[-1] * norm.ppf(np.arange(1, _GROUPS) / _GROUPS)
            layout = replace(layout, targets=tuple(cuts.tolist()), classes=_GROUPS)
        layout = replace(layout, low=np.where(agreed, layout.low, low), high=np.where(agreed, layout.high, high))
    if bounds:
        layout = bounds.applied(layout, agreed, schema.task == "regression")
    rho_ = rho(params.noise.epsilon, params.noise.delta) if params.noise else 0.0
    return Query(schema.id, layout, _pictures(schema), counts=params.verdict != "moments", rho=rho_)


def _layout(schema: Schema, bins: int) -> tuple[Layout, np.ndarray]:
    """Return the layout, and which features have agreed bounds, (features,) bool; others have -1 and 1."""
    classes, pictures = len(schema.classes), _pictures(schema)
    if pictures:
        light = pictures == "light"
        names = project_pictures(np.zeros((1, *schema.shape)), light)[0]
        low, high = light_bounds(names) if light else (-np.ones(len(names)), np.ones(len(names)))
        layout = Layout(names, (None,) * len(names), low, high, bins, classes, missing=(False,) * len(names))
        return layout, np.full(len(names), light)
    features = schema.features
    layout = Layout(
        tuple(feature.name for feature in features),
        # as stored rows are: float32
        tuple(tuple(np.asarray(feature.categories, np.float32).tolist()) or None for feature in features),
        np.array([-1.0 if feature.low is None else feature.low for feature in features]),
        np.array([1.0 if feature.high is None else feature.high for feature in features]),
        bins,
        classes,
        missing=tuple(feature.fill is not None for feature in features),
    )
    return layout, np.array([feature.categories != () or feature.low is not None for feature in features])


def _with_target(layout: Layout) -> Layout:
    """Put all rows into one class, and append the target as a feature."""
    low, high = np.append(layout.low, -1.0), np.append(layout.high, 1.0)
    names, categories = (*layout.names, TARGET_COLUMN), (*layout.categories, None)
    return replace(
        layout, names=names, categories=categories, classes=1, missing=(*layout.missing, False), low=low, high=high
    )


def _pictures(schema: Schema) -> Literal["light", "numbers"] | None:
    if is_table(schema.shape, schema.dtype):
        return None
    return "light" if schema.dtype == "uint8" else "numbers"


_STACK = 16  # clients loaded together


@dataclass(frozen=True)
class Bounds:
    """What all silos of a store agreed on from their rows: low and high by feature, and the cuts between targets.

    All later diagnoses use them, since a silo counts its rows in one set of bins only.
    """

    features: Mapping[str, Sequence[float]] = field(default_factory=dict)
    targets: Sequence[float] = ()

    @classmethod
    def read(cls, private: ClientStore) -> "Bounds":
        """Read what was agreed on; nothing if there is no file. Earlier versions also wrote what no silo had reported."""
        path = Path(private.folder) / _BOUNDS
        content = read_json(path, "bring it back from a copy, or declare low and high", ("features", "targets"))
        if not content:
            return cls()
        features = {name: (low, high) for name, (low, high) in content["features"].items() if low < high}
        return cls(features, () if None in content["targets"] else content["targets"])

    def write(self, private: ClientStore) -> None:
        write_json(Path(private.folder) / _BOUNDS, {"features": dict(self.features), "targets": list(self.targets)})

    def cover(self, silos: Silos, params: DiagnoseParams) -> bool:
        """Return whether all bounds and cuts that are not declared were agreed on."""
        schema = schema_of(silos.manifest)
        layout, declared = _layout(schema, params.bins)
        names = {name for name, is_declared in zip(layout.names, declared, strict=True) if not is_declared}
        return names <= self.features.keys() and (schema.task != "regression" or bool(self.targets))

    def and_those_of(self, layout: Layout, is_reported: np.ndarray) -> "Bounds":
        """Add a layout's bounds of numeric features, and its cuts between targets.

        is_reported: (features,) bool, or (features + 1,) with targets: whether a silo reported moments, which bounds need.
        """
        reported = is_reported[: len(layout.names)].tolist()
        parts = zip(layout.names, layout.categories, layout.low.tolist(), layout.high.tolist(), reported, strict=True)
        features = {name: (low, high) for name, categories, low, high, known in parts if known and categories is None}
        return Bounds({**features, **self.features}, self.targets or (layout.targets if is_reported[-1] else ()))

    def applied(self, layout: Layout, declared: np.ndarray, regression: bool) -> Layout:
        """Return the layout with these bounds where features have no declared ones, and with these targets."""
        parts = zip(layout.names, declared.tolist(), layout.low.tolist(), layout.high.tolist(), strict=True)
        bounds = [(low, high) if own else self.features.get(name, (low, high)) for name, own, low, high in parts]
        low, high = np.array(bounds, np.float64).reshape(-1, 2).T
        layout = replace(layout, low=low, high=high)
        if regression and self.targets:
            layout = replace(layout, targets=tuple(self.targets), classes=len(self.targets) + 1)
        return layout


_BOUNDS = "bounds.json"


@dataclass(frozen=True)
class Responses:
    """The messages of clients, and the reasons of the clients that refused."""

    messages: list[ShiftNumbers | NoisyCounts]
    refusals: Mapping[str, str]


def agree_on_query(
    silos: Silos, params: DiagnoseParams, private: ClientStore, ask: Callable[[Query], list[Responses]]
) -> tuple[Query, list[Responses]]:
    """Return the query for the verdict, and the responses to the query of moments if bounds had to be agreed on first.

    Agreed values are written to the store; values that no silo reports are queried again. ask: queries the clients.
    """
    bounds, first = Bounds.read(private), first_query(silos, params)
    if first is None or bounds.cover(silos, params):
        return build_query(silos, params, None, bounds), []
    responses = ask(first)
    moments = join_summaries([m for each in responses for m in each.messages])
    query = build_query(silos, params, moments, bounds)
    bounds.and_those_of(query.layout, np.isfinite(overall_moments(moments)[:, 1])).write(private)
    return query, responses


def query_clients(
    runner: Runner, silos: Silos, private: ClientStore, query: Query, params: DiagnoseParams
) -> Responses:
    """Query every client; UserError if all refuse."""
    noise = params.noise
    options = {"budget": noise.budget, "delta": noise.delta} if noise else {}
    received, refusals = collect_answers(runner, report_summary, silos, private=private, query=query, **options)
    messages = [m for m in received if isinstance(m, ShiftNumbers | NoisyCounts)]
    if not messages:
        raise UserError(no_answers_message(refusals))
    return Responses(messages, refusals)


def collect_answers(
    runner: Runner, task: ClientStep, silos: Silos, **options: Any
) -> tuple[list[Message], Mapping[str, str]]:
    """Run a step on every client; returns the messages, and the reasons of the clients that refused."""
    received: list[Message] = map_clients(runner, task, silos, stack=_STACK, may_be_silent=True, **options)
    refusals = {client: why for m in received if isinstance(m, Refusal) for client, why in m.why.items()}
    return [m for m in received if not isinstance(m, Refusal)], refusals


def bytes_reported(
    responses: Sequence[Responses],
    second_look: SecondLook | None = None,
    feature_pairs: Sequence[Message] = (),
) -> BytesSent:
    """Return the bytes sent by all clients for these responses, feature pairs and the second look, and the most of one.

    The answers of all clients to a query have equal size.
    """
    more: BytesSent = second_look["bytes"] if second_look else {"up": 0, "up_of_a_client": 0}
    sent: Counter[str] = Counter()
    for message in (*(m for response in responses for m in response.messages), *feature_pairs):
        sent.update(dict.fromkeys(message.clients, message.bytes_up // len(message.clients)))
    return {"up": sent.total() + more["up"], "up_of_a_client": max(sent.values(), default=0) + more["up_of_a_client"]}


def dependent_rows(silos: Silos, responses: Sequence[Responses]) -> DependentRows:
    """Describe rows that are not independent: what counts as one row, and the clients with many copies of rows.

    `unit` is the column of `data.source.unit`, by which rows are counted, or None. `repeats`, and `persons` of clients
    whose rows look like several of each person, are empty under noise.
    """
    messages = [m for response in responses for m in response.messages if isinstance(m, ShiftNumbers)]
    return {
        "unit": silos.manifest.params.get("source", {}).get("unit"),
        "repeats": sorted({client for m in messages for client in m.repeats}),
        "persons": sorted({client for m in messages for client in m.persons}),
    }


def label_column(silos: Silos) -> str:
    """Return the name of a table's column of labels; "" for other sources."""
    source = silos.manifest.params.get("source", {})
    return str(source["label"]) if source.get("kind") == "table" else ""


def no_answers_message(refusals: Mapping[str, str]) -> str:
    """Return the error message if every client refuses."""
    first = min(refusals)
    more = f" (and {len(refusals) - 1} more silos likewise)" if len(refusals) > 1 else ""
    return f"no silo may answer. {refusals[first][:1].upper()}{refusals[first][1:]}{more}"
