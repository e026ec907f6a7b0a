"""The results of a diagnosis as plain JSON: pairs, groups of similar silos, each silo against the rest, and tables."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from models.diagnosis.client_summaries.client_summary import Layout, Summaries, mixture
from models.diagnosis.client_summaries.gaussian_mechanism import counts_sensitivity
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.correlation_tests import FeaturePair, Refinement, effect_on_prediction
from models.diagnosis.diagnose_pairs import REASONS, Findings, rule_features
from models.diagnosis.guarded_tests import ALPHA, TYPES
from models.diagnosis.magnitudes import (
    Change,
    are_unlike,
    feature_change,
    largest_label_change,
    largest_mean_differences,
    largest_share_differences,
    rule_change,
    target_change,
)
from models.diagnosis.name_shift_types import GRADES, EffectSizes
from models.diagnosis.pseudo_rows import SharedModelLoss
from models.diagnosis.screen_clients import INSIDE, MIN_SHARE
from models.diagnosis.shift_words import ShiftType
from models.metrics.task_metrics import format_number
from models.privacy_accounting import sigma
from tasks.diagnosis.compare_feature_pairs import FeaturePairs
from tasks.diagnosis.compare_odd_silos import OddSilos
from tasks.diagnosis.compare_silos import Comparison, VersionComparison
from tasks.tracking.result_types.diagnosis_records import (
    ChangeRecord,
    Changes,
    Effects,
    Evidence,
    FeaturePairRecord,
    Grades,
    GroupPairRecord,
    InsideRecord,
    LossRecord,
    OddSilosRecord,
    PairRecord,
    RankedFeature,
    RefinementRecord,
    SiloRecord,
    StrengthRecord,
)
from tasks.tracking.result_types.diagnosis_result import (
    ComparedSilos,
    ComparedVersions,
    PairMatrices,
    QueryRecord,
    Table,
)


def matrices(comparison: Comparison, names: Sequence[str], records: Sequence[Evidence]) -> PairMatrices:
    """Return square tables in the order of `names`; `order` are indices that put similar silos next to each other.

    means and shares are the largest difference of a mean, in pooled standard deviations, and of a label's share.
    feature, label and concept are D_X, D_Y and D_{Y|X}. chance is the p-value, and 1 on the diagonal. verdict lists
    types as `shown_types` does, or `undetermined`. Undefined numbers are None. records: one for each pair, in order.
    """
    pairs, sizes = comparison.pairs, comparison.effect_sizes

    def square(column: np.ndarray) -> Table:
        return _square(comparison, np.round(column, 4), len(names), 0.0)

    verdicts: list[list[list[ShiftType | Literal["undetermined"]]]] = [[[] for _ in names] for _ in names]
    for a, b, record in zip(pairs.first.tolist(), pairs.second.tolist(), records, strict=True):
        verdicts[a][b] = verdicts[b][a] = ["undetermined"] if record["undetermined"] else [*shown_types(record)]
    grouped = [index for group in comparison.groups for index in group]
    units = comparison.by_group if comparison.of_groups else comparison.with_rest.take(range(len(names)))
    return {
        "names": list(names),
        "order": list(range(len(names))) if comparison.of_groups else grouped,
        "means": _finite(np.round(largest_mean_differences(units, comparison.layout), 6)),
        "shares": _finite(np.round(largest_share_differences(units), 6)),
        "feature": square(sizes.distances[:, TYPES.index("feature")]),
        "label": square(sizes.distances[:, TYPES.index("label")]),
        "concept": square(sizes.distances[:, TYPES.index("concept")]),
        "in_classes": square(sizes.in_classes),
        "wasserstein": square(sizes.wasserstein),
        "chance": _square(comparison, pairs.chance, len(names), 1.0),
        "verdict": verdicts,
    }


def _square(comparison: Comparison, column: np.ndarray, size: int, diagonal: float) -> Table:
    table = np.full((size, size), diagonal)
    first, second = comparison.pairs.first, comparison.pairs.second
    table[first, second] = table[second, first] = column
    return _finite(table)


def _finite(table: np.ndarray) -> Table:
    return [[value if np.isfinite(value) else None for value in row] for row in table.tolist()]


_SHOWN = 5  # features of a pair that are named

NARROW = 0.1
"""Overlap of a feature's values below which it cannot be known whether labels follow from inputs equally."""

