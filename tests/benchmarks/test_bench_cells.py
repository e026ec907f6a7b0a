"""Pairs by which the price of least rows of a cell is measured: shifts are what they are called."""

import numpy as np
import pytest

from benchmarks import bench_cells
from benchmarks.bench_cells import SHIFTS, cells_cost, diagnose


@pytest.fixture(scope="module")
def intercept():
    return bench_cells._intercept()


@pytest.mark.parametrize("shift", SHIFTS)
def test_pairs_have_their_size_and_a_shift_moves_what_it_is_called_by(shift, intercept):
    truth, _, law = SHIFTS[shift]
    (x, y), (other_x, other_y) = (
        each.draw(np.random.default_rng(3), 8000, intercept) for each in (SHIFTS["none"][2], law)
    )
    assert x.shape == other_x.shape == (8000, 8)
    assert 0.27 < y.mean() < 0.33
    moved = np.abs(np.nanmean(x, 0) - np.nanmean(other_x, 0)) / np.nanstd(x, 0) > 0.1
    spread = np.abs(np.log(np.nanstd(x, 0) / np.nanstd(other_x, 0))) > 0.2
    if truth == {"label"}:
        assert abs(other_y.mean() - 0.45) < 0.01
    else:
        assert (moved | spread).any() == ("feature" in truth)


@pytest.mark.slow
def test_alike_silos_are_given_a_type_as_seldom_with_least_rows_of_a_cell(intercept):
    """Of 200 draws, of which chance gives about nine a type; the level of a test does not depend on merged cells."""
    found = dict.fromkeys(bench_cells.LEAST, 0)
    for draw in range(200):
        pair = bench_cells._pair("none", 300, draw, intercept)
        for least in found:
            found[least] += diagnose(pair, least)[0] != "none"
    assert found[10] <= found[1] + 6  # two deviations of the difference
    assert max(found.values()) <= 16


def test_a_record_counts_every_draw(monkeypatch):
    monkeypatch.setattr(bench_cells, "SIZES", ((300, 0), (1000, 24)))
    monkeypatch.setattr(
        bench_cells, "SHIFTS", {name: SHIFTS[name] for name in ("none", "labels: 45 % positive for 30 %")}
    )
    said = []
    measured = cells_cost(said.append, draws=2, alike=3)
    assert [sum(line["on"]["verdicts"].values()) for line in measured["lines"]] == [3, 3, 2, 2]
    assert all(3 < line["on"]["cells"] < line["off"]["cells"] for line in measured["lines"])  # also with a rare class
    assert len(said) == 4
