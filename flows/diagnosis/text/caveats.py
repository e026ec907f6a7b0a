"""What a diagnosis did not compare and why, what its second look changed, and what to do next."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flows.diagnosis.report import is_rule_unknown
from flows.diagnosis.text.phrases import (
    counted,
    few_rows,
    group_name,
    joined,
    least_rows,
    left_out,
    listed,
    odd_one,
    reasons_of,
    shared,
    shown_counts,
    shown_types,
    small_silos,
    too_alike,
)
from flows.diagnosis.text.summary import leading_features
from models.shift.magnitudes import smallest_visible
from models.shift.nested_tests import TYPES

_MAX_FEATURES = 3  # with missing values
_SIZE_RATIO = 10  # of the largest and smallest silo, from which on a note is given
_NOISE_SDS = 4  # deviations of noise within which sizes do not count as different

_PICTURES = {
    "direction": "a direction is one fixed mix of all pixels",
    "patch": "a patch is the light in one of 4 by 4 parts (row, column)",
    "edges": "edges are how much neighbouring pixels differ",
    "centre": "the centre is where the light lies",
    "xx": "xx is how wide the light lies across",
    "yy": "yy is how wide the light lies down",
    "xy": "xy is how aslant the light lies",
}
_UNIT = "Check the unit of {features} at {silos}, convert it there if it is another one, and diagnose again."
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


def notes(report: dict[str, Any]) -> list[str]:
    """Return what was not compared and why, and what verdicts rest on."""
    topics = (
        _of_rows,
        of_repeats,
        of_power,
        of_gaps,
        _of_what_was_not_compared,
        _of_overlap,
        _of_features,
        _of_query,
        of_the_second_look,
    )
    return [note for topic in topics for note in topic(report)]


def notes_of_versions(report: dict[str, Any]) -> list[str]:
    """Return the notes on silos compared with an earlier version; each silo's sentence covers rows and overlap."""
    topics = (of_repeats, of_power, of_gaps, _of_features, _of_query)
    return [note for topic in topics for note in topic(report)]


def of_repeats(report: dict[str, Any]) -> list[str]:
    """State that rows count by unit, or that many rows repeat although no unit is named."""
    if report["unit"]:
        return [
            f"Rows are counted by {report['unit']}: a silo has as many rows as its units are worth independent ones."
        ]
    if not report["repeats"]:
        return []
    return [
        f"At {listed(report['repeats'])} a tenth of the rows or more equal other rows, so differences may be chance. If "
        "they are visits of one patient or copies, name the column that says so under data.source.unit."
    ]


def of_power(report: dict[str, Any]) -> list[str]:
    """State how small a difference may be missed between the two smallest silos that were compared.

    The published rule does not use numbers of rows, and under noise or the verdict `moments` the size is not known.
    """
    if report["verdict"] != "guarded" or report["noise"]:
        return []
    if "against" in report:
        smallest = min(
            (tuple(pair["rows"]) for pair in report["pairs"] if not pair["undetermined"]), default=None, key=min
        )
    else:
        excluded = set(left_out(report))
        rows = sorted(record["rows"][0] for record in report["rest"] if record["client"] not in excluded)
        smallest = (rows[0], rows[1]) if len(rows) > 1 else None
    if smallest is None:
        return []
    sizes = " and ".join(dict.fromkeys(f"{rows:,.0f}" for rows in smallest))
    seen = smallest_visible(smallest, 0.5, len(report["features"]))
    target = "the share of a group of targets" if report["query"]["targets"] else "how often a label occurs"
    return [
        f"At silos of {sizes} training rows, differences of less than {100 * seen['share']:.0f} "
        f"points in {target} or {seen['deviations']:.2g} standard deviations in a mean may be missed. So may another "
        f"coding of {'targets' if report['query']['targets'] else 'labels'} in a part of the rows."
    ]


