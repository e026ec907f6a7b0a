"""Count verdicts on pairs of hospitals by size: right, false alarms, and false types where the true one is missed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from models.diagnosis.guarded_tests import TYPES
from publications.detection_rates import Share, count_verdicts, mean_of, share
from publications.sweep import Sweep
from publications.synthetic_pairs.clinical_pairs import CLINICAL, Kind
from publications.synthetic_pairs.evaluate_verdicts import named_types

_Verdicts = Mapping[str, Counter[str]]  # by judge


def rates_by_size(sweep: Sweep) -> list[dict[str, Any]]:
    """Return for each number of rows the rates of each judge, and a row a kind; all trials must be recorded."""
    trials = {cell: sweep.page.trial_of(cell) for cell in sweep.page.cells}
    sizes = list(dict.fromkeys(max(trial.rows) for trial in trials.values()))
    return [_rates(sweep, size, [cell for cell, of in trials.items() if max(of.rows) == size]) for size in sizes]


def wilson(count: int, of: int) -> Share:
    """Return a share with its 95 % interval (Wilson); without pairs its numbers are None."""
    if not of:
        return share(0, 0)
    z, middle = 1.959964, count / of
    centre, scale = middle + z**2 / (2 * of), 1 + z**2 / of
    reach = z * (middle * (1 - middle) / of + z**2 / (4 * of**2)) ** 0.5
    low, high = max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale)
    return {"right": count, "of": of, "share": middle, "low": low, "high": high}


HEDGED = "label, or another threshold"
"""The verdict of label shift with the remark that another threshold of the rule, a concept shift, fits about as well."""


def confidently_wrong(kind: Kind, verdict: str) -> bool:
    """Whether a verdict names a type, and none of the true ones."""
    named = _types(verdict) | ({"concept"} if verdict == HEDGED else set())
    return bool(kind.truth and named) and not named & kind.truth


def is_right(kind: Kind, verdict: str) -> bool:
    """Whether a verdict names all true types, and none but these and those that may be named with them."""
    named = _types(verdict)
    return verdict != "undetermined" and kind.truth <= named <= (kind.truth | kind.also)


def _types(verdict: str) -> frozenset[str]:
    return frozenset(verdict.partition(", or")[0].split("+")) & frozenset(TYPES)


def _with_hedges(records: Sequence[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Count verdicts by judge, and apart those of label shift that add another threshold."""
    counted = count_verdicts(records)
    for record in records:
        for judge, hedged in record.get("hedged", {}).items():
            pairs = min(hedged, record["said"][judge].get("label", 0))  # correlations may have changed a hedged verdict
            counted[judge].update({HEDGED: pairs})
            counted[judge].subtract({"label": pairs})
    return {judge: +counts for judge, counts in counted.items()}


def _rates(sweep: Sweep, size: int, cells: Sequence[str]) -> dict[str, Any]:
    pairs: list[tuple[str, _Verdicts]] = []
    federations: Counter[str] = Counter()
    for cell in cells:
        trial, counted = sweep.page.trial_of(cell), _with_hedges(sweep.records(cell))
        if trial.clients > 2:
            federations.update(counted["guarded"])
        else:
            pairs.append((trial.row, counted))
    judges = list(pairs[0][1])
    return {
        "rows": size,
        "judges": {judge: _rates_of([(CLINICAL[row], of[judge]) for row, of in pairs], size) for judge in judges},
        "federations": wilson(_alarms(federations), federations.total()),
        "kinds": [_row(row, of) for row, of in pairs],
    }


def _rates_of(pairs: Sequence[tuple[Kind, Counter[str]]], size: int) -> dict[str, Any]:
    """Return the rates of one judge, from its verdicts on each kind."""
    single = [(kind, of) for kind, of in pairs if len(kind.truth) < 2 and not kind.unseen_allowed]
    visible = [(kind, of) for kind, of in single if kind.seen_from <= size]
    differ = [(kind, of) for kind, of in pairs if kind.truth]
    alike = [of for kind, of in pairs if not kind.truth]
    return {
        "balanced_accuracy": _balanced(single),
        "visible_truths": list(dict.fromkeys(named_types(kind.truth) for kind, _ in visible)),
        "balanced_accuracy_of_visible": _balanced(visible),
        "balanced_accuracy_with_also": _balanced(visible, also=True),
        "false_alarms": wilson(sum(map(_alarms, alike)), sum(of.total() for of in alike)),
        "confidently_wrong": _wrong(differ),
        "confidently_wrong_of_visible": _wrong([(kind, of) for kind, of in differ if 0 < kind.seen_from <= size]),
    }


def _balanced(pairs: Sequence[tuple[Kind, Counter[str]]], also: bool = False) -> Share:
    """Return the mean over true types of the share of pairs that are given the true type alone, or with types in `also`."""
    right: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for kind, of in pairs:
        truth = named_types(kind.truth)
        whole[truth] += of.total()
        right[truth] += _right(kind, of) if also else _exact(kind, of)
    return mean_of(share(right[truth], count) for truth, count in whole.items())


def _wrong(pairs: Sequence[tuple[Kind, Counter[str]]]) -> Share:
    wrong = sum(count for kind, of in pairs for verdict, count in of.items() if confidently_wrong(kind, verdict))
    return wilson(wrong, sum(of.total() for _, of in pairs))


def _exact(kind: Kind, of: Counter[str]) -> int:
    return sum(count for verdict, count in of.items() if _types(verdict) == kind.truth and verdict != "undetermined")


def _right(kind: Kind, of: Counter[str]) -> int:
    return sum(count for verdict, count in of.items() if is_right(kind, verdict))


def _alarms(of: Counter[str]) -> int:
    return of.total() - of["none"] - of["undetermined"]


def _row(row: str, verdicts: _Verdicts) -> dict[str, Any]:
    kind = CLINICAL[row]
    return {
        "kind": row,
        "truth": named_types(kind.truth),
        "also": named_types(kind.also),
        "unseen_allowed": kind.unseen_allowed,
        "seen_from": kind.seen_from,
        "judges": {
            judge: {
                "exact": _exact(kind, of),
                "right": _right(kind, of),
                "of": of.total(),
                "said": dict(of.most_common()),
            }
            for judge, of in verdicts.items()
        },
    }
