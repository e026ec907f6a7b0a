"""With many methods every name can be read, every line told from the others, and rounds are whole."""

import numpy as np
import pytest
from matplotlib.text import Annotation, Text

from tasks.tracking.plots import style
from tasks.tracking.plots.curve_figures import draw_comparison, draw_curves
from tasks.tracking.plots.style import spread_apart, style_of_line


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, in place of files."""
    figures = []
    monkeypatch.setattr(style, "write_figure", lambda figure, _: figures.append(figure))
    return figures


def compare(methods: int, path, rounds: int = 50) -> None:
    """So many methods with long names, whose curves end at nearly the same place."""
    rng = np.random.default_rng(methods)
    names = [f"selective_authors_{at}" for at in range(methods)]
    ends = {name: 0.9 + 0.002 * at for at, name in enumerate(names)}
    curves = {name: [[(r, end * (1 - 0.9**r)) for r in range(1, rounds + 1)]] for name, end in ends.items()}
    runs = [
        {
            "method": name,
            "metrics": {
                "accuracy/by_client": [{"client": f"c{at}", "accuracy": float(v)} for at, v in enumerate(rng.random(9))]
            },
        }
        for name in names
    ]
    paired = [{"method": name, "reference": names[0], "difference": 0.1, "low": 0.0, "high": 0.2} for name in names[1:]]
    draw_comparison(path / "c.png", {"runs": runs, "paired": paired}, curves)


def boxes(axes, texts) -> list:
    """Where these lie, in pixels, after the layout."""
    axes.figure.draw_without_rendering()
    return [Text.get_window_extent(text) for text in texts]  # of a label without its line


def overlap(found: list) -> list:
    return [(at, other) for at, a in enumerate(found) for other, b in enumerate(found[:at]) if a.overlaps(b)]


@pytest.mark.slow
@pytest.mark.parametrize("methods", [1, 4, 9, 15, 40])
def test_no_name_lies_on_another(methods, tmp_path, drawn):
    compare(methods, tmp_path)
    left, middle, right = drawn[0].axes
    labels = [text for text in left.texts if isinstance(text, Annotation)]
    texts: list[Text] = labels or left.get_legend().get_texts()
    assert len(texts) == methods
    extremes = [text for text in middle.texts if isinstance(text, Annotation)]
    assert len(extremes) == 2 * methods
    all_names = ((left, texts), (middle, [*middle.get_yticklabels(), *extremes]), (right, right.get_yticklabels()))
    for axes, names in all_names:
        found = boxes(axes, names)
        assert overlap(found) == []
        inside = drawn[0].bbox
        assert all(box.x0 >= inside.x0 and box.x1 <= inside.x1 and box.y0 >= inside.y0 for box in found)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 50])
def test_rounds_on_an_axis_are_whole(rounds, tmp_path, drawn):
    compare(4, tmp_path, rounds)
    draw_curves(tmp_path / "p", {"one": [[(number, 0.5) for number in range(1, rounds + 1)]]}, None, "")
    for figure in drawn:
        figure.draw_without_rendering()
        assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())


def test_twenty_eight_lines_differ_in_grey_or_in_colour():
    seen = {(one["color"], one["linestyle"], one["marker"]) for one in map(style_of_line, range(28))}
    assert len(seen) == 28
    in_grey = [(one["linestyle"], one["marker"]) for one in map(style_of_line, range(20))]
    assert len(set(in_grey)) == 20, "dashes and marks alone tell twenty lines apart"


def test_places_are_spread_as_little_as_it_takes():
    assert spread_apart([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spread_apart([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread_apart([0.52, 0.5, 0.9], 0.1) == pytest.approx([0.56, 0.46, 0.9])
    assert spread_apart([1.0, 1.0, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])
    assert spread_apart([0.0, -1.0], 0.1) == pytest.approx([0.1, 0.0])
    assert spread_apart([], 0.1) == []
