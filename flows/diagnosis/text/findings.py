"""The differences that a diagnosis names: each with its sentence, and with what the steps follow from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from flows.diagnosis.build_report import shown_types
from flows.diagnosis.text.clauses import (
    MAX_FEATURES,
    effect_clauses,
    evidence_of,
    inputs_clause,
    other_rule,
    type_clause,
)
from flows.diagnosis.text.phrases import (
    capital,
    change_phrases,
    described_changes,
    group_name,
    joined,
    listed,
    num_determined,
    odd_one,
    plural,
    reversed_changes,
    shown_counts,
    type_phrases,
)
from models.diagnosis.diagnose_pairs import DISCOVERIES
from models.diagnosis.guarded_tests import TYPES
from models.diagnosis.odd_clients import find_odd_clients
from models.diagnosis.screen_clients import MIN_SHARE
from models.diagnosis.shift_words import ShiftType
from silos.errors import counted
from tasks.tracking.result_types.diagnosis_records import (
    ChangeRecord,
    Evidence,
    GroupPairRecord,
    OddSilosRecord,
    PairRecord,
    SiloRecord,
)
from tasks.tracking.result_types.diagnosis_result import DiagnosisFacts, SiloFacts, VersionFacts

_MAX_FINDINGS = 5  # with a sentence of their own
_MAX_ODD = 20  # silos that are all named


@dataclass(frozen=True)
class Finding:
    """One difference.

    Attributes:
        text: The sentence.
        sides: What differs, by the name in the text: the number of silos. The first side is the one that is described.
        kinds: The types that the sentence names and the data can show.
        inputs: The features whose inputs the sentence says to differ, then those for which it has no room.
        units: Those of them that seem to have another unit.
        odd: The silos of the first side if it is the one to check; otherwise the sides of all findings decide.
        threshold: Whether another threshold of the label is named or possible.
        transform: Whether one factor and one offset undo the difference.
    """

    text: str
    sides: Mapping[str, int]
    kinds: tuple[ShiftType, ...]
    inputs: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    threshold: bool = False
    transform: bool = False

    @property
    def is_odd(self) -> bool:
        """Return whether the first side is the one to check."""
        return bool(self.odd)


def findings(report: SiloFacts) -> list[Finding]:
    """Return what differs between silos, the most important first; empty if no two differ in anything."""
    determined = [pair for pair in report["pairs"] if not pair["undetermined"]]
    differ = [pair for pair in determined if pair["types"]]
    if not differ:
        rest = [record for record in report["rest"] if record["types"] and not record["undetermined"]]
        return [of_one(report, record) for record in rest]
    apart = groups_apart(report)
    one, several = odd_one(report), odd_silos(report)
    if one:
        return [of_one(report, one)]
    if several:
        return [_of_odd_silos(report, several)]
    if not apart:
        return _one_by_one(report, differ) if len(differ) <= MAX_FEATURES else _by_type(report, differ, determined)
    described = [*_of_groups(report, apart)]
    if len(described) > _MAX_FINDINGS:
        return _by_type(report, differ, determined)
    return [*described, *_one_by_one(report, few_within(report), "Within a group, ")]


def few_within(report: SiloFacts) -> list[PairRecord]:
    """Return the differing pairs within groups if they are few, and more than by chance."""
    of_group = {client: index for index, group in enumerate(report["groups"]) for client in group}
    compared = sum(num_determined(record) for record in report["between"] if len({*record["groups"]}) == 1)
    if report["pairs_of"] == "groups":
        return []
    found = [
        pair
        for pair in report["pairs"]
        if pair["types"] and not pair["undetermined"] and of_group[pair["first"]] == of_group[pair["second"]]
    ]
    return found if DISCOVERIES * compared < len(found) <= MAX_FEATURES else []


def odd_silos(report: SiloFacts) -> OddSilosRecord | None:
    """Return whether to describe silos with most differences, since most pairs of groups do not differ."""
    odd = report.get("odd")
    few = not any(_types_in_most(record) for record in groups_apart(report))
    return odd if odd and shown_types(odd) and few and odd_one(report) is None else None


def groups_apart(report: SiloFacts) -> list[GroupPairRecord]:
    """Return the records of pairs of groups with silos that differ; pairs that were not compared separate no groups."""
    return [
        record
        for record in report["between"]
        if record["groups"][0] != record["groups"][1] and num_determined(record) > record["none"]
    ]


def of_one(report: SiloFacts, record: SiloRecord) -> Finding:
    """Describe one silo against all others together."""
    name = record["client"]
    return _finding(f"{name} differs from all others together: ", report, record, {name: 1}, (name,))


def of_version(report: VersionFacts, pair: SiloRecord) -> Finding:
    """Describe a silo against an earlier version of itself."""
    return _finding(f"{pair['client']}: ", report, pair, {pair["client"]: 1}, (pair["client"],))


def _finding(
    start: str,
    report: DiagnosisFacts,
    record: PairRecord | SiloRecord | OddSilosRecord,
    sides: Mapping[str, int],
    odd: Sequence[str] = (),
    amounts: Sequence[ChangeRecord] = (),
) -> Finding:
    """Describe all types of one record; amounts: by how much the targets of each of several silos differ."""
    kinds, features = shown_types(record), list(record["input_features"])
    changes = _with_amounts(record.get("changes", {}), amounts)
    parts = [type_clause(report, kind, changes, features, record, kinds) for kind in kinds]
    return Finding(
        f"{start}{'; '.join(parts)}.",
        sides,
        tuple(kinds),
        odd=tuple(odd),
        **_causes(report, kinds, changes, features, record),
        transform=record["transform"],
    )


class _Causes(TypedDict):
    inputs: tuple[str, ...]
    units: tuple[str, ...]
    threshold: bool


def _causes(
    report: DiagnosisFacts,
    kinds: Sequence[ShiftType],
    changes: Mapping[ShiftType, Sequence[ChangeRecord]],
    features: Sequence[str],
    evidence: Evidence | None,
) -> _Causes:
    """Return what steps need of the types in a sentence."""
    inputs = inputs_clause(report, changes, features, evidence)[1] if "feature" in kinds else []
    units = [change["name"] for change in changes.get("feature", ()) if "factor" in change and change["name"] in inputs]
    moved = "concept" in kinds and any(change["what"] == "label" for change in changes.get("concept", ()))
    hedged = "label" in kinds and evidence is not None and bool(evidence.get("label_or_concept"))
    more = described_changes(changes.get("feature", ()))[MAX_FEATURES:] if inputs else []
    inputs = [*dict.fromkeys([*inputs, *(change["name"] for change in more)])]
    return {"inputs": tuple(inputs), "units": tuple(units), "threshold": moved or hedged}


def _with_amounts(
    changes: Mapping[ShiftType, Sequence[ChangeRecord]], amounts: Sequence[ChangeRecord]
) -> Mapping[ShiftType, Sequence[ChangeRecord]]:
    """Replace the change of a group's targets by those of its silos, if there are any; opposite ones may add up to none."""
    if not amounts:
        return changes
    return {
        kind: amounts if kind == "label" or (found and found[0]["what"] in ("label", "target")) else found
        for kind, found in changes.items()
    }


