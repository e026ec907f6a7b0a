"""Numbers that stand for a picture are those of a slow loop, within their bounds, and follow from the picture alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.diagnosis.client_summaries.query import MAX_CHANNELS, light_bounds, project_pictures

few = settings(max_examples=25)
SHAPES = [(8, 8), (3, 5), (1, 1), (28, 28), (1, 9, 8), (3, 12, 10)]


def by_hand(picture):
    """One picture, (channels, height, width), number by number."""
    channels, height, width = picture.shape
    grey = [[sum(picture[c, i, j] for c in range(channels)) / channels for j in range(width)] for i in range(height)]
    small = [[mean_of_area(grey, row, column) for column in range(8)] for row in range(8)]
    drawn = np.random.default_rng(7).standard_normal((64, 8))
    found = {}
    for at in range(8):
        length = math.sqrt(sum(w * w for w in drawn[:, at]))
        found[f"direction {at}"] = sum(small[k // 8][k % 8] * drawn[k, at] / length for k in range(64))
    for row in range(4):
        for column in range(4):
            four = [small[2 * row + i][2 * column + j] for i in (0, 1) for j in (0, 1)]
            found[f"patch {row},{column}"] = sum(four) / 4
    flat = [value for line in grey for value in line]
    found["brightness"] = sum(flat) / len(flat)
    found["deviation"] = math.sqrt(sum((value - found["brightness"]) ** 2 for value in flat) / len(flat))
    across = [abs(line[j + 1] - line[j]) for line in grey for j in range(width - 1)]
    down = [abs(grey[i + 1][j] - grey[i][j]) for i in range(height - 1) for j in range(width)]
    found["edges across"], found["edges down"] = (sum(e) / len(e) if e else 0.0 for e in (across, down))
    whole = sum(flat)
    xs = [j / (width - 1) if width > 1 else 0.0 for j in range(width)]
    ys = [i / (height - 1) if height > 1 else 0.0 for i in range(height)]

    def mean(places, empty):
        return (
            sum(grey[i][j] * places[i][j] for i in range(height) for j in range(width)) / whole if whole > 0 else empty
        )

    cx, cy = mean([xs] * height, 0.5), mean([[y] * width for y in ys], 0.5)
    found["centre x"], found["centre y"] = cx, cy
    found["xx"] = mean([[(x - cx) ** 2 for x in xs]] * height, 0.0)
    found["yy"] = mean([[(y - cy) ** 2] * width for y in ys], 0.0)
    found["xy"] = mean([[(x - cx) * (y - cy) for x in xs] for y in ys], 0.0)
    if 1 < channels <= MAX_CHANNELS:
        for c in range(channels):
            found[f"channel {c}"] = sum(picture[c].ravel()) / (height * width)
    return found


def mean_of_area(grey, row, column):
    """Of one of 8 by 8 equal areas; a pixel counts by how much of it lies there."""
    height, width, total, area = len(grey), len(grey[0]), 0.0, 0.0
    for i in range(height):
        down = min(i + 1, (row + 1) * height / 8) - max(i, row * height / 8)
        for j in range(width):
            across = min(j + 1, (column + 1) * width / 8) - max(j, column * width / 8)
            if down > 0 and across > 0:
                total += grey[i][j] * down * across
                area += down * across
    return total / area


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers_are_those_of_a_slow_loop(shape):
    x = np.random.default_rng(1).random((3, *shape))
    names, numbers = project_pictures(x)
    for at in range(3):
        slow = by_hand(x[at].reshape(-1, *shape[-2:]))
        assert names == tuple(slow)
        np.testing.assert_allclose(numbers[at], list(slow.values()), atol=1e-12)


def test_a_row_without_height_is_a_picture_of_one_line():
    x = np.random.default_rng(2).random((4, 13))
    np.testing.assert_array_equal(project_pictures(x)[1], project_pictures(x[:, None])[1])


def test_numbers_that_are_no_light_have_no_place_where_light_is():
    x = np.random.default_rng(3).normal(size=(4, 2, 6, 6))
    light, other = project_pictures(np.abs(x)), project_pictures(x, light=False)
    assert set(light[0]) - set(other[0]) == {"centre x", "centre y", "xx", "yy", "xy"}
    assert np.isfinite(other[1]).all()


@few
@given(st.sampled_from(SHAPES), st.data())
def test_every_number_of_light_is_within_bounds_that_are_known_without_data(shape, data):
    values = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
    x = data.draw(arrays(np.float64, (2, *shape), elements=values, fill=st.sampled_from([0.0, 1.0])))
    names, numbers = project_pictures(x)
    low, high = light_bounds(names)
    assert (numbers >= low - 1e-9).all()
    assert (numbers <= high + 1e-9).all()


def test_bounds_are_reached_where_they_are_tight():
    """A direction's largest value is of the picture that is white just where it weighs more than nothing."""
    drawn = np.random.default_rng(7).standard_normal((64, 8))
    white = np.stack([(drawn[:, at] > 0).reshape(8, 8) for at in range(8)]).astype(float)
    names, numbers = project_pictures(np.concatenate([white, 1 - white]))
    low, high = light_bounds(names)
    np.testing.assert_allclose(np.diagonal(numbers[:8, :8]), high[:8])
    np.testing.assert_allclose(np.diagonal(numbers[8:, :8]), low[:8])


def test_a_pictures_numbers_do_not_depend_on_the_pictures_beside_it():
    """So clients that project alone have what they would have together."""
    x = np.random.default_rng(4).random((40, 3, 12, 10))
    together = project_pictures(x)[1]
    parts = np.concatenate([project_pictures(part)[1] for part in (x[:1], x[1:7], x[7:])])
    np.testing.assert_allclose(together, parts, rtol=0, atol=1e-14)
