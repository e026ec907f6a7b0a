"""Sentences, table and notes of a diagnosis, also as one page of Markdown for its folder, MLflow and Prefect."""

from typing import Any

from flows.diagnosis.words.notes import next_steps, notes, notes_of_versions
from flows.diagnosis.words.overview import overview, overview_of_versions
from flows.diagnosis.words.sentences import sentences
from flows.diagnosis.words.unclear_pairs import note_of
from flows.diagnosis.words.version_sentences import sentences_of_versions
from tasks.tracking.name_rules import as_markdown


def said(report: dict[str, Any]) -> dict[str, Any]:
    """The report, behind the words for it; a line of which nothing is said gets a note that says why."""
    for line in report["pairs"]:
        line["note"] = note_of(line, (line["first"], line["second"]), report)
    for line in report["rest"]:
        line["note"] = note_of(line, (line["client"], "the others together"), report)
    words = {"sentences": sentences(report), "notes": notes(report), "next": next_steps(report)}
    return {**words, "overview": overview(report), **report}


def said_of_versions(report: dict[str, Any]) -> dict[str, Any]:
    """The same of silos beside themselves in an earlier version, which is `against`."""
    for line in report["pairs"]:
        line["note"] = note_of(line, (f"{line['client']} then", f"{line['client']} now"), report)
    words = {"sentences": sentences_of_versions(report), "notes": notes_of_versions(report), "next": next_steps(report)}
    return {**words, "overview": overview_of_versions(report), **report}


def page(report: dict[str, Any], data: str) -> str:
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
