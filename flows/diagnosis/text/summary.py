"""The findings of a diagnosis in sentences for readers without statistics."""

from flows.diagnosis.text.fault_phrases import fault_sentences
from flows.diagnosis.text.findings import (
    Finding,
    few_within,
    findings,
    groups_apart,
    num_across,
    odd_names,
    odd_silos,
    odd_units,
)
from flows.diagnosis.text.phrases import (
    capital,
    group_name,
    left_out,
    listed,
    members,
    no_verdict,
    num_determined,
)
from silos.errors import counted
from tasks.tracking.result_types.diagnosis_records import OddSilosRecord, PairRecord
from tasks.tracking.result_types.diagnosis_result import SiloFacts

_MAX_LINES = 8
_MAX_SILOS = 5  # that differ from all others together, each with a sentence


def sentences(report: SiloFacts) -> list[str]:
    """Return what is plainly so in the data, then a sentence for each finding, the most important first."""
    return [*fault_sentences(report), *_findings(report)]


def _findings(report: SiloFacts) -> list[str]:
    if len(report["clients"]) == 1:
        return [_one_silo(report)]
    pairs = report["pairs"]
    determined = [pair for pair in pairs if not pair["undetermined"]]
    differ = [pair for pair in determined if pair["types"]]
    if pairs and not determined:
        return [no_verdict(report)]
    found = findings(report)
    if not differ:
        return _no_differing_pair(report, found)
    described = [finding.text for finding in found]
    odd = odd_silos(report)
    if odd:
        return [_headline_of_odd_silos(report, odd, len(determined), differ), *described]
    if not groups_apart(report):
        return [_no_groups(report, len(differ), len(determined)), *described]
    lines = [_headline(report, len(differ), len(determined)), *_members(report), *_unplaced(report)]
    lines = lines if len(pairs) > 1 else []
    return [*lines, *described, *_within(report, differ, _MAX_LINES - len(lines) - len(described))]


def _headline_of_odd_silos(report: SiloFacts, odd: OddSilosRecord, determined: int, differ: list[PairRecord]) -> str:
    """Name the silos that take part in most differences, with the number of pairs."""
    names = odd["silos"]
    count = num_across(differ, names)
    what = f"these {len(names)} silos" if len(names) > 1 else "this silo"
    share = "all" if count == len(differ) else f"{count:,}"
    return (
        f"Of {counted(determined, 'pair')} of silos {len(differ):,} differ, {share} of them between {what} and the other "
        f"{len(report['clients']) - len(names):,}: {odd_names(odd)}."
    )


def _no_differing_pair(report: SiloFacts, found: list[Finding]) -> list[str]:
    """Describe that no pair differs; a silo may still differ from all others together, which have more rows."""
    compared = f"{_compared(report)}{_excluded(report)}.{_unlike_inside(report)}"
    if not found:
        return [f"No difference was seen between the {compared}"]
    if report["pairs_of"] == "groups":  # in one group a few pairs may differ
        lines = [f"No groups that differ were seen among the {compared}"]
    else:
        lines = [f"No difference was seen between any two of the {compared}"]
    lines += [finding.text for finding in found[:_MAX_SILOS]]
    if len(found) > _MAX_SILOS:
        lines.append(f"{len(found) - _MAX_SILOS} more silos differ from all others together.")
    return [*lines, "All others together have more rows than any one of them, and show smaller differences."]


def _one_silo(report: SiloFacts) -> str:
    if report["refused"]:
        return f"Only {report['clients'][0]} reported, so there is nothing to compare it with."
    return "There is one silo, so there is nothing to compare it with."


def _compared(report: SiloFacts) -> str:
    """Name how many silos were compared."""
    excluded = left_out(report)
    suffix = " that could be compared" if excluded or report["refused"] else ""
    return f"{len(report['clients']) - len(excluded):,} silos{suffix}"


def _excluded(report: SiloFacts) -> str:
    excluded = left_out(report)
    return f"; {listed(excluded)} could not be compared" if excluded else ""


def _no_groups(report: SiloFacts, differ: int, determined: int) -> str:
    verb = "differs" if differ == 1 else "differ"
    return (
        f"The {_compared(report)} form one group: {differ:,} of {counted(determined, 'pair')} of silos {verb}"
        f"{_excluded(report)}."
    )


def _headline(report: SiloFacts, differ: int, determined: int) -> str:
    units = "groups" if report["pairs_of"] == "groups" else "silos"
    verb = "differs" if differ == 1 else "differ"
    pairs = f"{differ:,} of {counted(determined, 'pair')} of {units} {verb}"
    least = "at least " if _unplaced(report) else ""
    groups = f"{least}{counted(len(_separate_groups(report)), 'group')}"
    return f"The {_compared(report)} form {groups}; {pairs}{_excluded(report)}.{_unlike_inside(report)}"


def _separate_groups(report: SiloFacts) -> list[int]:
    """Return groups that all differ from each other; groups without a seen difference may be one."""
    excluded, apart = set(left_out(report)), [{*record["groups"]} for record in groups_apart(report)]
    kept = list[int]()
    for index, group in enumerate(report["groups"]):
        if not excluded.issuperset(group) and all({index, other} in apart for other in kept):
            kept.append(index)
    return kept


def _unplaced(report: SiloFacts) -> list[str]:
    """Return a sentence on silos that may be of several groups, since no pair of them and a group was compared."""
    kept, excluded = _separate_groups(report), left_out(report)
    unknown = [{*record["groups"]} for record in report["between"] if record["pairs"] and not num_determined(record)]
    silos = [
        client
        for index, group in enumerate(report["groups"])
        if index not in kept and any({index, other} in unknown for other in kept)
        for client in group
        if client not in excluded
    ]
    if not silos:
        return []
    return [f"Too few pairs could be compared to say to which group {listed(silos)} {_belong(silos)}."]


def _belong(silos: list[str]) -> str:
    return "belongs" if len(silos) == 1 else "belong"


def _unlike_inside(report: SiloFacts) -> str:
    """Return a sentence on groups whose silos differ in total, although no two of them were seen to differ."""
    inside = {record["groups"][0]: record for record in report["between"] if len({*record["groups"]}) == 1}
    shown = {index for index, record in inside.items() if num_determined(record) > record["none"]}
    unlike = [index for index, each in enumerate(report.get("inside", [])) if not each["alike"] and index not in shown]
    if not unlike:
        return ""
    names = listed([group_name(report, index) for index in unlike])
    return f" Silos within {names} differ as well, too little for any two of them to show it."


def _members(report: SiloFacts) -> list[str]:
    return [f"{capital('; '.join(members(report)))}."] if members(report) else []


def _within(report: SiloFacts, differ: list[PairRecord], most: int) -> list[str]:
    """Count the pairs within a group that differ nevertheless, unless each is a finding; limits the sentences."""
    if few_within(report):
        return []
    lines = []
    for record in report["between"]:
        num_differing = num_determined(record) - record["none"]
        if record["groups"][0] == record["groups"][1] and num_differing:
            verb = "differs" if num_differing == 1 else "differ"
            silos = {*report["groups"][record["groups"][0]]}
            inside = [pair for pair in differ if {pair["first"], pair["second"]} <= silos]
            odd = [name for name in odd_units(report, inside) if name in silos]
            most_of = f", most of them with {listed(odd)}" if odd else ""
            pairs = counted(num_determined(record), "pair")
            group = group_name(report, record["groups"][0])
            lines.append(f"Within {group}, {num_differing:,} of {pairs} of silos {verb}{most_of}.")
    return lines if len(lines) <= most else [f"Within {len(lines):,} groups, pairs of silos differ as well."]
