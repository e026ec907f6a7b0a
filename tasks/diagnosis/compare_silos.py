"""The comparison of all pairs of clients, and of two versions of each client, on the server, which sees no rows.

Gaps in the reports are named too: features without values, withheld features, and bins that hold nearly all values.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

import numpy as np

from models.diagnosis import guarded_tests, wald_tests
from models.diagnosis.client_summaries.client_summary import (
    LEAST_ROWS,
    Layout,
    Summaries,
    concatenate_summaries,
    overall_moments,
)
from models.diagnosis.client_summaries.common_cells import spread_counts
from models.diagnosis.client_summaries.gaussian_mechanism import (
    clip_negative,
    counts_sensitivity,
    summaries_from_counts,
    with_effective_rows,
)
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.diagnose_pairs import Findings, append_rest, diagnose_pairs, find_differences, group_clients
from models.diagnosis.fomichev_distances import Readings
from models.diagnosis.merged_tables import all_pairs
from models.diagnosis.name_shift_types import EffectSizes, Verdicts, effect_sizes
from models.diagnosis.screen_clients import (
    PairDetails,
    combine_groups,
    compare_inside,
    merge_shared_bins,
    pair_details,
    pair_p_values,
)
from models.diagnosis.wald_tests import ROWS
from models.privacy_accounting import sigma
from tasks.diagnosis.report_summary import join_summaries
from tasks.execution.steps import server_step
from tasks.messages.statistics_messages import NoisyCounts, ShiftNumbers
from tasks.tracking.result_types.diagnosis_result import Gaps

Verdict = Literal["guarded", "moments", "paper"]

_NEARLY_ALL = 0.95
_MIN_BINS = 8  # of which two are few

_INTERVAL = 5.0  # seconds between progress messages


class MissingReports(NamedTuple):
    """Gaps by client and feature.

    absent: (clients, features) bool, no reported row has a value; withheld: (clients, features) bool, rows are
    reported but no value, since a class has too few rows with one; merged: (clients, features) bool, all values are
    counted in one cell, since too few rows of a class would be in two; crowded: (features,) bool, values vary and nearly
    all lie in one bin or in two adjacent bins.
    """

    absent: np.ndarray
    withheld: np.ndarray
    merged: np.ndarray
    crowded: np.ndarray

    def to_dict(self, clients: Sequence[str], features: Sequence[str]) -> Gaps:
        """Return plain JSON by field: clients by feature, and the crowded features."""

        def by_feature(mask: np.ndarray) -> dict[str, list[str]]:
            silos = {name: _select(clients, column) for name, column in zip(features, mask.T, strict=True)}
            return {name: listed for name, listed in silos.items() if listed}

        return {
            "absent": by_feature(self.absent),
            "withheld": by_feature(self.withheld),
            "merged": by_feature(self.merged),
            "crowded": _select(features, self.crowded),
        }


def missing_reports(summaries: Summaries, layout: Layout) -> MissingReports:
    """Find the gaps in counts; none are found under noise, which hides empty cells."""
    shape = (len(summaries.rows), len(layout.names))
    none = MissingReports(np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape[1], bool))
    if summaries.noise is not None:
        return none
    rows = np.nan_to_num(summaries.moments[..., ROWS]).sum(-1)
    if not summaries.counts.shape[2]:
        return none._replace(withheld=(rows == 0) & rows.any(-1, keepdims=True))
    cells = summaries.counts.sum(-1)
    total, missing = cells.sum(-1), cells[..., -1]
    rows_of_class = summaries.counts.sum(2).max(1, initial=0)  # a feature may be withheld in a class
    rows_of_class[:, :-1] = np.maximum(rows_of_class[:, :-1], np.nan_to_num(summaries.labels))
    absent = (total > 0) & (missing == rows_of_class.sum(-1, keepdims=True))
    withheld = (total == missing) & ~absent & total.any(-1, keepdims=True)
    values = np.pad(spread_counts(summaries, layout).sum(-1)[..., :-1].sum(0), ((0, 0), (0, 1)))
    adjacent = values[:, :-1] + values[:, 1:]  # an edge may split the crowd
    varies = np.nan_to_num(overall_moments(summaries)[:, 2]) > 0
    crowded = layout.numeric & varies & (adjacent.max(-1, initial=0) > _NEARLY_ALL * values.sum(-1))
    crowded &= layout.bins >= _MIN_BINS
    merged = np.zeros(shape, bool)
    if summaries.counted_in is not None:
        apart = summaries.counted_in == np.arange(summaries.counted_in.shape[-1])
        merged = ((cells > 0).sum(-1) == 1) & ~apart.all(-1)
        crowded &= ~merged.any(0)
    return MissingReports(absent, withheld, merged, crowded)


def _select(names: Sequence[str], mask: np.ndarray) -> list[str]:
    return [name for name, selected in zip(names, mask.tolist(), strict=True) if selected]


class ProgressReporter:
    """Logs progress at most every five seconds, and not in the first five; `clock` returns seconds."""

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._last_report = clock()

    def callback(self, part: str, pairs: int) -> Callable[[int], None]:
        """Return a function to call with the number of finished pairs of a part."""

        def report(done: int) -> None:
            now = self._clock()
            if now - self._last_report >= _INTERVAL and done < pairs:
                self._last_report = now
                self._log(f"{part}: {done:,} of {pairs:,} pairs compared")

        return report


MOST_PAIRS = 5000
"""Pairs that are compared one by one; with more, similar clients are grouped first and the groups compared."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """The comparison of all pairs in the order of `all_pairs`, of clients or, if there are too many, of groups.

    groups: by the clients' indices; inside: p-values of the tests of whether the clients of a group are alike, (groups, 2)
    in the order of INSIDE; rest: each client against all others together; effect_sizes: of the same pairs as
    `pairs`; pair_details: of the worst pairs; missing: the gaps of clients; by_group: the summaries of each group;
    with_rest: the summaries of each client, then of all others for each client; layout: of these summaries' counts.
    """

    clients: tuple[str, ...]
    pairs: Findings
    of_groups: bool
    groups: list[list[int]]
    inside: np.ndarray
    rest: Findings
    effect_sizes: EffectSizes
    rest_effect_sizes: EffectSizes
    pair_details: tuple[PairDetails, ...]
    missing: MissingReports
    by_group: Summaries
    with_rest: Summaries
    layout: Layout

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each compared client or group."""
        return tuple(f"group {index + 1}" for index in range(len(self.groups))) if self.of_groups else self.clients


