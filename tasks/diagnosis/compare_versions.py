"""The server compares what each client told of two versions of its rows; it sees no row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from models.shift.client_summaries.client_summary import joined
from models.shift.client_summaries.gaussian_mechanism import drawable
from models.shift.client_summaries.missing_reports import MissingReports, missing_reports
from models.shift.client_summaries.query import Query
from models.shift.effect_sizes import EffectSizes, effect_sizes
from models.shift.fomichev.distances import Readings
from models.shift.pair_details import PairDetails, pair_details
from models.shift.pairwise_results import Findings
from tasks.diagnosis.compare_silos import Look, Pace, as_published, reports_of
from tasks.execution.task_types import server_step
from tasks.messages.diagnosis_messages import NoisyCounts, ShiftNumbers


@dataclass(frozen=True, eq=False)
class ComparedVersions:
    """Of each client that told of both versions, sorted: it before, as the first of a pair, and it after."""

    clients: tuple[str, ...]
    pairs: Findings
    strengths: EffectSizes
    close_ups: tuple[PairDetails, ...]  # of the clients that moved most
    gaps: MissingReports  # of each before, and behind them each after

    @property
    def names(self) -> tuple[str, ...]:
        """Of what pairs are of, by their places: each client then, and behind them each now."""
        return tuple(f"{client} {when}" for when in ("then", "now") for client in self.clients)


@server_step
def compare_versions(
    before: Sequence[ShiftNumbers | NoisyCounts],
    after: Sequence[ShiftNumbers | NoisyCounts],
    question: Query,
    verdict: Literal["guarded", "moments", "paper"],
    readings: Readings,
    say: Callable[[str], None],
) -> ComparedVersions:
    """Of those that answered of both, one at least; `say` hears how far it is, where it takes long."""
    (names, earlier), (names_after, later) = reports_of(before, question), reports_of(after, question)
    clients = tuple(name for name in names if name in set(names_after))
    told = joined(
        [summaries.take([at.index(c) for c in clients]) for at, summaries in ((names, earlier), (names_after, later))]
    )
    shown, places = drawable(told), np.arange(len(clients))
    pairs = Look(question, verdict, Pace(say)).at(told, question.layout, places, places + len(clients))
    each = [effect_sizes(shown.take(np.array([at, at + len(clients)])), question.layout, readings) for at in places]
    strong = EffectSizes(*(np.concatenate([getattr(one, f.name) for one in each]) for f in fields(EffectSizes)))
    if verdict == "paper":
        pairs = as_published(pairs, strong)
    closest = pair_details(shown, question.layout, pairs, [[at] for at in range(len(told.rows))])
    return ComparedVersions(clients, pairs, strong, closest, missing_reports(told, question.layout))
