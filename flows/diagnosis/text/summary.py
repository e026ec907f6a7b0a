"""What was found, in sentences for somebody without statistics."""

from collections.abc import Iterator
from typing import Any

from flows.diagnosis.report import grades
from flows.diagnosis.text.caveats import leading
from flows.diagnosis.text.phrases import called, counted, in_all, in_words, joined, left_out, listed, members, plural
from models.shift.pairwise_results import DISCOVERIES

_LINES = 6  # pairs of groups that have a sentence each
_PAIRS = 3  # pairs within one group that have
_NAMED = 3  # features
_MARGINS = {"feature": "inputs_differ", "label": "labels_differ"}
_AGREE = {"feature": "inputs", "label": "label shares", "concept": "rules from input to label"}


def sentences(report: dict[str, Any]) -> list[str]:
    """A sentence a finding, the most important first."""
    if len(report["clients"]) == 1:
        return [_alone(report)]
    pairs = report["pairs"]
    seen = [pair for pair in pairs if not pair["undetermined"]]
    differ = [pair for pair in seen if pair["types"]]
    if pairs and not seen:
        return [in_all(report)]
    if not differ:
        return [*_nobody(report)]
    apart = [line for line in report["between"] if line["groups"][0] != line["groups"][1] and _told(line)]
    if not apart:
        return [_alike(report, len(differ), len(seen)), *_one_by_one(report, differ, len(seen))]
    said = [_headline(report, len(differ), len(seen))] if len(pairs) > 1 else []
    if len(apart) > _LINES:
        return [*said, *_in_sum(report, differ, len(seen)), *_within(report)]
    return [*said, *_members(report), *(_capital(_of_groups(report, line)) for line in apart), *_within(report)]


def _nobody(report: dict[str, Any]) -> Iterator[str]:
    """No pair differs; a silo beside all others together may, whose rows are more."""
    apart = [line for line in report["rest"] if line["types"] and not line["undetermined"]]
    if not apart:
        yield f"No difference was found between the {_compared(report)}{_left(report)}."
        return
    if report["pairs_of"] == "groups":  # in one group that is alike a few pairs may differ
        yield f"No groups that differ were found among the {_compared(report)}{_left(report)}."
    else:
        yield f"No difference was found between any two of the {_compared(report)}{_left(report)}."
    words = in_words(report)
    for line in apart[:_LINES]:
        how = joined([f"{words[name]}{_strength({'grades': grades([line])}, name)}" for name in line["types"]])
        most = f"; most in {joined(list(line['features'])[:_NAMED])}" if line["features"] else ""
        yield f"{line['client']} differs from all others together {how}{most}."
    if len(apart) > _LINES:
        yield f"{len(apart) - _LINES} more differ from all others together."
    yield "All others together have more rows than any one of them, and show smaller differences."


def _alone(report: dict[str, Any]) -> str:
    if report["silent"]:
        return f"{report['clients'][0]} alone tells anything, and there is nothing to compare it with."
    return "There is one silo, and nothing to compare it with."


def _compared(report: dict[str, Any]) -> str:
    """How many silos something is said of, which may be all."""
    left = left_out(report)
    some = " that could be compared" if left or report["silent"] else ""
    return f"{len(report['clients']) - len(left):,} silos{some}"


def _left(report: dict[str, Any]) -> str:
    left = left_out(report)
    return f"; of {listed(left)} nothing can be said" if left else ""


def _alike(report: dict[str, Any], differ: int, seen: int) -> str:
    verb = "differs" if differ == 1 else "differ"
    return (
        f"The {_compared(report)} are much alike: {differ:,} of {counted(seen, 'pair')} {verb}, and no group of silos "
        f"stands apart{_left(report)}."
    )


def _headline(report: dict[str, Any], differ: int, seen: int) -> str:
    left = set(left_out(report))
    groups = sum(not left.issuperset(group) for group in report["groups"])
    of = " of groups" if report["pairs_of"] == "groups" else ""
    verb = "differs" if differ == 1 else "differ"
    found = f"{differ:,} of {counted(seen, 'pair')}{of} {verb}"
    return f"The {_compared(report)} fall into {groups:,} groups that are alike inside; {found}{_left(report)}."


def _members(report: dict[str, Any]) -> list[str]:
    return [f"{_capital('; '.join(members(report)))}."] if members(report) else []


