"""Each silo beside itself in an earlier version, and silos that tell nothing, in sentences."""

from collections.abc import Mapping
from typing import Any

from flows.diagnosis.text.inconclusive import clause, shared
from flows.diagnosis.text.phrases import counted, joined
from models.shift.pairwise_results import WHY

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
