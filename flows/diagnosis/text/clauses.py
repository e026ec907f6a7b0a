"""Clauses on two sides of a difference: each type with its numbers, and what it costs a model."""

from collections.abc import Mapping, Sequence

from flows.diagnosis.text.phrases import change_phrases, described_changes, far_values, joined, listed, type_phrases
from models.diagnosis.shift_words import ShiftType
from models.metrics.task_metrics import format_number, format_signed
from tasks.tracking.result_types.diagnosis_records import ChangeRecord, Evidence, FeaturePairRecord, PairRecord
from tasks.tracking.result_types.diagnosis_result import DiagnosisFacts, SiloFacts

MAX_FEATURES = 3
"""Features of one type that a sentence names."""


def evidence_of(report: SiloFacts, group: int, other: int) -> PairRecord | None:
    """Return the evidence of a pair of silos of two groups, of one with an estimated loss if there is one.

    Its sides are exchanged if needed, so that the first silo is of `group`. None if no pair has evidence for a clause.
    """
    groups = report["groups"]
    names = [f"group {index + 1}" for index in range(len(groups))] if report["pairs_of"] == "groups" else None
    one, two = ([names[index]] if names else groups[index] for index in (group, other))
    pairs = [
        pair if pair["first"] in one else _exchanged(pair)
        for pair in report["pairs"]
        if pair["types"]
        and ("shared_model_loss" in pair or pair.get("label_or_concept"))
        and ({pair["first"], pair["second"]} & {*one} and {pair["first"], pair["second"]} & {*two})
    ]
    return next((pair for pair in pairs if pair.get("shared_model_loss")), pairs[0] if pairs else None)


def _exchanged(pair: PairRecord) -> PairRecord:
    """Exchange the two sides of a pair's evidence."""
    losses = pair.get("shared_model_loss")  # None if not estimated
    return {
        **pair,
        "first": pair["second"],
        "second": pair["first"],
        "together": [
            {**found, "first": found["second"], "second": found["first"]} for found in pair.get("together", [])
        ],
        "shared_model_loss": losses and {"first": losses["second"], "second": losses["first"]},
    }


def effect_clauses(report: SiloFacts, evidence: PairRecord | None, kinds: Sequence[ShiftType]) -> list[str]:
    """Describe by how much a model that both silos share would predict worse than one of their own."""
    effect = evidence and evidence.get("effect_on_prediction")
    if effect == "none seen" and "concept" not in kinds:
        return ["one model for both would predict as well as a model for each, as far as the counts show"]
    of_sides = evidence and evidence.get("shared_model_loss")
    if effect != "seen" or not evidence or not of_sides:
        return []
    losses = {evidence["first"]: of_sides["first"], evidence["second"]: of_sides["second"]}
    name = max(losses, key=lambda client: losses[client]["loss"])
    loss = losses[name]
    if loss["low"] <= 0:
        return []
    interval = f"{format_number(loss['low'], 2)} to {format_number(loss['high'], 2)}"
    what = " in groups of targets" if report["query"]["targets"] else ""
    lost = format_number(loss["loss"], 2)
    return [f"one model for both would lose about {lost} points of accuracy{what} at {name} ({interval})"]


def type_clause(
    report: DiagnosisFacts,
    kind: ShiftType,
    changes: Mapping[ShiftType, Sequence[ChangeRecord]],
    features: Sequence[str],
    evidence: Evidence | None = None,
    described_types: Sequence[ShiftType] = (),
) -> str:
    """Describe one type with its numbers, or with the features that carry it.

    described_types: all types that the sentence describes, so that numbers of labels are not repeated for the rule.
    """
    phrase = type_phrases(report)[kind]
    if kind == "feature":
        return inputs_clause(report, changes, features, evidence)[0]
    described, others = changes.get(kind, ())[:MAX_FEATURES], list[str]()
    if kind == "concept":  # several features may explain one rule about as well: the first, with the others as `or`
        described, others = described[:1], _columns_after_first(described)
    in_units = not report["query"]["pictures"] or kind == "label"  # projections of pictures have no unit
    found = change_phrases(described, report, others) if in_units else []
    if kind == "label":
        hedge = f" (or {other_rule(report)})" if evidence and evidence.get("label_or_concept") else ""
        return f"{joined(found) if found else phrase}{hedge}"
    interactions = evidence and evidence.get("interactions")
    if interactions:
        on = "target" if report["query"]["targets"] else "label"
        found = [f"how {joined(interactions[0]['features'])} act together on the {on} differs"]
    elif described and described[0]["what"] in ("label", "target"):
        if "label" in described_types and changes.get("label") == changes["concept"]:
            return f"no difference of inputs was seen, so {phrase}"
        return f"{phrase}; {joined(found)}, and no difference of inputs was seen"
    return f"{phrase} ({found[0]})" if found else phrase


def inputs_clause(
    report: DiagnosisFacts,
    changes: Mapping[ShiftType, Sequence[ChangeRecord]],
    features: Sequence[str],
    evidence: Evidence | None,
) -> tuple[str, list[str]]:
    """Describe how inputs differ; also return the features that the clause names."""
    phrase = type_phrases(report)["feature"]
    described, together = described_changes(changes.get("feature", ()))[:MAX_FEATURES], list[FeaturePairRecord]()
    if report["query"]["pictures"]:  # projections of pictures have no unit
        described = []
    elif len(described) < MAX_FEATURES:
        together = [
            pair
            for pair in (evidence.get("together", []) if evidence else [])
            if len({name.partition("=")[0] for name in pair["features"]}) > 1  # not the columns of one category
        ][:1]
    found = change_phrases(described, report)
    found = [_with_far_values(phrase, change["name"], report) for phrase, change in zip(found, described, strict=True)]
    found += [_together_phrase(pair) for pair in together]
    names = [change["name"] for change in described] + [name for pair in together for name in pair["features"]]
    if found:
        return joined(found), [*dict.fromkeys(names)]
    named = list(features)[:MAX_FEATURES]
    return (f"{phrase}, most in {joined(named)}" if named else phrase), named


def _with_far_values(phrase: str, feature: str, report: DiagnosisFacts) -> str:
    """Add the silos in which values of a feature may be a code for missing values; this precedes all other clauses."""
    silos = far_values(report).get(feature)
    return f"{phrase}, with values at {listed([*silos])} that may be a code for missing values" if silos else phrase


def other_rule(report: DiagnosisFacts) -> str:
    """Return what may explain labels that differ as well; a regression has no threshold."""
    return (
        type_phrases(report)["concept"] if report["query"]["targets"] else "the label is coded with another threshold"
    )


def _together_phrase(pair: FeaturePairRecord) -> str:
    correlations = (format_signed(f"{value:.2f}") for value in (pair["first"], pair["second"]))
    return f"{joined(pair['features'])} go together differently (rank correlation {' against '.join(correlations)})"


def _columns_after_first(changes: Sequence[ChangeRecord]) -> list[str]:
    """Return the features of these changes but the first; of the columns of one category, such as ward=eye, one."""
    names = {change["name"].partition("=")[0]: change["name"] for change in reversed(changes)}
    return [*reversed(names.values())][1:]