def _of_odd_silos(report: SiloFacts, odd: OddSilosRecord) -> Finding:
    """Describe the silos that take part in most differences, together, against all others together."""
    names = odd["silos"]
    others = len(report["clients"]) - len(names)
    what, verb = (f"these {len(names)} silos", "differ") if len(names) > 1 else (names[0], "differs")
    start = f"{capital(what)} {verb} from the other {others:,}, all rows taken together: "
    (amounts,) = odd.get("target_amounts", [[]])
    return _finding(start, report, odd, {odd_names(odd): len(names)}, names, amounts)


def odd_names(odd: OddSilosRecord) -> str:
    """Name the silos that take part in most differences: all of them, unless they are very many."""
    return joined(odd["silos"]) if len(odd["silos"]) <= _MAX_ODD else listed(odd["silos"])


def _of_groups(report: SiloFacts, apart: Sequence[GroupPairRecord]) -> Iterator[Finding]:
    """Describe groups: each against the reference if there is one, otherwise all pairs of groups.

    Silos that differ from all others come first.
    """
    reference = _reference(report, apart)
    if reference is None:
        for record in apart:
            first, second = record["groups"]
            yield _of_two_groups(report, record, first, second)
        return
    described = [record for record in apart if reference in record["groups"]]
    others = [sum(record["groups"]) - reference for record in described]
    compared = [
        record for record in report["between"] if record["groups"][0] != record["groups"][1] and num_determined(record)
    ]
    alone = [
        len(compared) > 1 and all(_types_in_most(record) for record in compared if other in record["groups"])
        for other in others
    ]
    order = sorted(range(len(others)), key=lambda i: (not alone[i], len(report["groups"][others[i]]) > 1))
    for index in order:
        yield _of_two_groups(report, described[index], others[index], reference, alone[index], is_odd=True)