def of_gaps(report: dict[str, Any]) -> list[str]:
    """Note features without reported values at some silos, and bins too wide to show differences."""
    gaps, lines = report["gaps"], list[str]()
    label = "group of targets" if report["query"]["targets"] else "label"
    for what, text in (
        ("absent", "{feature} was not compared at {silos}: no reported row has a value."),
        (
            "withheld",
            f"{{feature}} was not compared at {{silos}}: fewer than {least_rows(report)} different rows of a {label} have "
            "a value.",
        ),
    ):
        affected = list(gaps[what].items())
        lines += [text.format(feature=feature, silos=listed(silos)) for feature, silos in affected[:_MAX_FEATURES]]
        if len(affected) > _MAX_FEATURES:
            more = counted(len(affected) - _MAX_FEATURES, "more feature")
            lines.append(f"The same holds for {more}, which report.json names.")
    if gaps["crowded"] and not report["query"]["pictures"]:
        lines.append(
            f"Differences within {listed(gaps['crowded'])} cannot be seen: nearly all values lie in one or two of "
            f"{report['query']['bins']} bins, as a few extreme values cause. Declare `low` and `high` under data.features, "
            "or `kind: categorical` for a few different values."
        )
    return lines


def _of_what_was_not_compared(report: dict[str, Any]) -> list[str]:
    """Note rare classes, far values, and interactions of features that no test covers."""
    entries, lines = report.get("not_compared", []), list[str]()
    if all(pair["undetermined"] for pair in report["pairs"]):  # the first sentence says why
        return lines
    for entry in [entry for entry in entries if entry["what"] == "class"][:_MAX_FEATURES]:
        name = report["classes"][entry["names"][0]]
        lines.append(
            f'Label "{name}" was not compared at {listed(entry["silos"])}: {entry["why"]}, too few to report their counts.'
        )
    for entry in [entry for entry in entries if entry["what"] == "values" and "rows" in entry][:_MAX_FEATURES]:
        rows = sum(sum(far) for far in entry["rows"].values())
        lines.append(
            f"{counted(rows, 'value')} of {joined(entry['names'])} at {listed(entry['silos'])} "
            f"{'lies' if rows == 1 else 'lie'} far from all others: a code for missing values, or a typing error?"
        )
    whys = [entry["why"] for entry in entries if entry["what"] == "interactions" and not entry["names"]]
    if whys and not report["query"]["pictures"] and report["verdict"] == "guarded":
        of_more = all("more than two" in why for why in whys)
        which = "three or more features" if of_more else "features"
        where = "Where inputs differ, a" if any("inputs differ" in why for why in whys) else "A"
        lines.append(f"{where} rule that differs only in how {which} act together is not seen.")
    return lines


def of_the_second_look(report: dict[str, Any]) -> list[str]:
    """Note what the second look changed; empty if none was requested."""
    look = report["second_look"]
    if look is None:
        return []
    if look["of_groups"]:
        return ["The second look was left out: it compares pairs of silos, and with so many silos groups are compared."]
    if not look["pairs"]:
        return ["The second look was not needed: no pair of silos differs in both inputs and rule."]
    pairs = f"{look['explained'] or 'none'} of {counted(look['pairs'], 'pair')}"
    return [
        f"Second look: in {pairs} of silos the inputs explain what seemed to be another rule, by the models of both silos. "
        "Comparisons of one silo with all others are unchanged.",
        *_participants(look),
    ]


def _participants(look: dict[str, Any]) -> list[str]:
    """Note which silos reported, and which refused and why."""
    models, predictions, refusals = look["reported"]["models"], look["reported"]["predictions"], look["refused"]
    lines, models_only = [], [client for client in models if client not in predictions]
    if predictions:
        lines.append(f"{listed(predictions)} sent models of their labels, and predicted counts of their rows.")
    if models_only:
        lines.append(f"{listed(models_only)} sent models of their labels only.")
    if models:
        lines.append(f"All silos together sent {look['bytes']['up']:,} bytes for it.")
    without_models = [client for client in refusals if client not in models]
    for names, what in (
        (without_models, "took no part in the second look"),
        (sorted(refusals.keys() & set(models)), "took no further part"),
    ):
        if names:
            lines.append(f"{listed(names)} {what}: {refusals[names[0]]}")
    return lines


def next_steps(report: dict[str, Any]) -> list[str]:
    """Return what to do about what most pairs of two groups show, checks first; not about a rule that may not differ."""
    if "against" not in report and _shows_no_difference(report):
        return ["One model for all silos is a good start: siloflow compare fedavg"]
    odd = None if "against" in report else odd_one(report)
    types = {name for record in report["between"] for name in TYPES if _is_common(record, name)}
    types |= {*shown_types(odd)} if odd else set()
    units = _suspected_units(report)
    steps = [_UNIT.format(features=name, silos=listed(sorted(silos))) for name, silos in sorted(units.items())]
    leading = [*odd["features"]] if odd else leading_features(report)
    features = [name for name in leading if name not in units][:_MAX_FEATURES]
    if units and not features and not report["query"]["pictures"]:
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
            involved.update(record["groups"] if feature is None or feature in record["features"] else ())
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


