"""What was found, as plain JSON: pairs, groups of silos that are alike, and each silo beside the rest.

What was found of all pairs, as square tables of silos, or of groups where there are too many silos.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.shift.classify import GRADES, EffectSizes
from models.shift.client_summaries.gaussian_mechanism import counts_sensitivity, sigma
from models.shift.client_summaries.query import Query
from models.shift.nested_tests import TYPES
from models.shift.pair_screening import MUCH
from models.shift.pairwise_results import WHY, Findings
from tasks.diagnosis.compare_silos import Compared, ComparedVersions


def matrices(found: Compared, names: Sequence[str], lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows and columns in the order of `names`; `order` are their places with those that are alike beside each other.

    feature, label and concept are D_X, D_Y and D_{Y|X}; chance is how probable such a difference is where there is none, and
    1 of a silo with itself. None where a number is unknown. verdict: types, or `undetermined`. lines: a pair each, in order.
    """
    pairs, strong = found.pairs, found.strengths
    columns = {name: strong.distances[:, at] for at, name in enumerate(TYPES)}
    columns |= {"in_classes": strong.in_classes, "wasserstein": strong.wasserstein}
    square = {name: _square(found, np.round(column, 4), len(names), 0.0) for name, column in columns.items()}
    verdicts: list[list[list[str]]] = [[[] for _ in names] for _ in names]
    for a, b, line in zip(pairs.first.tolist(), pairs.second.tolist(), lines, strict=True):
        verdicts[a][b] = verdicts[b][a] = ["undetermined"] if line["undetermined"] else list(line["types"])
    grouped = [at for group in found.groups for at in group]
    return {
        "names": list(names),
        "order": list(range(len(names))) if found.of_groups else grouped,
        **square,
        "chance": _square(found, pairs.chance, len(names), 1.0),
        "verdict": verdicts,
    }


def _square(found: Compared, column: np.ndarray, size: int, own: float) -> list[list[float | None]]:
    table = np.full((size, size), own)
    table[found.pairs.first, found.pairs.second] = table[found.pairs.second, found.pairs.first] = column
    return [[value if np.isfinite(value) else None for value in line] for line in table.tolist()]


SHOWN = 5  # features of a pair that are named

NARROW = 0.1
"""Overlap of a feature's values below which nobody can say whether labels follow from inputs alike."""

_LARGE = 0.1  # φ below which a feature is no part of what was found


def report(found: Compared, question: Query) -> dict[str, Any]:
    """Of all pairs, groups and silos; names in place of numbers."""
    clients, features = found.clients, question.layout.names
    names = found.names
    pairs = _described(found.pairs, features)
    _add_strengths(pairs, found.strengths)
    rest = _described(found.rest, features)
    _add_strengths(rest, found.rest_strengths)
    groups = [[clients[at] for at in group] for group in found.groups]
    of = {at: number for number, group in enumerate(found.groups) for at in group}
    if found.of_groups:
        of = {at: at for at in range(len(groups))}
    return {
        "clients": list(clients),
        "features": list(features),
        "asked": _asked(question),
        "groups": groups,
        "pairs_of": "groups" if found.of_groups else "silos",
        "between": _between(found.pairs, pairs, of),
        "rest": [{"client": name, **line} for name, line in zip(clients, rest, strict=True)],
        "pairs": [
            {"first": names[a], "second": names[b], **line}
            for a, b, line in zip(found.pairs.first.tolist(), found.pairs.second.tolist(), pairs, strict=True)
        ],
        "ranking": _ranking(found.pairs, features),
        "gaps": found.gaps.named(clients, features),
        "matrices": matrices(found, names, pairs),
    }


def report_of_versions(found: ComparedVersions, question: Query) -> dict[str, Any]:
    """Of each client before and after, in the order of their names; `between` has a line for each of them."""
    features = question.layout.names
    pairs = _described(found.pairs, features)
    _add_strengths(pairs, found.strengths)
    return {
        "clients": list(found.clients),
        "features": list(features),
        "asked": _asked(question),
        "between": _between(found.pairs, pairs, {at: at for at in range(2 * len(pairs))}),
        "pairs": [{"client": name, **line} for name, line in zip(found.clients, pairs, strict=True)],
        "ranking": _ranking(found.pairs, features),
        "gaps": found.gaps.named(found.names, features),
    }


def _asked(question: Query) -> dict[str, Any]:
    """What sentences depend on, besides what was found."""
    return {
        "question": question.id,
        "pictures": question.pictures is not None,
        "counts": question.counts,
        "targets": list(question.layout.targets),
        "bins": question.layout.bins,
        "rows_noise": _rows_noise(question),
    }


