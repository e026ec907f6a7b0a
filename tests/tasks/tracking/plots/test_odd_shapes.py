"""Figures of data in shapes that are rare: any channels and sizes, one client, 300 clients, long names."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.text import Text

from flows.methods.common.method_figures import draw_codebook, draw_groups
from models.diagnosis.screen_clients import PairDetails
from tasks.tracking.plots import style
from tasks.tracking.plots.curve_figures import draw_comparison
from tasks.tracking.plots.shift_figures import draw_close_ups, draw_ranking
from tasks.tracking.plots.silo_figure import draw_silos

pytestmark = pytest.mark.slow

LONG = [f"a name that has far more letters than a figure has room for, number {at}" for at in range(3)]


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Draw a figure without a warning, and return it. Its titles are not cut off."""

    write = style.write_figure

    def build(function, *arguments):
        drawn = []
        monkeypatch.setattr(style, "write_figure", lambda figure, *_, **__: drawn.append(figure))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(tmp_path / "figure.png", *arguments)
            write(drawn[0], tmp_path / "figure.png")
        for panel in drawn[0].axes:
            assert left_title(panel).x1 <= drawn[0].bbox.x1, panel.get_title(loc="left")
        return drawn[0]

    return build


def left_title(panel):
    """The place of a panel's title."""
    title = next(text for text in panel.findobj(Text) if text.get_text() == panel.get_title(loc="left"))
    return title.get_window_extent()


def silos(
    shape: tuple[int, ...], images: list[np.ndarray], clients: int = 1, classes: list[str] | None = None
) -> tuple:
    """The overview of clients and an image of each class, for `draw_silos`."""
    classes = classes or [f"k{at}" for at in range(len(images))]
    row = {"domain": "", "rows": {"train": 2, "validation": 1, "test": 1}, "label_shares": dict.fromkeys(classes, 0.5)}
    table = [{"name": f"c{at}", **row} for at in range(clients)]
    overview = {"count": clients, "clients": table, "classes": classes, "shape": list(shape)}
    return overview, {client["name"]: images for client in table[:20]}


def noise(shape: tuple[int, ...], kind: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(kind)


def sheet(figure) -> np.ndarray:
    """The pixels of the last panel."""
    (image,) = figure.axes[2].get_images()
    assert image.get_clim() == (0, 1)
    return np.asarray(image.get_array())


@pytest.mark.parametrize(
    ("channels", "note"),
    [
        ((), ""),
        ((1,), ""),
        ((2,), "first of 2"),
        ((3,), ""),
        ((4,), "first 3 of 4"),
        ((5,), "first of 5"),
        ((16,), "of 16"),
    ],
)
def test_pictures_of_any_channels_are_drawn(draw, channels, note):
    picture = noise((32, 32, *channels))
    figure = draw(draw_silos, *silos(picture.shape, [picture]))
    colours = channels in ((3,), (4,))
    shown = picture[..., :3] if colours else picture.reshape(32, 32, -1)[..., 0]
    np.testing.assert_allclose(sheet(figure)[:32, :32], shown / 255)
    assert figure.axes[2].get_title(loc="left").endswith(f"{note} channels)" if note else "class")


@pytest.mark.parametrize(
    ("shape", "size"),
    [((1, 1), (16, 16)), ((2, 400), (16, 58)), ((400, 2), (58, 16)), ((300, 300, 3), (60, 60)), ((28, 28), (28, 28))],
)
def test_pictures_of_any_size_can_be_seen_and_labels_stand_below_them(draw, shape, size):
    figure = draw(draw_silos, *silos(shape, [noise(shape)] * 3))
    height, width = sheet(figure).shape[:2]
    assert (height - 1, width // 3 - 1) == size
    assert figure.axes[2].get_xticks().tolist() == [at * (size[1] + 1) + (size[1] - 1) / 2 for at in range(3)]


@pytest.mark.parametrize("offset", [0.0, -128.0, 1e6])
def test_pictures_of_floats_are_spread_from_their_least_to_their_greatest(draw, offset):
    picture = noise((32, 32), np.float32)
    shown = sheet(draw(draw_silos, *silos((32, 32), [picture + np.float32(offset)])))
    np.testing.assert_allclose(shown[:32, :32], (picture - picture.min()) / np.ptp(picture), atol=1e-6)


@pytest.mark.parametrize("clients", [1, 61, 300])
def test_any_number_of_clients_and_classes_with_long_names_fit(draw, clients):
    draw(draw_silos, *silos((8, 8), [noise((8, 8))] * 3, clients, LONG))
    draw(draw_silos, *silos((8, 8), [noise((8, 8))], clients))


@pytest.mark.parametrize("methods", [LONG, ["one"], [f"m{at}" for at in range(20)]])
@pytest.mark.parametrize("clients", [1, 300])
def test_a_comparison_of_any_methods_and_clients_fits(draw, methods, clients):
    by_client = [{"client": f"c{at}", "accuracy": 0.5} for at in range(clients)]
    runs = [{"method": method, "seed": 0, "metrics": {"accuracy/by_client": by_client}} for method in methods]
    against = {"reference": methods[0], "difference": 0.1, "low": -0.1, "high": 0.2}
    paired = [{"method": method, **against} for method in methods[1:]]
    draw(draw_comparison, {"runs": runs, "paired": paired}, {method: [[(1, 0.5)]] for method in methods})


def test_client_names_without_letters_in_the_font_leave_room_for_the_points(draw):
    names = ["北京协和医院", "上海华山医院", "มหาวิทยาลัย"]
    by_client = [{"client": name, "accuracy": 0.5 + at / 10} for at, name in enumerate(names)]
    runs = [{"method": "one", "seed": 0, "metrics": {"accuracy/by_client": by_client}}]
    figure = draw(draw_comparison, {"runs": runs, "paired": []}, {"one": [[(1, 0.5)]]})
    low, high = figure.axes[1].get_xlim()
    assert high - low < 1, "points fill a good part of the panel"


def test_a_codebook_of_300_domains_lists_as_many_as_fit(draw):
    names = [f"c{at}" for at in range(300)]
    points = [(0.0, 1.0), (1.0, 0.0)]
    figure = draw(draw_codebook, points, dict.fromkeys(names, (points, points)), {name: name for name in names})
    listed = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert [*listed[:2], *listed[-3:]] == ["shared codewords", "c0", "c22", "and 277 more", "own codewords"]


def test_groups_are_counted_and_named_while_names_fit(draw):
    figure = draw(draw_groups, {1: {"c0": 0}})
    assert figure.axes[0].get_title(loc="left").endswith(": 1 group at the end")
    assert [text.get_text() for text in figure.axes[0].texts] == ["group 0"]
    assert not draw(draw_groups, {1: {f"c{at}": at for at in range(300)}}).axes[0].texts


def test_the_legend_of_a_ranking_of_one_feature_hides_nothing(draw):
    axes = draw(draw_ranking, [{"feature": LONG[0], "mean": 0.0, "largest": 0.0}]).axes[0]
    assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1
    assert axes.get_xlim()[0] == 0


@pytest.mark.parametrize("count", [2, 30, 200])
def test_values_and_names_below_and_above_a_close_up_do_not_overlap(draw, count):
    counts = np.random.default_rng(0).integers(0, 40, (2, count, 3)).astype(float)
    one = PairDetails(0, 1, 0, None, tuple(map(str, range(count))), False, counts, np.array([True, True, False]))
    first, second, *_ = draw(draw_close_ups, [one], LONG, LONG, LONG[:2]).axes
    below = [label.get_window_extent() for label in first.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(below))
    assert left_title(first).x1 < left_title(second).x0
