"""Measure which shifts the diagnosis still sees if silos report no cell of one to nine rows of a class.

Two silos of patients have five numbers, one of them skewed and one with missing values, and three categories. Of two
classes one has 30 % of the rows; some of its rows may be of a third class. Each pair is drawn once, and diagnosed with and
without least rows of a cell.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from models.diagnosis.client_summaries.client_summary import (
    ANY_ROWS,
    LEAST_ROWS,
    Layout,
    Summaries,
    assign_columns,
    concatenate_summaries,
    summarize,
)
from models.diagnosis.client_summaries.common_cells import count_in, counts_of_pairs
from models.diagnosis.client_summaries.least_cells import (
    columns_in_cells,
    fill_few_missing,
    merge_cells_of_client,
    moments_show_cells,
)
from models.diagnosis.client_summaries.rank_correlations import (
    concatenate_correlations,
    correlate_features,
    select_features,
)
from models.diagnosis.correlation_tests import refine_findings
from models.diagnosis.diagnose_pairs import diagnose_pairs
from models.diagnosis.guarded_tests import TYPES

SIZES = ((300, 0), (1000, 0), (1000, 24), (3000, 0))
"""Rows of a silo, and the expected rows of a rare third class among them."""

DRAWS, ALIKE_DRAWS = 50, 200
LEAST = (ANY_ROWS, LEAST_ROWS)  # rows of a cell: without and with the guard

_NUMBERS, _WARDS = 5, (0.35, 0.3, 0.2, 0.15)
_BINS, _REACH, _POOL = 32, 3.0, 20000
_CATEGORIES = ((1.0, 2.0), (1.0, 2.0), (1.0, 2.0, 3.0, 4.0))


@dataclass(frozen=True)
class Law:
    """The distribution of a silo: the rule is logistic, with an intercept by which `positive` of the rows are positive.

    Attributes:
        moved: Deviations that are added to the first number before the outcome.
        spread: A factor of the deviations of the second and third number.
        unit: A factor of the skewed number after the outcome.
        wards: The shares of the four wards.
        positive: The share of the second class, by selection of patients by class.
        weight: The weight of the first number in the rule.
        lower: What is added to the intercept of the rule: another threshold.
        opposite: The share of outcomes of one ward that are coded as the opposite.
    """

    moved: float = 0.0
    spread: float = 1.0
    unit: float = 1.0
    wards: tuple[float, ...] = _WARDS
    positive: float = 0.3
    weight: float = 0.8
    lower: float = 0.0
    opposite: float = 0.0

    def draw(self, rng: np.random.Generator, rows: int, intercept: float) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows x (rows, features), NaN if missing, and y (rows,)."""
        many = rows if self.positive == Law.positive else 4 * rows
        z = rng.normal(size=(many, _NUMBERS))
        z[:, 0] += self.moved
        z[:, 2] = 0.6 * z[:, 1] + 0.8 * z[:, 2]
        z[:, 1:3] *= self.spread
        two = 1.0 + (rng.random((many, 2)) < (0.5, 0.25))
        ward = rng.choice([1.0, 2.0, 3.0, 4.0], many, p=self.wards)
        score = self.weight * z[:, 0] + 0.4 * z[:, 1] + 0.4 * z[:, 3] + 0.5 * (two[:, 1] == 2) + 0.3 * (ward == 4)
        y = (rng.random(many) < expit(score + intercept + self.lower)).astype(np.int64)
        if many > rows:
            wanted = round(self.positive * rows)
            kept = np.concatenate([np.flatnonzero(y == 1)[:wanted], np.flatnonzero(y == 0)[: rows - wanted]])
            z, two, ward, y = z[kept], two[kept], ward[kept], y[kept]
        y = np.where((ward == 2) & (rng.random(rows) < self.opposite), 1 - y, y)
        x = np.column_stack(
            [np.round(62 + 14 * z[:, 0]), np.round(z[:, 1:3], 2), np.exp(1.8 + z[:, 3]), z[:, 4], two, ward]
        )
        x[:, 3] *= self.unit
        x[rng.random(rows) < 0.05, 4] = np.nan
        return x, y


SHIFTS: Mapping[str, tuple[frozenset[str], frozenset[str], Law]] = {
    name: (frozenset(truth), frozenset(also), law)
    for name, truth, also, law in (
        ("none", (), (), Law()),
        ("inputs: a number moves by half a deviation", ("feature",), ("label",), Law(moved=0.5)),
        ("inputs: two numbers spread by half more", ("feature",), ("label",), Law(spread=1.5)),
        ("inputs: another unit of a skewed number", ("feature",), ("concept",), Law(unit=0.1)),
        ("inputs: other shares of wards", ("feature",), ("label",), Law(wards=(0.2, 0.2, 0.25, 0.35))),
        ("labels: 45 % positive for 30 %", ("label",), (), Law(positive=0.45)),
        ("concept: a weight changes its sign", ("concept",), ("label",), Law(weight=-0.2)),
        ("concept: another threshold", ("concept",), ("label",), Law(lower=0.8)),
        ("concept: a third of one ward is coded otherwise", ("concept",), ("label",), Law(opposite=0.35)),
    )
}
"""The shifts by name, each with its true types, types that may be named as well, and the law of one of the two silos."""


