"""The page of a diagnosis, also as Markdown, and sentences on versions and on silos that refused."""

from collections.abc import Mapping

from flows.diagnosis.build_report import grades, shown_types
from flows.diagnosis.text.caveats import notes, notes_of_versions
from flows.diagnosis.text.findings import of_version
from flows.diagnosis.text.next_steps import next_steps
from flows.diagnosis.text.phrases import (
    group_label,
    joined,
    reason_clause,
    reason_note,
    shared,
    shown_counts,
    type_words,
)
from flows.diagnosis.text.summary import sentences
from models.diagnosis.diagnose_pairs import REASONS
from models.diagnosis.shift_words import Reason
from silos.errors import counted
from tasks.tracking.metric_names import as_markdown
from tasks.tracking.result_types.diagnosis_records import GroupPairRecord, SiloRecord
from tasks.tracking.result_types.diagnosis_result import (
    DiagnosisFacts,
    DiagnosisReport,
    DiagnosisText,
    Overview,
    OverviewRow,
    SiloFacts,
    SiloReport,
    VersionFacts,
    VersionReport,
)

_MAX_SILOS = 20  # with a sentence of their own


def sentences_of_versions(report: VersionFacts) -> list[str]:
    """Return the headline, a sentence for each silo that changed, and those that are not compared."""
    pairs, since = report["pairs"], report["against"]
    changed = [pair for pair in pairs if pair["types"]]
    undetermined = [pair for pair in pairs if pair["undetermined"]]
    determined = len(pairs) - len(undetermined)
    new = sum(bool(record["types"]) for record in report["new_rows"]["silos"])
    where = " in whole versions" if new else ""
    by_themselves = f"; of {counted(new, 'silo')} the new training rows differ by themselves" if new else ""
    if changed:
        lines = [f"{len(changed)} of {counted(determined, 'silo')} changed{where} since {since}{by_themselves}."]
    else:
        lines = [f"No change was seen{where} in {counted(determined, 'silo')} since {since}{by_themselves}."]
    lines += [_of_silo(report, pair) for pair in changed[:_MAX_SILOS]]
    if len(changed) > _MAX_SILOS:
        lines.append(f"{len(changed) - _MAX_SILOS} more silos changed; --json has them all.")
    by_reason = [(why, [pair["client"] for pair in undetermined if pair["why"] == why]) for why in REASONS]
    lines += [_undetermined(report, why, clients) for why, clients in by_reason if clients]
    lines += [f"{_join_names(report['came'])}: new since {since}."] if report["came"] else []
    lines += [f"{_join_names(report['left'])}: gone since {since}."] if report["left"] else []
    return lines + refusal_sentences(report["refused"])


def refusal_sentences(refusals: Mapping[str, str], what: str = "did not report") -> list[str]:
    """Return a sentence for each of the first silos that refused, with the reason and the way out."""
    lines = [f"{name} {what}: {refusals[name].removeprefix(f'client {name}: ')}" for name in sorted(refusals)[:3]]
    if len(refusals) > 3:
        lines.append(f"{len(refusals) - 3} more silos {what}; --json has their reasons.")
    return lines


def _of_silo(report: VersionFacts, pair: SiloRecord) -> str:
    targets = report["query"]["targets"]
    text = of_version(report, pair).text.removesuffix(".")
    if pair["transform"]:
        text += "; one factor and one offset undo the difference, as of a sensor with other settings"
    if pair["margins_only"]:
        label, what = ("group of targets", "targets") if targets else ("label", "label frequencies")
        text += f"; no {label} has {shared(report)} in both versions, so only inputs and {what} were compared"
    elif not pair["concept_identifiable"]:
        what = "targets" if targets else "labels"
        text += f"; the inputs hardly overlap, so the data cannot show whether {what} follow the same rule"
    return text + "."


def _undetermined(report: VersionFacts, why: Reason, clients: list[str]) -> str:
    return f"{_join_names(clients)}: not compared; {reason_clause(why, report, 'both versions')}."


def _join_names(clients: list[str]) -> str:
    return joined(clients) if len(clients) <= _MAX_SILOS else f"{', '.join(clients[:3])} and {len(clients) - 3} more"


_SCALE = (
    "Strength is the median pair's grade on the printed scale of Fomichev, Kholod and Kocheshkov: negligible, moderate, "
    "significant or critical. The tests that name a difference do not use it."
)
_UNDETERMINED: dict[Reason, str] = {
    "rows": "too few rows",
    "unreported": "too few rows to report",
    "apart": "no common label",
    "rough": "too few rows of a label",
    "constant": "nothing varies",
}
_MAX_ROWS = 30
_MAX_FEATURES = 3  # of a row


