"""Pictures."""

import io
import math
import warnings

import numpy as np
import pytest
from matplotlib.figure import Figure

from flows.methods.common import method_figures
from flows.methods.common.method_figures import draw_codebook, draw_groups
from models.metrics.task_metrics import TASK_METRICS
from tasks.tracking.cost_to_target import CostCurve
from tasks.tracking.plots import curve_figures, silo_figure, style
from tasks.tracking.plots import (
    curve_figures as comparison_figure,
)
from tasks.tracking.plots.curve_figures import draw_comparison, draw_cost, draw_curves, draw_lines
from tasks.tracking.plots.silo_figure import draw_silos

RMSE = TASK_METRICS["regression"]


def result(method: str, value: float, name: str = "accuracy") -> dict:
    """What a figure reads of a run."""
    by_client = [{"client": "a", name: value}, {"client": "b", name: None}]
    return {"method": method, "seed": 1, "metrics": {f"{name}/by_client": by_client}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "paired", [[], [{"method": "pooled", "reference": "fedavg", "difference": 0.1, "low": 0, "high": 0.2}]]
)
def test_the_figure_is_a_png_also_if_there_is_nothing_to_compare(tmp_path, paired):
    runs = [result("fedavg", 0.5), result("pooled", 0.75)]
    curves = {"fedavg": [[(1, 0.25), (2, 0.5)]], "pooled": [[(1, 0.5), (2, 0.75)]]}
    draw_comparison(tmp_path / "c.png", {"runs": runs, "paired": paired}, curves)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("score", "lines"), [(0.4, 2), (0.1, 0)])
def test_the_baseline_is_drawn_where_it_lies_among_the_methods(score, lines, tmp_path, monkeypatch):
    """A line far below would press all curves together."""
    drawn = []
    monkeypatch.setattr(comparison_figure.style, "write_figure", lambda figure, _: drawn.extend(figure.axes))
    curves = {"fedavg": [[(1, 0.25), (2, 0.5)]], "pooled": [[(1, 0.3), (2, 0.35)]]}
    runs = [result("fedavg", 0.5), result("pooled", 0.35)]
    baseline = {"metrics": {"accuracy/mean": score}}
    draw_comparison(tmp_path / "c.png", {"runs": runs, "paired": [], "baseline": baseline}, curves)
    dotted = [line for axes in drawn for line in axes.get_lines() if line.get_linestyle() == ":"]
    assert len(dotted) == lines


