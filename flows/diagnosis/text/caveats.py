"""What a diagnosis did not compare and why, what its verdicts rest on, and what its second look changed."""

from flows.diagnosis.text.phrases import (
    apart_from,
    few_rows,
    joined,
    least_rows,
    left_out,
    listed,
    reasons_of,
    shared,
    small_silos,
    too_alike,
)
from models.diagnosis.magnitudes import smallest_visible
from models.metrics.task_metrics import format_number
from silos.errors import counted
from tasks.tracking.result_types.diagnosis_result import DiagnosisFacts, SecondLook, SiloFacts, VersionFacts

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


def notes(report: SiloFacts) -> list[str]:
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


def notes_of_versions(report: VersionFacts) -> list[str]:
    """Return the notes on silos compared with an earlier version; each silo's sentence covers rows and overlap."""
    topics = (of_repeats, of_power, of_gaps, _of_features, _of_query)
    return [note for topic in topics for note in topic(report)]


def of_repeats(report: DiagnosisFacts) -> list[str]:
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


def of_power(report: DiagnosisFacts) -> list[str]:
    """State how small a difference may be missed between the two smallest silos that were compared.

    The published rule does not use numbers of rows, and under noise or the verdict `moments` the size is not known.
    """
    if report["verdict"] != "guarded" or report["noise"]:
        return []
    if "against" in report:
        smallest = min(
            ((pair["rows"][0], pair["rows"][1]) for pair in report["pairs"] if not pair["undetermined"]),
            default=None,
            key=min,
        )
    else:
        excluded = set(left_out(report))
        rows = sorted(record["rows"][0] for record in report["rest"] if record["client"] not in excluded)
        smallest = (rows[0], rows[1]) if len(rows) > 1 else None
    if smallest is None:
        return []
    sizes = " and ".join(dict.fromkeys(f"{rows:,.0f}" for rows in smallest))
    if report["unit"]:  # rows of one patient repeat each other
        sizes = f"training rows worth {sizes} independent ones"
    else:
        sizes = f"{sizes} training rows"
    return [
        f"At silos of {sizes}, {unseen_between(report, smallest)} So may another coding of "
        f"{'targets' if report['query']['targets'] else 'labels'} in a part of the rows."
    ]


def unseen_between(report: DiagnosisFacts, rows: tuple[float, float]) -> str:
    """Return the end of a sentence: how small a difference may be missed between two sides of these sizes."""
    seen = smallest_visible(rows, 0.5, len(report["features"]))
    label = "the share of a group of targets" if report["query"]["targets"] else "how often a label occurs"
    return (
        f"differences of less than {100 * seen['share']:.0f} points in {label} or "
        f"{format_number(seen['deviations'], 2)} standard deviations in a mean may be missed."
    )


def of_gaps(report: DiagnosisFacts) -> list[str]:
    """Note features without reported values at some silos, and bins too wide to show differences."""
    gaps, lines = report["gaps"], list[str]()
    label = "group of targets" if report["query"]["targets"] else "label"
    for silos_of, text in (
        (gaps["absent"], "{feature} was not compared at {silos}: no reported row has a value."),
        (
            gaps["withheld"],
            f"{{feature}} was not compared at {{silos}}: fewer than {least_rows(report)} different rows of a {label} have "
            "a value.",
        ),
        (
            gaps["merged"],
            f"{{feature}} was compared at {{silos}} by its mean at most: too few different rows of a {label} for two cells "
            "(least_cell in owner.yaml).",
        ),
    ):
        affected = list(silos_of.items())
        lines += [text.format(feature=feature, silos=listed(silos)) for feature, silos in affected[:_MAX_FEATURES]]
        if len(affected) > _MAX_FEATURES:
            more = counted(len(affected) - _MAX_FEATURES, "more feature")
            lines.append(f"The same holds for {more}, which report.json names.")
    if gaps["crowded"] and not report["query"]["pictures"]:
        lines.append(
            f"Differences within {listed(gaps['crowded'])} cannot be seen: nearly all values lie in one or two of "
            f"{report['query']['bins']} bins, as a few extreme values cause, or those of an earlier report. "
            "Declare `low` and `high` under data.features, or `kind: categorical` for a few different values."
        )
    return lines