def overview(report: SiloFacts) -> Overview:
    """Build the table: `rows`, each with `first`, `second`, `differ` (what differs, and its strength) and `features`.

    `more` names the omitted rows, and `scale` explains strengths.
    """
    records = [record for record in report["between"] if record["pairs"] > record["undetermined"]]
    apart = [record for record in records if record["groups"][0] != record["groups"][1]]
    by_group = bool(apart) and len(apart) <= max(len(report["clients"]), _MAX_ROWS)
    rows = [_of_groups(report, record) for record in apart] if by_group else rows_of_silos(report)
    return _overview_table(rows if len(report["clients"]) > 1 else [])


def rows_of_silos(report: DiagnosisFacts) -> list[OverviewRow]:
    """Return a row for each silo: against the rest, or against its version, where those that changed come first."""
    if "against" in report:
        records = sorted(report["pairs"], key=lambda record: not record["types"])
        return [_of_client(report, record, report["against"]) for record in records]
    return [_of_client(report, record, "the rest") for record in report["rest"]]


def overview_of_versions(report: VersionFacts) -> Overview:
    """Build the table of silos compared with an earlier version; those that changed come first."""
    return _overview_table(rows_of_silos(report))


def _overview_table(rows: list[OverviewRow]) -> Overview:
    omitted = len(rows) - _MAX_ROWS
    has_strength = any(strength != "-" for row in rows for _, strength in row["differ"])
    more = f"… and {counted(omitted, 'row')} more" if omitted > 0 else ""
    return {"rows": rows[:_MAX_ROWS], "more": more, "scale": _SCALE if has_strength else ""}


def _of_groups(report: SiloFacts, line: GroupPairRecord) -> OverviewRow:
    total = line["pairs"] - line["undetermined"]
    words = type_words(report)
    differ: list[tuple[str, str]] = [
        (words[name] + ("" if count == total else f" ({count} of {total})"), line["grades"].get(name) or "-")
        for name, count in shown_counts(line).items()
        if count
    ]
    first, second = (group_label(report, group) for group in line["groups"])
    return _row(first, second, differ, "nothing", line["features"])


def _of_client(report: DiagnosisFacts, record: SiloRecord, other: str) -> OverviewRow:
    strengths, words = grades([record]), type_words(report)
    differ: list[tuple[str, str]] = [(words[name], strengths[name] or "-") for name in shown_types(record)]
    otherwise = _UNDETERMINED[record["why"]] if record["why"] else "nothing"
    return _row(record["client"], other, differ, otherwise, list(record["features"]))


def _row(first: str, second: str, differ: list[tuple[str, str]], otherwise: str, features: list[str]) -> OverviewRow:
    return {
        "first": first,
        "second": second,
        "differ": differ or [(otherwise, "-")],
        "features": features[:_MAX_FEATURES] if differ else [],
    }


def report_text(report: SiloFacts) -> SiloReport:
    """Add sentences, notes and table before the report, and a note to each undetermined record."""
    for pair in report["pairs"]:
        pair["note"] = reason_note(pair, (pair["first"], pair["second"]), report)
    for record in report["rest"]:
        record["note"] = reason_note(record, (record["client"], "the others together"), report)
    text: DiagnosisText = {
        "sentences": sentences(report),
        "notes": notes(report),
        "next": next_steps(report),
        "overview": overview(report),
    }
    return {**text, **report}


def version_report_text(report: VersionFacts) -> VersionReport:
    """Add sentences, notes and table to the report of silos compared with the version `against`."""
    for record in report["pairs"]:
        record["note"] = reason_note(record, (f"{record['client']} then", f"{record['client']} now"), report)
    text: DiagnosisText = {
        "sentences": sentences_of_versions(report),
        "notes": notes_of_versions(report),
        "next": next_steps(report),
        "overview": overview_of_versions(report),
    }
    return {**text, **report}


def report_markdown(report: DiagnosisReport, data: str) -> str:
    """Format as Markdown; names are escaped."""
    what = f"changed since {as_markdown(report['against'])}" if "against" in report else "differ"
    lines = [f"# How the silos of {as_markdown(data)} {what}", ""]
    lines += [f"- {as_markdown(sentence)}" for sentence in report["sentences"]]
    lines += _table(report["overview"])
    for title, listed in (("Limits", report["notes"]), ("What to do", report["next"])):
        if listed:
            lines += ["", f"## {title}", "", *(f"- {as_markdown(line)}" for line in listed)]
    return "\n".join([*lines, "", f"Data version {as_markdown(report['data_version'])}.", ""])


def _table(overview: Overview) -> list[str]:
    if not overview["rows"]:
        return [""]
    lines = ["", "| silos | compared with | differ in | most in |", "|---|---|---|---|"]
    for row in overview["rows"]:
        differ = [what if strength == "-" else f"{what}: {strength}" for what, strength in row["differ"]]
        cells = (row["first"], row["second"], ", ".join(differ), ", ".join(row["features"]))
        lines.append(f"| {' | '.join(map(as_markdown, cells))} |")
    more = [f"{overview['more']}; report.json has them all.", ""] if overview["more"] else []
    scale = [as_markdown(overview["scale"]), ""] if overview["scale"] else []
    return [*lines, "", *more, *scale]
