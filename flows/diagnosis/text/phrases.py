"""Phrases that the sentences and tables of a diagnosis share, and reasons for undetermined pairs in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from models.shift import moment_tests
from models.shift.classify import MIN_ROWS
from models.shift.client_summaries import gaussian_mechanism
from models.shift.client_summaries.client_summary import LEAST_ROWS
from models.shift.pairwise_results import REASONS

IN_WORDS = {
    "feature": "in their inputs, P(x)",
    "label": "in how often each label occurs, P(y)",
    "concept": "in which label an input has, P(y | x)",
}
IN_A_REGRESSION = {
    "feature": "in their inputs, P(x)",
    "label": "in how large their targets are, P(y)",
    "concept": "in which target an input has, P(y | x)",
}
SHORT = {"feature": "inputs", "label": "labels", "concept": "rule"}
SHORT_IN_A_REGRESSION = {"feature": "inputs", "label": "targets", "concept": "rule"}
_MAX_SILOS, _MAX_LETTERS = 3, 30  # of a group that is called by its silos' names
_MAX_LISTED = 8  # silos that a sentence lists


def in_words(report: dict[str, Any]) -> dict[str, str]:
    """Return the words that follow "differ", by type."""
    return IN_A_REGRESSION if report["asked"]["targets"] else IN_WORDS


def type_words(report: dict[str, Any]) -> dict[str, str]:
    """Return one word by type."""
    return SHORT_IN_A_REGRESSION if report["asked"]["targets"] else SHORT


def group_name(report: dict[str, Any], group: int) -> str:
    """Name a group by its silos if they are few, otherwise by its number."""
    return joined(report["groups"][group]) if _has_short_names(report) else f"group {group + 1}"


def group_label(report: dict[str, Any], group: int) -> str:
    """Name a group in a table."""
    return ", ".join(report["groups"][group]) if _has_short_names(report) else group_name(report, group)


def members(report: dict[str, Any]) -> list[str]:
    """Return the members of each group, if groups are called by numbers."""
    if _has_short_names(report):
        return []
    return [f"group {number} is {listed(group)}" for number, group in enumerate(report["groups"], start=1)]


def plural(report: dict[str, Any], group: int) -> bool:
    """Return whether the name of a group is a plural."""
    return _has_short_names(report) and len(report["groups"][group]) > 1


def listed(names: Sequence[str]) -> str:
    """List the names that fit into a sentence, and the number of others."""
    if len(names) <= _MAX_LISTED:
        return joined(names)
    return f"{', '.join(names[:3])} and {len(names) - 3:,} more"


def joined(words: Sequence[str]) -> str:
    """Join with commas, and `and` before the last."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def counted(count: int, noun: str) -> str:
    """Return the count with the noun, in the plural unless the count is 1."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _has_short_names(report: dict[str, Any]) -> bool:
    return all(len(group) <= _MAX_SILOS and len(joined(group)) <= _MAX_LETTERS for group in report["groups"])


def reason_note(record: Mapping[str, Any], names: Sequence[str], report: Mapping[str, Any]) -> str | None:
    """Explain why a pair of these names is undetermined, None if it is not; the report needs `asked` and `noise`."""
    why = record["why"]
    if why is None:
        return None
    if why == "rows":
        small = [name for name, rows in zip(names, record["rows"], strict=True) if rows < MIN_ROWS]
        return f"Nothing is said: {joined(small)} {_has(small)} {few_rows(report)}."
    if why == "untold":
        uninformative = [name for name, tells in zip(names, record["tells"], strict=True) if not tells]
        return f"Nothing is said: {joined(uninformative)} {_has(uninformative)} {too_alike(report)}."
    return f"Nothing is said: {reason_clause(why, report, ' and '.join(names))}."


def reason_clause(why: str, report: Mapping[str, Any], both: str) -> str:
    """Return the reason for undetermined pairs as a clause; `both` names the two sides."""
    label = "group of targets" if report["asked"]["targets"] else "label"
    return {
        "rows": f"a silo has {few_rows(report)}",
        "untold": f"a silo has {too_alike(report)}",
        "apart": f"no {label} has {_rows_needed(report)} in {both}, and nothing else was seen to differ",
        "rough": f"no {label} has {moment_tests.LEAST_ROWS} rows in {both}, as the verdict moments needs",
        "constant": f"no feature varies within a {label} that {both} tell",
    }[why]


def shared(report: Mapping[str, Any]) -> str:
    """Return the rows that a label needs on both sides for inputs within it to be compared by the verdict."""
    if report["noise"]:
        return "more rows than noise drowns"
    return f"{moment_tests.LEAST_ROWS if report['verdict'] == 'moments' else LEAST_ROWS} rows or more"


def few_rows(report: Mapping[str, Any]) -> str:
    """Describe a silo with too few rows for a verdict; with noise the number of rows is not exactly known."""
    return f"fewer than {MIN_ROWS} training rows" + (", as far as noise lets that be seen" if report["noise"] else "")


def too_alike(report: Mapping[str, Any]) -> str:
    """Describe a silo that may report nothing but its number of rows."""
    if report["noise"]:
        return f"no label of {gaussian_mechanism.MIN_NOISY_ROWS} rows, which noise would not drown"
    return f"fewer than {LEAST_ROWS} different training rows, and may tell nothing of so few"


def small_silos(report: Mapping[str, Any]) -> list[str]:
    """Return the silos with too few training rows; none for the published rule, which uses no number of rows."""
    if report["verdict"] == "paper":
        return []
    return [record["client"] for record in report["rest"] if record["rows"][0] < MIN_ROWS]


def left_out(report: Mapping[str, Any]) -> list[str]:
    """Return the silos without any verdict.

    All their pairs are undetermined, or they are small and groups are compared.
    """
    if report["pairs_of"] == "groups":
        return small_silos(report)
    undetermined, determined = (
        {name for pair in report["pairs"] if pair["undetermined"] is state for name in (pair["first"], pair["second"])}
        for state in (True, False)
    )
    return [client for client in report["clients"] if client in undetermined - determined]


def no_verdict(report: Mapping[str, Any]) -> str:
    """Return the sentence for a report in which all pairs are undetermined."""
    reasons = [pair["why"] for pair in report["pairs"]]
    if set(reasons) == {"rows"}:
        seen = ", as far as noise lets that be seen" if report["noise"] else ""
        return f"Nothing can be said: no two silos have {MIN_ROWS} training rows or more each{seen}."
    clauses = [
        f"in {counted(reasons.count(why), 'pair')} {reason_clause(why, report, 'both silos')}"
        for why in REASONS
        if why in reasons
    ]
    return f"Nothing can be said: {'; '.join(clauses)}."


def reasons_of(pairs: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each reason of these pairs."""
    reasons = [pair["why"] for pair in pairs]
    return [
        f"Of {counted(reasons.count(why), 'pair')} nothing is said: {reason_clause(why, report, 'both silos')}."
        for why in REASONS
        if why in reasons
    ]


def _rows_needed(report: Mapping[str, Any]) -> str:
    return f"{gaussian_mechanism.MIN_NOISY_ROWS} rows" if report["noise"] else f"{LEAST_ROWS} different rows"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "each have"
