"""Sentences, table and notes of a diagnosis, also as one page of Markdown for its folder, MLflow and Prefect.

The one table of a diagnosis: a row for each pair of groups, or for each silo against the rest or an earlier version.

Each silo beside itself in an earlier version, and silos that tell nothing, in sentences.
"""

from collections.abc import Mapping
from typing import Any

from flows.diagnosis.report import grades
from flows.diagnosis.text.caveats import next_steps, notes, notes_of_versions
from flows.diagnosis.text.phrases import brief, clause, counted, joined, note_of, shared, short
from flows.diagnosis.text.summary import sentences
from models.shift.nested_tests import TYPES
from models.shift.pairwise_results import WHY
from tasks.tracking.metric_names import as_markdown

_MOVED = {
    "feature": "inputs moved, P(x)",
    "label": "the shares of labels moved, P(y)",
    "concept": "labels follow from inputs by another rule, P(y | x)",
}
_MOVED_IN_A_REGRESSION = {
    "feature": "inputs moved, P(x)",
    "label": "targets moved, P(y)",
    "concept": "targets follow from inputs by another rule, P(y | x)",
}
_SAID = 20  # silos that have a sentence of their own


def sentences_of_versions(report: dict[str, Any]) -> list[str]:
    """Of each silo beside itself in an earlier version: the headline, each that moved, and who is not compared."""
    pairs, since = report["pairs"], report["against"]
    moved = [pair for pair in pairs if pair["types"]]
    unclear = [pair for pair in pairs if pair["undetermined"]]
    seen = len(pairs) - len(unclear)
    said = [f"Of {counted(seen, 'silo')} that could be compared, {len(moved) or 'none'} moved since {since}."]
    said += [_of_silo(report, pair) for pair in moved[:_SAID]]
    if len(moved) > _SAID:
        said.append(f"{len(moved) - _SAID} more moved; --json has them all.")
    by_reason = [(why, [pair["client"] for pair in unclear if pair["why"] == why]) for why in WHY]
    said += [_unclear(report, why, clients) for why, clients in by_reason if clients]
    said += [f"{_named(report['came'])}: not there in {since}."] if report["came"] else []
    said += [f"{_named(report['left'])}: there in {since}, and no more."] if report["left"] else []
    return said + silences(report["silent"])


def silences(silent: Mapping[str, str]) -> list[str]:
    """A sentence for each of the first silos that tell nothing, with the reason and the way out."""
    said = [f"{client} tells nothing: {silent[client]}" for client in sorted(silent)[:3]]
    return said + ([f"{len(silent) - 3} more silos tell nothing; --json has their reasons."] if len(silent) > 3 else [])


def _of_silo(report: dict[str, Any], pair: dict[str, Any]) -> str:
    targets = report["asked"]["targets"]
    words = _MOVED_IN_A_REGRESSION if targets else _MOVED
    text = f"{pair['client']}: {joined([words[name] for name in pair['types']])}, since {report['against']}"
    if pair["features"]:
        text += f"; most in {joined(list(pair['features'])[:3])}"
    if pair["transform"]:
        text += "; a gain and an offset undo it, as of a sensor that was set anew"
    if pair["margins_only"]:
        what = "targets" if targets else "label shares"
        text += f"; no label has {shared(report)} both then and now, so that only inputs and {what} could be compared"
    elif not pair["concept_identifiable"]:
        what = "targets" if targets else "labels"
        text += f"; inputs then and now hardly overlap, and whether {what} follow from them alike cannot be known"
    return text + "."


def _unclear(report: dict[str, Any], why: str, clients: list[str]) -> str:
    if why == "rows":
        return f"{_named(clients)}: nothing can be said of so few training rows, then or now."
    return f"{_named(clients)}: nothing can be said, then or now: {clause(why, report, 'both versions')}."


def _named(clients: list[str]) -> str:
    return joined(clients) if len(clients) <= _SAID else f"{', '.join(clients[:3])} and {len(clients) - 3} more"


_SCALE = (
    "strength: negligible, moderate, significant or critical on the scale of Fomichev, Kholod and Kocheshkov, of the middle "
    "pair. Whether silos differ at all is tested, and does not rest on it."
)
_UNCLEAR = {
    "rows": "too few rows",
    "untold": "tells nothing",
    "apart": "no label in common",
    "rough": "too few rows of a label",
    "constant": "nothing varies",
}
_MOST = 30  # rows
_FEATURES = 3  # of a row


