"""What a reader should know of a diagnosis besides what was found, and what may be done about it.

What a diagnosis could not see: small differences of few rows, features without values, bins that hold nearly all.

What a reader should know of a second look: what it changed, who told what, and who told nothing, and why.
"""

from typing import Any

from flows.diagnosis.text.phrases import counted, few_rows, joined, listed, of_some, shared, small_silos, too_alike
from models.shift.nested_tests import TYPES
from models.shift.pair_screening import MUCH

_SMALL = 500  # rows of each, from which on small differences are found: table 3 of `siloflow reproduce shift-types`
_NAMED = 3  # features that values are missing of


def of_power(report: dict[str, Any]) -> list[str]:
    """By the printed rule, which knows no number of rows, chance shows itself as a difference."""
    quiet = [min(pair["rows"]) for pair in report["pairs"] if not pair["types"] and not pair["undetermined"]]
    if (
        report.get("pairs_of") == "groups"
    ):  # whose rows are many; silos were put into one as none was found between them
        shared = {client for group in report["groups"] if len(group) > 1 for client in group}
        quiet = [line["rows"][0] for line in report["rest"] if line["client"] in shared]
    if report["verdict"] == "paper" or not any(rows < _SMALL for rows in quiet):
        return []
    return [
        f"Fewer than {_SMALL} training rows of a silo show large differences alone: where none is found, small ones may be "
        "there."
    ]


def of_gaps(report: dict[str, Any]) -> list[str]:
    """Features that some silos have no value of or tell nothing of, and bins that are too wide to see anything."""
    gaps, said = report["gaps"], list[str]()
    label = "group of targets" if report["asked"]["targets"] else "label"
    for what, text in (
        ("absent", "{feature} has no value in any row that {silos} told of."),
        (
            "untold",
            f"Of {{feature}} {{silos}} told no value, since fewer than ten different rows of a {label} have one: its values "
            "are not compared there.",
        ),
    ):
        some = list(gaps[what].items())
        said += [text.format(feature=feature, silos=listed(silos)) for feature, silos in some[:_NAMED]]
        if len(some) > _NAMED:
            said.append(f"So it is with {counted(len(some) - _NAMED, 'more feature')}; report.json names them.")
    if gaps["crowded"] and not report["asked"]["pictures"]:
        said.append(
            f"Nearly all values of {listed(gaps['crowded'])} lie in one or two of {report['asked']['bins']} bins, as where "
            "a few are far out, and nothing is seen within these: under data.features declare low and high that hold most, "
            "or the kind categorical where there are few different ones."
        )
    return said


def of_the_second_look(report: dict[str, Any]) -> list[str]:
    """Nothing where none was asked for."""
    look = report["second_look"]
    if look is None:
        return []
    if look["of_groups"]:
        return ["A second look was asked for. It is at pairs of silos, and of so many silos groups are compared."]
    if not look["pairs"]:
        return ["A second look was asked for, and no pair seems to differ in both inputs and rule: no silo was asked."]
    of = f"{look['explained'] or 'none'} of {counted(look['pairs'], 'pair')}"
    return [
        f"A second look: in {of} what seemed another rule follows from the inputs, as models of both silos foresee it. What "
        "is said of a silo and all others together is as it was.",
        *_who_told(look),
    ]


def _who_told(look: dict[str, Any]) -> list[str]:
    models, foreseen, silent = look["told"]["models"], look["told"]["foreseen"], look["silent"]
    said, alone = [], [client for client in models if client not in foreseen]
    if foreseen:
        said.append(f"{listed(foreseen)} told models of their labels, and what these expect of their rows.")
    if alone:
        said.append(f"{listed(alone)} told models of labels, and nothing more.")
    if models:
        said.append(f"Silos sent {look['bytes']['up']:,} bytes for it.")
    at_first = [client for client in silent if client not in models]
    for names, what in (
        (at_first, "took no part in it"),
        (sorted(silent.keys() & set(models)), "took no further part"),
    ):
        if names:
            said.append(f"{listed(names)} {what}: {silent[names[0]]}")
    return said


_LARGE = 10  # times as many rows, from which on it is said
_FAR = 4  # deviations of noise, in which nothing is said of sizes

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
_NEXT_IN_A_REGRESSION = {
    **_NEXT,
    "label": "targets differ: judge methods by each silo's own test rows.",
    "concept": "targets follow from inputs by other rules: no one model suits all; compare fedavg with ifca and ditto.",
}
_NEXT_SINCE_A_VERSION = {
    "feature": "inputs moved: {align}, or train anew with the rows that there are now.",
    "label": "what is to be predicted is as frequent as it was no more: judge the model anew by these silos' test rows.",
    "concept": "the rule moved: rows from before teach the old one; train anew without them at these silos.",
}


def notes(report: dict[str, Any]) -> list[str]:
    """What the verdicts stand on, and where they are silent."""
    parts = (
        _of_rows,
        of_power,
        of_gaps,
        _of_overlap,
        _of_strength,
        _of_features,
        _of_the_question,
        of_the_second_look,
    )
    return [note for part in parts for note in part(report)]


def notes_of_versions(report: dict[str, Any]) -> list[str]:
    """The same of silos beside themselves then; of rows and overlap each silo's sentence says what there is to say."""
    parts = (of_power, of_gaps, _of_strength, _of_features, _of_the_question)
    return [note for part in parts for note in part(report)]


