"""The findings of a diagnosis in sentences for readers without statistics."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flows.diagnosis.text.fault_phrases import fault_sentences
from flows.diagnosis.text.phrases import (
    change_phrases,
    counted,
    group_name,
    joined,
    left_out,
    listed,
    members,
    no_verdict,
    odd_one,
    plural,
    reversed_changes,
    shown_counts,
    shown_types,
    type_phrases,
)
from models.shift.nested_tests import TYPES
from models.shift.pair_screening import MIN_SHARE
from models.shift.pairwise_results import DISCOVERIES

_MAX_FINDINGS = 8
_MAX_SENTENCES = 5  # on groups, pairs or silos; headline, members and differences within groups come on top
_MAX_FEATURES = 3


def sentences(report: dict[str, Any]) -> list[str]:
    """Return what is plainly so in the data, then a sentence for each finding, the most important first."""
    return [*fault_sentences(report), *_findings(report)]


def _findings(report: dict[str, Any]) -> list[str]:
    if len(report["clients"]) == 1:
        return [_one_silo(report)]
    pairs = report["pairs"]
    determined = [pair for pair in pairs if not pair["undetermined"]]
    differ = [pair for pair in determined if pair["types"]]
    if pairs and not determined:
        return [no_verdict(report)]
    if not differ:
        first, *more = _no_differing_pair(report)
        return [first + _unlike_inside(report), *more]
    apart = [record for record in report["between"] if _is_apart(record)]
    if not apart:
        odd = odd_one(report)
        described = [_of_one(report, odd)] if odd else _one_by_one(report, differ, len(determined))
        return [_no_groups(report, len(differ), len(determined)), *described]
    lines = [_headline(report, len(differ), len(determined)), *_members(report)] if len(pairs) > 1 else []
    described = [*_of_groups(report, apart)]
    if len(described) > _MAX_SENTENCES:
        by_type = _by_type(report, differ, len(determined))
        return [*lines, *by_type, *_within(report, _MAX_FINDINGS - len(lines) - len(by_type))]
    return [*lines, *described, *_within(report, _MAX_FINDINGS - len(lines) - len(described))]


def _is_apart(record: Mapping[str, Any]) -> bool:
    return record["groups"][0] != record["groups"][1] and _num_determined(record) > 0


def _of_groups(report: dict[str, Any], apart: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Describe groups: each against the reference if there is one, otherwise all pairs of groups.

    Silos that differ from all others come first.
    """
    reference = _reference(report, apart)
    if reference is None:
        for record in apart:
            yield _of_two_groups(report, record, *record["groups"])
        return
    described = [record for record in apart if reference in record["groups"]]
    others = [sum(record["groups"]) - reference for record in described]
    alone = [
        len(apart) > 1 and all(_types_in_most(record) for record in apart if other in record["groups"])
        for other in others
    ]
    order = sorted(range(len(others)), key=lambda i: (not alone[i], len(report["groups"][others[i]]) > 1))
    for index in order:
        yield _of_two_groups(report, described[index], others[index], reference, alone[index])


def _reference(report: dict[str, Any], apart: Sequence[dict[str, Any]]) -> int | None:
    """Return the group that others are compared with: the largest, and of equal ones that with the fewest differences.

    With more than two groups, each type of each pair of groups is a difference. None if there are several such groups.
    """
    compared = sorted({index for record in apart for index in record["groups"]})
    sizes = [len(report["groups"][index]) for index in compared]
    largest = [index for index, size in zip(compared, sizes, strict=True) if size == max(sizes)]
    if len(largest) == 1:
        return largest[0]
    differences = {
        index: sum(len(_types_in_most(record)) for record in apart if index in record["groups"]) for index in largest
    }
    fewest = [index for index in largest if differences[index] == min(differences.values())]
    return fewest[0] if len(fewest) == 1 and len(compared) > 2 else None


def _types_in_most(record: Mapping[str, Any]) -> list[str]:
    counts = shown_counts(record)
    return [kind for kind in TYPES if counts[kind] > _num_determined(record) / 2]


