"""Methods are given equally many settings, and what is chosen is the best on validation rows."""

import math
from dataclasses import asdict
from typing import ClassVar

import pytest
from pydantic import BaseModel, Field

from flows.core.search_space import Axis, Grid, axes
from flows.experiments.comparison.comparison_text import tuned_sentence
from flows.experiments.comparison.tuner import RATE, Score, grid_of, tune_method, validation_score
from flows.methods.base import find_method, method_names
from models.metrics.task_metrics import TASK_METRICS
from silos.errors import UserError


@pytest.mark.parametrize("method", [name for name in method_names() if find_method(name).uses_learning_rate])
@pytest.mark.parametrize("settings", [4, 8, 16])
def test_every_method_gets_as_many_settings_and_the_rate_of_params_is_one_of_them(method, settings):
    grid = grid_of(method, find_method(method), 0.5, settings)
    points = grid.points()
    assert len(points) == settings
    rates = {dict(zip(grid.axes, point, strict=True))[RATE] for point in points}
    assert 0.5 in rates
    assert min(rates) < 0.5


@pytest.mark.parametrize("method", method_names())
def test_what_a_page_is_tuned_by_are_options_of_it_within_and_beyond_its_grid(method):
    page, grid = find_method(method), Grid(find_method(method).tuned)
    for point in grid.points() + [wider for best in grid.points() for wider in grid.beyond(best)]:
        page.model_validate(dict(zip(grid.axes, point, strict=True)))


@pytest.mark.parametrize("settings", [1, 7, 8])
def test_trees_that_no_learning_rate_changes_are_tuned_by_their_own_options(settings):
    grid = grid_of("trees", find_method("trees"), 0.5, settings)
    assert [*grid.axes] == ["method.trees.rate", "method.trees.leaves"]
    assert len(grid.points()) == 4
    assert grid.beyond((0.1, 7)) == [(0.33, 7), (0.1, 2)]
    refusing = grid_of("trees", find_method("trees"), 0.5, settings, {"depth": 0})
    assert refusing.beyond((0.1, 7)) == []


def each(run_setting):
    """Run settings one by one, given the index and the lines of each."""
    return lambda first, settings: [run_setting(at, tuple(lines)) for at, lines in enumerate(settings, first)]


def test_a_method_with_nothing_to_tune_runs_once():
    grid = grid_of("mine", Untuned, 0.5, 8)
    best = tune_method("mine", grid, each(lambda *_: Score(1.0, 0.0)))
    assert (best.settings, best.tried, best.at_edge) == ([], 1, [])
    assert tuned_sentence(asdict(best)) == "no setting to tune"


def test_settings_that_a_methods_own_do_not_divide_are_refused():
    with pytest.raises(
        UserError, match=r"comparison\.tune: got 7, expected a multiple of 2, since ditto tries 2 settings of its own"
    ):
        grid_of("ditto", find_method("ditto"), 0.5, 7)


def test_the_best_is_kept_and_an_edge_is_passed_once():
    grid = Grid({RATE: Axis(values=(0.1, 0.2)), **axes(weight=(1.0, 10.0))})
    asked = []

    def scored(at, settings):
        asked.append((at, settings))
        rate, weight = (float(setting.partition("=")[2]) for setting in settings)
        return None if weight > 1 else Score(rate, 1.0)

    best = tune_method("mine", grid, each(scored))
    assert [at for at, _ in asked] == list(range(8))
    assert [settings[1] for _, settings in asked[4:]] == ["weight=1.0", "weight=1.0", "weight=0.1", "weight=0.01"]
    assert (best.settings, best.score) == ([f"{RATE}=0.8", "weight=1.0"], 0.8)
    assert asked[best.at][1] == tuple(best.settings)
    assert best.tried == 8
    assert best.at_edge == [RATE]


def test_where_no_setting_has_a_score_the_first_is_kept():
    best = tune_method("mine", Grid({RATE: Axis(values=(0.1, 0.2, 0.4))}), each(lambda *_: None))
    assert (best.settings, best.score) == ([f"{RATE}=0.1"], None)