@server_step
def compare_silos(
    messages: Sequence[ShiftNumbers | NoisyCounts],
    query: Query,
    verdict: Verdict,
    readings: Readings,
    log: Callable[[str], None],
) -> Comparison:
    """Compare all clients that reported, ordered by name; `log` receives the progress of long comparisons."""
    clients, summaries = named_summaries(messages, query)
    comparer = PairComparer(query, verdict, ProgressReporter(log))
    layout, indices, missing = query.layout, np.arange(len(clients)), missing_reports(summaries, query.layout)
    # the number of pairs grows with the square of clients: similar ones are grouped by a coarse table first
    if len(clients) * (len(clients) - 1) // 2 > MOST_PAIRS and query.counts:
        summaries, layout = merge_shared_bins(summaries, layout)
        groups = group_clients(
            *all_pairs(len(clients)), find_differences(comparer.p_values(summaries, layout)), len(clients)
        )
        units, of_groups = combine_groups(summaries, groups), True
    else:
        groups, units, of_groups = [], summaries, False
    first, second = all_pairs(len(units.rows))
    pairs = comparer.compare(units, layout, first, second)
    # tests read noisy counts as they are, since clipping would bias them; sizes and shares need counts of at least 0
    sizes = effect_sizes(clip_negative(units), layout, readings)
    pairs = apply_published_rule(pairs, sizes) if verdict == "paper" else pairs
    differ = pairs.verdicts.types.any(-1) | pairs.verdicts.undetermined
    groups = groups or group_clients(first, second, differ, len(clients))
    inside = compare_inside(summaries, groups)
    others = append_rest(summaries)
    rest = comparer.compare(others, layout, indices, indices + len(clients))
    with_rest = clip_negative(others)
    rest_sizes = effect_sizes(with_rest, layout, readings, np.stack([indices, indices + len(clients)], 1))
    rest = apply_published_rule(rest, rest_sizes) if verdict == "paper" else rest
    units_by_group = [[index] for index in range(len(groups))] if of_groups else groups
    details = pair_details(clip_negative(units), layout, pairs, units_by_group)
    by_group = clip_negative(units if of_groups else combine_groups(summaries, groups))
    return Comparison(
        clients,
        pairs,
        of_groups,
        groups,
        inside,
        rest,
        sizes,
        rest_sizes,
        details,
        missing,
        by_group,
        with_rest,
        layout,
    )


def apply_published_rule(compared: Findings, sizes: EffectSizes) -> Findings:
    """Replace the types by those of the published rule, which uses neither tests nor numbers of rows."""
    none = np.zeros(len(sizes.types), bool)
    undetermined: np.ndarray = np.all(sizes.grades < 0, axis=-1)
    return replace(compared, verdicts=Verdicts(sizes.types, undetermined, none, none, none))