_LARGE = 0.1  # φ below which a feature is not named


def report(
    comparison: Comparison,
    query: Query,
    classes: Sequence[str],
    feature_pairs: FeaturePairs | None = None,
    targets: Mapping[str, np.ndarray] | None = None,
    odd: OddSilos | None = None,
) -> ComparedSilos:
    """Describe all pairs, groups and silos, by their names.

    Args:
        comparison: The results of all pairs.
        query: What the silos were queried for.
        classes: The names of the labels; unused in a regression.
        feature_pairs: What pairs of features show, if they were queried.
        targets: In a regression the moments of each silo's targets, (5,), if they were queried.
        odd: The silos that take part in most differences, if there are any.
    """
    clients, features = comparison.clients, query.layout.names
    names = comparison.names
    first, second = comparison.pairs.first.tolist(), comparison.pairs.second.tolist()
    of_pairs, of_rest = (None, None) if feature_pairs is None else (feature_pairs.pairs, feature_pairs.rest)
    pairs = _describe_pairs(comparison.pairs, comparison.effect_sizes, features, of_pairs)
    rest = _describe_pairs(comparison.rest, comparison.rest_effect_sizes, features, of_rest)
    groups = [[clients[index] for index in group] for group in comparison.groups]
    group_of = {index: group_index for group_index, group in enumerate(comparison.groups) for index in group}
    if comparison.of_groups:
        group_of = {index: index for index in range(len(groups))}
    names_of_classes = class_names(classes, query)
    # after the refinement of pairs, whose final types are counted here
    between = _describe_groups(comparison.pairs, pairs, group_of)
    _describe_changes_between(between, comparison, groups, names_of_classes, targets)
    # pairs within a group, since the changes of `between` are those of two different groups
    described = {*_described_pairs(comparison)}

    def describe_pair(index: int) -> PairRecord:
        ends, evidence = [first[index], second[index]], pairs[index]
        one, other = (names[end] for end in ends)
        if index not in described:
            return {"first": one, "second": other, **evidence, "note": None}
        of_targets = _targets_of(targets, [[one], [other]])
        changes = _changes(
            comparison.with_rest.take(ends),
            comparison.layout,
            evidence["types"],
            evidence,
            names_of_classes,
            of_targets,
        )
        return {"first": one, "second": other, **evidence, "changes": changes, "note": None}

    def describe_silo(index: int) -> SiloRecord:
        two = comparison.with_rest.take([index, index + len(clients)])
        of_targets = _targets_of(targets, [[clients[index]], [*clients[:index], *clients[index + 1 :]]])
        changes = _changes(two, comparison.layout, rest[index]["types"], rest[index], names_of_classes, of_targets)
        return {"client": clients[index], **rest[index], "changes": changes, "note": None}

    return {
        "clients": list(clients),
        "features": list(features),
        "classes": names_of_classes,
        "query": _describe_query(query),
        "groups": groups,
        "inside": _describe_inside(comparison.inside),
        "pairs_of": "groups" if comparison.of_groups else "silos",
        "between": between,
        "odd": None if odd is None else _describe_odd_silos(odd, comparison, features, names_of_classes, targets),
        "rest": [describe_silo(index) for index in range(len(rest))],
        "pairs": [describe_pair(index) for index in range(len(pairs))],
        "ranking": _ranking(comparison.pairs, comparison.pairs.parts, _MORE_THAN_LABELS, features),
        "ranking_of_inputs": _ranking(comparison.pairs, comparison.pairs.inputs, _INPUTS, features),
        "gaps": comparison.missing.to_dict(clients, features),
        "matrices": matrices(comparison, names, pairs),
    }


