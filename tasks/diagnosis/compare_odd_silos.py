"""The comparison of the silos that take part in most differences, together, with all others together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.diagnosis.client_summaries.client_summary import Summaries
from models.diagnosis.client_summaries.gaussian_mechanism import clip_negative
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.client_summaries.rank_correlations import combine_correlations
from models.diagnosis.correlation_tests import Refinement, refine_findings
from models.diagnosis.diagnose_pairs import Findings
from models.diagnosis.fomichev_distances import Readings
from models.diagnosis.name_shift_types import EffectSizes, effect_sizes
from models.diagnosis.odd_clients import find_odd_clients
from models.diagnosis.screen_clients import combine_groups
from tasks.diagnosis.compare_feature_pairs import FeaturePairs, rows_by_column
from tasks.diagnosis.compare_silos import Comparison, PairComparer, ProgressReporter, named_summaries
from tasks.execution.steps import server_step
from tasks.messages.statistics_messages import NoisyCounts, ShiftNumbers


@dataclass(frozen=True, eq=False)
class OddSilos:
    """The silos that take part in most differences, by index, and the one pair that they and all others form.

    effect_sizes: of the same pair; summaries: of both; refinement: what pairs of features add,
    None if they were not queried.
    """

    silos: list[int]
    findings: Findings
    effect_sizes: EffectSizes
    refinement: Refinement | None
    summaries: Summaries


@server_step
def compare_odd_silos(
    comparison: Comparison,
    messages: Sequence[ShiftNumbers | NoisyCounts],
    query: Query,
    verdict: Literal["guarded", "moments", "paper"],
    readings: Readings,
    feature_pairs: FeaturePairs | None,
    resolve: bool,
    log: Callable[[str], None],
) -> OddSilos | None:
    """Compare the odd silos of the comparison with the others; None without such silos, or if groups are compared.

    Both have the rows of many silos, so the kind and the size of the difference show that few rows hide. The published
    rule is no test, so it does not name odd silos. resolve: as in `refine_findings`.
    """
    if comparison.of_groups or verdict == "paper":
        return None
    pairs, clients = comparison.pairs, len(comparison.clients)
    known = ~pairs.verdicts.undetermined
    differ: np.ndarray = np.any(pairs.verdicts.types, axis=-1)
    odd = find_odd_clients(pairs.first[known], pairs.second[known], differ[known], clients)
    if not odd:
        return None
    summaries = named_summaries(messages, query)[1]
    groups = [odd, [index for index in range(clients) if index not in odd]]
    two = combine_groups(summaries, groups)
    ends = np.array([0]), np.array([1])
    findings, refinement = PairComparer(query, verdict, ProgressReporter(log)).compare(two, query.layout, *ends), None
    if feature_pairs is not None:
        together = combine_correlations(feature_pairs.correlations, rows_by_column(summaries), groups)
        findings, refinement = refine_findings(findings, two, query.layout, together, None, resolve)
    two = clip_negative(two)
    return OddSilos(odd, findings, effect_sizes(two, query.layout, readings), refinement, two)
