"""The methods and settings that race on a project's silos, in the order of what methods gained on similar silos.

The evidence is a matrix of federations with one kind of shift each; `siloflow bench --advice` measures it. It decides
which settings start first, and so which ones race when minutes are few; it never decides who wins.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, TypedDict

from flows.core.search_space import Grid, Point
from flows.experiments.advice.race import Candidate
from flows.experiments.comparison.client_gains import ALONE
from flows.experiments.comparison.tuner import RATE, grid_of
from flows.methods.base import find_method, method_names, start_method
from flows.methods.method_settings import check_listed, method_of
from flows.methods.round_context import TrainingSetup
from flows.plugins import METHODS
from flows.project.project import Project
from flows.training.training_setup import own_columns, training_setup
from models.diagnosis.guarded_tests import TYPES
from silos.errors import UserError
from tasks.tracking.result_types.advice_result import NearestCell
from tasks.tracking.result_types.diagnosis_result import GroupDifferences

SHARED, POOLED = "fedavg", "pooled"
"""References besides training alone: one shared model, and all rows in one place."""

ALIGN = "clients.align"

_RATES = 4  # learning rates of each method: a ninth and a third of that of params.yaml, itself, and three times it
_NORMALISING = ("fedbn", "serverbn")  # are FedAvg in a network without batch normalization
_LEFT_OUT = ("fedsgd",)  # one step a round


def features_to_align(report: GroupDifferences) -> list[str]:
    """Return the features whose mean or spread differs between groups of silos, as a diagnosis reports them."""
    changes = [change for record in report["between"] for change in record.get("changes", {}).get("feature", ())]
    return list(dict.fromkeys(change["name"] for change in changes if change["what"] in ("mean", "spread")))


def candidates(project: Project, seed: int, methods: Sequence[str] = (), align: Sequence[str] = ()) -> list[Candidate]:
    """Return the candidates in the order in which they start: each method's settings of params.yaml first.

    Args:
        project: The project.
        seed: The seed of the race.
        methods: Those that race besides the references; all that can run on the data if none is named.
        align: Features; FedAvg also races with these standardised by each silo, if the data allow it.

    Raises:
        UserError: If a named method cannot run on the data.
    """
    setup = training_setup(project, seed)
    names = [SHARED, ALONE, *(methods or _all_methods(project, setup)), POOLED]
    settings = [_settings(project, name) for name in dict.fromkeys(names) if _can_run(project, name, setup, methods)]
    if aligned := align_setting(project, align):
        plain = settings[0]
        settings.append([replace(c, settings=(*c.settings, aligned), index=c.index + len(plain)) for c in plain])
    return [candidate for turn in zip_longest(*settings) for candidate in turn if candidate is not None]


def align_setting(project: Project, features: Sequence[str]) -> str:
    """Return the setting that aligns those of the features that can be; empty if there are none, or params align."""
    if project.params.clients.align.kind != "none":
        return ""
    numeric = []
    for feature in features:
        try:
            own_columns(project.with_overrides([_aligning([feature])]).params, project.silos.manifest)
        except UserError:  # a category, a picture, or rows that no client owns
            continue
        numeric.append(feature)
    return _aligning(numeric) if numeric else ""


def _aligning(features: Sequence[str]) -> str:
    return f"{ALIGN}={{kind: standardise, features: {json.dumps(features)}}}"


def _all_methods(project: Project, setup: TrainingSetup) -> list[str]:
    """Return built-in methods and plugins, without those that reproduce an author's code."""
    plugins = project.params.registered.of(METHODS)
    names = [
        n
        for n in method_names(project.params.registered)
        if n in plugins or ".references." not in find_method(n).__module__
    ]
    normalises = bool(setup.network.normalising)
    return [n for n in names if n not in _LEFT_OUT and (normalises or n not in _NORMALISING)]


def _can_run(project: Project, name: str, setup: TrainingSetup, named: Sequence[str]) -> bool:
    try:
        start_method(method_of(project.params, name), setup)
    except UserError:
        if name in named:
            check_listed(name, project.params, project.root)
            raise
        return False
    return True