def _of_groups(report: dict[str, Any], line: dict[str, Any]) -> str:
    """How the silos of two groups differ: what most of their pairs say, what more say than by chance, and what agrees."""
    first, second = (called(report, at) for at in line["groups"])
    told, words, counts = _told(line), in_words(report), line["types"]
    most = [name for name, count in counts.items() if count > told / 2]
    some = [name for name, count in counts.items() if DISCOVERIES * told < count <= told / 2]
    if not most and not some:
        odd = told - line["none"]
        verb = "differ" if odd > 1 else "differs"
        return (
            f"Between {first} and {second}, {odd or 'none'} of {counted(told, 'pair')} that could be compared {verb}."
        )
    if not most:
        how = [f"{counts[name]} of {told} {words[name]}{_strength(line, name)}" for name in some]
        return f"{first} and {second} differ in some pairs only: {joined(how)}."
    how = [f"{words[name]}{_strength(line, name)}{_share(counts[name], told)}" for name in most]
    parts = [f"{first} differ{'' if plural(report, line['groups'][0]) else 's'} from {second} {joined(how)}"]
    if line["features"]:
        parts.append(f"most in {joined(line['features'][:_NAMED])}")
    parts += [f"in {counts[name]} of {told} pairs also {words[name]}{_strength(line, name)}" for name in some]
    agree = _agree(report, line)
    parts += [f"their {joined(agree)} agree"] if agree else []
    if line["transform"] > told / 2:
        parts.append("a gain and an offset undo it, as of sensors that are set differently")
    return "; ".join(parts) + "."


def _agree(report: dict[str, Any], line: dict[str, Any]) -> list[str]:
    """What no more pairs differ in than by chance, margins included, which move under other types as well.

    Rules only where inputs overlap, and neither rules nor inputs where no class is told by both: who has other labels has
    other inputs, and of what these are beside that nothing is known.
    """
    words = {**_AGREE, "label": "targets", "concept": "rules from input to target"}
    words = words if report["asked"]["targets"] else _AGREE
    unknown = {"concept"} if line["not_identifiable"] else set()
    unknown |= {"concept", "feature"} if line["margins_only"] else set()
    unknown |= {name for name, margin in _MARGINS.items() if line[margin] > DISCOVERIES * _told(line)}
    few = DISCOVERIES * _told(line)
    return [words[name] for name, count in line["types"].items() if count <= few and name not in unknown]


def _one_by_one(report: dict[str, Any], differ: list[dict[str, Any]], seen: int) -> list[str]:
    """Pairs of silos that are otherwise alike: each if they are few."""
    if len(differ) > _PAIRS:
        return _in_sum(report, differ, seen)
    words, said = in_words(report), []
    for pair in differ:
        how = joined([f"{words[name]}{_strength({'grades': grades([pair])}, name)}" for name in pair["types"]])
        most = f"; most in {joined(list(pair['features'])[:_NAMED])}" if pair["features"] else ""
        said.append(_capital(f"{pair['first']} differs from {pair['second']} {how}{most}."))
    return said


def _in_sum(report: dict[str, Any], differ: list[dict[str, Any]], seen: int) -> list[str]:
    """A sentence a type, where pairs are too many to be named."""
    words, middle = in_words(report), grades(differ)
    of = "groups" if report["pairs_of"] == "groups" else "silos"
    said = []
    for name in middle:
        count = sum(name in pair["types"] for pair in differ)
        strength = _strength({"grades": middle}, name)
        said.append(f"{count:,} of {counted(seen, 'pair')} of {of} differ {words[name]}{strength}.")
    if report["ranking"] and {"feature", "concept"} & set(middle):
        said.append(f"Most of it is in {joined(leading(report)[:_NAMED])}.")
    return said


def _within(report: dict[str, Any]) -> Iterator[str]:
    """Pairs of one group that differ after all."""
    for line in report["between"]:
        odd = _told(line) - line["none"]
        if line["groups"][0] == line["groups"][1] and odd:
            verb = "differs" if odd == 1 else "differ"
            group = called(report, line["groups"][0])
            yield f"Within {group}, {odd:,} of {counted(line['pairs'], 'pair')} {verb}."


def _told(line: dict[str, Any]) -> int:
    pairs, unclear = line["pairs"], line["undetermined"]
    return int(pairs) - int(unclear)


def _strength(line: dict[str, Any], name: str) -> str:
    grade = line["grades"].get(name)
    return f" ({grade})" if grade else ""


def _share(count: int, told: int) -> str:
    return "" if count == told else f" in {count} of {told} pairs"


def _capital(sentence: str) -> str:
    """Of our own word alone: a name is written as it is."""
    return f"G{sentence[1:]}" if sentence.startswith("group ") else sentence
