"""Compare how often verdicts name a known shift with the published rates, as plain JSON, from the records of trials."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from scipy.special import betaincinv

from publications.published_tables import Confusion
from publications.sweep import Sweep
from publications.synthetic_pairs.evaluate_verdicts import named_types
from publications.synthetic_pairs.families import FAMILIES

Share = dict[str, Any]


def truth_table(sweep: Sweep) -> dict[str, Any]:
    """Compare every cell with the published counts, and confusions of several cells; all trials must be recorded."""
    page = sweep.page
    return {
        "paper": sweep.paper,
        "table": sweep.table,
        "title": page.title,
        "source": page.source,
        "known_errors": page.known_errors,
        "scale": sweep.scale,
        "seeds": sweep.seeds,
        "rows": [row_of(sweep, cell) for cell in page.cells],
        "confusions": {title: together(sweep, of) for title, of in page.confusions.items()},
        "results": sweep.results.where(sweep.root),
    }


def share(right: int, of: int) -> Share:
    """Return a share with its 95 % interval (Clopper and Pearson); without pairs its numbers are None."""
    if not of:
        return {"right": 0, "of": 0, "share": None, "low": None, "high": None}
    low = float(betaincinv(right, of - right + 1, 0.025)) if right else 0.0
    high = float(betaincinv(right + 1, of - right, 0.975)) if right < of else 1.0
    return {"right": right, "of": of, "share": right / of, "low": low, "high": high}


def mean_of(shares: Iterable[Share]) -> Share:
    """Return the mean of independent shares with an interval from theirs (Zou and Donner 2008)."""
    there = [one for one in shares if one["of"]]
    middle = np.array([one["share"] for one in there])
    low, high = (middle - [one["low"] for one in there], np.array([one["high"] for one in there]) - middle)
    mean = float(middle.mean())
    reach = [float(np.sqrt((side**2).sum()) / len(there)) for side in (low, high)]
    return {"share": mean, "low": max(0.0, mean - reach[0]), "high": min(1.0, mean + reach[1])}


def row_of(sweep: Sweep, cell: str) -> dict[str, Any]:
    """Compare the verdicts on a cell's pairs with the published counts."""
    page_cell, records, truth = sweep.page.cells[cell], sweep.records(cell), _truth(sweep, cell)
    verdicts, pairs = count_verdicts(records), sum(record["pairs"] for record in records)
    published = {
        judge: {"right": counts.get(truth, 0), "of": page_cell.of, "said": dict(counts)}
        for judge, counts in page_cell.said.items()
    }
    return {
        "cell": cell,
        "about": page_cell.about,
        "truth": truth,
        "pairs": pairs,
        "published": published,
        "ours": {
            judge: {**share(counts.get(truth, 0), pairs), "said": dict(counts)} for judge, counts in verdicts.items()
        },
        "distances": {
            name: {"published": list(of_paper), "ours": _pooled(records, name)}
            for name, of_paper in page_cell.distances.items()
        },
        "seconds": sum(record["seconds"] for record in records),
    }


def together(sweep: Sweep, confusion: Confusion) -> dict[str, Any]:
    """Combine cells: the verdicts on each truth, and the balanced accuracy, false alarms and ranks that follow.

    A judge that does not judge all of these cells is left out.
    """
    by_truth: dict[str, list[dict[str, Any]]] = {}
    for cell in confusion.cells:
        by_truth.setdefault(_truth(sweep, cell), []).extend(sweep.records(cell))
    records = [record for of_truth in by_truth.values() for record in of_truth]
    pairs = {truth: sum(record["pairs"] for record in of_truth) for truth, of_truth in by_truth.items()}
    judges = [judge for judge in count_verdicts(records) if all(judge in record["said"] for record in records)]
    verdicts = {
        truth: {judge: counts for judge, counts in count_verdicts(of_truth).items() if judge in judges}
        for truth, of_truth in by_truth.items()
    }
    right = {
        judge: {truth: share(of[judge].get(truth, 0), pairs[truth]) for truth, of in verdicts.items()}
        for judge in judges
    }
    ranked = [record["ranked"] for record in records]
    of_ranked = sum(one["pairs"] for one in ranked)
    return {
        "pairs": pairs,
        "said": {truth: {judge: dict(counts) for judge, counts in of.items()} for truth, of in verdicts.items()},
        "right": right,
        "balanced_accuracy": {judge: mean_of(of.values()) for judge, of in right.items()},
        "published": dict(confusion.published),
        "false_alarms": {
            judge: share(sum(counts.values()) - counts["none"] - counts["undetermined"], pairs["none"])
            for judge, counts in verdicts.get("none", {}).items()
        },
        "ranked": {name: share(sum(one[name] for one in ranked), of_ranked) for name in ("all", "first")}
        if of_ranked
        else {},
        "by": _by(records) if confusion.by else {},
    }


def _truth(sweep: Sweep, cell: str) -> str:
    silos = sweep.page.cells[cell].silos
    return silos.truth if silos else named_types(FAMILIES[str(sweep.page.family)].truths[sweep.page.trial_of(cell).row])


def count_verdicts(records: Iterable[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Count the verdicts of each judge, the most frequent first."""
    verdicts: dict[str, Counter[str]] = {}
    for record in records:
        for judge, counts in record["said"].items():
            verdicts.setdefault(judge, Counter()).update(counts)
    return {judge: Counter(dict(counts.most_common())) for judge, counts in verdicts.items()}


def _by(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Share]]:
    """Return by property of a pair the share that each judge judges correctly."""
    sums: dict[str, Counter[str]] = {}
    for record in records:
        for about, counts in record["by"].items():
            sums.setdefault(about, Counter()).update(counts)
    return {
        about: {judge: share(right, counts["pairs"]) for judge, right in counts.items() if judge != "pairs"}
        for about, counts in sorted(sums.items())
    }


def _pooled(records: list[dict[str, Any]], name: str) -> list[float]:
    """Return mean and standard deviation over seeds, which have equally many pairs."""
    means, sds = zip(*(record["distances"][name] for record in records), strict=True)
    return [statistics.fmean(means), statistics.fmean(sd**2 for sd in sds) ** 0.5]