def _settings(project: Project, name: str) -> list[Candidate]:
    """Return a method's settings: nearest to the learning rate of params.yaml, or to its own options, first."""
    params, method, own = project.params, find_method(name, project.params.registered), method_of(project.params, name)
    rate = params.training.optimiser.learning_rate
    options = math.prod(len(axis.values) for axis in method.tuned.values())
    grid: Grid = grid_of(name, method, rate, _RATES * options, params.method.get(name, {}))

    def distance(point: Point) -> int:
        if RATE not in grid.axes:
            return sum(value != getattr(own, option) for option, value in zip(method.tuned, point, strict=True))
        rates = grid.axes[RATE].values
        return abs(rates.index(point[0]) - rates.index(min(rates, key=lambda each: abs(each - rate))))

    nearest = sorted(grid.points(), key=distance)
    return [Candidate(name, tuple(grid.settings(point)), index, own.is_bound) for index, point in enumerate(nearest)]


class _EvidenceCell(TypedDict):
    situation: list[float]
    gains: dict[str, float]


EVIDENCE = Path(__file__).with_name("evidence.json")
"""The matrix as JSON: by cell, its situation and each method's gain."""

NEAREST = 5
"""The number of cells from which the gain of a method is predicted."""


class Situation(NamedTuple):
    """How silos differ: the share of pairs with each type of shift, and log2 of the mean training rows of a silo."""

    label: float
    feature: float
    concept: float
    rows: float

    def distance(self, other: "Situation") -> float:
        """Return the distance: 1 for a type that all pairs have here and none there, and 1 for eight times the rows."""
        *types, rows = (first - second for first, second in zip(self, other, strict=True))
        return math.hypot(*types, rows / 3)


class Evidence(NamedTuple):
    """A cell of the matrix: how its silos differed, and each method's gain over FedAvg in points."""

    name: str
    situation: Situation
    gains: Mapping[str, float]


def situation_of(report: GroupDifferences, rows: Sequence[int]) -> Situation:
    """Return the situation that a diagnosis reports, with the numbers of training rows of the silos."""
    pairs = max(sum(record["pairs"] for record in report["between"]), 1)
    share = {name: sum(record["types"][name] for record in report["between"]) / pairs for name in TYPES}
    return Situation(share["label"], share["feature"], share["concept"], math.log2(max(sum(rows) / len(rows), 1)))


def load_evidence() -> list[Evidence]:
    """Return the cells that siloflow comes with."""
    cells: dict[str, list[_EvidenceCell]] = json.loads(EVIDENCE.read_text(encoding="utf-8"))
    return [Evidence(name, Situation(*cell["situation"]), cell["gains"]) for name, [cell] in cells.items()]


def predicted_gains(evidence: Sequence[Evidence], situation: Situation) -> tuple[dict[str, float], NearestCell | None]:
    """Return each method's mean gain in points over the nearest cells, and the nearest `cell` with its `distance`.

    Without evidence there are no gains, and the nearest is None.
    """
    nearest = sorted(evidence, key=lambda cell: cell.situation.distance(situation))[:NEAREST]
    methods = {method for cell in nearest for method in cell.gains}
    gains = {
        method: math.fsum(known) / len(known)
        for method in methods
        if (known := [cell.gains[method] for cell in nearest if method in cell.gains])
    }
    if not nearest:
        return {}, None
    return gains, {"cell": nearest[0].name, "distance": round(nearest[0].situation.distance(situation), 3)}


def in_order(candidates: Sequence[Candidate], gains: Mapping[str, float], always: Sequence[str]) -> list[Candidate]:
    """Return the candidates in the order in which they start.

    The k-th setting of the method with the r-th greatest gain has the place k · r. So methods that promise more start more
    settings, and every method starts one early; a bound, such as pooled training, starts last. Without any gains the others
    keep their order.

    Args:
        candidates: The candidates; a method's first setting comes first.
        gains: Each method's predicted gain over FedAvg; 0 for methods without evidence.
        always: The methods whose first settings start before all others.
    """
    if not gains:
        return sorted(candidates, key=lambda candidate: candidate.bound)
    methods = sorted({c.method for c in candidates}, key=lambda method: (-gains.get(method, 0.0), method))
    place, started = {}, dict[str, int]()
    for candidate in candidates:
        started[candidate.method] = number = started.get(candidate.method, 0) + 1
        is_first = number == 1 and candidate.method in always
        place[candidate.name] = 0 if is_first else number * (methods.index(candidate.method) + 1)
    return sorted(candidates, key=lambda candidate: (candidate.bound, place[candidate.name]))
