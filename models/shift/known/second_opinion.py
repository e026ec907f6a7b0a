"""What is said of a pair whose shift is known once inputs and rule that both seem to differ are looked at again."""

from dataclasses import replace

import numpy as np

from models.shift.explained import explained
from models.shift.findings import findings
from models.shift.known.judging import different, layout_of, verdict_of
from models.shift.known.known_pair import KnownPair
from models.shift.told.foreseen import (
    Design,
    apportioned,
    fitted_halves,
    foreseen,
    foreseen_counts,
    in_both_halves,
)
from models.shift.told.question import Question
from models.shift.told.summaries import Summaries, columns, joined, summary


def second_opinion(pair: KnownPair, rng: np.random.Generator) -> str:
    """As two clients would hear it; halves and rounding, which follow from clients' secrets, are drawn."""
    layout, (one, other) = layout_of(pair), (np.array([0]), np.array([1]))
    same = [different(x) for x, _ in pair.clients]
    told = joined([summary(x, y, which, layout) for (x, y), which in zip(pair.clients, same, strict=True)])
    found = findings(told, layout, one, other)
    types = found.verdicts.types
    if types[0, 0] and types[0, 2]:
        takes = explained(
            told, layout, _foreseen(pair, same, told, Design.of(Question("", layout), told), rng), one, other
        )
        found = replace(found, verdicts=replace(found.verdicts, types=takes.left(types)))
    return verdict_of(found)


def _foreseen(
    pair: KnownPair, same: list[np.ndarray], told: Summaries, design: Design, rng: np.random.Generator
) -> np.ndarray:
    """(clients, models, features, cells, classes)."""
    layout = design.question.layout
    own = [columns(y, which, layout) for (_, y), which in zip(pair.clients, same, strict=True)]
    second = [rng.random(which.max() + 1)[which] < 0.5 for which in same]
    seen = [design.seen(x) for x, _ in pair.clients]
    models = []
    for at, column in enumerate(own):
        known = in_both_halves(column, same[at], second[at])
        models.append(fitted_halves(seen[at], column.of, second[at], known))
    tables = []
    for at, (x, _) in enumerate(pair.clients):
        ends = rng.random((x.shape[1], layout.cells, layout.classes))
        column, classes = own[at], in_both_halves(own[at], same[at], second[at], len(models))
        chances = np.stack(
            [
                foreseen(seen[at], column.of, classes, weights, second[at] if of == at else None)
                for of, weights in enumerate(models)
            ]
        )
        expected = foreseen_counts(x, column, same[at], second[at], layout, chances, ends)
        tables.append(apportioned(expected, told.counts[at]))
    return np.array(tables)
