"""Cells that are no runs but trials: pairs of clients whose shift is known are drawn, and verdicts say what it is."""

import platform
import time
from collections import Counter
from importlib.metadata import version as installed
from typing import Any

import numpy as np

from flows.console import screen
from flows.console.ctrl_c import heed
from flows.papers.sweep import Sweep
from models.shift.known.families import FAMILIES, Asked
from models.shift.known.judging import JUDGES, Opinion, named_types, opinion
from models.shift.known.known_pair import KnownPair


def tried(sweep: Sweep, cell: str, seed: int) -> dict[str, Any]:
    """What is kept of a cell's pairs with this seed: how often which verdict was said, and of which pairs rightly."""
    start = time.perf_counter()
    heard = _heard(sweep, cell, seed, sweep.page.trial_of(cell).pairs)
    seconds = round(time.perf_counter() - start, 1)
    right = Counter(judge for pair, said in heard for judge in JUDGES if said.said[judge] == named_types(pair.truth))
    screen.current().end(cell, f"{right['guarded']}/{len(heard)} right", seconds)
    ranked = [said.ranked for _, said in heard if said.ranked is not None]
    record = {
        "pairs": len(heard),
        "said": {judge: dict(sorted(Counter(said.said[judge] for _, said in heard).items())) for judge in JUDGES},
        "ranked": {"pairs": len(ranked), "all": sum(one[0] for one in ranked), "first": sum(one[1] for one in ranked)},
        "by": _by(heard),
        "seconds": seconds,
        "command": f"siloflow reproduce {sweep.paper} --table {sweep.table} --scale {sweep.scale}",
        "versions": {name: installed(name) for name in ("numpy", "scipy")} | {"python": platform.python_version()},
    }
    if sweep.page.cells[cell].distances:
        record["distances"] = _distances([said for _, said in heard])
    return record


def seconds_of_cell(sweep: Sweep, cell: str, probed: int = 3) -> float:
    """Of a cell's pairs, from a few of them."""
    start = time.perf_counter()
    _heard(sweep, cell, sweep.seeds[0], probed)
    return (time.perf_counter() - start) / probed * sweep.page.trial_of(cell).pairs * len(sweep.seeds)


def _heard(sweep: Sweep, cell: str, seed: int, pairs: int) -> list[tuple[KnownPair, Opinion]]:
    """Every pair without its rows."""
    trial, family = sweep.page.trial_of(cell), FAMILIES[str(sweep.page.family)]
    asked, heard = Asked(trial.row, trial.rows, trial.effect), []
    for number in range(pairs):
        heed()
        pair = family.draw(asked, seed, number)
        heard.append((pair.without_rows(), opinion(pair)))
    return heard


def _by(heard: list[tuple[KnownPair, Opinion]]) -> dict[str, dict[str, int]]:
    """What pairs can be counted by, to how many there are and how many of them each judge names rightly."""
    by: dict[str, Counter[str]] = {}
    for pair, said in heard:
        right = [judge for judge in JUDGES if said.said[judge] == named_types(pair.truth)]
        for about in pair.about:
            by.setdefault(about, Counter(dict.fromkeys(JUDGES, 0))).update(["pairs", *right])
    return {about: dict(counts) for about, counts in sorted(by.items())}


def _distances(said: list[Opinion]) -> dict[str, list[float]]:
    """Mean and standard deviation."""
    values = {name: [one.distances[name] for one in said] for name in said[0].distances}
    return {name: [round(float(np.mean(of)), 4), round(float(np.std(of)), 4)] for name, of in values.items()}