def _rows_noise(question: Query) -> float:
    """The deviation of a silo's number of rows, which under noise is the mean over features of what it told of cells."""
    layout = question.layout
    if not question.rho:
        return 0.0
    cell = sigma(counts_sensitivity(len(layout.names)), question.rho)
    return float(cell * np.sqrt(layout.possible.sum() * layout.classes) / len(layout.names))


def grades(lines: list[dict[str, Any]]) -> dict[str, str | None]:
    """Of each type that a pair has: the grade of the middle one of these pairs, the lower one of two; None if unknown."""
    middle: dict[str, str | None] = {}
    for name in TYPES:
        having = [line["strength"]["grades"][name] for line in lines if name in line["types"]]
        known = sorted((grade for grade in having if grade is not None), key=GRADES.index)
        if having:
            middle[name] = known[(len(known) - 1) // 2] if known else None
    return middle


def _described(found: Findings, features: tuple[str, ...]) -> list[dict[str, Any]]:
    named, lines = found.verdicts, []
    for at in range(len(found.first)):
        types = [name for name, there in zip(TYPES, named.types[at].tolist(), strict=True) if there]
        order = (
            np.argsort(-found.parts[at], kind="stable")[:SHOWN].tolist() if {"feature", "concept"} & set(types) else []
        )
        least = max(_LARGE, MUCH * found.parts[at].max(initial=0.0))
        parts = {features[i]: round(float(found.parts[at, i]), 4) for i in order if found.parts[at, i] >= least}
        rows = found.rows[at].tolist()
        lines.append(
            {
                "types": types,
                "undetermined": bool(named.undetermined[at]),
                "why": WHY[found.why[at]] if named.undetermined[at] else None,
                "tells": found.tells[at].tolist(),
                "transform": bool(named.transform[at]),
                "margins_only": bool(named.margins_only[at]),
                "concept_identifiable": not found.overlap[at] < NARROW,
                "features": parts,
                "labels_differ": bool(found.labels[at]),
                "inputs_differ": bool(found.moved[at]),
                "chance": float(found.chance[at]),
                "overlap": _number(found.overlap[at]),
                "rows": rows,
                "rows_ratio": max(rows) / max(1, min(rows)),
            }
        )
    return lines


def _add_strengths(lines: list[dict[str, Any]], found: EffectSizes) -> None:
    """The printed rule's distances and grades, and what else says how far a pair is apart; None where unknown."""
    for at, line in enumerate(lines):
        distances = {name: _number(value) for name, value in zip(TYPES, found.distances[at].tolist(), strict=True)}
        grades = {n: GRADES[g] if g >= 0 else None for n, g in zip(TYPES, found.grades[at].tolist(), strict=True)}
        line["strength"] = {"distances": distances, "grades": grades, "in_classes": _number(found.in_classes[at])}
        line["strength"]["wasserstein"] = _number(found.wasserstein[at])


def _number(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None


def _between(found: Findings, pairs: list[dict[str, Any]], of: dict[int, int]) -> list[dict[str, Any]]:
    """Of two groups: how many pairs there are, how many have each type and how strong, and the features that carry it."""
    tables: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for a, b, line in zip(found.first.tolist(), found.second.tolist(), pairs, strict=True):
        tables.setdefault((min(of[a], of[b]), max(of[a], of[b])), []).append(line)
    return [
        {
            "groups": list(places),
            "pairs": len(lines),
            "types": {name: sum(name in line["types"] for line in lines) for name in TYPES},
            "grades": grades(lines),
            "none": sum(not line["types"] and not line["undetermined"] for line in lines),
            "undetermined": sum(line["undetermined"] for line in lines),
            "transform": sum(line["transform"] for line in lines),
            "margins_only": sum(line["margins_only"] for line in lines),
            **{name: sum(line[name] for line in lines) for name in ("labels_differ", "inputs_differ")},
            "not_identifiable": sum(not line["concept_identifiable"] for line in lines),
            "features": _most_named(lines),
        }
        for places, lines in sorted(tables.items())
    ]


def _most_named(lines: list[dict[str, Any]]) -> list[str]:
    """The features that carry most of the parts over the pairs, the largest first."""
    total: dict[str, float] = {}
    for line in lines:
        for name, part in line["features"].items():
            total[name] = total.get(name, 0.0) + part
    much = MUCH * max(total.values(), default=0.0)
    return [name for name in sorted(total, key=lambda name: -total[name]) if total[name] >= much][:SHOWN]


def _ranking(found: Findings, features: tuple[str, ...]) -> list[dict[str, Any]]:
    """Features by φ over the pairs that differ in more than their labels, the largest mean first."""
    differ = found.verdicts.types[:, [0, 2]].any(-1)
    if not differ.any():
        return []
    mean, most = found.parts[differ].mean(0), found.parts[differ].max(0)
    return [
        {"feature": features[i], "mean": round(float(mean[i]), 4), "largest": round(float(most[i]), 4)}
        for i in np.argsort(-mean, kind="stable")
    ]
