"""What to do next after a diagnosis: checks of units, inputs and labels, and the methods to compare."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from flows.diagnosis.build_report import is_rule_unknown
from flows.diagnosis.text.fault_phrases import fault_steps, unit_step
from flows.diagnosis.text.findings import Finding, findings, of_version
from flows.diagnosis.text.phrases import apart_from, far_values, group_name, joined, listed
from models.diagnosis.guarded_tests import TYPES
from models.diagnosis.shift_words import ShiftType
from tasks.tracking.result_types.diagnosis_result import DataFault, DiagnosisFacts, SiloFacts

_UNIT = "Check the unit of {features} at {silos}, convert it there if it is another one, and diagnose again."
_ONE_MODEL = "One model for all silos is a good start: `siloflow compare fedavg`"
_METHODS: dict[ShiftType, list[str]] = {
    "feature": ["conditional", "uefl"],
    "label": ["conditional", "selective"],
    "concept": ["ifca", "cfl", "ditto"],
}
_METHODS_OF_REGRESSION: dict[ShiftType, list[str]] = {
    "feature": ["conditional", "uefl"],
    "label": [],
    "concept": ["ifca", "ditto"],
}
_NEXT_AFTER_VERSION: dict[ShiftType, str] = {
    "feature": "If the change is real, train again on the present rows.",
    "label": "Judge the model again by the present test rows of these silos.",
    "concept": "Check that the {coded} in the same way. If the change is real, train again without the "
    "earlier rows of these silos.",
}


def next_steps(report: DiagnosisFacts) -> list[str]:
    """Return what to do about the differences that the sentences name, checks first."""
    faults: list[DataFault] = [] if "against" in report else report["data_faults"]
    first, kinds = fault_steps(faults), {fault["what"] for fault in faults}
    codes = far_values(report)
    first += _step_of_far_values(report, codes)
    if "against" not in report and _shows_no_difference(report):
        units = unit_steps(report).values()
        return [*first, *units] if units or kinds & {"persons", "shared"} else [*first, _ONE_MODEL]
    explained = {name: {*rows} for name, rows in codes.items()}
    for fault in faults:
        if fault["what"] == "constant" or fault["what"] == "empty":
            explained.setdefault(fault["names"][0], set()).update(fault["silos"])
    return [*first, *_steps(report, explained)]


def _steps(report: DiagnosisFacts, explained: Mapping[str, Set[str]]) -> list[str]:
    """Return what to do about differences.

    explained: by feature the silos at which a difference is explained already, and is not checked again.
    """
    found, units, unsure = _sure_findings(report), unit_steps(report), _silos_of_persons(report)
    types = {kind for finding in found for kind in finding.kinds}
    steps = [*units.values()]
    if "feature" in types:
        checks = _checks_of_inputs(report, found, {**explained, **{name: {*report["clients"]} for name in units}})
        types -= set() if checks or report["query"]["pictures"] else {"feature"}
        steps += checks
    if "against" in report:
        types |= {kind for record in report["new_rows"]["silos"] for kind in record["types"]}
        coded = "target is still measured" if report["query"]["targets"] else "label is still coded"
        return steps + [_NEXT_AFTER_VERSION[name].format(coded=coded) for name in TYPES if name in types]
    steps += _checks_of_labels(report, found)
    of_silos = report["pairs_of"] == "silos"  # the second look leaves out groups
    doubtful = [pair for pair in report["pairs"] if pair.get("second_look_recommended") and not is_rule_unknown(pair)]
    if of_silos and any(unsure.isdisjoint({pair["first"], pair["second"]}) for pair in doubtful):
        steps.append(
            "Where inputs and rule seem to differ, models of the silos can decide: `siloflow diagnose --set "
            "diagnose.second_look=true`"
        )
    return steps + _methods(report, types)


def unit_steps(report: DiagnosisFacts) -> dict[str, str]:
    """Map each feature that seems to have another unit at some silos to what to do about it.

    Empty for a report of an earlier version, which does not say what the steps follow from.
    """
    if "data_faults" not in report and "against" not in report:
        return {}
    faults: list[DataFault] = [] if "against" in report else report["data_faults"]
    plain: dict[str, str] = {}
    for fault in faults:
        if fault["what"] == "unit":
            name = fault["names"][0]  # which may have one unit at some silos, and another at others
            plain[name] = f"{plain.get(name, '')} {unit_step(fault)}".strip()
    by_silos = _by_silos(_sure_findings(report), lambda finding: finding.units)
    tested = {name: _UNIT.format(features=name, silos=silos) for silos, names in by_silos.items() for name in names}
    return {**tested, **plain}


def _sure_findings(report: DiagnosisFacts) -> list[Finding]:
    """Return what differs between silos, or since the version that they are compared with.

    If persons repeat, differences may be chance. So differences are left out if all silos of one side have such rows.
    """
    if "against" in report:
        return [of_version(report, pair) for pair in report["pairs"] if pair["types"]]
    persons = _silos_of_persons(report)
    groups = {group_name(report, i) for i, group in enumerate(report["groups"]) if persons.issuperset(group)}
    together = listed([client for client in report["clients"] if client in persons]) if persons else ""
    unsure = {*persons, *groups, together}
    return [finding for finding in findings(report) if unsure.isdisjoint(finding.sides)]


def _silos_of_persons(report: DiagnosisFacts) -> set[str]:
    """Return the silos whose rows look like several of each person; versions are not searched for them."""
    faults = [] if "against" in report else report.get("data_faults", [])
    return {silo for fault in faults if fault["what"] == "persons" for silo in fault["silos"]}


def _shows_no_difference(report: SiloFacts) -> bool:
    """Return whether silos were compared, and neither two of them nor one and all others differ."""
    determined = [pair for pair in report["pairs"] if not pair["undetermined"]]
    alike = all(inside["alike"] for inside in report.get("inside", []))
    return alike and bool(determined) and not any(record["types"] for record in (*determined, *report["rest"]))


def _step_of_far_values(report: DiagnosisFacts, codes: Mapping[str, Mapping[str, Sequence[int]]]) -> list[str]:
    """Return how to find out what values apart from all others are; only a table has texts for missing values.

    One step names all features, since data.source.na_values holds the codes of all.
    """
    if not codes:
        return []
    lie = [f"of {name} at {listed([*rows])} that lie {apart_from(rows.values())}" for name, rows in codes.items()]
    start = f"Look at the values {'; '.join(lie)}."
    if not report["label"]:
        return [f"{start} Correct them, or mark them as missing, and diagnose again."]
    sides = [rows for by_silo in codes.values() for rows in by_silo.values()]
    examples = [text for side, text in enumerate(('"-999"', '"9999"')) if any(rows[side] for rows in sides)]
    return [
        f"{start} If they are a code for missing values, list it under data.source, here and in owner.yaml, as in "
        f"`na_values: [{', '.join(examples)}]` with `missing: drop_rows` or a fill, partition and diagnose again; otherwise "
        "correct them."
    ]


def _checks_of_inputs(report: DiagnosisFacts, found: Sequence[Finding], explained: Mapping[str, Set[str]]) -> list[str]:
    """Return what to check about the inputs that differ, at the silos that differ in them, but those explained already."""
    differ = [finding for finding in found if "feature" in finding.kinds]
    if report["query"]["pictures"]:
        return ["Turn, centre and light the pictures of all silos alike, if it is known how."]
    unexplained: dict[str, list[str]] = {}  # by the text of a finding, since one silo may differ for two reasons
    for finding in differ:
        unexplained[finding.text] = [
            n for n in finding.inputs if not _is_explained(report, finding, explained.get(n, set()))
        ]
    scaled = [finding for finding in differ if finding.transform]
    steps = []
    if scaled:
        names = _columns(name for finding in scaled for name in unexplained[finding.text])
        steps.append(f"Let each silo standardise {joined(names or ['them'])} before training.")
    checked = [finding for finding in differ if not finding.transform]
    where = _by_silos(checked, lambda finding: unexplained[finding.text])
    for silos, names in where.items():
        columns = _columns(names)
        verb = "differs" if len(columns) == 1 else "differ"
        steps.append(
            f"Check at {silos} why {joined(columns)} {verb}: other cases (case mix), or another way of measuring."
        )
    if checked and not any(finding.inputs for finding in checked):
        silos = _suspects(checked)
        steps.append(f"Check at {silos} why inputs differ: other cases (case mix), or another way of measuring.")
    return steps


def _is_explained(report: DiagnosisFacts, finding: Finding, silos: Set[str]) -> bool:
    """Return whether these silos explain a difference: the described side has one of them, or no side stands out."""
    if not silos or not finding.is_odd or "against" in report:
        return bool(silos)
    return not silos.isdisjoint(finding.odd)


def _columns(names: Iterable[str]) -> list[str]:
    """Return the columns of these features, without repeats: of a category, such as ward=eye, the whole."""
    return [*dict.fromkeys(name.partition("=")[0] for name in names)]


def _checks_of_labels(report: DiagnosisFacts, found: Sequence[Finding]) -> list[str]:
    """Return what to check about labels: how they are coded if the rule or threshold may differ, or why they differ."""
    label = report["label"] or ("the target" if report["query"]["targets"] else "the label")
    of_rule = [finding for finding in found if "concept" in finding.kinds]
    of_labels = [finding for finding in found if "label" in finding.kinds]
    coded = of_rule or [finding for finding in of_labels if finding.threshold]
    if not coded:
        if not of_labels:
            return []
        return [f"Check at {_suspects(of_labels)} why {label} differs: other cases, or another way of recording them."]
    what = "measures" if report["query"]["targets"] else "codes"
    of_threshold = any(finding.threshold for finding in coded) and not report["query"]["targets"]
    suffix = ", with the same threshold" if of_threshold else ""
    silos = _suspects(coded)
    sides = [*coded[0].sides]  # empty if a sentence counts pairs of which no silo stands out
    both = bool(sides) and joined(sides) == silos  # the two sides of one difference, so no silo is to be checked first
    first = "" if (both and not coded[0].is_odd) or silos == _ALL else f", beginning with {silos}"
    return [f"Check that each silo {what} {label} alike{suffix}{first}."]


def _methods(report: SiloFacts, types: set[ShiftType]) -> list[str]:
    """Return one command that compares the methods for all these types."""
    by_type = _METHODS_OF_REGRESSION if report["query"]["targets"] else _METHODS
    of_groups = ["ifca"] if "feature" in types and _are_grouped(report) else []
    methods = dict.fromkeys([*of_groups, *(method for name in TYPES if name in types for method in by_type[name])])
    if not types:
        return []
    if not methods:
        return ["Judge each method by each silo's own test rows."]
    why = (
        "silos need models of their own or of their group"
        if "concept" in types
        else "judge methods by each silo's test rows"
    )
    return [f"If the differences are real, {why}: `siloflow compare fedavg {' '.join(methods)}`"]


def _are_grouped(report: SiloFacts) -> bool:
    """Return whether two groups or more have several silos each; a model for each group paid there (docs/results.md)."""
    return sum(len(group) > 1 for group in report.get("groups", ())) > 1


def _by_silos(found: Sequence[Finding], features_of: Callable[[Finding], Sequence[str]]) -> dict[str, list[str]]:
    """Return features by the silos to check, in the order of the findings."""
    by_silos: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for finding in found for name in features_of(finding)):
        silos = _suspects([finding for finding in found if name in features_of(finding)])
        by_silos.setdefault(silos, []).append(name)
    return by_silos


def _suspects(found: Sequence[Finding]) -> str:
    """Name the silos to check: those that findings single out, or else those in most of these findings.

    Of two sides in equally many, the smaller one is named, or both.
    """
    odd = dict.fromkeys(next(iter(finding.sides)) for finding in found if finding.is_odd)
    if odd:
        return listed([*odd])
    counts = Counter(side for finding in found for side in finding.sides)
    sizes = {side: size for finding in found for side, size in finding.sides.items()}
    sides = [side for side, count in counts.items() if count == max(counts.values())]
    if len(sides) == 2 and max(counts.values()) == 1:
        sides = [side for side in sides if sizes[side] == min(sizes[side] for side in sides)]
    return joined(sides) if sides else _ALL


_ALL = "all silos"
