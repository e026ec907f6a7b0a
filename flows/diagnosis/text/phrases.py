"""The words that sentences and tables of a diagnosis share.

Why nothing can be said of some pairs, in words.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from models.shift import moment_tests
from models.shift.classify import FEWEST
from models.shift.client_summaries import gaussian_mechanism
from models.shift.client_summaries.client_summary import LEAST_ROWS
from models.shift.pairwise_results import WHY

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
_ALONE, _WIDE = 3, 30  # silos, and letters of their names, that stand for their group
_LISTED = 8  # silos that a sentence lists


def in_words(report: dict[str, Any]) -> dict[str, str]:
    """Type to the words that follow "differ"."""
    return IN_A_REGRESSION if report["asked"]["targets"] else IN_WORDS


def short(report: dict[str, Any]) -> dict[str, str]:
    """Type to one word."""
    return SHORT_IN_A_REGRESSION if report["asked"]["targets"] else SHORT


def called(report: dict[str, Any], group: int) -> str:
    """A group by its silos where they are few, otherwise by its number."""
    return joined(report["groups"][group]) if _few(report) else f"group {group + 1}"


def brief(report: dict[str, Any], group: int) -> str:
    """The same for a table."""
    return ", ".join(report["groups"][group]) if _few(report) else called(report, group)


def members(report: dict[str, Any]) -> list[str]:
    """Who is in each group, where groups are called by numbers."""
    if _few(report):
        return []
    return [f"group {at} is {listed(group)}" for at, group in enumerate(report["groups"], start=1)]


def plural(report: dict[str, Any], group: int) -> bool:
    """Whether what a group is called is several."""
    return _few(report) and len(report["groups"][group]) > 1


def listed(names: Sequence[str]) -> str:
    """Those that fit into a sentence, and how many more there are."""
    if len(names) <= _LISTED:
        return joined(names)
    return f"{', '.join(names[:3])} and {len(names) - 3:,} more"


def joined(words: Sequence[str]) -> str:
    """With commas, and `and` before the last."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def counted(number: int, noun: str) -> str:
    """The noun in the plural but of one."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _few(report: dict[str, Any]) -> bool:
    return all(len(group) <= _ALONE and len(joined(group)) <= _WIDE for group in report["groups"])


def note_of(line: Mapping[str, Any], names: Sequence[str], report: Mapping[str, Any]) -> str | None:
    """Of one pair, by the names of both; None where something is said. report: what was `asked`, and with which `noise`."""
    why = line["why"]
    if why is None:
        return None
    if why == "rows":
        small = [name for name, rows in zip(names, line["rows"], strict=True) if rows < FEWEST]
        return f"Nothing is said: {joined(small)} {_has(small)} {few_rows(report)}."
    if why == "untold":
        silent = [name for name, tells in zip(names, line["tells"], strict=True) if not tells]
        return f"Nothing is said: {joined(silent)} {_has(silent)} {too_alike(report)}."
    return f"Nothing is said: {clause(why, report, ' and '.join(names))}."


def clause(why: str, report: Mapping[str, Any], both: str) -> str:
    """Why nothing is said of a pair, or of several; `both`: what its two sides are called."""
    label = "group of targets" if report["asked"]["targets"] else "label"
    return {
        "rows": f"a silo has {few_rows(report)}",
        "untold": f"a silo has {too_alike(report)}",
        "apart": f"no {label} has {_least(report)} in {both}, and nothing else was seen to differ",
        "rough": f"no {label} has {moment_tests.LEAST_ROWS} rows in {both}, as the verdict moments needs",
        "constant": f"no feature varies within a {label} that {both} tell",
    }[why]


def shared(report: Mapping[str, Any]) -> str:
    """The rows that a label has on both sides where inputs within it are compared, by the verdict that was asked for."""
    if report["noise"]:
        return "more rows than noise drowns"
    return f"{moment_tests.LEAST_ROWS if report['verdict'] == 'moments' else LEAST_ROWS} rows or more"


def few_rows(report: Mapping[str, Any]) -> str:
    """What a silo has of which nothing is said, since its rows are few; under noise nobody knows how many there are."""
    return f"fewer than {FEWEST} training rows" + (", as far as noise lets that be seen" if report["noise"] else "")


def too_alike(report: Mapping[str, Any]) -> str:
    """What a silo has that may tell nothing but its number of rows."""
    if report["noise"]:
        return f"no label of {gaussian_mechanism.FEWEST} rows, which noise would not drown"
    return f"fewer than {LEAST_ROWS} different training rows, and may tell nothing of so few"


def small_silos(report: Mapping[str, Any]) -> list[str]:
    """Those with too few training rows for any verdict but the printed rule, which knows no number of rows."""
    if report["verdict"] == "paper":
        return []
    return [line["client"] for line in report["rest"] if line["rows"][0] < FEWEST]


def left_out(report: Mapping[str, Any]) -> list[str]:
    """Silos of which nothing is said: all their pairs are unclear, or they are small where groups are compared."""
    if report["pairs_of"] == "groups":
        return small_silos(report)
    unclear, clear = (
        {name for pair in report["pairs"] if pair["undetermined"] is is_so for name in (pair["first"], pair["second"])}
        for is_so in (True, False)
    )
    return [client for client in report["clients"] if client in unclear - clear]


def in_all(report: Mapping[str, Any]) -> str:
    """The sentence where nothing is said of any pair."""
    reasons = [pair["why"] for pair in report["pairs"]]
    if set(reasons) == {"rows"}:
        seen = ", as far as noise lets that be seen" if report["noise"] else ""
        return f"Nothing can be said: no two silos have {FEWEST} training rows or more each{seen}."
    return f"Nothing can be said: {'; '.join(_counted(reasons, report))}."


def of_some(pairs: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> list[str]:
    """A sentence a reason, of these pairs."""
    reasons = [pair["why"] for pair in pairs]
    return [
        f"Of {counted(reasons.count(why), 'pair')} nothing is said: {clause(why, report, 'both silos')}."
        for why in WHY
        if why in reasons
    ]


def _counted(reasons: Sequence[str], report: Mapping[str, Any]) -> list[str]:
    return [
        f"in {counted(reasons.count(why), 'pair')} {clause(why, report, 'both silos')}" for why in WHY if why in reasons
    ]


def _least(report: Mapping[str, Any]) -> str:
    return f"{gaussian_mechanism.FEWEST} rows" if report["noise"] else f"{LEAST_ROWS} different rows"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "each have"
