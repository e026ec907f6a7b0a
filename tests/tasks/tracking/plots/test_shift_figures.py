"""Pictures of a diagnosis show all names as text, and as many silos as there are."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from models.diagnosis.screen_clients import PairDetails
from tasks.tracking.plots import style
from tasks.tracking.plots.shift_figures import draw_close_ups, draw_pairs, draw_ranking

pytestmark = pytest.mark.slow

EVIL = ["$x_1$ and $", "<b>bold</b>", "_hidden"]
TYPES = ([], ["feature"], ["label"], ["concept"], ["feature", "label", "concept"], ["undetermined"])


def matrices(names: list[str], known: bool = True) -> dict:
    size = len(names)
    table = np.random.default_rng(0).uniform(0, 1, (size, size)).tolist() if known else [[None] * size] * size
    distances = dict.fromkeys(("means", "shares", "feature", "label", "concept"), table)
    verdict = [[TYPES[abs(a - b) % len(TYPES)] for b in range(size)] for a in range(size)]
    return {"names": names, "order": list(range(size))[::-1], "verdict": verdict, **distances}


def close_up(number: bool, joined: bool = False) -> PairDetails:
    counts = np.random.default_rng(1).integers(0, 40, (2, 4, 4)).astype(float)
    ends = np.array([0.0, 1.0, 3.0, 4.0, 9.0]) if number else None
    shown = np.array([True, True, True, False])
    return PairDetails(0, 1, 0, ends, () if number else ("0", "$a$", "other", "missing"), joined, counts, shown)


def texts(monkeypatch: pytest.MonkeyPatch, draw, *asked) -> list[str]:
    """All text of the picture, and that it is drawn without a warning."""
    drawn = []
    write = style.write_figure
    monkeypatch.setattr(
        style, "write_figure", lambda figure, *to, **how: (drawn.append(figure), write(figure, *to, **how))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(*asked)
    (figure,) = drawn
    found = [one for one in figure.findobj(lambda a: hasattr(a, "get_parse_math")) if one.get_visible()]
    assert not any(one.get_parse_math() for one in found)
    return [one.get_text() for one in found]


def brightness(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return imread(path)[..., :3]


def test_pairs_are_drawn_with_the_names_of_silos_and_what_differs(tmp_path, monkeypatch):
    path = tmp_path / "pairs.png"
    names = [*EVIL, "d", "e", "f"]
    shown = texts(monkeypatch, draw_pairs, path, matrices(names), [4, 2])
    for name in names:
        assert shown.count(name) == 6  # two axes of three panels
    assert {"no difference seen", "inputs", "labels", "rule", "all three", "not compared"} <= set(shown)
    assert "inputs and labels" not in shown
    assert brightness(path).std() > 0.05


@pytest.mark.parametrize("count", [2, 40, 41, 1000])
def test_as_many_silos_as_there_are_fit_into_a_picture_and_names_while_they_can_be_read(count, tmp_path, monkeypatch):
    path = tmp_path / "pairs.png"
    names = [f"c{at:04d}" for at in range(count)]
    shown = texts(monkeypatch, draw_pairs, path, matrices(names), [count])
    assert ("c0001" in shown) == (count <= 40)
    assert any("silos or groups" in text for text in shown) == (count > 40)
    height, width, _ = brightness(path).shape
    assert max(height, width) < 3000


def test_distances_that_are_unknown_are_drawn_as_such(tmp_path, monkeypatch):
    for known in (False, True):
        shown = texts(monkeypatch, draw_pairs, tmp_path / "pairs.png", matrices(EVIL, known=known), [1, 1, 1])
        assert ("distance unknown" in shown) != known


@pytest.mark.parametrize("count", [2, 12, 41])
def test_no_white_is_left_around_pairs(count, tmp_path, monkeypatch):
    path = tmp_path / "pairs.png"
    texts(monkeypatch, draw_pairs, path, matrices([f"c{at}" for at in range(count)]), [count])
    drawn = brightness(path).mean(-1) < 0.99
    for lines in (drawn.any(0), drawn.any(1)):
        assert lines[:20].any()
        assert lines[-20:].any()


def test_features_are_ranked_under_their_names_and_the_rest_is_counted(tmp_path, monkeypatch):
    ranking = [{"feature": name, "mean": 1.0, "largest": 2.0} for name in [*EVIL, *map(str, range(97))]]
    shown = texts(monkeypatch, draw_ranking, tmp_path / "features.png", ranking)
    assert set(EVIL) <= set(shown)
    assert "Which features differ: the first 25 of 100" in shown
    assert "96" not in shown


@pytest.mark.parametrize("number", [True, False])
def test_a_pair_is_drawn_closely_with_names_of_silos_features_and_labels(number, tmp_path, monkeypatch):
    path = tmp_path / "closely.png"
    shown = texts(monkeypatch, draw_close_ups, path, [close_up(number)] * 2, EVIL[:2], [EVIL[2]], ["$l$", "<i>", "_m"])
    assert shown.count(f"{EVIL[0]} and {EVIL[1]}: {EVIL[2]}") == 2
    assert shown.count(EVIL[0]) == shown.count(EVIL[1]) == 3  # legends of both features, and of the label shares
    assert {"$l$", "<i>", "_m", "rare"} <= set(shown)
    assert len({text for text in shown if text.endswith(" at each value")}) == 1, "one label in all panels"
    assert ("$a$" in shown) != number
    assert brightness(path).std() > 0.05


def test_bins_that_are_joined_for_all_are_said_to_be(tmp_path, monkeypatch):
    shown = texts(
        monkeypatch, draw_close_ups, tmp_path / "c.png", [close_up(False, True)], ["a", "b"], ["f"], ["0", "1", "2"]
    )
    assert "f, bins of as many rows" in shown


def test_where_no_label_is_told_by_both_no_share_of_one_is_drawn(tmp_path, monkeypatch):
    one = close_up(True)
    silent = PairDetails(0, 1, 0, one.ends, (), False, one.counts, np.zeros(4, bool))
    assert "No label is reported by both" in texts(
        monkeypatch, draw_close_ups, tmp_path / "c.png", [silent], ["a", "b"], ["f"], ["0", "1", "2"]
    )


def test_the_published_distances_are_drawn_for_the_published_rule_alone(tmp_path, monkeypatch):
    shown = texts(monkeypatch, draw_pairs, tmp_path / "pairs.png", matrices(EVIL), [1, 1, 1], True)
    assert {"Inputs: D(X)", "Labels: D(Y)", "Rules: D(Y | X)"} <= set(shown)
    assert "Inputs: D(X)" not in texts(monkeypatch, draw_pairs, tmp_path / "p.png", matrices(EVIL), [1, 1, 1])


def test_a_small_silo_has_a_line_of_label_shares_too(tmp_path, monkeypatch):
    """One silo has 60 rows a bin, the other one 6, of which a third and a half have the label."""
    counts = np.array([[[40.0, 20, 0]] * 6, [[3.0, 3, 0]] * 6])
    small = PairDetails(0, 1, 0, np.arange(7.0), (), False, counts, np.array([True, True, False]))
    drawn = []
    write = style.write_figure
    monkeypatch.setattr(
        style, "write_figure", lambda figure, *to, **how: (drawn.append(figure), write(figure, *to, **how))
    )
    draw_close_ups(tmp_path / "c.png", [small], ["large", "tiny"], ["f"], ["well", "ill"])
    (panel,) = [ax for ax in drawn[0].axes if ax.get_title("left") == "Label ill at each value"]
    of_large, of_tiny = [patch.get_data() for patch in panel.patches]
    assert of_large.values.tolist() == [pytest.approx(1 / 3)] * 6
    assert of_tiny.values.tolist() == [0.5] * 3, "bins of 12 rows each"
    assert of_tiny.edges.tolist() == [0, 2, 4, 6]


def test_a_silo_with_few_rows_at_each_value_is_said_to_have_no_line(tmp_path, monkeypatch):
    counts = np.array([[[40.0, 20, 0]] * 2, [[2.0, 2, 0]] * 2])
    for ends, values in ((np.arange(3.0), ()), (None, ("0", "1"))):
        few = PairDetails(0, 1, 0, ends, values, False, counts, np.array([True, True, False]))
        shown = texts(monkeypatch, draw_close_ups, tmp_path / "c.png", [few], ["large", "tiny"], ["f"], ["well", "ill"])
        assert "tiny: fewer than 10 rows at each value" in shown
