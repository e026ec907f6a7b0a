"""The methods and settings that race on a project's silos."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from flows.advice.race import Candidate
from flows.config.method_settings import method_of
from flows.experiment.comparison.client_gains import ALONE
from flows.experiment.comparison.search_space import Grid, Point
from flows.experiment.comparison.tuner import RATE, grid_of
from flows.experiment.project import Project
from flows.experiment.training_setup import own_columns
from flows.methods.base import find_method, method_names, start_method
from flows.methods.context import TrainingSetup
from flows.plugins import METHODS
from silos.errors import UserError

SHARED, POOLED = "fedavg", "pooled"
"""References besides training alone: one shared model, and all rows in one place."""

ALIGN = "clients.align"

_RATES = 4  # learning rates of each method: a ninth and a third of that of params.yaml, itself, and three times it
_NORMALISING = ("fedbn", "serverbn")  # are FedAvg in a network without batch normalization
_LEFT_OUT = ("fedsgd",)  # one step a round


def features_to_align(report: Mapping[str, Any]) -> list[str]:
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
    setup = project.training_setup(seed)
    names = [SHARED, ALONE, *(methods or _all_methods(project, setup)), POOLED]
    settings = [_settings(project, name) for name in dict.fromkeys(names) if _can_run(project, name, setup, methods)]
    if aligned := _align_setting(project, align):
        plain = settings[0]
        settings.append([replace(c, settings=(*c.settings, aligned), index=c.index + len(plain)) for c in plain])
    return [candidate for turn in zip_longest(*settings) for candidate in turn if candidate is not None]


def _align_setting(project: Project, features: Sequence[str]) -> str:
    """Return the setting that aligns those of the features that can be; empty if there are none, or params align."""
    if project.params.clients.align.kind != "none":
        return ""
    numeric = []
    for feature in features:
        try:
            own_columns(project.with_overrides([_aligning([feature])]).params, project.manifest)
        except UserError:  # a category, a picture, or rows that no client owns
            continue
        numeric.append(feature)
    return _aligning(numeric) if numeric else ""


def _aligning(features: Sequence[str]) -> str:
    return f"{ALIGN}={{kind: standardise, features: {json.dumps(features)}}}"


def _all_methods(project: Project, setup: TrainingSetup) -> list[str]:
    """Return built-in methods and plugins, without those that reproduce an author's code."""
    plugins = project.plugins.of(METHODS)
    names = [
        n for n in method_names(project.plugins) if n in plugins or ".references." not in find_method(n).__module__
    ]
    normalises = bool(setup.network.normalising)
    return [n for n in names if n not in _LEFT_OUT and (normalises or n not in _NORMALISING)]


def _can_run(project: Project, name: str, setup: TrainingSetup, named: Sequence[str]) -> bool:
    try:
        start_method(method_of(project.params, name), setup)
    except UserError:
        if name in named:
            raise
        return False
    return True


def _settings(project: Project, name: str) -> list[Candidate]:
    """Return a method's settings: nearest to the learning rate of params.yaml, or to its own options, first."""
    params, method, own = project.params, find_method(name, project.plugins), method_of(project.params, name)
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