def _reference(report: SiloFacts, apart: Sequence[GroupPairRecord]) -> int | None:
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


def _types_in_most(record: GroupPairRecord) -> list[ShiftType]:
    counts = shown_counts(record)
    return [kind for kind in TYPES if counts[kind] > num_determined(record) / 2]


def _of_two_groups(
    report: SiloFacts, record: GroupPairRecord, group: int, other: int, from_all: bool = False, is_odd: bool = False
) -> Finding:
    """Describe how a group differs from another: in most pairs, and in more pairs than by chance."""
    name, other_name = group_name(report, group), group_name(report, other)
    total, counts, phrases = num_determined(record), shown_counts(record), type_phrases(report)
    in_most = _types_in_most(record)
    in_some = [kind for kind in TYPES if DISCOVERIES * total < counts[kind] <= total / 2]
    own = record.get("changes", {})
    changes = _with_amounts(
        own if record["groups"][0] == group else reversed_changes(own),
        record.get("target_amounts", [[], []])[record["groups"].index(group)],
    )
    evidence = evidence_of(report, group, other)
    kinds = [kind for kind in in_most or in_some if kind != "concept" or 2 * record["not_identifiable"] <= total]
    finding = Finding(
        "",
        {name: len(report["groups"][group]), other_name: len(report["groups"][other])},
        tuple(kinds),
        odd=tuple(report["groups"][group]) if is_odd else (),
        **_causes(report, in_most or in_some, changes, record["input_features"], evidence),
        transform=record["transform"] > total / 2,
    )
    if not in_most:
        return replace(finding, text=_in_some_pairs(report, record, (name, other_name), in_some, changes))
    parts = []
    for kind in in_most:
        share = "" if counts[kind] == total else f", in {counts[kind]} of {total} pairs of silos"
        clause = type_clause(report, kind, changes, record["input_features"], evidence, in_most)
        parts.append(f"{clause}{share}")
    parts += [f"in {counts[kind]} of {total} pairs of silos {phrases[kind]}" for kind in in_some]
    if finding.transform:
        parts.append("one factor and one offset undo the difference, as of a sensor with other settings")
    asks_for_unit = bool(finding.units)  # to be converted before any model is trained
    parts += (
        effect_clauses(report, evidence, in_most) if set(in_most) & {"feature", "concept"} and not asks_for_unit else []
    )
    verb, found = "differ" if plural(report, group) else "differs", "; ".join(parts)
    whom = f"all other silos: compared with {other_name}, " if from_all else f"{other_name}: "
    return replace(finding, text=f"{capital(name)} {verb} from {whom}{found}.")


