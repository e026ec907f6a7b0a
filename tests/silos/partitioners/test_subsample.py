"""Classes are thinned once and exactly: of all rows before they are dealt, or of the training rows of all clients."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from silos.dataset import Rows
from silos.errors import UserError

EQUAL = {"kind": "equal", "clients": 5}
DEALS = st.sampled_from(
    [
        EQUAL,
        {"kind": "quantity", "clients": 4, "beta": 1.0},
        {"kind": "dirichlet", "clients": 4, "alpha": 1.0},
        {"kind": "shards", "clients": 4, "shards_per_client": 2},
    ]
)
LISTED = st.lists(st.sampled_from("0123"), min_size=1, max_size=3, unique=True)


def rows_of_four_classes(counts: list[int], numbered, **columns: np.ndarray) -> Rows:
    """Numbered rows, of each class as many as asked for, mixed."""
    rows = numbered(sum(counts), 4, **columns)
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), counts))
    return Rows(rows.x, labels, rows.classes, split=rows.split)


def numbers(made, split: str | None = None) -> dict[int, int]:
    """The number of each row that a client owns, with its label."""
    mine = [(c.x[:, 0].astype(int), c.y, c.split) for c in made.clients]
    return {n: y for xs, ys, parts in mine for n, y, part in zip(xs, ys, parts, strict=True) if split in (None, part)}


@settings(deadline=None)
@given(
    deal=DEALS,
    listed=LISTED,
    ratio=st.sampled_from([1, 10, 100]) | st.floats(1, 200),
    counts=st.lists(st.integers(12, 260), min_size=4, max_size=4),
    seed=st.integers(0, 99),
)
def test_exactly_one_in_ratio_rows_of_each_listed_class_is_dealt_and_no_other_row_is_lost(
    numbered, make, deal, listed, ratio, counts, seed
):
    rows = rows_of_four_classes(counts, numbered)
    split = {"test": 0.25, "test_rows": "common", "seed": seed}
    step = {"kind": "subsample", "classes": listed, "ratio": ratio}
    try:
        plain, made = make(rows, deal, **split), make(rows, step, deal, **split)
    except UserError:  # too few rows are left for the clients
        assume(False)
    np.testing.assert_array_equal(made.common.x, plain.common.x)  # the test set is untouched
    before, after = numbers(plain), numbers(made)
    assert after.items() <= before.items()
    had, left = Counter(before.values()), Counter(after.values())
    for code in range(4):
        asked = max(1, round(had[code] / ratio)) if str(code) in listed and had[code] else had[code]
        assert left[code] == asked
    assert made.left_out == len(before) - len(after)
    assert {client.domain for client in made.clients} == {client.domain for client in plain.clients}


@settings(deadline=None)
@given(listed=LISTED, ratio=st.floats(1, 60), seed=st.integers(0, 99), source=st.booleans())
def test_after_the_deal_it_thins_the_training_rows_of_all_clients_together_and_no_test_row(
    numbered, make, listed, ratio, seed, source
):
    marks = np.array(["train", "test", "train", "validation"])[np.arange(400) % 4] if source else None
    rows = rows_of_four_classes([160, 120, 80, 40], numbered, split=marks)
    step = {"kind": "subsample", "classes": listed, "ratio": ratio}
    split = {"validation": 0.1, "test": 0.25, "seed": seed}
    plain = make(rows, EQUAL, **split)
    try:
        made = make(rows, EQUAL, step, **split)
    except UserError:  # too few rows are left for the clients
        assume(False)
    for one, other in zip(plain.clients, made.clients, strict=True):
        for name in ("validation", "test"):
            np.testing.assert_array_equal(one.x[one.split == name], other.x[other.split == name])
        assert (np.diff(other.x[:, 0]) > 0).all()
    before, after = numbers(plain, "train"), numbers(made, "train")
    assert after.items() <= before.items()
    had, left = Counter(before.values()), Counter(after.values())
    for code in range(4):
        assert left[code] == (max(1, round(had[code] / ratio)) if str(code) in listed else had[code])
    assert made.left_out == len(before) - len(after)
    assert made.notes == ((f"The scheme leaves out {made.left_out} rows of the source.",) if made.left_out else ())


def test_rows_that_the_source_marks_as_test_or_validation_stay(numbered, make):
    marks = np.array(["train", "test", "validation"])[np.arange(300) % 3]
    rows = rows_of_four_classes([100, 100, 50, 50], numbered, split=marks)
    made = make(rows, {"kind": "subsample", "classes": [0, 1], "ratio": 10}, EQUAL, test=0.3)
    for name in ("test", "validation"):
        assert numbers(made, name).keys() == set(np.flatnonzero(marks == name))
    had, left = Counter(rows.y[marks == "train"]), Counter(numbers(made, "train").values())
    assert left == {0: round(had[0] / 10), 1: round(had[1] / 10), 2: had[2], 3: had[3]}


def test_the_paper_keeps_245_rows_of_four_classes_of_mnist(make):
    """Classes 0, 1, 2 and 9 reduced to one of a hundred: 59 + 67 + 60 + 59 of 24,572, and 35,673 rows in all."""
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    y = np.repeat(np.arange(10), counts)
    rows = Rows(np.zeros((60_000, 1), np.uint8), y, [str(digit) for digit in range(10)])
    made = make(rows, {"kind": "subsample", "classes": [0, 1, 2, 9], "ratio": 100}, {"kind": "equal", "clients": 100})
    left = np.bincount(np.concatenate([client.y for client in made.clients]))
    assert left.tolist() == [59, 67, 60, *counts[3:9], 59]
    assert left.sum() == 35_673
    assert made.left_out == 24_572 - 245


@pytest.mark.parametrize("first", [True, False])
def test_a_subsample_is_drawn_anew_for_another_seed_and_class_by_class(numbered, make, first):
    """Rows of a client each, so that nothing else hangs on the seed where the step comes after."""

    def kept(listed: list[str], ratio: float, seed: int) -> dict[str, frozenset[int]]:
        step = {"kind": "subsample", "classes": listed, "ratio": ratio}
        deal = {"kind": "equal", "clients": 1}
        made = make(numbered(400, 4), *([step, deal] if first else [deal, step]), seed=seed)
        owned = numbers(made)
        return {str(code): frozenset(n for n, y in owned.items() if y == code) for code in range(4)}

    both, other = kept(["0", "1"], 5, 0), kept(["0", "1"], 5, 1)
    assert both["0"] != other["0"]
    assert both["1"] != other["1"]
    assert {n // 4 for n in both["0"]} != {n // 4 for n in both["1"]}  # classes in turn: not the same places of each
    assert kept(["1", "0"], 5, 0) == both
    assert kept(["1"], 5, 0)["1"] == both["1"]
    assert kept(["0", "1"], 20, 0)["0"] < both["0"]  # a larger ratio keeps some of the same rows


def test_which_rows_stay_is_drawn_evenly(numbered, make):
    step = {"kind": "subsample", "classes": ["0"], "ratio": 4}
    deal = {"kind": "equal", "clients": 1}
    times = Counter(
        n for seed in range(200) for n, y in numbers(make(numbered(40, 2), step, deal, seed=seed)).items() if y == 0
    )
    assert sum(times.values()) == 200 * 5
    assert len(times) == 20
    assert all(28 <= count <= 75 for count in times.values())  # 50 expected, 6 its deviation


def test_two_steps_thin_classes_by_ratios_of_their_own(numbered, make):
    steps = [{"kind": "subsample", "classes": [c], "ratio": r} for c, r in (("0", 2), ("2", 10))]
    made = make(numbered(300, 3), *steps, EQUAL)
    assert Counter(numbers(made).values()) == {0: 50, 1: 100, 2: 10}
    assert make(numbered(300, 3), steps[0], EQUAL, steps[1]).left_out == 140


def test_missing_values_stay_beside_the_rows_that_are_kept(make):
    x = np.arange(90, dtype=np.float32)[:, None]
    rows = Rows(x=x, y=np.arange(90) % 3, classes=["0", "1", "2"], missing=x % 7 == 0)
    step = {"kind": "subsample", "classes": ["0"], "ratio": 3}
    for steps in ([step, EQUAL], [EQUAL, step]):
        for client in make(rows, *steps).clients:
            np.testing.assert_array_equal(client.missing, client.x % 7 == 0)


def test_before_test_rows_are_drawn_from_the_same_rows_it_is_refused(numbered, make):
    step = {"kind": "subsample", "classes": ["0"], "ratio": 3}
    with pytest.raises(
        UserError, match=r"data\.scheme\[0\] \(`subsample`\): got this step before the clients' test rows are drawn"
    ):
        make(numbered(60), step, EQUAL, test=0.2)
    assert make(numbered(60), EQUAL, step, test=0.2).left_out > 0
    assert make(numbered(60), step, EQUAL, test=0).left_out > 0
    assert make(numbered(60), step, EQUAL, test=0.2, test_rows="common").left_out > 0


def test_a_client_that_would_have_no_training_rows_is_named(make):
    client = np.repeat(["a", "b", "c"], [40, 4, 4])
    rows = Rows(np.zeros((48, 1), np.float32), (client == "a").astype(int), ["0", "1"], client=client)
    by_name, step = {"kind": "column", "column": "client"}, {"kind": "subsample", "classes": ["0", "1"]}
    assert len(make(rows, by_name, step | {"ratio": 1}).clients) == 3
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`subsample`\): got no training rows left for client b"):
        make(rows, by_name, step | {"ratio": 8})  # one row for two clients


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        (
            ["subsample"],
            ": got a first step `subsample`, expected a first step that makes clients, with only `subsample` before",
        ),
        (
            ["subsample", "fresh", "equal"],
            ": got a first step `subsample`, `fresh`, expected a first step that makes clients",
        ),
        (
            ["subsample", "equal", "equal"],
            r"\[2\]: got `equal`, expected no second step that makes clients after `equal`",
        ),
        (
            ["subsample", "column"],
            r"\[0\]: got `subsample` before `column`, expected it after, since a client could lose all",
        ),
    ],
)
def test_nothing_else_stands_before_the_step_that_makes_clients(params, scheme, said):
    steps = {
        "subsample": {"kind": "subsample", "classes": [0], "ratio": 2},
        "fresh": {"kind": "fresh", "per_domain": 1},
        "equal": EQUAL,
        "column": {"kind": "column", "column": "client"},
    }
    with pytest.raises(UserError, match=rf"params\.yaml: data\.scheme{said}"):
        params(scheme=[steps[kind] for kind in scheme])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"classes": [0, 0]}, "Value error, got the class '0' twice, expected it once"),
        ({"classes": []}, "at least 1"),
        ({"ratio": 0.5}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_thinned_is_refused(params, keys, said):
    with pytest.raises(ValidationError, match=said):
        params(scheme=[{"kind": "subsample", "classes": [0], "ratio": 2} | keys, EQUAL])


@pytest.mark.parametrize("first", [True, False])
def test_a_class_that_does_not_exist_and_targets_that_are_numbers_are_sentences(numbered, make, first):
    step = {"kind": "subsample", "classes": ["cat"], "ratio": 2}
    steps = [step, EQUAL] if first else [EQUAL, step]
    with pytest.raises(UserError, match=rf"data.scheme\[{1 - first}\].*got the class 'cat', expected one of 0, 1, 2"):
        make(numbered(12), *steps)
    lines = Rows(np.zeros((9, 1), np.float32), np.zeros(9, np.float32), [], task="regression")
    with pytest.raises(UserError, match=r"\(`subsample`\): got the class 'cat', expected no class, since the source"):
        make(lines, *steps)