@dataclass(frozen=True)
class PairComparer:
    """Compares pairs with the tests of a verdict."""

    query: Query
    verdict: str
    progress: ProgressReporter

    def compare(self, summaries: Summaries, layout: Layout, first: np.ndarray, second: np.ndarray) -> Findings:
        collect_evidence = wald_tests.moment_evidence if self.verdict == "moments" else guarded_tests.count_evidence
        min_rows = wald_tests.LEAST_WALD_ROWS if self.verdict == "moments" else LEAST_ROWS
        report_progress = self.progress.callback("types of shift", len(first))
        if summaries.noise is not None:
            summaries = with_effective_rows(summaries, layout)
        lossy = self.query.pictures is not None
        return diagnose_pairs(summaries, layout, first, second, lossy, collect_evidence, min_rows, report_progress)

    def p_values(self, summaries: Summaries, layout: Layout) -> np.ndarray:
        """Return the p-values of all pairs, in the order of `all_pairs`; closed forms do not hold under noise."""
        first, second = all_pairs(len(summaries.rows))
        if summaries.noise is not None:
            return self.compare(summaries, layout, first, second).chance
        return pair_p_values(summaries, self.progress.callback("differences", len(first)))


def named_summaries(messages: Sequence[ShiftNumbers | NoisyCounts], query: Query) -> tuple[tuple[str, ...], Summaries]:
    """Return the clients that reported, ordered by name, and their summaries."""
    names = [client for message in messages for client in message.clients]
    order = np.argsort(np.array(names), kind="stable")
    summaries = _read_summaries(messages, query)
    if not np.array_equal(order, np.arange(len(order))):  # a copy takes as much memory as all reports
        summaries = summaries.take(order)
    return tuple(names[index] for index in order), summaries


def _read_summaries(messages: Sequence[ShiftNumbers | NoisyCounts], query: Query) -> Summaries:
    if not query.rho:
        return join_summaries(messages)
    noisy = [m.counts.numpy() for m in messages if isinstance(m, NoisyCounts)]
    noise_sd = sigma(counts_sensitivity(len(query.layout.names)), query.rho)
    return summaries_from_counts(np.concatenate(noisy), query.layout, noise_sd)


@dataclass(frozen=True, eq=False)
class VersionComparison:
    """The comparison of each client that reported on both versions, by name: before as the first of a pair, and after."""

    clients: tuple[str, ...]
    pairs: Findings
    effect_sizes: EffectSizes
    pair_details: tuple[PairDetails, ...]  # of the clients that changed most
    missing: MissingReports  # of all clients before, then of all clients after
    summaries: Summaries  # likewise

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what pairs refer to: all clients before, then all clients after."""
        return tuple(f"{client} {when}" for when in ("then", "now") for client in self.clients)


@server_step
def compare_versions(
    before: Sequence[ShiftNumbers | NoisyCounts],
    after: Sequence[ShiftNumbers | NoisyCounts],
    query: Query,
    verdict: Verdict,
    readings: Readings,
    log: Callable[[str], None],
) -> VersionComparison:
    """Compare each client with itself; at least one client must have reported on both versions.

    `log` receives the progress of long comparisons.
    """
    (names, earlier), (names_after, later) = named_summaries(before, query), named_summaries(after, query)
    clients = tuple(name for name in names if name in set(names_after))
    earlier = earlier.take([names.index(client) for client in clients])
    later = later.take([names_after.index(client) for client in clients])
    return compare_summaries(clients, earlier, later, query, verdict, readings, log)


def compare_summaries(
    clients: tuple[str, ...],
    earlier: Summaries,
    later: Summaries,
    query: Query,
    verdict: Verdict,
    readings: Readings,
    log: Callable[[str], None],
) -> VersionComparison:
    """Compare two summaries of each client; the arguments are as in `compare_versions`."""
    both = concatenate_summaries([earlier, later])
    clipped, indices = clip_negative(both), np.arange(len(clients))
    comparer = PairComparer(query, verdict, ProgressReporter(log))
    pairs = comparer.compare(both, query.layout, indices, indices + len(clients))
    versions = [clipped.take(np.array([index, index + len(clients)])) for index in indices]
    by_client = [effect_sizes(version, query.layout, readings) for version in versions]
    sizes = EffectSizes(*(np.concatenate([getattr(size, f.name) for size in by_client]) for f in fields(EffectSizes)))
    if verdict == "paper":
        pairs = apply_published_rule(pairs, sizes)
    details = pair_details(clipped, query.layout, pairs, [[index] for index in range(len(both.rows))])
    return VersionComparison(clients, pairs, sizes, details, missing_reports(both, query.layout), clipped)