def _of_two_groups(
    report: dict[str, Any], record: dict[str, Any], group: int, other: int, from_all: bool = False
) -> str:
    """Describe how a group differs from another: in most pairs, and in more pairs than by chance."""
    name, other_name = group_name(report, group), group_name(report, other)
    total, counts, phrases = _num_determined(record), shown_counts(record), type_phrases(report)
    in_most = _types_in_most(record)
    in_some = [kind for kind in TYPES if DISCOVERIES * total < counts[kind] <= total / 2]
    if not in_most and not in_some:
        odd = total - record["none"]
        return f"{_capital(name)} and {other_name}: {odd or 'none'} of {counted(total, 'pair')} of silos differ."
    if not in_most:
        found = joined([f"{phrases[kind]} in {counts[kind]} of {counted(total, 'pair')}" for kind in in_some])
        return f"{_capital(name)} and {other_name} differ in some pairs of silos only: {found}."
    changes = record.get("changes", {})
    changes = changes if record["groups"][0] == group else reversed_changes(changes)
    parts = []
    evidence = _evidence(report, group, other)
    for kind in in_most:
        share = "" if counts[kind] == total else f", in {counts[kind]} of {total} pairs of silos"
        parts.append(f"{_of_type(report, kind, changes, record['input_features'], evidence)}{share}")
    parts += [f"in {counts[kind]} of {total} pairs of silos also {phrases[kind]}" for kind in in_some]
    if record["transform"] > total / 2:
        parts.append("one factor and one offset undo the difference, as of a sensor with other settings")
    asks_for_unit = any("another unit" in part for part in parts)  # to be converted before any model is trained
    parts += _effect(evidence, in_most) if set(in_most) & {"feature", "concept"} and not asks_for_unit else []
    verb, found = "differ" if plural(report, group) else "differs", "; ".join(parts)
    if from_all:
        return f"{_capital(name)} {verb} from all other silos: compared with {other_name}, {found}."
    return f"{_capital(name)} {verb} from {other_name}: {found}."


def _evidence(report: dict[str, Any], group: int, other: int) -> dict[str, Any]:
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


def _effect(evidence: Mapping[str, Any], kinds: Sequence[str]) -> list[str]:
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
    interval = f"{loss['low']:.2g} to {loss['high']:.2g}"
    return [f"one model for both would lose about {loss['loss']:.2g} points of accuracy at {name} ({interval})"]


