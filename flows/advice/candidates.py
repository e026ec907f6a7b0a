"""The methods and settings that race on a project's silos."""

from collections.abc import Sequence
from itertools import zip_longest

from flows.advice.race import Candidate
from flows.config.method_settings import method_of
from flows.experiment.comparison.client_gains import ALONE
from flows.experiment.comparison.search_space import Grid
from flows.experiment.comparison.tuner import RATE, grid_of
from flows.experiment.project import Project
from flows.methods.base import find_method, method_names, start_method
from flows.methods.context import TrainingSetup
from flows.plugins import METHODS
from silos.errors import UserError

SHARED, POOLED = "fedavg", "pooled"
"""References besides training alone: one shared model, and all rows in one place."""

_RATES = 4  # learning rates of each method: a ninth and a third of that of params.yaml, itself, and three times it
_NORMALISING = ("fedbn", "serverbn")  # are FedAvg in a network without batch normalization
_LEFT_OUT = ("fedsgd",)  # one step a round


def candidates(project: Project, seed: int, methods: Sequence[str] = ()) -> list[Candidate]:
    """Return the candidates in the order in which they start: each method's settings of params.yaml first.

    Args:
        project: The project.
        seed: The seed of the race.
        methods: Those that race besides the references; all that can run on the data if none is named.

    Raises:
        UserError: If a named method cannot run on the data.
    """
    setup = project.training_setup(seed)
    names = [SHARED, ALONE, *(methods or _all_methods(project, setup)), POOLED]
    settings = [_settings(project, name) for name in dict.fromkeys(names) if _can_run(project, name, setup, methods)]
    return [candidate for turn in zip_longest(*settings) for candidate in turn if candidate is not None]


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
    """Return a method's settings: nearest to the learning rate of params.yaml first."""
    params, method = project.params, find_method(name, project.plugins)
    rate = params.training.optimiser.learning_rate
    options = 1
    for axis in method.tuned.values():
        options *= len(axis.values)
    grid: Grid = grid_of(name, method, rate, _RATES * options, params.method.get(name, {}))
    rates = grid.axes[RATE].values
    nearest = sorted(grid.points(), key=lambda point: abs(rates.index(point[0]) - rates.index(_own(rates, rate))))
    return [Candidate(name, tuple(grid.settings(point)), index, method.is_bound) for index, point in enumerate(nearest)]


def _own(rates: Sequence[float], rate: float) -> float:
    return min(rates, key=lambda each: abs(each - rate))
