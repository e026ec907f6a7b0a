"""The findings of a diagnosis in sentences for readers without statistics."""

from collections.abc import Iterator
from typing import Any

from flows.diagnosis.report import grades
from flows.diagnosis.text.caveats import leading_features
from flows.diagnosis.text.phrases import (
    counted,
    group_name,
    in_words,
    joined,
    left_out,
    listed,
    members,
    no_verdict,
    plural,
)
from models.shift.pairwise_results import DISCOVERIES

_MAX_GROUP_PAIRS = 6  # pairs of groups that have a sentence each
_MAX_PAIRS = 3  # pairs within one group that have a sentence each
_MAX_FEATURES = 3
_MARGINS = {"feature": "inputs_differ", "label": "labels_differ"}
_AGREE = {"feature": "inputs", "label": "label shares", "concept": "rules from input to label"}


def sentences(report: dict[str, Any]) -> list[str]:
    """Return a sentence for each finding, the most important first."""
    if len(report["clients"]) == 1:
        return [_one_silo(report)]
    pairs = report["pairs"]
    determined = [pair for pair in pairs if not pair["undetermined"]]
    differ = [pair for pair in determined if pair["types"]]
    if pairs and not determined:
        return [no_verdict(report)]
    if not differ:
        return [*_no_differing_pair(report)]
    apart = [
        record for record in report["between"] if record["groups"][0] != record["groups"][1] and _num_determined(record)
    ]
    if not apart:
        return [_no_groups(report, len(differ), len(determined)), *_one_by_one(report, differ, len(determined))]
    lines = [_headline(report, len(differ), len(determined))] if len(pairs) > 1 else []
    if len(apart) > _MAX_GROUP_PAIRS:
        return [*lines, *_by_type(report, differ, len(determined)), *_within(report)]
    return [*lines, *_members(report), *(_capital(_of_groups(report, record)) for record in apart), *_within(report)]


def _no_differing_pair(report: dict[str, Any]) -> Iterator[str]:
    """Describe that no pair differs; a silo may still differ from all others together, which have more rows."""
    differing = [record for record in report["rest"] if record["types"] and not record["undetermined"]]
    if not differing:
        yield f"No difference was found between the {_compared(report)}{_excluded(report)}."
        return
    if report["pairs_of"] == "groups":  # in one group that is alike a few pairs may differ
        yield f"No groups that differ were found among the {_compared(report)}{_excluded(report)}."
    else:
        yield f"No difference was found between any two of the {_compared(report)}{_excluded(report)}."
    for record in differing[:_MAX_GROUP_PAIRS]:
        yield f"{record['client']} differs from all others together {_differences(report, record)}."
    if len(differing) > _MAX_GROUP_PAIRS:
        yield f"{len(differing) - _MAX_GROUP_PAIRS} more differ from all others together."
    yield "All others together have more rows than any one of them, and show smaller differences."


def _one_silo(report: dict[str, Any]) -> str:
    if report["silent"]:
        return f"{report['clients'][0]} alone tells anything, and there is nothing to compare it with."
    return "There is one silo, and nothing to compare it with."


def _compared(report: dict[str, Any]) -> str:
    """Name how many silos were compared."""
    excluded = left_out(report)
    suffix = " that could be compared" if excluded or report["silent"] else ""
    return f"{len(report['clients']) - len(excluded):,} silos{suffix}"


def _excluded(report: dict[str, Any]) -> str:
    excluded = left_out(report)
    return f"; of {listed(excluded)} nothing can be said" if excluded else ""


def _no_groups(report: dict[str, Any], differ: int, determined: int) -> str:
    verb = "differs" if differ == 1 else "differ"
    return (
        f"The {_compared(report)} are much alike: {differ:,} of {counted(determined, 'pair')} {verb}, and no group of silos "
        f"stands apart{_excluded(report)}."
    )


def _headline(report: dict[str, Any], differ: int, determined: int) -> str:
    excluded = set(left_out(report))
    groups = sum(not excluded.issuperset(group) for group in report["groups"])
    of_groups = " of groups" if report["pairs_of"] == "groups" else ""
    verb = "differs" if differ == 1 else "differ"
    pairs = f"{differ:,} of {counted(determined, 'pair')}{of_groups} {verb}"
    return f"The {_compared(report)} fall into {groups:,} groups that are alike inside; {pairs}{_excluded(report)}."


def _members(report: dict[str, Any]) -> list[str]:
    return [f"{_capital('; '.join(members(report)))}."] if members(report) else []


