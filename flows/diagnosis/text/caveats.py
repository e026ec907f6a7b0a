"""Notes on a diagnosis: its limitations, its second look, and what may be done next."""

from typing import Any

from flows.diagnosis.text.phrases import counted, few_rows, joined, listed, reasons_of, shared, small_silos, too_alike
from models.shift.nested_tests import TYPES
from models.shift.pair_screening import MIN_SHARE

_SMALL = 500  # rows of each silo below which small differences are missed: table 3 of `siloflow reproduce shift-types`
_MAX_FEATURES = 3  # with missing values


def of_power(report: dict[str, Any]) -> list[str]:
    """Note that with few rows only large differences show.

    There is no such note under the published rule, which does not use numbers of rows.
    """
    same = [min(pair["rows"]) for pair in report["pairs"] if not pair["types"] and not pair["undetermined"]]
    if report.get("pairs_of") == "groups":  # groups have many rows; no difference was found between their silos
        grouped = {client for group in report["groups"] if len(group) > 1 for client in group}
        same = [record["rows"][0] for record in report["rest"] if record["client"] in grouped]
    if report["verdict"] == "paper" or not any(rows < _SMALL for rows in same):
        return []
    return [
        f"Fewer than {_SMALL} training rows of a silo show large differences alone: where none is found, small ones may be "
        "there."
    ]


def of_gaps(report: dict[str, Any]) -> list[str]:
    """Note features without reported values at some silos, and bins too wide to show differences."""
    gaps, lines = report["gaps"], list[str]()
    label = "group of targets" if report["asked"]["targets"] else "label"
    for what, text in (
        ("absent", "{feature} has no value in any row that {silos} told of."),
        (
            "untold",
            f"Of {{feature}} {{silos}} told no value, since fewer than ten different rows of a {label} have one: its values "
            "are not compared there.",
        ),
    ):
        affected = list(gaps[what].items())
        lines += [text.format(feature=feature, silos=listed(silos)) for feature, silos in affected[:_MAX_FEATURES]]
        if len(affected) > _MAX_FEATURES:
            more = counted(len(affected) - _MAX_FEATURES, "more feature")
            lines.append(f"So it is with {more}; report.json names them.")
    if gaps["crowded"] and not report["asked"]["pictures"]:
        lines.append(
            f"Nearly all values of {listed(gaps['crowded'])} lie in one or two of {report['asked']['bins']} bins, as where "
            "a few are far out, and nothing is seen within these: under data.features declare low and high that hold most, "
            "or the kind categorical where there are few different ones."
        )
    return lines


def of_the_second_look(report: dict[str, Any]) -> list[str]:
    """Note what the second look changed; empty if none was requested."""
    look = report["second_look"]
    if look is None:
        return []
    if look["of_groups"]:
        return ["A second look was asked for. It is at pairs of silos, and of so many silos groups are compared."]
    if not look["pairs"]:
        return ["A second look was asked for, and no pair seems to differ in both inputs and rule: no silo was asked."]
    pairs = f"{look['explained'] or 'none'} of {counted(look['pairs'], 'pair')}"
    return [
        f"A second look: in {pairs} what seemed another rule follows from the inputs, as models of both silos foresee it. "
        "What is said of a silo and all others together is as it was.",
        *_participants(look),
    ]


def _participants(look: dict[str, Any]) -> list[str]:
    """Note which silos reported, and which refused and why."""
    models, predictions, refusals = look["told"]["models"], look["told"]["foreseen"], look["silent"]
    lines, models_only = [], [client for client in models if client not in predictions]
    if predictions:
        lines.append(f"{listed(predictions)} told models of their labels, and what these expect of their rows.")
    if models_only:
        lines.append(f"{listed(models_only)} told models of labels, and nothing more.")
    if models:
        lines.append(f"Silos sent {look['bytes']['up']:,} bytes for it.")
    without_models = [client for client in refusals if client not in models]
    for names, what in (
        (without_models, "took no part in it"),
        (sorted(refusals.keys() & set(models)), "took no further part"),
    ):
        if names:
            lines.append(f"{listed(names)} {what}: {refusals[names[0]]}")
    return lines