def _describe_changes_between(
    between: Sequence[GroupPairRecord],
    comparison: Comparison,
    groups: Sequence[Sequence[str]],
    names_of_classes: list[str],
    targets: Mapping[str, np.ndarray] | None,
) -> None:
    """Add to the records of two different groups what changes from one to the other, over all their rows."""
    for record in between:
        one, other = record["groups"]
        if one == other:
            continue
        sides, of_groups = [groups[one], groups[other]], comparison.by_group.take(record["groups"])
        types = [name for name, count in record["types"].items() if count]
        of_targets = _targets_of(targets, sides)
        record["changes"] = _changes(
            of_groups, comparison.layout, types, record, names_of_classes, of_targets, record["pairs"]
        )
        record["target_amounts"] = [_unlike_amounts(targets, *sides), _unlike_amounts(targets, *sides[::-1])]


def report_of_versions(comparison: VersionComparison, query: Query, classes: Sequence[str]) -> ComparedVersions:
    """Describe each client before and after, in the order of their names; `between` has one record for each client.

    The first of two numbers of a change is that of the present version. classes: as in `report`.
    """
    features = query.layout.names
    pairs = _describe_pairs(comparison.pairs, comparison.effect_sizes, features)
    names_of_classes = class_names(classes, query)

    def describe_silo(index: int) -> SiloRecord:
        two = comparison.summaries.take([index + len(pairs), index])
        changes = _changes(two, query.layout, pairs[index]["types"], pairs[index], names_of_classes)
        return {"client": comparison.clients[index], **pairs[index], "changes": changes, "note": None}

    return {
        "clients": list(comparison.clients),
        "features": list(features),
        "classes": names_of_classes,
        "query": _describe_query(query),
        "between": _describe_groups(comparison.pairs, pairs, {index: index for index in range(2 * len(pairs))}),
        "pairs": [describe_silo(index) for index in range(len(pairs))],
        "ranking": _ranking(comparison.pairs, comparison.pairs.parts, _MORE_THAN_LABELS, features),
        "ranking_of_inputs": _ranking(comparison.pairs, comparison.pairs.inputs, _INPUTS, features),
        "gaps": comparison.missing.to_dict(comparison.names, features),
    }


def class_names(classes: Sequence[str], query: Query) -> list[str]:
    """Return the names of classes, or of the groups of targets that replace them in a regression."""
    cuts = [format_number(cut) for cut in query.layout.targets]
    if not cuts:
        return list(classes)
    inner = [f"{low} to {high}" for low, high in pairwise(cuts)]
    return [f"below {cuts[0]}", *inner, f"above {cuts[-1]}"]


def _targets_of(targets: Mapping[str, np.ndarray] | None, sides: Sequence[Sequence[str]]) -> Change | None:
    """Return by how much the targets of two sides, of silos each, differ; None unless both reported them."""
    known = [[targets[client] for client in side if client in targets] for side in sides] if targets else []
    return target_change(np.stack([mixture(np.stack(side)) for side in known])) if known and all(known) else None


def _unlike_amounts(
    targets: Mapping[str, np.ndarray] | None, silos: Sequence[str], others: Sequence[str]
) -> list[ChangeRecord]:
    """Return by how much the targets of each silo of a group differ from all others together, if by unlike amounts."""
    changes = {silo: _targets_of(targets, [[silo], others]) for silo in silos} if len(silos) > 1 else {}
    clear = {silo: change for silo, change in changes.items() if change is not None and change.is_clear}
    if not are_unlike([*clear.values()]):
        return []
    return [
        {**change_record(change), "silo": silo} for silo, change in sorted(clear.items(), key=lambda item: -item[1].z)
    ]


def _described_pairs(comparison: Comparison) -> list[int]:
    """Return the differing pairs of silos within groups if they are few, since sentences then describe each."""
    pairs, group_of = comparison.pairs, {silo: index for index, group in enumerate(comparison.groups) for silo in group}
    if comparison.of_groups:
        return []
    found = [
        index
        for index in np.flatnonzero(pairs.verdicts.types.any(-1) & ~pairs.verdicts.undetermined).tolist()
        if group_of[int(pairs.first[index])] == group_of[int(pairs.second[index])]
    ]
    return found if len(found) <= _FEW else []


_FEW = 3  # pairs that are described one by one


