"""Why nothing can be said of some pairs, in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from flows.diagnosis.text.phrases import counted, joined
from models.shift import moment_tests
from models.shift.classify import FEWEST
from models.shift.client_summaries import gaussian_mechanism
from models.shift.client_summaries.client_summary import LEAST_ROWS
from models.shift.pairwise_results import WHY


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
