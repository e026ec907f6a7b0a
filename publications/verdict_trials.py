"""Cells that are no runs but trials: verdicts say of pairs of clients whose shift is known what it is."""

import platform
import time
from collections import Counter
from dataclasses import dataclass, replace
from importlib.metadata import version as installed
from typing import Any
from zlib import crc32

import numpy as np

from flows.console import progress
from flows.console.interruption import raise_if_interrupted
from publications.sweep import Sweep
from publications.synthetic_pairs.evaluate_verdicts import (
    Opinion,
    named_types,
    opinion,
    opinion_under_noise,
    second_opinion,
)
from publications.synthetic_pairs.families import FAMILIES, Asked
from publications.synthetic_silos import said_of_silos


def tried(sweep: Sweep, cell: str, seed: int) -> dict[str, Any]:
    """What is kept of a cell's pairs with this seed: how often which verdict was said, and of which pairs rightly."""
    start = time.perf_counter()
    progress.current().begin(cell, 0, 1)
    heard = _heard(sweep, cell, seed)
    seconds = round(time.perf_counter() - start, 1)
    judges = list(dict.fromkeys(judge for pair in heard for judge in pair.opinion.said))
    right = sum(pair.truth == pair.opinion.said[judges[0]] for pair in heard)
    progress.current().round(1, None)
    progress.current().end(cell, f"{right}/{len(heard)} right", seconds)
    ranked = [pair.opinion.ranked for pair in heard if pair.opinion.ranked is not None]
    record = {
        "pairs": len(heard),
        "said": {judge: dict(sorted(Counter(pair.opinion.said[judge] for pair in heard).items())) for judge in judges},
        "ranked": {"pairs": len(ranked), "all": sum(one[0] for one in ranked), "first": sum(one[1] for one in ranked)},
        "by": _by(heard, judges),
        "seconds": seconds,
        "command": f"siloflow reproduce {sweep.paper} --table {sweep.table} --scale {sweep.scale}",
        "versions": {name: installed(name) for name in ("numpy", "scipy")} | {"python": platform.python_version()},
    }
    if sweep.page.cells[cell].distances:
        record["distances"] = _distances([pair.opinion for pair in heard])
    return record


def seconds_of_cell(sweep: Sweep, cell: str, probed: int = 3) -> float:
    """Of a cell's pairs, from a few of them; or from all pairs of the silos of one seed."""
    start = time.perf_counter()
    _heard(sweep, cell, sweep.seeds[0], probed)
    seconds = (time.perf_counter() - start) * len(sweep.seeds)
    return seconds if sweep.page.cells[cell].silos else seconds / probed * sweep.page.trial_of(cell).pairs


@dataclass(frozen=True)
class _Heard:
    """What is kept of a pair: its true types, joined, what was said of it, and what a table may count it by."""

    truth: str
    opinion: Opinion
    about: tuple[str, ...] = ()


def _heard(sweep: Sweep, cell: str, seed: int, most: int | None = None) -> list[_Heard]:
    """The first `most` of a trial's pairs, or all; of silos all."""
    silos = sweep.page.cells[cell].silos
    if silos:
        raise_if_interrupted()
        settings = sweep.settings(cell, seed, None)
        said = said_of_silos(sweep.root, settings, silos.pairs == "across")
        return [_Heard(silos.truth, Opinion(one, {}, None)) for one in said]
    return [_of_pair(sweep, cell, seed, number) for number in range(most or sweep.page.trial_of(cell).pairs)]


def _of_pair(sweep: Sweep, cell: str, seed: int, number: int) -> _Heard:
    raise_if_interrupted()
    trial = sweep.page.trial_of(cell)
    pair = FAMILIES[str(sweep.page.family)].draw(Asked(trial.row, trial.rows, trial.effect), seed, number)
    if trial.epsilon:
        drawn = crc32(f"{trial.row} {trial.rows} {trial.epsilon}".encode())  # every cell has noise of its own
        rng = np.random.default_rng([seed, number, drawn])
        said = opinion_under_noise(pair, trial.epsilon, rng)
    else:
        said = opinion(pair)
    if sweep.page.second_look:
        again = second_opinion(pair, np.random.default_rng([seed, number]))
        said = replace(said, said={**said.said, "second look": again})
    return _Heard(named_types(pair.truth), said, pair.about)


def _by(heard: list[_Heard], judges: list[str]) -> dict[str, dict[str, int]]:
    """What pairs can be counted by, to how many there are and how many of them each judge names rightly."""
    by: dict[str, Counter[str]] = {}
    for pair in heard:
        right = [judge for judge in judges if pair.opinion.said[judge] == pair.truth]
        for about in pair.about:
            by.setdefault(about, Counter(dict.fromkeys(judges, 0))).update(["pairs", *right])
    return {about: dict(counts) for about, counts in sorted(by.items())}


def _distances(said: list[Opinion]) -> dict[str, list[float]]:
    """Mean and standard deviation."""
    values = {name: [one.distances[name] for one in said] for name in said[0].distances}
    return {name: [round(float(np.mean(of)), 4), round(float(np.std(of)), 4)] for name, of in values.items()}