def _in_some_pairs(
    report: SiloFacts,
    record: GroupPairRecord,
    names: Sequence[str],
    kinds: Sequence[ShiftType],
    changes: Mapping[ShiftType, Sequence[ChangeRecord]],
) -> str:
    """Describe two groups, if no type is found in most of their pairs, by numbers over all their rows."""
    total, counts = num_determined(record), shown_counts(record)
    both = f"{capital(names[0])} and {names[1]}"
    if not kinds:
        return f"{both}: {total - record['none']} of {counted(total, 'pair')} of silos differ."
    phrases = type_phrases(report)
    found = joined([f"{phrases[kind]} in {counts[kind]} of {counted(total, 'pair')}" for kind in kinds])
    numbers = [
        type_clause(report, kind, changes, record["input_features"], described_types=kinds)
        for kind in kinds
        if changes.get(kind)
    ]
    together = f". All rows of {names[0]} taken together, {'; '.join(numbers)}" if numbers else ""
    return f"{both} differ in some pairs of silos only: {found}{together}."


def _one_by_one(report: SiloFacts, differ: list[PairRecord], start: str = "") -> list[Finding]:
    """Describe each of a few pairs of otherwise similar silos."""
    return [
        _finding(
            f"{start}{pair['first'] if start else capital(pair['first'])} differs from {pair['second']}: ",
            report,
            pair,
            {pair["first"]: 1, pair["second"]: 1},
        )
        for pair in differ
    ]


def _by_type(report: SiloFacts, differ: list[PairRecord], determined: list[PairRecord]) -> list[Finding]:
    """Return a sentence for each type, if there are too many pairs to name."""
    phrases = type_phrases(report)
    units = "groups" if report["pairs_of"] == "groups" else "silos"
    found = []
    for kind in TYPES:
        pairs = [pair for pair in differ if kind in shown_types(pair)]
        odd = odd_units(report, pairs)
        if not pairs:
            continue
        leading = leading_features(report)[:MAX_FEATURES] if kind == "feature" else []
        text = f"In {len(pairs):,} of {counted(len(determined), 'pair')} of {units} {phrases[kind]}"
        text += f", most in {joined(leading)}" if leading else ""
        hedged = kind == "label" and 2 * sum(bool(pair.get("label_or_concept")) for pair in pairs) > len(pairs)
        text += f" (or {other_rule(report)})" if hedged else ""
        if odd:
            count = num_across(pairs, odd)
            share = "all" if count == len(pairs) else f"{count:,}"
            text += f", {share} of them between {listed(odd)} and the others{_together(report, odd, kind)}"
        sides = {listed(odd): len(odd)} if odd else {}
        by_silo = _by_feature(report, pairs, len(determined)) if kind == "feature" and not odd else {}
        named = [finding for finding in by_silo.values() if finding.text][:MAX_FEATURES]
        elsewhere = {name for name, finding in by_silo.items() if finding in named or not finding.text}
        inputs = tuple(name for name in leading if name.partition("=")[0] not in elsewhere)
        of_odd = _silos_of(report, odd)
        found.append(Finding(f"{text}.", sides, (kind,), inputs, odd=of_odd, threshold=hedged))
        found += named
    return found