def cells_cost(say: Callable[[str], None], draws: int = DRAWS, alike: int = ALIKE_DRAWS) -> dict[str, Any]:
    """Diagnose pairs of each shift and size, with and without least rows of a cell."""
    intercept, lines = _intercept(), []
    for shift, (truth, also, _) in SHIFTS.items():
        for rows, rare in SIZES:
            times, found = draws if truth else alike, {least: Counter[str]() for least in LEAST}
            cells = dict.fromkeys(LEAST, 0.0)
            for draw in range(times):
                pair = _pair(shift, rows, draw, intercept, rare)
                for least in LEAST:
                    named, number = diagnose(pair, least)
                    found[least][named] += 1
                    cells[least] += number / times
            counted = [_counted(found[least], truth, also) | {"cells": cells[least]} for least in LEAST]
            lines.append(
                {"shift": shift, "rows": rows, "rare": rare, "draws": times, "off": counted[0], "on": counted[1]}
            )
            say(
                f"{shift}, {rows:,} rows, {rare} of a rare class: {counted[0]['named']} and {counted[1]['named']} of {times}"
            )
    return {"least_cell": LEAST_ROWS, "lines": lines}


def _counted(found: Counter[str], truth: frozenset[str], also: frozenset[str]) -> dict[str, Any]:
    """Count the pairs whose true type is named, those that are given any type, and those given false types only."""
    types = {verdict: frozenset(verdict.split("+")) & frozenset(TYPES) for verdict in found}
    any_type = sum(count for verdict, count in found.items() if types[verdict])
    named = sum(count for verdict, count in found.items() if truth and truth <= types[verdict] <= truth | also)
    wrong = sum(count for verdict, count in found.items() if types[verdict] and not types[verdict] & truth)
    return {"named": named, "any": any_type, "wrong": wrong, "verdicts": dict(found.most_common())}


def _intercept() -> float:
    x, _ = Law().draw(np.random.default_rng(0), _POOL, 0.0)
    z, ward = (x[:, 0] - 62) / 14, x[:, 7]
    score = 0.8 * z + 0.4 * x[:, 1] + 0.4 * (np.log(x[:, 3]) - 1.8) + 0.5 * (x[:, 6] == 2) + 0.3 * (ward == 4)
    return float(brentq(lambda intercept: expit(score + intercept).mean() - Law.positive, -20.0, 20.0))


def _pair(shift: str, rows: int, draw: int, intercept: float, rare: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng([22, draw, rows, [*SHIFTS].index(shift)])
    pair = [law.draw(rng, rows, intercept) for law in (Law(), SHIFTS[shift][2])]
    for _, y in pair if rare else ():
        y[rng.choice(np.flatnonzero(y), rng.poisson(rare), replace=False)] = 2
    return pair[::-1] if draw % 2 else pair


def diagnose(pair: list[tuple[np.ndarray, np.ndarray]], least_cell: int) -> tuple[str, float]:
    """Diagnose two silos as a diagnosis does: the types, joined, or none; and the cells of a feature that both have."""
    both = np.concatenate([x for x, _ in pair])
    middle, reach = np.nanmean(both, 0), _REACH * np.nanstd(both, 0)
    names = tuple(f"x{at}" for at in range(both.shape[1]))
    categories = ((None,) * _NUMBERS) + _CATEGORIES
    missing = tuple(np.isnan(both).any(0).tolist())
    classes = 1 + max(int(y.max()) for _, y in pair)
    layout = Layout(names, categories, middle - reach, middle + reach, _BINS, classes, missing=missing)
    summaries = concatenate_summaries([summarize_with_least_cells(x, y, layout, least_cell) for x, y in pair])
    first, second = np.array([0]), np.array([1])
    found = diagnose_pairs(summaries, layout, first, second)
    features = select_features(summaries, layout, np.nan_to_num(found.parts).max(0))
    correlations = []
    for x, y in pair:
        ids = np.arange(len(y))
        column = assign_columns(y, ids, layout)
        correlations.append(correlate_features(x, column, ids, layout, features, LEAST_ROWS, least_cell))
    found = refine_findings(found, summaries, layout, concatenate_correlations(correlations))[0]
    types = found.verdicts.types[0] & ~found.verdicts.undetermined[0]
    named = "+".join(name for name, there in zip(TYPES, types, strict=True) if there)
    return named or "none", _cells_in_common(summaries)


def _cells_in_common(summaries: Summaries) -> float:
    counts = counts_of_pairs(summaries, np.array([[0, 1]]))[0, :, :_NUMBERS]
    return float(np.count_nonzero(counts.any((0, -1)), axis=-1).mean())


def summarize_with_least_cells(x: np.ndarray, y: np.ndarray, layout: Layout, least_cell: int) -> Summaries:
    """Summarise the rows of a silo, none of which are copies, as it reports them."""
    ids = np.arange(len(y))
    column = assign_columns(y, ids, layout)
    in_cells = columns_in_cells(column, ids, layout, least_cell)
    counted_in, merged = (
        merge_cells_of_client(x, columns, ids, layout, LEAST_ROWS, least_cell) for columns in (in_cells, column)
    )
    filled = fill_few_missing(x, column, merged, np.zeros((x.shape[1], layout.classes + 1), bool))
    shown = moments_show_cells(x, column, ids, layout, merged, least_cell)
    moments = np.where(shown[:, None, None], np.nan, summarize(filled, y, ids, layout).moments)
    whole = summarize(x, y, ids, layout)
    whole.counts[..., np.setdiff1d(column.index, column.index[in_cells.reported])] = 0
    counts = count_in(whole.counts, counted_in[None])
    return replace(whole, counts=counts, moments=moments, counted_in=counted_in[None])
