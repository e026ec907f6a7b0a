"""The one table of a diagnosis: a row for each pair of groups, or for each silo against the rest or an earlier version."""

from typing import Any

from flows.diagnosis.report import grades
from flows.diagnosis.words.wording import brief, counted, short
from models.shift.nested_tests import TYPES

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
    return _table(rows if len(report["clients"]) > 1 else [])


def overview_of_versions(report: dict[str, Any]) -> dict[str, Any]:
    """The same, a row for each silo beside itself then; those that moved come first."""
    lines = sorted(report["pairs"], key=lambda line: not line["types"])
    return _table([_of_one(report, line, report["against"]) for line in lines])


def _table(rows: list[dict[str, Any]]) -> dict[str, Any]:
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