def _of_groups(report: dict[str, Any], record: dict[str, Any]) -> str:
    """Describe how two groups differ: in most pairs, in more pairs than by chance, and what agrees."""
    first, second = (group_name(report, group) for group in record["groups"])
    total, phrases, counts = _num_determined(record), in_words(report), record["types"]
    in_most = [name for name, count in counts.items() if count > total / 2]
    in_some = [name for name, count in counts.items() if DISCOVERIES * total < count <= total / 2]
    if not in_most and not in_some:
        odd = total - record["none"]
        verb = "differ" if odd > 1 else "differs"
        return (
            f"Between {first} and {second}, {odd or 'none'} of {counted(total, 'pair')} that could be compared {verb}."
        )
    if not in_most:
        differences = [f"{counts[name]} of {total} {phrases[name]}{_strength(record, name)}" for name in in_some]
        return f"{first} and {second} differ in some pairs only: {joined(differences)}."
    differences = [f"{phrases[name]}{_strength(record, name)}{_share(counts[name], total)}" for name in in_most]
    parts = [f"{first} differ{'' if plural(report, record['groups'][0]) else 's'} from {second} {joined(differences)}"]
    if record["features"]:
        parts.append(f"most in {joined(record['features'][:_MAX_FEATURES])}")
    parts += [f"in {counts[name]} of {total} pairs also {phrases[name]}{_strength(record, name)}" for name in in_some]
    agree = _agree(report, record)
    parts += [f"their {joined(agree)} agree"] if agree else []
    if record["transform"] > total / 2:
        parts.append("a gain and an offset undo it, as of sensors that are set differently")
    return "; ".join(parts) + "."


def _agree(report: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """Return what no more pairs differ in than by chance, margins included, which also change under other types.

    Rules are left out unless inputs overlap. Rules and inputs are left out if both report no common class, since
    inputs of different labels differ anyway.
    """
    phrases = {**_AGREE, "label": "targets", "concept": "rules from input to target"}
    phrases = phrases if report["asked"]["targets"] else _AGREE
    excluded = {"concept"} if record["not_identifiable"] else set()
    excluded |= {"concept", "feature"} if record["margins_only"] else set()
    excluded |= {name for name, margin in _MARGINS.items() if record[margin] > DISCOVERIES * _num_determined(record)}
    chance_level = DISCOVERIES * _num_determined(record)
    return [phrases[name] for name, count in record["types"].items() if count <= chance_level and name not in excluded]


def _one_by_one(report: dict[str, Any], differ: list[dict[str, Any]], determined: int) -> list[str]:
    """Describe the pairs of otherwise similar silos, one by one if they are few."""
    if len(differ) > _MAX_PAIRS:
        return _by_type(report, differ, determined)
    return [_capital(f"{pair['first']} differs from {pair['second']} {_differences(report, pair)}.") for pair in differ]


def _differences(report: dict[str, Any], record: dict[str, Any]) -> str:
    phrases, strength = in_words(report), {"grades": grades([record])}
    types = joined([f"{phrases[name]}{_strength(strength, name)}" for name in record["types"]])
    features = f"; most in {joined(list(record['features'])[:_MAX_FEATURES])}" if record["features"] else ""
    return f"{types}{features}"


def _by_type(report: dict[str, Any], differ: list[dict[str, Any]], determined: int) -> list[str]:
    """Return a sentence for each type, if there are too many pairs to name."""
    phrases, medians = in_words(report), grades(differ)
    units = "groups" if report["pairs_of"] == "groups" else "silos"
    lines = []
    for name in medians:
        count = sum(name in pair["types"] for pair in differ)
        strength = _strength({"grades": medians}, name)
        lines.append(f"{count:,} of {counted(determined, 'pair')} of {units} differ {phrases[name]}{strength}.")
    if report["ranking"] and {"feature", "concept"} & set(medians):
        lines.append(f"Most of it is in {joined(leading_features(report)[:_MAX_FEATURES])}.")
    return lines


def _within(report: dict[str, Any]) -> Iterator[str]:
    """Describe pairs of one group that differ nevertheless."""
    for record in report["between"]:
        num_differing = _num_determined(record) - record["none"]
        if record["groups"][0] == record["groups"][1] and num_differing:
            verb = "differs" if num_differing == 1 else "differ"
            group = group_name(report, record["groups"][0])
            yield f"Within {group}, {num_differing:,} of {counted(record['pairs'], 'pair')} {verb}."


def _num_determined(record: dict[str, Any]) -> int:
    return int(record["pairs"]) - int(record["undetermined"])


def _strength(record: dict[str, Any], name: str) -> str:
    grade = record["grades"].get(name)
    return f" ({grade})" if grade else ""


def _share(count: int, total: int) -> str:
    return "" if count == total else f" in {count} of {total} pairs"


def _capital(sentence: str) -> str:
    """Capitalize our own word only; names are written unchanged."""
    return f"G{sentence[1:]}" if sentence.startswith("group ") else sentence
