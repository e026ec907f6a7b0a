"""The server looks again at pairs that seem to differ in inputs and in rule, with what models foresee; it sees no row."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.shift import guarded
from models.shift.close_ups import close_ups
from models.shift.explained import Explained, explained
from models.shift.findings import Findings
from models.shift.pairs import side_by_side
from models.shift.told.question import Question
from models.shift.told.summaries import Layout, Summaries
from tasks.diagnosis.compare_silos import Compared, told_of
from tasks.messages import ForeseenCounts, NoisyCounts, ShiftNumbers
from tasks.running.step import server_step


def doubted(found: Compared) -> np.ndarray:
    """Places of the pairs that are said to differ in both their inputs and their rule; none of groups."""
    feature, _, concept = found.pairs.verdicts.types.T
    return np.flatnonzero(feature & concept & ~found.of_groups)


@server_step
def look_again(
    found: Compared,
    messages: Sequence[ShiftNumbers | NoisyCounts],
    question: Question,
    owners: tuple[str, ...],
    foreseen: Sequence[ForeseenCounts],
) -> Compared:
    """The same without a change of rule where both models foresee what seemed one; owners: whose models were asked.

    A pair of which one client took no part stays as it was.
    """
    _, told = told_of(messages, question)
    counts = {client: table for m in foreseen for client, table in zip(m.clients, m.counts.numpy(), strict=True)}
    places = [at for at, client in enumerate(found.clients) if client in counts and client in owners]
    first, second = found.pairs.first, found.pairs.second
    asked = doubted(found)
    asked = asked[np.isin(first[asked], places) & np.isin(second[asked], places)]
    if not len(asked):
        return found
    models = [owners.index(found.clients[at]) for at in places]
    tables = np.stack([counts[found.clients[at]][models] for at in places]).astype(float)
    ends = (np.searchsorted(places, one[asked]) for one in (first, second))
    takes = explained(told.take(places), question.layout, tables, *ends)
    pairs = _explained(found.pairs, told, question.layout, asked, takes)
    return replace(found, pairs=pairs, close_ups=close_ups(told, question.layout, pairs, found.groups))


def _explained(pairs: Findings, told: Summaries, layout: Layout, asked: np.ndarray, takes: Explained) -> Findings:
    """The same with what is left of the pairs at these places; what carries it is then of P(X) where no rule differs."""
    types, parts, rules = pairs.verdicts.types.copy(), pairs.parts.copy(), asked[takes.rules]
    types[asked] = takes.left(types[asked])
    if len(rules):
        effects = guarded.evidence(side_by_side(told, layout, pairs.first[rules], pairs.second[rules])).effects
        parts[rules] = np.minimum(effects["at_mean"], effects["bins"])
    return replace(pairs, verdicts=replace(pairs.verdicts, types=types), parts=parts)