def next_steps(report: dict[str, Any]) -> list[str]:
    """What somebody may do about what most pairs of two groups say; not about a rule that cannot be known to differ."""
    types = {name for line in report["between"] for name in TYPES if _is_common(line, name)}
    ranked = joined(leading(report)[:3] or ["them"])
    if report["asked"]["pictures"]:
        align = "turn, centre and light the pictures of all silos alike, where it is known how"
    elif any(line["transform"] > line["pairs"] / 2 for line in report["between"]):
        align = f"let each silo standardise {ranked} before training"
    else:
        align = f"align {ranked} at the silos before training"
    return [_texts(report)[name].format(align=align) for name in TYPES if name in types]


def leading(report: dict[str, Any]) -> list[str]:
    """The features that carry most over all pairs, the first first."""
    ranking = report["ranking"]
    return [line["feature"] for line in ranking if line["mean"] >= MUCH * ranking[0]["mean"]]


def _texts(report: dict[str, Any]) -> dict[str, str]:
    if "against" in report:
        return _NEXT_SINCE_A_VERSION
    return _NEXT_IN_A_REGRESSION if report["asked"]["targets"] else _NEXT


def _is_common(line: dict[str, Any], name: str) -> bool:
    half = (line["pairs"] - line["undetermined"]) / 2
    known = name != "concept" or line["not_identifiable"] <= half
    return bool(line["types"][name] > half and known)


def _silent_silos(report: dict[str, Any], small: list[str]) -> list[str]:
    """Those that may tell nothing though their rows are not too few; where all are, the first sentence says it."""
    silent = [line["client"] for line in report["rest"] if not line["tells"][0] and line["client"] not in small]
    return silent if len(silent) + len(small) < len(report["clients"]) else []


def _of_rows(report: dict[str, Any]) -> list[str]:
    said, small = [], small_silos(report)
    if small and len(small) < len(report["clients"]):
        have = "it has" if len(small) == 1 else "each has"
        said.append(f"Of {listed(small)} nothing is said: {have} {few_rows(report)}.")
    silent = _silent_silos(report, small)
    if silent:
        said.append(
            f"Of {listed(silent)} nothing is said: {'it' if len(silent) == 1 else 'each'} has {too_alike(report)}."
        )
    alone = {*small, *silent}
    unclear = [p for p in report["pairs"] if p["undetermined"] and not alone & {p["first"], p["second"]}]
    if len(unclear) < len(report["pairs"]):  # otherwise the first sentence says it
        said += of_some(unclear, report)
    rows = [line["rows"][0] for line in report["rest"]]
    noise = _FAR * report["asked"]["rows_noise"] if report["noise"] else 0.0
    if len(rows) > 1 and max(rows) - noise >= _LARGE * max(1, min(rows) + noise):
        said.append(f"Silos differ in size too: from {min(rows):,.0f} to {max(rows):,.0f} training rows.")
    margins = sum(pair["margins_only"] for pair in report["pairs"])
    if margins:
        share = "shares" if margins == 1 else "share"
        what = "targets" if report["asked"]["targets"] else "label shares"
        said.append(
            f"{counted(margins, 'pair')} {share} no label of {shared(report)}: only inputs and {what} could be compared."
        )
    return said


def _of_overlap(report: dict[str, Any]) -> list[str]:
    far = [pair for pair in report["pairs"] if pair["types"] and not pair["concept_identifiable"]]
    if not far:
        return []
    target = "targets" if report["asked"]["targets"] else "labels"
    also = ", whatever is said of P(y | x)" if any("concept" in pair["types"] for pair in far) else ""
    return [
        f"In {counted(len(far), 'pair')} the inputs hardly overlap: whether {target} follow from them alike cannot be known "
        f"there{also}.",
        *(_of_angles(report) if any("feature" in pair["types"] for pair in far) else []),
    ]


def _of_angles(report: dict[str, Any]) -> list[str]:
    """What is true of the project that siloflow brings along, whose digits are turned by -50 and 120 degrees."""
    if not report["asked"]["pictures"]:
        return []
    return [
        "Pictures that are turned far look so: little of one is where it was in an upright one, and in some pairs it then "
        "seems as if labels followed another rule, though only the pictures have changed."
    ]


def _of_strength(report: dict[str, Any]) -> list[str]:
    if not any(line["grades"].get("feature") == "negligible" for line in report["between"]):
        return []
    return [
        "Negligible on that scale is not nothing: a mean moves by three deviations or more until it is moderate there, "
        "and without declared bounds (low, high) it hardly ever is."
    ]


def _of_features(report: dict[str, Any]) -> list[str]:
    """What the numbers are that stand for a picture, of those that are named."""
    if not report["asked"]["pictures"]:
        return []
    named = {name.split(" ")[0] for line in report["between"] for name in line["features"]}
    about = [text for name, text in _PICTURES.items() if name in named]
    return [f"A few numbers stand for each picture: {'; '.join(about)}."] if about else []


def _of_the_question(report: dict[str, Any]) -> list[str]:
    said, targets, noise = [], report["asked"]["targets"], report["noise"]
    if targets:
        cuts = joined([f"{cut:.4g}" for cut in targets])
        said.append(f"Targets are numbers: {len(targets) + 1} groups of them, cut at {cuts}, stand for labels.")
    if noise:
        said.append(
            f"Every silo added noise to what it told, so that it hides each single row (epsilon {noise['epsilon']:g}, delta "
            f"{noise['delta']:g}). It hides small differences, too, and most of them where rows are few."
        )
    if report["verdict"] == "moments":
        said.append(
            "The verdict moments was asked for: silos told means and spreads, no counts, and less can be seen in them."
        )
    if report["verdict"] == "paper":
        said.append(
            "The verdict paper was asked for: the printed rule of Fomichev, Kholod and Kocheshkov, which looks at distances "
            "alone. It ignores how many rows there are, so that small silos differ by chance."
        )
    return said