def _of_what_was_not_compared(report: SiloFacts) -> list[str]:
    """Note rare classes, far values, and interactions of features that no test covers."""
    entries, lines = report.get("not_compared", []), list[str]()
    if all(pair["undetermined"] for pair in report["pairs"]):  # the first sentence says why
        return lines
    for entry in [entry for entry in entries if entry["what"] == "class"][:_MAX_FEATURES]:
        name = report["classes"][entry["names"][0]]
        lines.append(
            f'Label "{name}" was not compared at {listed(entry["silos"])}: {entry["why"]}, too few to report their counts.'
        )
    for entry in [entry for entry in entries if entry["what"] == "class in cells"][:_MAX_FEATURES]:
        lines.append(
            f'Label "{report["classes"][entry["names"][0]]}" was compared at {listed(entry["silos"])} by its share alone: '
            "with its few rows, cells would merge those of other labels (least_cell in owner.yaml)."
        )
    in_one_cell = [entry for entry in entries if entry["why"] == "one cell in common"]
    for pair in in_one_cell[:_MAX_FEATURES]:
        where = "Between" if len(pair["silos"]) == 2 else "In some pairs of"
        lines.append(
            f"{where} {listed(pair['silos'])} {pair['names'][0]} was compared by its mean at most: the two have one cell in "
            "common (least_cell in owner.yaml)."
        )
    if len(in_one_cell) > _MAX_FEATURES:
        more = counted(len(in_one_cell) - _MAX_FEATURES, "more feature")
        lines.append(f"The same holds for {more}, which report.json names.")
    option = " (to be listed under data.source.na_values)" if report["label"] else ""  # only a table has texts
    for far in [entry for entry in entries if entry["what"] == "values" and "rows" in entry][:_MAX_FEATURES]:
        rows = sum(sum(below_and_above) for below_and_above in far["rows"].values())
        lines.append(
            f"{counted(rows, 'value')} of {joined(far['names'])} at {listed(far['silos'])} "
            f"{'lies' if rows == 1 else 'lie'} {apart_from(far['rows'].values())}: a code for missing values{option}, or a "
            "typing error?"
        )
    whys = [entry["why"] for entry in entries if entry["what"] == "interactions" and not entry["names"]]
    if whys and not report["query"]["pictures"] and report["verdict"] == "guarded":
        of_more = all("more than two" in why for why in whys)
        which = "three or more features" if of_more else "features"
        where = "Where inputs differ, a" if any("inputs differ" in why for why in whys) else "A"
        lines.append(f"{where} rule that differs only in how {which} act together is not seen.")
    if any(entry["what"] == "shared rows" for entry in entries):
        lines.append(
            "Rows that two silos both hold would mostly be missed: features are counted in too few cells for this many "
            "silos. `siloflow partition` counts them."
        )
    return lines


def of_the_second_look(report: SiloFacts) -> list[str]:
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


def _participants(look: SecondLook) -> list[str]:
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


def _uninformative_silos(report: SiloFacts, small: list[str]) -> list[str]:
    """Return silos with enough rows that may report nothing; empty if no other silos remain."""
    others = [line["client"] for line in report["rest"] if not line["reports"][0] and line["client"] not in small]
    return others if len(others) + len(small) < len(report["clients"]) else []


def _of_rows(report: SiloFacts) -> list[str]:
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


def _of_overlap(report: SiloFacts) -> list[str]:
    far = [pair for pair in report["pairs"] if pair["types"] and not pair["concept_identifiable"]]
    if not far:
        return []
    target = "targets" if report["query"]["targets"] else "labels"
    return [
        f"In {counted(len(far), 'pair')} of silos the inputs hardly overlap: the data cannot show whether {target} follow "
        "from them by the same rule.",
        *(_of_angles(report) if any("feature" in pair["types"] for pair in far) else []),
    ]


def _of_angles(report: SiloFacts) -> list[str]:
    """Note a property of the project that siloflow ships, with digits rotated by -50 and 120 degrees."""
    if not report["query"]["pictures"]:
        return []
    return [
        "Pictures that are turned far have this effect: few of their pixels lie where they do in an upright picture."
    ]


def _of_features(report: DiagnosisFacts) -> list[str]:
    """Explain the projections of pictures that are named."""
    if not report["query"]["pictures"]:
        return []
    kinds = {name.split(" ")[0] for record in report["between"] for name in record["features"]}
    texts = [text for name, text in _PICTURES.items() if name in kinds]
    return [f"Each picture is described by a few numbers: {'; '.join(texts)}."] if texts else []


def _of_query(report: DiagnosisFacts) -> list[str]:
    lines, targets, noise = [], report["query"]["targets"], report["noise"]
    if targets:
        cuts = joined([format_number(cut, 4) for cut in targets])
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