def _changes(
    two: Summaries,
    layout: Layout,
    types: Sequence[ShiftType],
    record: Evidence | GroupPairRecord,
    classes: list[str],
    of_targets: Change | None = None,
    num_pairs: int = 1,
) -> Changes:
    """Describe by how much two clients differ, by type.

    record: of the two, or of all pairs of two groups; it names the features that carry the difference. Another rule that no
    feature explains, at inputs without a difference, is described by labels, and in a regression by `of_targets`.
    """
    of_labels = of_targets if of_targets is not None and of_targets.is_clear else largest_label_change(two, classes)
    indices, of_rule = (
        [layout.names.index(name) for name in names] for names in (record["input_features"], record["rule_features"])
    )
    changes: dict[ShiftType, list[Change | None]] = {}
    if "feature" in types:
        changes["feature"] = [feature_change(two, layout, index) for index in indices]
    if "label" in types:
        changes["label"] = [of_labels]
    if "concept" in types:
        changes["concept"] = [rule_change(two, layout, index, classes) for index in of_rule]
        if (not of_rule or of_targets) and record["labels_differ"] > num_pairs / 2 >= record["inputs_differ"]:
            changes["concept"] = [of_labels]
    return {
        name: [change_record(change) for change in found if change and change.is_clear]
        for name, found in changes.items()
    }


def change_record(change: Change) -> ChangeRecord:
    """Describe a change without its undefined numbers."""
    record: ChangeRecord
    if math.isnan(change.first):  # a rule, which is compared at equal values and has no share of its own
        record = {"what": change.what, "name": change.name, "difference": round(change.difference, 6)}
    else:
        record = {
            "what": change.what,
            "name": change.name,
            "first": round(change.first, 6),
            "second": round(change.second, 6),
            "difference": round(change.difference, 6),
        }
    if not math.isnan(change.low):
        record["low"], record["high"] = round(change.low, 6), round(change.high, 6)
    if change.deviations is not None:
        record["deviations"] = round(change.deviations, 6)
    if change.factor is not None:
        record["factor"] = round(change.factor, 6)
    if change.value is not None:
        record["value"] = change.value
    if change.cell is not None:
        record["cell"] = change.cell
    return record


def _describe_odd_silos(
    odd: OddSilos,
    comparison: Comparison,
    features: tuple[str, ...],
    classes: list[str],
    targets: Mapping[str, np.ndarray] | None,
) -> OddSilosRecord:
    """Describe a pair: the odd silos together, and all other silos together."""
    (evidence,) = _describe_pairs(odd.findings, odd.effect_sizes, features, odd.refinement)
    silos = [comparison.clients[index] for index in odd.silos]
    sides = [silos, [client for client in comparison.clients if client not in silos]]
    of_targets = _targets_of(targets, sides)
    return {
        "silos": silos,
        **evidence,
        "changes": _changes(odd.summaries, comparison.layout, evidence["types"], evidence, classes, of_targets),
        "target_amounts": [_unlike_amounts(targets, *sides)],
    }


def _describe_inside(p_values: np.ndarray) -> list[InsideRecord]:
    """Describe for each group whether its silos are alike, and the tests that show that they are not."""
    rejected = p_values * max(p_values.size, 1) < ALPHA
    return [
        {
            "alike": not any(differ),
            "differ_in": [name for name, one in zip(INSIDE, differ, strict=True) if one],
            "chance": dict(zip(INSIDE, chance, strict=True)),
        }
        for differ, chance in zip(rejected.tolist(), p_values.tolist(), strict=True)
    ]


def _describe_query(query: Query) -> QueryRecord:
    """Describe what the sentences depend on besides results."""
    return {
        "question": query.id,
        "pictures": query.pictures is not None,
        "counts": query.counts,
        "targets": list(query.layout.targets),
        "bins": query.layout.bins,
        "rows_noise": _rows_noise(query),
    }


def _rows_noise(query: Query) -> float:
    """Return the deviation of a silo's number of rows, which under noise is the mean over features of its counts."""
    layout = query.layout
    if not query.rho:
        return 0.0
    cell_sd = sigma(counts_sensitivity(len(layout.names)), query.rho)
    return float(cell_sd * np.sqrt(layout.possible.sum() * layout.classes) / len(layout.names))