def overview(report: dict[str, Any]) -> dict[str, Any]:
    """`rows` of which each has `first`, `second`, `differ` (lines of what differs and its strength) and `features`.

    `more` says what is left out, and `scale` what a strength is.
    """
    lines = [line for line in report["between"] if line["pairs"] > line["undetermined"]]
    apart = [line for line in lines if line["groups"][0] != line["groups"][1]]
    by_group = bool(apart) and len(apart) <= max(len(report["clients"]), _MOST)
    rows = (
        [_of_groups(report, line) for line in apart]
        if by_group
        else [_of_one(report, line, "the rest") for line in report["rest"]]
    )
    return _overview_table(rows if len(report["clients"]) > 1 else [])


def overview_of_versions(report: dict[str, Any]) -> dict[str, Any]:
    """The same, a row for each silo beside itself then; those that moved come first."""
    lines = sorted(report["pairs"], key=lambda line: not line["types"])
    return _overview_table([_of_one(report, line, report["against"]) for line in lines])


def _overview_table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    left = len(rows) - _MOST
    graded = any(strength != "-" for row in rows for _, strength in row["differ"])
    more = f"… and {counted(left, 'row')} more" if left > 0 else ""
    return {"rows": rows[:_MOST], "more": more, "scale": _SCALE if graded else ""}


def _of_groups(report: dict[str, Any], line: dict[str, Any]) -> dict[str, Any]:
    told = line["pairs"] - line["undetermined"]
    words = short(report)
    differ = [
        (words[name] + ("" if count == told else f" ({count} of {told})"), line["grades"].get(name) or "-")
        for name, count in line["types"].items()
        if count
    ]
    first, second = (brief(report, at) for at in line["groups"])
    return _row(first, second, differ, "nothing", line["features"])


def _of_one(report: dict[str, Any], line: dict[str, Any], beside: str) -> dict[str, Any]:
    strong, words = grades([line]), short(report)
    differ = [(words[name], strong[name] or "-") for name in TYPES if name in line["types"]]
    what = _UNCLEAR[line["why"]] if line["undetermined"] else "nothing"
    return _row(line["client"], beside, differ, what, list(line["features"]))


def _row(first: str, second: str, differ: list[tuple[str, str]], otherwise: str, features: list[str]) -> dict[str, Any]:
    return {
        "first": first,
        "second": second,
        "differ": differ or [(otherwise, "-")],
        "features": features[:_FEATURES] if differ else [],
    }


def report_text(report: dict[str, Any]) -> dict[str, Any]:
    """The report, behind the words for it; a line of which nothing is said gets a note that says why."""
    for line in report["pairs"]:
        line["note"] = note_of(line, (line["first"], line["second"]), report)
    for line in report["rest"]:
        line["note"] = note_of(line, (line["client"], "the others together"), report)
    words = {"sentences": sentences(report), "notes": notes(report), "next": next_steps(report)}
    return {**words, "overview": overview(report), **report}


def version_report_text(report: dict[str, Any]) -> dict[str, Any]:
    """The same of silos beside themselves in an earlier version, which is `against`."""
    for line in report["pairs"]:
        line["note"] = note_of(line, (f"{line['client']} then", f"{line['client']} now"), report)
    words = {"sentences": sentences_of_versions(report), "notes": notes_of_versions(report), "next": next_steps(report)}
    return {**words, "overview": overview_of_versions(report), **report}


def report_markdown(report: dict[str, Any], data: str) -> str:
    """What a terminal shows; names are shown as they are written."""
    since = f" from what they were in {as_markdown(report['against'])}" if "against" in report else ""
    lines = [f"# How the silos of {as_markdown(data)} differ{since}", ""]
    lines += [f"- {as_markdown(sentence)}" for sentence in report["sentences"]]
    lines += _table(report["overview"])
    lines += [f"- {as_markdown(note)}" for note in report["notes"]]
    if report["next"]:
        lines += ["", "What may be done:", "", *(f"- {as_markdown(step)}" for step in report["next"])]
    return "\n".join([*lines, "", f"Data version {as_markdown(report['data_version'])}.", ""])


def _table(overview: dict[str, Any]) -> list[str]:
    if not overview["rows"]:
        return [""]
    lines = ["", "| silos | beside | differ in | most in |", "|---|---|---|---|"]
    for row in overview["rows"]:
        differ = [what if strength == "-" else f"{what}: {strength}" for what, strength in row["differ"]]
        cells = (row["first"], row["second"], ", ".join(differ), ", ".join(row["features"]))
        lines.append(f"| {' | '.join(map(as_markdown, cells))} |")
    more = [f"{overview['more']}; report.json has them all.", ""] if overview["more"] else []
    scale = [as_markdown(overview["scale"]), ""] if overview["scale"] else []
    return [*lines, "", *more, *scale]