def _uninformative_silos(report: dict[str, Any], small: list[str]) -> list[str]:
    """Return silos with enough rows that may report nothing; empty if no other silos remain."""
    others = [line["client"] for line in report["rest"] if not line["reports"][0] and line["client"] not in small]
    return others if len(others) + len(small) < len(report["clients"]) else []


def _of_rows(report: dict[str, Any]) -> list[str]:
    lines, small = [], small_silos(report)
    if small and len(small) < len(report["clients"]):
        lines.append(f"{listed(small)} {_was(small)} not compared: {few_rows(report)}.")
    others = _uninformative_silos(report, small)
    if others:
        lines.append(f"{listed(others)} {_was(others)} not compared: {too_alike(report)}.")
    excluded = {*small, *others}
    undetermined = [p for p in report["pairs"] if p["undetermined"] and not excluded & {p["first"], p["second"]}]
    if len(undetermined) < len(report["pairs"]):  # otherwise the first sentence does
        lines += reasons_of(undetermined, report)
    rows = [record["rows"][0] for record in report["rest"]]
    noise = _NOISE_SDS * report["query"]["rows_noise"] if report["noise"] else 0.0
    if len(rows) > 1 and max(rows) - noise >= _SIZE_RATIO * max(1, min(rows) + noise):
        lines.append(f"Silos differ in size: from {min(rows):,.0f} to {max(rows):,.0f} training rows.")
    margins = sum(pair["margins_only"] for pair in report["pairs"])
    if margins:
        verb = "has" if margins == 1 else "have"
        targets = report["query"]["targets"]
        label, what = ("group of targets", "targets") if targets else ("label", "label frequencies")
        lines.append(
            f"{counted(margins, 'pair')} of silos {verb} no {label} with {shared(report)} at both: only inputs and {what} "
            "were compared."
        )
    return lines


def _was(names: list[str]) -> str:
    return "was" if len(names) == 1 else "were"


def _of_overlap(report: dict[str, Any]) -> list[str]:
    far = [pair for pair in report["pairs"] if pair["types"] and not pair["concept_identifiable"]]
    if not far:
        return []
    target = "targets" if report["query"]["targets"] else "labels"
    return [
        f"In {counted(len(far), 'pair')} of silos the inputs hardly overlap: the data cannot show whether {target} follow "
        "from them by the same rule.",
        *(_of_angles(report) if any("feature" in pair["types"] for pair in far) else []),
    ]


def _of_angles(report: dict[str, Any]) -> list[str]:
    """Note a property of the project that siloflow ships, with digits rotated by -50 and 120 degrees."""
    if not report["query"]["pictures"]:
        return []
    return [
        "Pictures that are turned far have this effect: few of their pixels lie where they do in an upright picture."
    ]


def _of_features(report: dict[str, Any]) -> list[str]:
    """Explain the projections of pictures that are named."""
    if not report["query"]["pictures"]:
        return []
    kinds = {name.split(" ")[0] for record in report["between"] for name in record["features"]}
    texts = [text for name, text in _PICTURES.items() if name in kinds]
    return [f"Each picture is described by a few numbers: {'; '.join(texts)}."] if texts else []


def _of_query(report: dict[str, Any]) -> list[str]:
    lines, targets, noise = [], report["query"]["targets"], report["noise"]
    if targets:
        cuts = joined([f"{cut:.4g}" for cut in targets])
        lines.append(
            f"Targets are numbers, so {len(targets) + 1} groups of targets, cut at {cuts}, are compared as labels."
        )
    if noise:
        lines.append(
            f"Every silo added noise that hides each single row (epsilon {noise['epsilon']:g}, delta {noise['delta']:g}). "
            "The noise also hides small differences, most of them in small silos."
        )
    if report["verdict"] == "moments":
        lines.append(
            "diagnose.verdict is moments: silos reported means and spreads, no counts, which show less. Values far from all "
            "others, such as typing errors, count as values near them, and are not listed."
        )
    if report["verdict"] == "paper":
        lines.append(
            "diagnose.verdict is paper: the printed rule of Fomichev, Kholod and Kocheshkov uses distances alone. It "
            "ignores the number of rows, so small silos differ by chance."
        )
    return lines