def _of_type(
    report: dict[str, Any],
    kind: str,
    changes: Mapping[str, Any],
    features: Sequence[str],
    evidence: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Describe one type with its numbers, or inputs with the features that moved."""
    phrase = type_phrases(report)[kind]
    in_units = not report["query"]["pictures"] or kind == "label"  # projections of pictures have no unit
    described = changes.get(kind, [])[:_MAX_FEATURES]
    described = _as_one_rule(described) if kind == "concept" else described
    found = change_phrases(described, report) if in_units else []
    if kind == "label" and found:
        hedge = " (or the label is coded with another threshold)" if evidence.get("label_or_concept") else ""
        return f"{found[0]}{hedge}"
    if kind == "concept":
        if evidence.get("interactions"):
            found = [f"how {joined(evidence['interactions'][0]['features'])} act together on the label differs"]
        elif described and described[0]["what"] in ("label", "target"):
            if changes.get("label") == changes["concept"]:  # described before
                return f"no difference of inputs was seen, so {phrase}"
            return f"{phrase}; {found[0]}, and no difference of inputs was seen"
        return f"{phrase} ({found[0]})" if found else phrase
    if kind == "feature" and len(found) < _MAX_FEATURES:
        found += [
            f"{joined(pair['features'])} go together differently (rank correlation {pair['first']:.2f} against "
            f"{pair['second']:.2f})".replace("-", "−")
            for pair in evidence.get("together", [])
            if len({name.partition("=")[0] for name in pair["features"]}) > 1  # not the columns of one category
        ][:1]
    if found:
        return joined(found)
    named = features if kind == "feature" else ()
    return f"{phrase}, most in {joined(list(named)[:_MAX_FEATURES])}" if named else phrase


def _as_one_rule(changes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge changes of the rule that explain it about as well: the first, with the other features as `or`."""
    if not changes:
        return []
    names = {change["name"].partition("=")[0]: change["name"] for change in reversed(changes)}
    return [{**changes[0], "or": [*reversed(names.values())][1:]}]


def _no_differing_pair(report: dict[str, Any]) -> Iterator[str]:
    """Describe that no pair differs; a silo may still differ from all others together, which have more rows."""
    differing = [record for record in report["rest"] if record["types"] and not record["undetermined"]]
    if not differing:
        yield f"No difference was seen between the {_compared(report)}{_excluded(report)}."
        return
    if report["pairs_of"] == "groups":  # in one group a few pairs may differ
        yield f"No groups that differ were seen among the {_compared(report)}{_excluded(report)}."
    else:
        yield f"No difference was seen between any two of the {_compared(report)}{_excluded(report)}."
    for record in differing[:_MAX_SENTENCES]:
        yield _of_one(report, record)
    if len(differing) > _MAX_SENTENCES:
        yield f"{len(differing) - _MAX_SENTENCES} more silos differ from all others together."
    yield "All others together have more rows than any one of them, and show smaller differences."


def _of_one(report: dict[str, Any], record: Mapping[str, Any]) -> str:
    return f"{record['client']} differs from all others together: {differences(report, record)}."


def _one_silo(report: dict[str, Any]) -> str:
    if report["refused"]:
        return f"Only {report['clients'][0]} reported, so there is nothing to compare it with."
    return "There is one silo, so there is nothing to compare it with."


def _compared(report: dict[str, Any]) -> str:
    """Name how many silos were compared."""
    excluded = left_out(report)
    suffix = " that could be compared" if excluded or report["refused"] else ""
    return f"{len(report['clients']) - len(excluded):,} silos{suffix}"


def _excluded(report: dict[str, Any]) -> str:
    excluded = left_out(report)
    return f"; {listed(excluded)} could not be compared" if excluded else ""


def _no_groups(report: dict[str, Any], differ: int, determined: int) -> str:
    verb = "differs" if differ == 1 else "differ"
    return (
        f"The {_compared(report)} form one group: {differ:,} of {counted(determined, 'pair')} of silos {verb}"
        f"{_excluded(report)}."
    )


def _headline(report: dict[str, Any], differ: int, determined: int) -> str:
    excluded = set(left_out(report))
    groups = sum(not excluded.issuperset(group) for group in report["groups"])
    units = "groups" if report["pairs_of"] == "groups" else "silos"
    verb = "differs" if differ == 1 else "differ"
    pairs = f"{differ:,} of {counted(determined, 'pair')} of {units} {verb}"
    return f"The {_compared(report)} form {groups:,} groups; {pairs}{_excluded(report)}.{_unlike_inside(report)}"


def _unlike_inside(report: dict[str, Any]) -> str:
    """Return a sentence on groups whose silos differ in total, although no two of them were seen to differ."""
    unlike = [index for index, inside in enumerate(report.get("inside", [])) if not inside["alike"]]
    if not unlike:
        return ""
    names = listed([group_name(report, index) for index in unlike])
    return f" Silos within {names} differ as well, too little for any two of them to show it."


def _members(report: dict[str, Any]) -> list[str]:
    return [f"{_capital('; '.join(members(report)))}."] if members(report) else []


def _one_by_one(report: dict[str, Any], differ: list[dict[str, Any]], determined: int) -> list[str]:
    """Describe the pairs of otherwise similar silos, one by one if they are few."""
    if len(differ) > _MAX_FEATURES:
        return _by_type(report, differ, determined)
    return [_capital(f"{pair['first']} differs from {pair['second']}: {differences(report, pair)}.") for pair in differ]


def differences(report: dict[str, Any], record: Mapping[str, Any]) -> str:
    """Describe the types of one pair with their numbers."""
    changes, features = record.get("changes", {}), list(record["input_features"])
    evidence = record if "pairs" not in record else {}
    return "; ".join(_of_type(report, kind, changes, features, evidence) for kind in shown_types(record))


def _by_type(report: dict[str, Any], differ: list[dict[str, Any]], determined: int) -> list[str]:
    """Return a sentence for each type, if there are too many pairs to name."""
    phrases = type_phrases(report)
    units = "groups" if report["pairs_of"] == "groups" else "silos"
    lines = []
    for kind in TYPES:
        count = sum(kind in shown_types(pair) for pair in differ)
        if count:
            lines.append(f"In {count:,} of {counted(determined, 'pair')} of {units} {phrases[kind]}.")
    if report["ranking"] and any({"feature", "concept"} & set(pair["types"]) for pair in differ):
        lines.append(f"Most of it is in {joined(leading_features(report)[:_MAX_FEATURES])}.")
    return lines


def leading_features(report: dict[str, Any], ranked: str = "ranking") -> list[str]:
    """Return the features that carry most over all pairs, in order; of inputs alone by `ranking_of_inputs`."""
    ranking = report[ranked]
    return [record["feature"] for record in ranking if record["mean"] >= MIN_SHARE * ranking[0]["mean"]]


def _within(report: dict[str, Any], most: int) -> list[str]:
    """Describe pairs of one group that differ nevertheless: in at most so many sentences."""
    lines = []
    for record in report["between"]:
        num_differing = _num_determined(record) - record["none"]
        if record["groups"][0] == record["groups"][1] and num_differing:
            verb = "differs" if num_differing == 1 else "differ"
            group = group_name(report, record["groups"][0])
            lines.append(f"Within {group}, {num_differing:,} of {counted(record['pairs'], 'pair')} of silos {verb}.")
    return lines if len(lines) <= most else [f"Within {len(lines):,} groups, pairs of silos differ as well."]


def _num_determined(record: Mapping[str, Any]) -> int:
    return int(record["pairs"]) - int(record["undetermined"])


def _capital(sentence: str) -> str:
    """Capitalize our own word only; names are written unchanged."""
    return f"{sentence[0].upper()}{sentence[1:]}" if sentence.startswith(("group ", "the other ")) else sentence