_SIZE_RATIO = 10  # of the largest and smallest silo, from which on a note is given
_NOISE_SDS = 4  # deviations of noise within which sizes do not count as different

_PICTURES = {
    "direction": "a direction is one fixed mix of all pixels",
    "patch": "a patch is the light in one of 4 by 4 parts (row, column)",
    "edges": "edges are how much neighbouring pixels differ",
    "centre": "the centre is where the light lies",
    "xx": "xx is how widely light lies across",
    "yy": "yy is how widely light lies down",
    "xy": "xy is how aslant light lies",
}
_NEXT = {
    "feature": "inputs differ: {align}, or compare fedavg with conditional and uefl.",
    "label": "labels differ: judge methods by each silo's own test rows, and compare fedavg with conditional and selective.",
    "concept": "labels follow from inputs by other rules: no one model suits all; compare fedavg with ifca, cfl and ditto.",
}
_NEXT_REGRESSION = {
    **_NEXT,
    "label": "targets differ: judge methods by each silo's own test rows.",
    "concept": "targets follow from inputs by other rules: no one model suits all; compare fedavg with ifca and ditto.",
}
_NEXT_AFTER_VERSION = {
    "feature": "inputs moved: {align}, or train anew with the rows that there are now.",
    "label": "what is to be predicted is as frequent as it was no more: judge the model anew by these silos' test rows.",
    "concept": "the rule moved: rows from before teach the old one; train anew without them at these silos.",
}


def notes(report: dict[str, Any]) -> list[str]:
    """Return the notes on what verdicts rest on, and where there are none."""
    topics = (_of_rows, of_power, of_gaps, _of_overlap, _of_strength, _of_features, _of_query, of_the_second_look)
    return [note for topic in topics for note in topic(report)]


def notes_of_versions(report: dict[str, Any]) -> list[str]:
    """Return the notes on silos compared with an earlier version; each silo's sentence covers rows and overlap."""
    topics = (of_power, of_gaps, _of_strength, _of_features, _of_query)
    return [note for topic in topics for note in topic(report)]


def next_steps(report: dict[str, Any]) -> list[str]:
    """Return what may be done about what most pairs of two groups show; not about a rule that may not differ."""
    types = {name for record in report["between"] for name in TYPES if _is_common(record, name)}
    features = joined(leading_features(report)[:3] or ["them"])
    if report["asked"]["pictures"]:
        align = "turn, centre and light the pictures of all silos alike, where it is known how"
    elif any(record["transform"] > record["pairs"] / 2 for record in report["between"]):
        align = f"let each silo standardise {features} before training"
    else:
        align = f"align {features} at the silos before training"
    return [_texts(report)[name].format(align=align) for name in TYPES if name in types]


def leading_features(report: dict[str, Any]) -> list[str]:
    """Return the features that carry most over all pairs, in order."""
    ranking = report["ranking"]
    return [record["feature"] for record in ranking if record["mean"] >= MIN_SHARE * ranking[0]["mean"]]


def _texts(report: dict[str, Any]) -> dict[str, str]:
    if "against" in report:
        return _NEXT_AFTER_VERSION
    return _NEXT_REGRESSION if report["asked"]["targets"] else _NEXT


def _is_common(record: dict[str, Any], name: str) -> bool:
    half = (record["pairs"] - record["undetermined"]) / 2
    identifiable = name != "concept" or record["not_identifiable"] <= half
    return bool(record["types"][name] > half and identifiable)


def _uninformative_silos(report: dict[str, Any], small: list[str]) -> list[str]:
    """Return silos with enough rows that may report nothing; empty if no other silos remain."""
    others = [line["client"] for line in report["rest"] if not line["tells"][0] and line["client"] not in small]
    return others if len(others) + len(small) < len(report["clients"]) else []