@pytest.mark.parametrize(("losses", "kept"), [((0.6, 0.4, 0.2, 0.3), "0.4"), ((0.2, 0.3, 0.5, math.inf), "0.1")])
def test_of_settings_that_are_equally_good_the_one_with_the_least_loss_is_kept(losses, kept):
    """On few validation rows a rate that hardly moves the weights often does no worse there."""
    grid = Grid({RATE: Axis(values=(0.1, 0.2, 0.4, 0.8, 1.6), least=0.1)})
    scores = [Score(1.0, loss) for loss in losses] + [Score(0.5, 0.0)]
    best = tune_method("mine", grid, each(lambda at, _: scores[at]))
    assert (best.settings, best.score) == ([f"{RATE}={kept}"], 1.0)


class Untuned(BaseModel):
    """Of a page on which neither the learning rate nor an option has an effect."""

    tuned: ClassVar = {}
    uses_learning_rate: ClassVar = False


class Momentum(BaseModel):
    """Of a page whose option ends before its grid would."""

    tuned: ClassVar = axes(momentum=(0.1, 0.9))
    uses_learning_rate: ClassVar = True
    momentum: float = Field(0.9, ge=0, lt=1)


def test_what_an_option_refuses_is_not_tried_beyond_an_edge():
    grid = grid_of("mine", Momentum, 0.5, 2)
    assert grid.beyond((0.5, 0.9)) == []
    assert grid.at_edge((0.5, 0.9), grid.points()) == []
    assert grid.beyond((0.5, 0.1)) == [(0.5, 0.011), (0.5, 0.0012)]


def test_what_lies_beyond_is_told_before_it_is_run():
    happened = []
    grid = Grid({RATE: Axis(values=(0.1, 0.2))})
    tune_method(
        "mine",
        grid,
        each(lambda at, _: happened.append(at) or Score(float(at), 1.0)),
        lambda more: happened.append(f"{more} more"),
    )
    assert happened == [0, 1, "2 more", 2, 3]


def test_tuned_that_is_no_axes_is_refused():
    class Plain(BaseModel):
        tuned: ClassVar = {"momentum": (0.5, 0.9)}

    with pytest.raises(UserError, match="method 'mine': tuned: got another type, expected axes"):
        grid_of("mine", Plain, 0.5, 2)


@pytest.mark.parametrize(("rate", "settings"), [(0.5, 1000), (1e9, 8), (1e-28, 16)])
def test_rates_that_no_optimiser_takes_are_refused(rate, settings):
    with pytest.raises(
        UserError, match=rf"comparison\.tune: got {settings}, expected fewer settings, since fedavg would be tried with"
    ):
        grid_of("fedavg", find_method("fedavg"), rate, settings)


def test_ties_are_broken_by_the_loss_on_validation_rows():
    metrics = {"validation/accuracy/mean": 0.5, "validation/loss/mean": 0.7, "loss/mean": 0.1, "test/loss/mean": 0.2}
    assert validation_score(metrics, TASK_METRICS["classification"]) == Score(0.5, 0.7)


def test_a_setting_without_a_finite_validation_loss_loses_a_tie():
    without, nan = (
        validation_score({"validation/accuracy/mean": 0.5, **loss}, TASK_METRICS["classification"])
        for loss in ({"loss/mean": 0.1}, {"validation/loss/mean": math.nan})
    )
    assert without == nan == Score(0.5, math.inf)


def test_more_accuracy_is_better_and_more_error_is_worse():
    right, wrong = (
        validation_score({"validation/accuracy/mean": value}, TASK_METRICS["classification"]) for value in (0.9, 0.1)
    )
    assert right > wrong
    near, far = (
        validation_score({"validation/rmse/pooled": value}, TASK_METRICS["regression"]) for value in (0.1, 0.9)
    )
    assert near > far
    assert validation_score({"validation/accuracy/mean": math.nan}, TASK_METRICS["classification"]) is None
