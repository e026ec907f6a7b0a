"""Clauses on two sides of a difference: each type with its numbers, and what it costs a model."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flows.diagnosis.text.phrases import change_phrases, described_changes, far_values, joined, listed, type_phrases
from models.metrics.base_metrics import format_number, format_signed

MAX_FEATURES = 3
"""Features of one type that a sentence names."""


def evidence_of(report: dict[str, Any], group: int, other: int) -> dict[str, Any]:
    """Return the evidence of a pair of silos of two groups, of one with an estimated loss if there is one.

    Its sides are exchanged if needed, so that the first silo is of `group`.
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
    return next((pair for pair in pairs if any((pair.get("shared_model_loss") or {}).values())), (pairs or [{}])[0])


def _exchanged(pair: dict[str, Any]) -> dict[str, Any]:
    """Exchange the two sides of a pair's evidence."""
    swapped = {"first": "second", "second": "first"}
    together = [{swapped.get(key, key): value for key, value in found.items()} for found in pair.get("together", [])]
    losses = pair.get("shared_model_loss")  # None if not estimated
    return pair | {
        "first": pair["second"],
        "second": pair["first"],
        "together": together,
        "shared_model_loss": losses and {swapped[side]: loss for side, loss in losses.items()},
    }


def effect_clauses(report: Mapping[str, Any], evidence: Mapping[str, Any], kinds: Sequence[str]) -> list[str]:
    """Describe by how much a model that both silos share would predict worse than one of their own."""
    if evidence.get("effect_on_prediction") == "none seen" and "concept" not in kinds:
        return ["one model for both would predict as well as a model for each, as far as the counts show"]
    if evidence.get("effect_on_prediction") != "seen":
        return []
    losses = {evidence[side]: loss for side, loss in evidence["shared_model_loss"].items() if loss}
    name = max(losses, key=lambda client: losses[client]["loss"])
    loss = losses[name]
    if loss["low"] <= 0:
        return []
    interval = f"{format_number(loss['low'], 2)} to {format_number(loss['high'], 2)}"
    what = " in groups of targets" if report["query"]["targets"] else ""
    lost = format_number(loss["loss"], 2)
    return [f"one model for both would lose about {lost} points of accuracy{what} at {name} ({interval})"]


def type_clause(
    report: dict[str, Any],
    kind: str,
    changes: Mapping[str, Any],
    features: Sequence[str],
    evidence: Mapping[str, Any] = MappingProxyType({}),
    described_types: Sequence[str] = (),
) -> str:
    """Describe one type with its numbers, or with the features that carry it.

    described_types: all types that the sentence describes, so that numbers of labels are not repeated for the rule.
    """
    phrase = type_phrases(report)[kind]
    if kind == "feature":
        return inputs_clause(report, changes, features, evidence)[0]
    described = changes.get(kind, [])[:MAX_FEATURES]
    described = _as_one_rule(described) if kind == "concept" else described
    in_units = not report["query"]["pictures"] or kind == "label"  # projections of pictures have no unit
    found = change_phrases(described, report) if in_units else []
    if kind == "label":
        hedge = f" (or {_other_rule(report)})" if evidence.get("label_or_concept") else ""
        return f"{joined(found) if found else phrase}{hedge}"
    if evidence.get("interactions"):
        on = "target" if report["query"]["targets"] else "label"
        found = [f"how {joined(evidence['interactions'][0]['features'])} act together on the {on} differs"]
    elif described and described[0]["what"] in ("label", "target"):
        if "label" in described_types and changes.get("label") == changes["concept"]:
            return f"no difference of inputs was seen, so {phrase}"
        return f"{phrase}; {joined(found)}, and no difference of inputs was seen"
    return f"{phrase} ({found[0]})" if found else phrase


def inputs_clause(
    report: dict[str, Any], changes: Mapping[str, Any], features: Sequence[str], evidence: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """Describe how inputs differ; also return the features that the clause names."""
    phrase = type_phrases(report)["feature"]
    described, together = described_changes(changes.get("feature", []))[:MAX_FEATURES], []
    if report["query"]["pictures"]:  # projections of pictures have no unit
        described = []
    elif len(described) < MAX_FEATURES:
        together = [
            pair
            for pair in evidence.get("together", [])
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


def _with_far_values(phrase: str, feature: str, report: Mapping[str, Any]) -> str:
    """Add the silos in which values of a feature may be a code for missing values; this precedes all other clauses."""
    silos = far_values(report).get(feature)
    return (
        f"{phrase}, with values far from all others at {listed(silos)}, as of a code for missing values"
        if silos
        else phrase
    )


def _other_rule(report: Mapping[str, Any]) -> str:
    """Return what may explain labels that differ as well; a regression has no threshold."""
    return (
        type_phrases(report)["concept"] if report["query"]["targets"] else "the label is coded with another threshold"
    )


def _together_phrase(pair: Mapping[str, Any]) -> str:
    correlations = (format_signed(f"{pair[side]:.2f}") for side in ("first", "second"))
    return f"{joined(pair['features'])} go together differently (rank correlation {' against '.join(correlations)})"


def _as_one_rule(changes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge changes of the rule that explain it about as well: the first, with the other features as `or`."""
    if not changes:
        return []
    names = {change["name"].partition("=")[0]: change["name"] for change in reversed(changes)}
    return [{**changes[0], "or": [*reversed(names.values())][1:]}]
