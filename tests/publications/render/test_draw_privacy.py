"""The picture of what privacy costs shows the records."""

import shutil
from pathlib import Path

import pytest
import yaml

from publications.compare_with_published import difference
from publications.published_tables import Pair
from publications.render.draw_privacy import _draw_panel, draw_privacy
from publications.sweep import Sweep
from tasks.tracking.plots.style import new_figure

CHECKOUT = Path(__file__).parents[3]
EPSILONS = (1, 2, 4, 8)
MEANS = {"alone": 0.9} | {
    f"{arm}-{e}": 0.8 + gain + e / 100 for arm, gain in (("each", 0.0), ("one", 0.08)) for e in EPSILONS
}


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """A table with five recorded seeds a cell."""
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    table = {
        **{"title": "t", "source": "s", "known_errors": "none", "method": "fedavg"},
        "cells": {cell: {"about": cell} for cell in MEANS},
        "scales": {"cpu": {"seeds": [0, 1, 2, 3, 4]}},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"tables": {"1": table}}))
    monkeypatch.chdir(tmp_path)
    sweep = Sweep("tiny.yaml", "1", "cpu")
    for cell, mean in MEANS.items():
        for seed in range(5):
            value = mean + (seed - 2) / 1000 * (1 if cell == "alone" else -1)
            record = {"value": value, "accuracy": value, "data_version": "v"}
            sweep.results.keep(("1", "cpu", cell), sweep.key(seed, None), record)
    return sweep


def test_a_panel_has_the_line_of_training_alone_and_intervals_of_the_paired_differences(sweep):
    _, axes = new_figure(4, 3, 1)
    _draw_panel(axes, sweep)
    alone, *drawn = axes.get_lines()
    assert list(alone.get_ydata()) == pytest.approx([0.9, 0.9])
    for arm in ("one", "each"):
        line, *intervals = [drawn.pop(0) for _ in range(1 + len(EPSILONS))]
        assert list(line.get_ydata()) == pytest.approx([MEANS[f"{arm}-{e}"] for e in EPSILONS])
        for e, interval in zip(EPSILONS, intervals, strict=True):
            record = difference(sweep, Pair(first=f"{arm}-{e}", second="alone"))
            assert list(interval.get_xdata()) == [e, e]
            assert list(interval.get_ydata()) == pytest.approx([0.9 + record["low"], 0.9 + record["high"]])
    assert not drawn


def test_a_picture_has_a_panel_a_table(sweep, tmp_path):
    draw_privacy(tmp_path / "privacy.png", {"first": sweep, "second": sweep})
    assert (tmp_path / "privacy.png").read_bytes().startswith(b"\x89PNG")
