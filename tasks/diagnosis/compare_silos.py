"""Compare the reports of clients on the server, and name the shift of every pair; the server sees no row.

The server compares what each client told of two versions of its rows; it sees no row.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from models.shift import moment_tests, nested_tests
from models.shift.classify import EffectSizes, Verdicts, effect_sizes
from models.shift.client_summaries.client_summary import LEAST_ROWS, Layout, Summaries, joined
from models.shift.client_summaries.gaussian_mechanism import as_precise, counts_sensitivity, drawable, from_noisy, sigma
from models.shift.client_summaries.missing_reports import MissingReports, missing_reports
from models.shift.client_summaries.query import Query
from models.shift.fomichev_distances import Readings
from models.shift.pair_screening import PairDetails, chances, on_shared_bins, pair_details, together
from models.shift.pairwise_results import Findings, against_the_rest, alike, find_differences, findings
from models.shift.pairwise_tables import all_pairs
from tasks.diagnosis.report_summary import summaries
from tasks.execution.task_types import server_step
from tasks.messages.diagnosis_messages import NoisyCounts, ShiftNumbers

_EVERY = 5.0  # seconds


class Pace:
    """Says a line each five seconds, the first after as long; `clock`: seconds from any start."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._last = clock()

    def of(self, what: str, pairs: int) -> Callable[[int], None]:
        """What a part of the comparison tells how many of its pairs are done."""

        def told(done: int) -> None:
            now = self._clock()
            if now - self._last >= _EVERY and done < pairs:
                self._last = now
                self._say(f"{what}: {done:,} of {pairs:,} pairs compared")

        return told


MOST_PAIRS = 5000
"""That are looked at one by one; of more, groups of clients that are alike are found first, and these compared."""


@dataclass(frozen=True, eq=False)
class Compared:
    """Pairs in the order of `all_pairs`: of clients, or of groups where there are too many; groups are of places.

    rest: each client and the others together; strengths: of the same pairs; pair_details: of the worst of them; gaps: of the
    clients.
    """

    clients: tuple[str, ...]
    pairs: Findings
    of_groups: bool
    groups: list[list[int]]
    rest: Findings
    strengths: EffectSizes
    rest_strengths: EffectSizes
    close_ups: tuple[PairDetails, ...]
    gaps: MissingReports

    @property
    def names(self) -> tuple[str, ...]:
        """Of what pairs are of, by their places."""
        return tuple(f"group {at + 1}" for at in range(len(self.groups))) if self.of_groups else self.clients


@server_step
def compare_silos(
    messages: Sequence[ShiftNumbers | NoisyCounts],
    question: Query,
    verdict: Literal["guarded", "moments", "paper"],
    readings: Readings,
    say: Callable[[str], None],
) -> Compared:
    """Of all clients that answered, by name; `say` hears how far it is, where it takes long."""
    clients, told = reports_of(messages, question)
    look = Look(question, verdict, Pace(say))
    layout, places, unseen = question.layout, np.arange(len(clients)), missing_reports(told, question.layout)
    if len(clients) * (len(clients) - 1) // 2 > MOST_PAIRS and question.counts:
        told, layout = on_shared_bins(told, layout)
        groups = alike(*all_pairs(len(clients)), find_differences(look.chances(told, layout)), len(clients))
        units, of_groups = together(told, groups), True
    else:
        groups, units, of_groups = [], told, False
    first, second = all_pairs(len(units.rows))
    pairs = look.at(units, layout, first, second)
    strong = effect_sizes(drawable(units), layout, readings)
    pairs = as_published(pairs, strong) if verdict == "paper" else pairs
    differ = pairs.verdicts.types.any(-1) | pairs.verdicts.undetermined
    groups = groups or alike(first, second, differ, len(clients))
    others = against_the_rest(told)
    rest = look.at(others, layout, places, places + len(clients))
    strong_rest = effect_sizes(drawable(others), layout, readings, np.stack([places, places + len(clients)], 1))
    rest = as_published(rest, strong_rest) if verdict == "paper" else rest
    closest = pair_details(drawable(units), layout, pairs, [[at] for at in range(len(groups))] if of_groups else groups)
    return Compared(clients, pairs, of_groups, groups, rest, strong, strong_rest, closest, unseen)


def as_published(found: Findings, strong: EffectSizes) -> Findings:
    """The same with the printed rule's types, which knows no tests and no number of rows."""
    no = np.zeros(len(strong.types), bool)
    unknown: np.ndarray = np.all(strong.grades < 0, axis=-1)
    return replace(found, verdicts=Verdicts(strong.types, unknown, no, no))


@dataclass(frozen=True)
class Look:
    """How pairs are looked at: by this verdict, and what its evidence is."""

    question: Query
    verdict: str
    pace: Pace

    def at(self, told: Summaries, layout: Layout, first: np.ndarray, second: np.ndarray) -> Findings:
        look = moment_tests.moment_evidence if self.verdict == "moments" else nested_tests.evidence
        least = moment_tests.LEAST_ROWS if self.verdict == "moments" else LEAST_ROWS
        say = self.pace.of("types of shift", len(first))
        if told.noise is not None:
            told = as_precise(told, layout)
        return findings(told, layout, first, second, self.question.pictures is not None, look, least, say)

    def chances(self, told: Summaries, layout: Layout) -> np.ndarray:
        """Of all pairs, in the order of `all_pairs`; closed forms do not hold under noise."""
        first, second = all_pairs(len(told.rows))
        if told.noise is not None:
            return self.at(told, layout, first, second).chance
        return chances(told, self.pace.of("differences", len(first)))


def reports_of(messages: Sequence[ShiftNumbers | NoisyCounts], question: Query) -> tuple[tuple[str, ...], Summaries]:
    """The clients that answered, by name, and what they told."""
    names = [client for message in messages for client in message.clients]
    order = np.argsort(np.array(names), kind="stable")
    return tuple(names[at] for at in order), _all_told(messages, question).take(order)


def _all_told(messages: Sequence[ShiftNumbers | NoisyCounts], question: Query) -> Summaries:
    if not question.rho:
        return summaries(messages)
    noisy = [m.counts.numpy() for m in messages if isinstance(m, NoisyCounts)]
    size = sigma(counts_sensitivity(len(question.layout.names)), question.rho)
    return from_noisy(np.concatenate(noisy), question.layout, size)


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