def grades(records: Sequence[Evidence]) -> Grades:
    """Return for each type the median grade of the pairs that have it, the lower of two; None if undefined."""
    middle: Grades = {}
    for name in TYPES:
        grades_ = [record["strength"]["grades"][name] for record in records if name in record["types"]]
        defined = sorted((grade for grade in grades_ if grade is not None), key=GRADES.index)
        if grades_:
            middle[name] = defined[(len(defined) - 1) // 2] if defined else None
    return middle


def _describe_pairs(
    findings: Findings, sizes: EffectSizes, features: tuple[str, ...], refinement: Refinement | None = None
) -> list[Evidence]:
    verdicts, records = findings.verdicts, list[Evidence]()
    for index in range(len(findings.first)):
        types = [name for name, present in zip(TYPES, verdicts.types[index].tolist(), strict=True) if present]
        of_rule = rule_features(findings, index)[:_SHOWN] if "concept" in types else []
        rows = findings.rows[index].tolist()
        evidence: Evidence = {
            "types": types,
            "undetermined": bool(verdicts.undetermined[index]),
            "why": REASONS[findings.why[index]] if verdicts.undetermined[index] else None,
            "reports": findings.tells[index].tolist(),
            "transform": bool(verdicts.transform[index]),
            "margins_only": bool(verdicts.margins_only[index]),
            "label_or_concept": bool(verdicts.label_or_concept[index]),
            "concept_identifiable": not findings.overlap[index] < NARROW,
            "features": _largest(findings.parts[index], features) if {"feature", "concept"} & set(types) else {},
            "input_features": _largest(findings.inputs[index], features) if "feature" in types else {},
            "rule_features": {features[i]: round(float(findings.rules[index, i]), 4) for i in of_rule},
            "labels_differ": bool(findings.labels[index]),
            "inputs_differ": bool(findings.moved[index]),
            "chance": float(findings.chance[index]),
            "overlap": _round(findings.overlap[index]),
            "rows": rows,
            "rows_ratio": max(rows) / max(1, min(rows)),
            "strength": _strength(sizes, index),
        }
        records.append(
            evidence if refinement is None else {**evidence, **describe_refinement(refinement, index, features)}
        )
    return records


def _largest(effects: np.ndarray, features: tuple[str, ...]) -> Effects:
    """Return the features with the largest φ, the largest first."""
    least = max(_LARGE, MIN_SHARE * effects.max(initial=0.0))
    order = np.argsort(-effects, kind="stable")[:_SHOWN].tolist()
    return {features[i]: round(float(effects[i]), 4) for i in order if effects[i] >= least}


def describe_refinement(refinement: Refinement, index: int, features: tuple[str, ...]) -> RefinementRecord:
    """Describe what pairs of features show of a pair of clients; fields are as in `Refinement`."""
    losses = refinement.losses[index]
    return {
        "together": [_feature_pair(found, features) for found in refinement.together[index]],
        "interactions": [_feature_pair(found, features) for found in refinement.interactions[index]],
        "resolved_by_pairs": bool(refinement.resolved[index]),
        "second_look_recommended": bool(refinement.second_look[index]),
        "shared_model_loss": losses and {"first": _loss(losses[0]), "second": _loss(losses[1])},
        "effect_on_prediction": effect_on_prediction(losses),
    }


def _loss(loss: SharedModelLoss) -> LossRecord:
    """Describe what a shared model loses at a silo: accuracy in points, and log loss in nats a row."""
    return {
        "loss": _points(loss.loss),
        "low": _points(loss.low),
        "high": _points(loss.high),
        "own": _points(loss.own),
        "shared": _points(loss.shared),
        "log_loss": round(float(loss.log_loss), 4),
        "log_loss_error": round(float(loss.log_loss_error), 4),
    }


def _points(share: float) -> float:
    return round(100 * float(share), 2)


def _feature_pair(found: FeaturePair, features: tuple[str, ...]) -> FeaturePairRecord:
    """Describe two features: rank correlations over all rows, and by class."""
    first, second = ([_round(value) for value in values] for values in (found.of_first, found.of_second))
    return {
        "features": [features[i] for i in found.features],
        "effect": round(found.effect, 4),
        "first": first[-1],
        "second": second[-1],
        "by_class": {"first": first[:-1], "second": second[:-1]},
    }


def _strength(sizes: EffectSizes, index: int) -> StrengthRecord:
    """Describe the effect sizes of a pair: published distances and grades, and others; None if undefined."""
    distances, grades = sizes.distances[index].tolist(), sizes.grades[index].tolist()
    return {
        "distances": {name: _round(value) for name, value in zip(TYPES, distances, strict=True)},
        "grades": {name: GRADES[grade] if grade >= 0 else None for name, grade in zip(TYPES, grades, strict=True)},
        "in_classes": _round(sizes.in_classes[index]),
        "wasserstein": _round(sizes.wasserstein[index]),
    }


def _round(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None


def _describe_groups(findings: Findings, pairs: Sequence[Evidence], group_of: dict[int, int]) -> list[GroupPairRecord]:
    """Describe two groups: the number of pairs, those of each type and how strong, and the features that carry it."""
    tables: dict[tuple[int, int], list[Evidence]] = {}
    for a, b, record in zip(findings.first.tolist(), findings.second.tolist(), pairs, strict=True):
        tables.setdefault((min(group_of[a], group_of[b]), max(group_of[a], group_of[b])), []).append(record)
    return [
        {
            "groups": list(groups),
            "pairs": len(records),
            "types": {name: sum(name in record["types"] for record in records) for name in TYPES},
            "grades": grades(records),
            "none": sum(not record["types"] and not record["undetermined"] for record in records),
            "undetermined": sum(record["undetermined"] for record in records),
            "transform": sum(record["transform"] for record in records),
            "margins_only": sum(record["margins_only"] for record in records),
            "label_or_concept": sum(record["label_or_concept"] for record in records),
            "labels_differ": sum(record["labels_differ"] for record in records),
            "inputs_differ": sum(record["inputs_differ"] for record in records),
            "not_identifiable": sum(not record["concept_identifiable"] for record in records),
            "rule_unknown": sum(is_rule_unknown(record) for record in records),
            "features": _leading_features([record["features"] for record in records]),
            "input_features": _leading_features([record["input_features"] for record in records]),
            "rule_features": _leading_features([record["rule_features"] for record in records]),
        }
        for groups, records in sorted(tables.items())
    ]


def is_rule_unknown(record: Evidence) -> bool:
    """Return whether a pair seems to have another rule, and its inputs hardly overlap, which may be all that differs."""
    return "concept" in record["types"] and len(record["types"]) > 1 and not record["concept_identifiable"]


def shown_types(record: Evidence) -> list[ShiftType]:
    """Return the types of a pair that sentences, tables and pictures show: all but a rule that is not known to differ."""
    return [name for name in record["types"] if name != "concept" or not is_rule_unknown(record)]


def _leading_features(of_pairs: Sequence[Effects]) -> list[str]:
    """Return the features with the largest sum of effects over the pairs, the largest first."""
    total: dict[str, float] = {}
    for effects in of_pairs:
        for name, part in effects.items():
            total[name] = total.get(name, 0.0) + part
    threshold = MIN_SHARE * max(total.values(), default=0.0)
    return [name for name in sorted(total, key=lambda name: -total[name]) if total[name] >= threshold][:_SHOWN]


_INPUTS, _MORE_THAN_LABELS = [TYPES.index("feature")], [TYPES.index("feature"), TYPES.index("concept")]


def _ranking(
    findings: Findings, effects: np.ndarray, types: list[int], features: tuple[str, ...]
) -> list[RankedFeature]:
    """Rank features by mean φ, (pairs, features), over the pairs that have one of these types."""
    differ = findings.verdicts.types[:, types].any(-1)
    if not differ.any():
        return []
    mean, largest = effects[differ].mean(0), effects[differ].max(0)
    return [
        {"feature": features[i], "mean": round(float(mean[i]), 4), "largest": round(float(largest[i]), 4)}
        for i in np.argsort(-mean, kind="stable")
    ]