def test_the_worst_and_the_best_client_of_a_method_are_named_and_those_that_do_not_train_are_hollow(
    tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr(comparison_figure.style, "write_figure", lambda figure, _: drawn.extend(figure.axes))
    values = {"hospital-of-a-town-1": 0.4, "b": 0.6, "c": 0.9, "new": 0.1}
    by_client = [
        {"client": client, "role": "unseen" if client == "new" else "federated", "accuracy": value}
        for client, value in values.items()
    ]
    runs = [{"method": "fedavg", "seed": 0, "metrics": {"accuracy/by_client": by_client}}]
    draw_comparison(tmp_path / "c.png", {"runs": runs, "paired": []}, {"fedavg": [[(1, 0.5)]]})
    middle = drawn[1]
    assert {text.get_text(): text.xy[0] for text in middle.texts} == {"hosp…-town-1": 0.4, "c": 0.9}
    filled, hollow = middle.collections[:2]
    assert sorted(filled.get_offsets()[:, 0]) == [0.4, 0.6, 0.9]
    assert (hollow.get_offsets()[:, 0].tolist(), len(hollow.get_facecolor())) == ([0.1], 0)
    assert [line[0][0] for line in middle.collections[2].get_segments()] == [pytest.approx(1.9 / 3)]
    assert middle.get_title(loc="left").endswith("hollow: others")


@pytest.mark.slow
@pytest.mark.parametrize("end", [1.5, math.inf, math.nan])
def test_the_figure_of_a_regression_bears_what_diverged(tmp_path, end):
    runs = [result("fedavg", 2.0, "rmse"), result("pooled", end, "rmse")]
    paired = [{"method": "pooled", "reference": "fedavg", "difference": end, "low": -end, "high": end}]
    curves = {"fedavg": [[(1, 4.0), (2, 2.0)]], "pooled": [[(1, end)]]}
    draw_comparison(tmp_path / "c.png", {"runs": runs, "paired": paired}, curves, RMSE)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


EVIL = {
    "$\\frac$": "$\\frac$",
    "a\\$b$c": "a\\$b$c",
    "_hidden": "_hidden",
    "_child1": "_child1",
    "\x1b[2J\n日é": r"\x1b[2J\n\u65e5é",
    "\ud800": r"\ud800",
    "7" * 5000: "7" * 39 + "…",
    "%s {0} \\N{DASH}": "%s {0} \\N{DASH}",
}


def curves_of_evil() -> dict:
    return {name: [[(1, 0.25), (20, 0.5)], [(1, 0.5), (20, 0.25)]] for name in EVIL}


def comparison_of_evil(path) -> None:
    runs = [result(name, 0.5) for name in EVIL]
    paired = [{"method": n, "reference": "$\\frac$", "difference": 0.1, "low": 0, "high": 0.2} for n in EVIL]
    draw_comparison(path, {"runs": runs, "paired": paired}, curves_of_evil())


def codebook_of_evil(path) -> None:
    points = [(0.0, 1.0), (1.0, 0.0)]
    draw_codebook(path, points, dict.fromkeys(EVIL, (points, points)), {name: name for name in EVIL})


def silos_of_evil(path) -> None:
    rows = {"train": 1, "validation": 1, "test": 1}
    clients = [{"name": n, "domain": "", "rows": rows, "label_shares": dict.fromkeys(EVIL, 0.1)} for n in EVIL]
    images = {name: [np.zeros((4, 4), np.uint8)] * len(EVIL) for name in EVIL}
    draw_silos(path, {"count": 10_000, "clients": clients, "classes": list(EVIL), "shape": [4, 4]}, images)


def groups_of_evil(path) -> None:
    draw_groups(path, {1: {}, 2: dict.fromkeys(EVIL, 0), 3: {name: at for at, name in enumerate(EVIL)}})


def lines_of_evil(path) -> None:
    points = {name: {0.0: [0.5], 1.0: [0.7, 0.9]} for name in EVIL}
    draw_lines(path, points, {next(iter(EVIL)): {0.0: 0.4, 1.0: 0.6}}, "over $\\frac$", "unit", "$\\frac$")


def costs_of_evil(path) -> None:
    curve = CostCurve((1, 2), (0.5, 0.6), (1e4, 2e4), (1.0, 2.0))
    draw_cost(path, dict.fromkeys(EVIL, curve) | {"diverged": None}, {"a": {"target": 0.55}})


# each picture, and how often it shows a name
DRAWN = {
    "draw_comparison": (comparison_of_evil, 3),
    "draw_cost": (costs_of_evil, 2),
    "draw_codebook": (codebook_of_evil, 1),
    "draw_silos": (silos_of_evil, 3),
    "draw_groups": (groups_of_evil, 1),
    "draw_lines": (lines_of_evil, 1),
    "draw_curves": (lambda path: draw_curves(path, curves_of_evil(), 0.5, "$\\frac$"), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "times"), DRAWN.values(), ids=DRAWN)
def test_a_picture_shows_every_name_as_text_and_hides_none(draw, times, tmp_path, monkeypatch):
    drawn = []
    write = style.write_figure
    monkeypatch.setattr(style, "write_figure", lambda figure, path: (drawn.append(figure), write(figure, path)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(tmp_path / "figure.png")
    shown = [text.get_text() for text in drawn[0].findobj(lambda a: hasattr(a, "get_parse_math")) if text.get_visible()]
    for name in EVIL.values():
        assert shown.count(name) >= times, name
    assert not any("mathdefault" in text for text in shown)


FILES = (comparison_figure, curve_figures, method_figures, silo_figure)


def test_every_picture_that_shows_names_is_drawn_with_such_names():
    assert {name for file in FILES for name in vars(file) if name.startswith("draw_")} - {"draw_stages"} == set(DRAWN)


def test_what_is_published_of_two_lines_alike_is_drawn_once(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(style, "write_figure", lambda figure, _: drawn.append(figure))
    points, published = {0.0: [0.5], 1.0: [0.7]}, {0.0: 0.4, 1.0: 0.6}
    other = {0.0: 0.4, 1.0: 0.8}
    draw_lines(
        tmp_path / "p", dict.fromkeys("abc", points), {"a": published, "b": dict(published), "c": other}, "", "", ""
    )
    published_lines = [line for line in drawn[0].axes[0].get_lines() if line.get_marker() == "x"]
    assert [list(line.get_ydata()) for line in published_lines] == [[0.4, 0.6], [0.4, 0.8]]


@pytest.mark.parametrize(("target", "shown"), [(None, [[0.2, 0.9, 0.1]]), (0.5, [[0.2, 0.9, 0.9], [0.5, 0.5]])])
def test_a_curve_shows_a_collapse_but_where_rounds_to_a_target_are_counted(target, shown, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(style, "write_figure", lambda figure, _: drawn.append(figure))
    draw_curves(tmp_path / "p", {"one": [[(1, 0.2), (2, 0.9), (3, 0.1)]]}, target, "")
    assert [list(line.get_ydata()) for line in drawn[0].axes[0].get_lines()] == shown


def test_seeds_are_drawn_with_their_mean_over_the_rounds_that_all_have(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(style, "write_figure", lambda figure, _: drawn.append(figure))
    draw_curves(tmp_path / "p", {"one": [[(1, 0.2), (2, 0.4)], [(1, 0.4)]]}, None, "")
    *_, mean = drawn[0].axes[0].get_lines()
    assert (list(mean.get_xdata()), list(mean.get_ydata())) == ([1], [pytest.approx(0.3)])


@pytest.mark.parametrize("crop", [False, True])
def test_a_figure_is_drawn_no_more_often_than_needed_and_is_what_matplotlib_itself_would_save(crop, monkeypatch):
    def filled():
        figure, axes = style.new_figure(6, 3, 2)
        for panel in axes:
            style.label_ends(panel, panel.plot([[0, 1], [1, 2]], label="one"), ["one", "two"])
            panel.set(xlabel="round", ylabel="accuracy")
            style.set_title(panel, "a title")
        return figure

    whole = io.BytesIO()
    filled().savefig(whole, format="png", metadata={"Software": None}, bbox_inches="tight" if crop else None)
    draws, draw = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda figure, renderer: (draws.append(1), draw(figure, renderer)))
    assert style.png_bytes(filled(), crop) == whole.getvalue()
    assert len(draws) == (2 if crop else 1)  # the margin that is cut off is known after a first time
