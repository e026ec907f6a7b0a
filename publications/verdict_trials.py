"""Run the cells that are trials: verdicts judge pairs of clients, or silos, with a known shift."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np

from flows.core.console import progress
from flows.core.console.process_control import raise_if_interrupted
from flows.diagnose import run_diagnosis
from flows.project.project import Project
from flows.project.run_sets import scratch_dir
from publications.sweep import Sweep
from publications.synthetic_pairs.evaluate_verdicts import (
    Opinion,
    federation_opinion,
    named_types,
    opinion,
    opinion_under_noise,
    second_opinion,
)
from publications.synthetic_pairs.families import FAMILIES, PairRequest
from silos.errors import UserError
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.result_types.diagnosis_records import PairRecord


def run_trials(sweep: Sweep, cell: str, seed: int) -> dict[str, Any]:
    """Judge a cell's pairs with this seed.

    Args:
        sweep: The table.
        cell: A cell of the table whose pairs or silos are judged.
        seed: The seed of the draw.

    Returns:
        The record: how often each judge gave each verdict, and how many pairs it judged correctly.
    """
    start = time.perf_counter()
    progress.current().begin(cell, 0, 1)
    pairs = _judged_pairs(sweep, cell, seed)
    seconds = round(time.perf_counter() - start, 1)
    judges = list(dict.fromkeys(judge for pair in pairs for judge in pair.opinion.verdicts))
    right = sum(pair.truth == pair.opinion.verdicts[judges[0]] for pair in pairs)
    progress.current().round(cell, 1, None)
    progress.current().end(cell, f"{right}/{len(pairs)} right", seconds)
    ranked = [pair.opinion.ranked for pair in pairs if pair.opinion.ranked is not None]
    record = {
        "pairs": len(pairs),
        "said": {
            judge: dict(sorted(Counter(pair.opinion.verdicts[judge] for pair in pairs).items())) for judge in judges
        },
        "ranked": {"pairs": len(ranked), "all": sum(one[0] for one in ranked), "first": sum(one[1] for one in ranked)},
        "by": _by(pairs, judges),
        "seconds": seconds,
    }
    hedged = Counter(judge for pair in pairs for judge in pair.opinion.hedged)
    if hedged:
        record["hedged"] = dict(sorted(hedged.items()))
    if sweep.page.cells[cell].distances:
        record["distances"] = _distances([pair.opinion for pair in pairs])
    return record


def seconds_of_cell(sweep: Sweep, cell: str, probed: int = 3) -> float:
    """Estimate the seconds of a cell from a few of its pairs, or from the silos of one seed.

    Args:
        sweep: The table.
        cell: A cell whose pairs or silos are judged.
        probed: How many pairs are judged for the estimate.
    """
    start = time.perf_counter()
    _judged_pairs(sweep, cell, sweep.seeds[0], probed)
    seconds = (time.perf_counter() - start) * len(sweep.seeds)
    return seconds if sweep.page.cells[cell].silos else seconds / probed * sweep.page.trial_of(cell).pairs


@dataclass(frozen=True)
class _JudgedPair:
    """A pair's true types, joined, the verdicts, and the properties by which a table may count pairs."""

    truth: str
    opinion: Opinion
    about: tuple[str, ...] = ()


def _judged_pairs(sweep: Sweep, cell: str, seed: int, most: int | None = None) -> list[_JudgedPair]:
    """Judge the first `most` of a trial's pairs, or all; of silos all pairs."""
    silos = sweep.page.cells[cell].silos
    if silos:
        raise_if_interrupted()
        verdicts = diagnose_silos(sweep.opened, sweep.settings(cell, seed, None), silos.pairs == "across")
        return [_JudgedPair(silos.truth, Opinion(verdict, {}, None)) for verdict in verdicts]
    return [_judged_pair(sweep, cell, seed, number) for number in range(most or sweep.page.trial_of(cell).pairs)]


def diagnose_silos(opened: Project, settings: Sequence[str], across: bool) -> list[dict[str, str]]:
    """Diagnose the silos that these settings make, as `siloflow diagnose` does.

    Args:
        opened: The project that the command has opened.
        settings: `section.key=value`, over params.yaml.
        across: Whether pairs of silos of different domains are returned, or pairs within a domain.

    Returns:
        For each pair the types by verdict, joined, or `none` or `undetermined`.
    """
    # cells share their silos
    found = opened.once(("diagnosed", *settings), lambda: _diagnosed(opened.derive(settings, derived=True)))
    return [verdict for differ, verdict in found if differ is across]


def _diagnosed(project: Project) -> list[tuple[bool, dict[str, str]]]:
    """Return for every pair whether the domains of its silos differ, and the types by verdict.

    Raises:
        UserError: If there are so many silos that groups of silos are compared.
    """
    with scratch_dir(project.root / "cache" / "diagnosed") as scratch:
        _, answer = run_diagnosis(replace(project, scratch=scratch), PlainRunner())
    if answer["pairs_of"] == "groups":
        raise UserError(f"{len(answer['clients'])} silos are compared as groups, and not in pairs; make fewer silos.")
    domains = {client.name: client.domain for client in project.silos.manifest.clients}
    return [
        (domains[pair["first"]] != domains[pair["second"]], {answer["verdict"]: _types_of(pair)})
        for pair in answer["pairs"]
    ]


def _types_of(pair: PairRecord) -> str:
    return "+".join(pair["types"]) or ("undetermined" if pair["undetermined"] else "none")


def _judged_pair(sweep: Sweep, cell: str, seed: int, number: int) -> _JudgedPair:
    raise_if_interrupted()
    trial = sweep.page.trial_of(cell)
    request = PairRequest(trial.row, trial.rows, trial.effect, trial.clients)
    pair = FAMILIES[str(sweep.page.family)].draw(request, seed, number)
    if trial.clients > 2:
        return _JudgedPair(named_types(pair.truth), federation_opinion(pair))
    if trial.epsilon:
        drawn = crc32(f"{trial.row} {trial.rows} {trial.epsilon}".encode())  # every cell draws its own noise
        rng = np.random.default_rng([seed, number, drawn])
        judged = opinion_under_noise(pair, trial.epsilon, rng)
    else:
        judged = opinion(pair)
    if sweep.page.second_look:
        second, hedged = second_opinion(pair, np.random.default_rng([seed, number]))
        names = (*judged.hedged, *(["second look"] if hedged else []))
        judged = replace(judged, verdicts={**judged.verdicts, "second look": second}, hedged=names)
    return _JudgedPair(named_types(pair.truth), judged, pair.about)


def _by(pairs: list[_JudgedPair], judges: list[str]) -> dict[str, dict[str, int]]:
    """Count pairs by property, and how many of them each judge judges correctly."""
    by: dict[str, Counter[str]] = {}
    for pair in pairs:
        right = [judge for judge in judges if pair.opinion.verdicts[judge] == pair.truth]
        for about in pair.about:
            by.setdefault(about, Counter(dict.fromkeys(judges, 0))).update(["pairs", *right])
    return {about: dict(counts) for about, counts in sorted(by.items())}


def _distances(opinions: list[Opinion]) -> dict[str, list[float]]:
    """Return mean and standard deviation of each distance."""
    values = {name: [one.distances[name] for one in opinions] for name in opinions[0].distances}
    return {name: [round(float(np.mean(of)), 4), round(float(np.std(of)), 4)] for name, of in values.items()}
