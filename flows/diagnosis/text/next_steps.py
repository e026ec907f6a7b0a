"""What to do next after a diagnosis: checks of units, inputs and labels, and the methods to compare."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flows.diagnosis.build_report import is_rule_unknown
from flows.diagnosis.text.fault_phrases import fault_steps
from flows.diagnosis.text.phrases import (
    group_name,
    joined,
    listed,
    odd_one,
    shown_counts,
    shown_types,
)
from flows.diagnosis.text.summary import leading_features
from models.shift.nested_tests import TYPES

_MAX_FEATURES = 3
_UNIT = "Check the unit of {features} at {silos}, convert it there if it is another one, and diagnose again."
_ONE_MODEL = "One model for all silos is a good start: siloflow compare fedavg"
_METHODS = {
    "feature": ["conditional", "uefl"],
    "label": ["conditional", "selective"],
    "concept": ["ifca", "cfl", "ditto"],
}
_METHODS_OF_REGRESSION = {"feature": ["conditional", "uefl"], "label": [], "concept": ["ifca", "ditto"]}
_NEXT_AFTER_VERSION = {
    "feature": "If the change is real, train again on the present rows.",
    "label": "Judge the model again by the present test rows of these silos.",
    "concept": "Check that the label is still coded in the same way. If the change is real, train again without the "
    "earlier rows of these silos.",
}


def next_steps(report: dict[str, Any]) -> list[str]:
    """Return what to do about what most pairs of two groups show, checks first; not about a rule that may not differ."""
    faults: list[dict[str, Any]] = [] if "against" in report else report["data_faults"]
    first, kinds = fault_steps(faults), {fault["what"] for fault in faults}
    if "persons" in kinds:  # without units no difference is sure
        return first
    if "against" not in report and _shows_no_difference(report):
        return first if "shared" in kinds else [*first, _ONE_MODEL]
    constant = {name for fault in faults if fault["what"] == "constant" for name in fault["names"]}
    return [*first, *_steps(report, constant)]


def _steps(report: dict[str, Any], constant: set[str]) -> list[str]:
    """Return what to do about differences, but those of features that are constant at a silo."""
    odd = None if "against" in report else odd_one(report)
    types = {name for record in report["between"] for name in TYPES if _is_common(record, name)}
    types |= {*shown_types(odd)} if odd else set()
    units = unit_steps(report)
    steps = [*units.values()]
    leading = [*odd["input_features"]] if odd else leading_features(report, "ranking_of_inputs")
    features = [name for name in leading if name not in {*units, *constant}][:_MAX_FEATURES]
    if (units or constant) and not features and not report["query"]["pictures"]:
        types -= {"feature"}
    if "feature" in types:
        steps += _checks_of_inputs(report, features)
    if "against" in report:
        return steps + [_NEXT_AFTER_VERSION[name] for name in TYPES if name in types]
    steps += _checks_of_labels(report, types)
    of_silos = report["pairs_of"] == "silos"  # the second look leaves out groups
    if of_silos and any(pair.get("second_look_recommended") and not is_rule_unknown(pair) for pair in report["pairs"]):
        steps.append(
            "Where inputs and rule seem to differ, models of the silos can decide: siloflow diagnose --set "
            "diagnose.second_look=true"
        )
    return steps + _methods(report, types)


def unit_steps(report: dict[str, Any]) -> dict[str, str]:
    """Map each feature that seems to have another unit at some silos to what to do about it.

    Empty if persons repeat, by whom any feature may differ; reports of earlier versions do not name such faults.
    """
    if any(fault["what"] == "persons" for fault in report.get("data_faults", [])):
        return {}
    units = sorted(_suspected_units(report).items())
    return {name: _UNIT.format(features=name, silos=listed(sorted(silos))) for name, silos in units}


def _shows_no_difference(report: dict[str, Any]) -> bool:
    """Return whether silos were compared, and neither two of them nor one and all others differ."""
    determined = [pair for pair in report["pairs"] if not pair["undetermined"]]
    alike = all(inside["alike"] for inside in report.get("inside", []))
    return alike and bool(determined) and not any(record["types"] for record in (*determined, *report["rest"]))


def _checks_of_inputs(report: dict[str, Any], features: list[str]) -> list[str]:
    """Return what to check about these features, at the silos that differ in them."""
    if report["query"]["pictures"]:
        return ["Turn, centre and light the pictures of all silos alike, if it is known how."]
    if any(record["transform"] > record["pairs"] / 2 for record in report["between"]):
        return [f"Let each silo standardise {joined(features or ['them'])} before training."]
    by_silos: dict[str, list[str]] = {}
    for name in features:
        columns = by_silos.setdefault(_silos_that_differ(report, "feature", name), [])
        if name.partition("=")[0] not in columns:  # of a category, such as ward=eye, the whole
            columns.append(name.partition("=")[0])
    differ = {
        silos: f"{joined(columns)} {'differs' if len(columns) == 1 else 'differ'}"
        for silos, columns in by_silos.items()
    }
    return [
        f"Check at {silos} why {what}: other cases (case mix), or another way of measuring."
        for silos, what in (differ or {_silos_that_differ(report, "feature"): "inputs differ"}).items()
    ]


def _checks_of_labels(report: dict[str, Any], types: set[str]) -> list[str]:
    """Return what to check about labels: how they are coded if the rule or threshold may differ, or why they differ."""
    label = report["label"] or ("the target" if report["query"]["targets"] else "the label")
    threshold = "label" in types and any(pair.get("label_or_concept") for pair in report["pairs"])
    if "concept" not in types and not threshold:
        if "label" not in types:
            return []
        silos = _silos_that_differ(report, "label")
        return [f"Check at {silos} why {label} differs: other cases, or another way of recording them."]
    silos = _silos_that_differ(report, "concept" if "concept" in types else "label")
    what = "measures" if report["query"]["targets"] else "codes"
    moved = any(change["what"] == "label" for change in _changes(report, "concept"))
    suffix = ", with the same threshold" if moved or "concept" not in types else ""
    everywhere = silos in ("all silos", joined([group_name(report, group) for group in range(len(report["groups"]))]))
    return [f"Check that each silo {what} {label} alike{suffix}{'' if everywhere else f', {silos} first'}."]


def _changes(report: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    records = [*report["between"], odd_one(report) or {}]
    return [change for record in records for change in record.get("changes", {}).get(kind, [])]


def _methods(report: dict[str, Any], types: set[str]) -> list[str]:
    """Return one command that compares the methods for all these types."""
    by_type = _METHODS_OF_REGRESSION if report["query"]["targets"] else _METHODS
    methods = dict.fromkeys(method for name in TYPES if name in types for method in by_type[name])
    if not types:
        return []
    if not methods:
        return ["Judge each method by each silo's own test rows."]
    why = (
        "silos need models of their own or of their group"
        if "concept" in types
        else "judge methods by each silo's test rows"
    )
    return [f"If the differences are real, {why}: siloflow compare fedavg {' '.join(methods)}"]


def _silos_that_differ(report: dict[str, Any], kind: str, feature: str | None = None) -> str:
    """Name the silos of the groups that differ from most others in a type, or in a feature that carries it."""
    if "against" in report:
        return listed([pair["client"] for pair in report["pairs"] if kind in pair["types"]])
    odd = odd_one(report)
    if odd:
        return str(odd["client"])
    involved = Counter[int]()
    for record in report["between"]:
        if record["groups"][0] != record["groups"][1] and _is_common(record, kind):
            involved.update(record["groups"] if feature is None or feature in record["input_features"] else ())
    if not involved:
        return _silos_that_differ(report, kind) if feature else "all silos"
    return joined([group_name(report, group) for group in sorted(_fewest(report, involved))])


def _suspected_units(report: dict[str, Any]) -> dict[str, set[str]]:
    """Return features that seem to have another unit, with the silos that differ so from most others."""
    if "against" in report:
        found = [(change["name"], pair["client"]) for pair in report["pairs"] for change in _unit_changes(pair)]
        return {name: {client for other, client in found if other == name} for name, _ in found}
    odd = odd_one(report)
    if odd:
        return {change["name"]: {odd["client"]} for change in _unit_changes(odd)}
    apart = [record for record in report["between"] if record["groups"][0] != record["groups"][1]]
    involved: dict[str, Counter[int]] = {}
    for record in apart:
        for change in _unit_changes(record):
            involved.setdefault(change["name"], Counter()).update(record["groups"])
    return {name: {group_name(report, group) for group in _fewest(report, counts)} for name, counts in involved.items()}


def _unit_changes(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [change for change in record.get("changes", {}).get("feature", []) if "factor" in change]


def _fewest(report: dict[str, Any], counts: Counter[int]) -> list[int]:
    """Return the groups that differ from most others; of two groups the smaller one, or both."""
    most = max(counts.values())
    groups = [group for group, count in counts.items() if count == most]
    if len(groups) != 2 or most > 1:
        return groups
    smallest = min(len(report["groups"][group]) for group in groups)
    return [group for group in groups if len(report["groups"][group]) == smallest]


def _is_common(record: dict[str, Any], name: str) -> bool:
    half = (record["pairs"] - record["undetermined"]) / 2
    identifiable = name != "concept" or record["not_identifiable"] <= half
    return bool(shown_counts(record)[name] > half and identifiable)