def _of_rows(report: dict[str, Any]) -> list[str]:
    lines, small = [], small_silos(report)
    if small and len(small) < len(report["clients"]):
        have = "it has" if len(small) == 1 else "each has"
        lines.append(f"Of {listed(small)} nothing is said: {have} {few_rows(report)}.")
    others = _uninformative_silos(report, small)
    if others:
        lines.append(
            f"Of {listed(others)} nothing is said: {'it' if len(others) == 1 else 'each'} has {too_alike(report)}."
        )
    excluded = {*small, *others}
    undetermined = [p for p in report["pairs"] if p["undetermined"] and not excluded & {p["first"], p["second"]}]
    if len(undetermined) < len(report["pairs"]):  # otherwise the first sentence does
        lines += reasons_of(undetermined, report)
    rows = [record["rows"][0] for record in report["rest"]]
    noise = _NOISE_SDS * report["asked"]["rows_noise"] if report["noise"] else 0.0
    if len(rows) > 1 and max(rows) - noise >= _SIZE_RATIO * max(1, min(rows) + noise):
        lines.append(f"Silos differ in size too: from {min(rows):,.0f} to {max(rows):,.0f} training rows.")
    margins = sum(pair["margins_only"] for pair in report["pairs"])
    if margins:
        share = "shares" if margins == 1 else "share"
        what = "targets" if report["asked"]["targets"] else "label shares"
        lines.append(
            f"{counted(margins, 'pair')} {share} no label of {shared(report)}: only inputs and {what} could be compared."
        )
    return lines


def _of_overlap(report: dict[str, Any]) -> list[str]:
    far = [pair for pair in report["pairs"] if pair["types"] and not pair["concept_identifiable"]]
    if not far:
        return []
    target = "targets" if report["asked"]["targets"] else "labels"
    suffix = ", whatever is said of P(y | x)" if any("concept" in pair["types"] for pair in far) else ""
    return [
        f"In {counted(len(far), 'pair')} the inputs hardly overlap: whether {target} follow from them alike cannot be known "
        f"there{suffix}.",
        *(_of_angles(report) if any("feature" in pair["types"] for pair in far) else []),
    ]


def _of_angles(report: dict[str, Any]) -> list[str]:
    """Note a property of the project that siloflow ships, with digits rotated by -50 and 120 degrees."""
    if not report["asked"]["pictures"]:
        return []
    return [
        "Pictures that are turned far look so: little of one is where it was in an upright one, and in some pairs it then "
        "seems as if labels followed another rule, though only the pictures have changed."
    ]


def _of_strength(report: dict[str, Any]) -> list[str]:
    if not any(record["grades"].get("feature") == "negligible" for record in report["between"]):
        return []
    return [
        "Negligible on that scale is not nothing: a mean moves by three deviations or more until it is moderate there, "
        "and without declared bounds (low, high) it hardly ever is."
    ]


def _of_features(report: dict[str, Any]) -> list[str]:
    """Explain the projections of pictures that are named."""
    if not report["asked"]["pictures"]:
        return []
    kinds = {name.split(" ")[0] for record in report["between"] for name in record["features"]}
    texts = [text for name, text in _PICTURES.items() if name in kinds]
    return [f"A few numbers stand for each picture: {'; '.join(texts)}."] if texts else []


def _of_query(report: dict[str, Any]) -> list[str]:
    lines, targets, noise = [], report["asked"]["targets"], report["noise"]
    if targets:
        cuts = joined([f"{cut:.4g}" for cut in targets])
        lines.append(f"Targets are numbers: {len(targets) + 1} groups of them, cut at {cuts}, stand for labels.")
    if noise:
        lines.append(
            f"Every silo added noise to what it told, so that it hides each single row (epsilon {noise['epsilon']:g}, delta "
            f"{noise['delta']:g}). It hides small differences, too, and most of them where rows are few."
        )
    if report["verdict"] == "moments":
        lines.append(
            "The verdict moments was asked for: silos told means and spreads, no counts, and less can be seen in them."
        )
    if report["verdict"] == "paper":
        lines.append(
            "The verdict paper was asked for: the printed rule of Fomichev, Kholod and Kocheshkov, which looks at distances "
            "alone. It ignores how many rows there are, so that small silos differ by chance."
        )
    return lines