def _by_feature(report: SiloFacts, differ: Sequence[PairRecord], determined: int) -> dict[str, Finding]:
    """Return the columns whose inputs differ at some silos only, by name, those that differ most first.

    The text of a column that is a fault of these silos is empty, since an earlier sentence names it.
    """
    by_column: dict[str, list[PairRecord]] = {}
    largest: dict[str, float] = {}
    for pair in differ if report["pairs_of"] == "silos" else ():
        for name, effect in pair["input_features"].items():
            column = name.partition("=")[0]
            pairs = by_column.setdefault(column, [])
            if pair not in pairs[-1:]:
                pairs.append(pair)
            largest[column] = max(effect, largest.get(column, 0.0))
    faults: dict[str | int, set[str]] = {}
    for fault in report["data_faults"]:
        for of_fault in fault["names"]:
            faults.setdefault(of_fault, set()).update(fault["silos"])
    found: dict[str, Finding] = {}
    for column in sorted(by_column, key=lambda name: -largest[name]):
        pairs = by_column[column]
        odd = odd_units(report, pairs) or _in_all(pairs)
        if not odd:
            continue
        count = num_across(pairs, odd)
        share = "all" if count == len(pairs) else f"{count:,}"
        text = f"In {len(pairs):,} of {counted(determined, 'pair')} of silos {column} differs, {share} of them between "
        text += f"{listed(odd)} and the others{_amount(report, odd, column)}."
        found[column] = Finding(
            "" if {*odd} & faults.get(column, set()) else text,
            {listed(odd): len(odd)},
            ("feature",),
            (column,),
            odd=tuple(odd),
        )
    return found


def _in_all(pairs: Sequence[PairRecord]) -> list[str]:
    """Return the silo that all of these pairs have in common, if there are several pairs."""
    common = set.intersection(*({pair["first"], pair["second"]} for pair in pairs))
    return sorted(common) if len(pairs) > 1 and len(common) == 1 else []


def _amount(report: SiloFacts, odd: Sequence[str], column: str) -> str:
    """Return by how much a column of one silo differs from that of all others, if it is known."""
    changes = [
        change
        for record in report["rest"]
        if [record["client"]] == [*odd]
        for change in record.get("changes", {}).get("feature", ())
        if change["name"].partition("=")[0] == column
    ]
    phrases = [phrase for change in changes[:2] for phrase in change_phrases([change], report)]
    return f"; against all of them together, {joined(phrases)}" if phrases else ""


def _together(report: SiloFacts, odd: Sequence[str], kind: ShiftType) -> str:
    """Return by how much all rows of the silos with most differences differ from those of all others, if it is known."""
    record = report.get("odd")
    if not record or record["silos"] != [*odd] or not record.get("changes", {}).get(kind):
        return ""
    clause = type_clause(report, kind, record["changes"], [*record["input_features"]])
    return f"; all their rows taken together, {clause}"


def odd_units(report: SiloFacts, differ: Sequence[PairRecord]) -> list[str]:
    """Return the silos, or groups, that take part in most of these differing pairs; empty if none stand out."""
    numbered = [f"group {index + 1}" for index in range(len(report["groups"]))]
    units = numbered if report["pairs_of"] == "groups" else report["clients"]
    found = {(pair["first"], pair["second"]) for pair in differ}
    pairs = [(pair["first"], pair["second"]) for pair in report["pairs"] if not pair["undetermined"]]
    first, second = (np.array([units.index(pair[side]) for pair in pairs], int) for side in (0, 1))
    odd = [units[i] for i in find_odd_clients(first, second, np.array([p in found for p in pairs], bool), len(units))]
    return odd if 2 * num_across(differ, odd) > len(differ) else []


def _silos_of(report: SiloFacts, units: Sequence[str]) -> tuple[str, ...]:
    """Return the silos of units from `odd_units`."""
    if report["pairs_of"] == "silos":
        return tuple(units)
    return tuple(
        silo for index, group in enumerate(report["groups"]) if f"group {index + 1}" in units for silo in group
    )


def num_across(pairs: Sequence[PairRecord], silos: Sequence[str]) -> int:
    """Count the pairs of one of these silos and another one."""
    return sum((pair["first"] in silos) != (pair["second"] in silos) for pair in pairs)


def leading_features(report: SiloFacts) -> list[str]:
    """Return the features whose inputs differ most over all pairs, in order."""
    ranking = report["ranking_of_inputs"]
    return [record["feature"] for record in ranking if record["mean"] >= MIN_SHARE * ranking[0]["mean"]]
