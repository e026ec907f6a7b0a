"""Whatever the scheme: every row is in exactly one place or counted as left out, and the same draw gives the same."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from silos.data_params import DataParams
from silos.dataset import Rows, natural_sort_key
from silos.errors import UserError
from silos.schema import Feature

CLIENTS = st.integers(1, 12)
WITHIN = st.sampled_from([None, "domain"])


def step(kind: str, **keys: st.SearchStrategy) -> st.SearchStrategy:
    return st.fixed_dictionaries({"kind": st.just(kind), **keys})


CLASSES = st.lists(st.sampled_from("012"), min_size=1, max_size=3, unique=True)
ASSIGNMENTS = st.one_of(
    step("equal", clients=CLIENTS, within=WITHIN),
    step("quantity", clients=CLIENTS, within=WITHIN, beta=st.floats(0.01, 100)),
    step("dirichlet", clients=CLIENTS, within=WITHIN, alpha=st.floats(0.001, 1000), min_rows=st.integers(1, 3)),
    step("shards", clients=CLIENTS, within=WITHIN, shards_per_client=st.integers(1, 4)),
    step("balanced", clients=CLIENTS, percent=st.floats(0, 100), groups=st.just([["0"], ["1", "2"]])),
    step("classes_per_cluster", clients=CLIENTS, clusters=st.lists(CLASSES, min_size=1, max_size=3)),
    step("column", column=st.sampled_from(["client", "domain"])),
)
SUBSAMPLE = step("subsample", classes=st.just(["0", "2"]), ratio=st.floats(1, 20))
CHANGES = st.one_of(
    step("noise", sd=st.floats(0, 0), within=WITHIN, clip=st.booleans()),
    step("permute_labels", clusters=st.just(2), within=WITHIN),
    step("merge_labels", into=st.just({"low": ["0", "1"]})),
    step("imbalance", classes=st.just(["2"]), ratio=st.floats(1, 20)),
    SUBSAMPLE,
    step("fresh", per_domain=st.integers(1, 2)),
    step("hold_out", domains=st.just(["b"])),
)
SPLITS = st.fixed_dictionaries(
    {
        "validation": st.floats(0, 0.4),
        "test": st.floats(0, 0.4),
        "validation_rows": st.sampled_from(["own", "common"]),
        "test_rows": st.sampled_from(["own", "common"]),
    }
)


@pytest.mark.slow
@settings(deadline=None, max_examples=10 * settings.default.max_examples)
@given(
    before=st.lists(SUBSAMPLE, max_size=1),
    first=ASSIGNMENTS,
    then=st.lists(CHANGES, max_size=3),
    split=SPLITS,
    source=st.sampled_from([None, "train test", "all three"]),
    n=st.integers(1, 90),
    seed=st.integers(0, 2**64),
)
def test_every_row_is_in_one_place_or_left_out(numbered, make, before, first, then, split, source, n, seed):
    marks = {"train test": ["train", "train", "test"], "all three": ["train", "test", "train", "validation"]}
    own = None if source is None else np.array([marks[source][i % len(marks[source])] for i in range(n)])
    domain = np.array(["a" if number < n / 2 else "b" for number in range(n)])
    rows = numbered(n, client=np.array([f"h{number % 5}" for number in range(n)]), domain=domain, split=own)
    try:
        made = make(rows, *before, first, *then, seed=seed, **split)
    except UserError:
        assume(False)
    owned = np.concatenate([client.x[:, 0] for client in made.clients]).astype(int).tolist()
    common = [] if made.common is None else made.common.x[:, 0].astype(int).tolist()
    assert len(set(owned + common)) == len(owned + common) == n - made.left_out
    for client in made.clients:
        assert len(client.x) == len(client.y) == len(client.split)
        assert (client.split == "train").any()
        assert (np.diff(client.x[:, 0]) > 0).all()
        if own is not None:
            theirs = own[client.x[:, 0].astype(int)]
            assert (client.split[theirs == "test"] == "test").all()
            assert (theirs[client.split == "test"] == "test").all()  # no test row trains, and no other tests
    for name in ("test", "validation"):
        asked = made.common is not None and (made.common.split == name).any()
        assert asked == (split[f"{name}_rows"] == "common")
        if asked:
            assert not any((client.split == name).any() for client in made.clients)
    again = make(rows, *before, first, *then, seed=seed, **split)
    for one, other in zip(made.clients, again.clients, strict=True):
        assert (one.name, one.domain, one.role) == (other.name, other.domain, other.role)
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
        np.testing.assert_array_equal(one.split, other.split)


@settings(deadline=None)
@given(first=ASSIGNMENTS, n=st.integers(20, 60), seed=st.integers(0, 99))
def test_a_change_leaves_the_assignment_and_the_split_alone(numbered, make, first, n, seed):
    rows = numbered(n, client=np.array(list("abcd") * n)[:n], domain=np.array(list("xy") * n)[:n])
    try:
        plain = make(rows, first, seed=seed, validation=0.2, test=0.2)
    except UserError:
        assume(False)
    merged = {"kind": "merge_labels", "into": {"all": ["0", "1", "2"]}}
    changed = make(rows, first, {"kind": "noise", "sd": 0}, merged, seed=seed, validation=0.2, test=0.2)
    for before, after in zip(plain.clients, changed.clients, strict=True):
        np.testing.assert_array_equal(before.x, after.x)
        np.testing.assert_array_equal(before.split, after.split)
        assert not after.y.any()


@settings(deadline=None)
@given(first=ASSIGNMENTS, then=st.lists(CHANGES, max_size=3), split=SPLITS)
def test_a_recipe_reads_back_as_the_same_params(params, first, then, split):
    built = params(scheme=[first, *then], split=split)
    recipe = json.loads(json.dumps(built.recipe()))
    assert DataParams.model_validate(recipe) == built
    assert DataParams.model_validate(recipe).recipe() == recipe


@given(st.lists(st.text(max_size=4)))
def test_any_names_can_be_sorted(names):
    sorted(names, key=natural_sort_key)


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        ([{"kind": "sharded", "clients": 2}], "sharded"),
        ([{"kind": "dirichlet", "clients": 2, "alpha": 0}], "greater than or equal to 0.000000001"),
        ([{"kind": "dirichlet", "clients": 2, "alpha": -1}], "greater than or equal to 0.000000001"),
        ([{"kind": "dirichlet", "clients": 2, "alpha": float("inf")}], "finite"),
        ([{"kind": "quantity", "clients": 2, "beta": 0}], "greater than or equal to 0.000000001"),
        ([{"kind": "balanced", "clients": 2, "percent": 101}], "less than or equal to 100"),
        ([{"kind": "balanced", "clients": 2, "percent": 1, "groups": "papers"}], "expected paper, code, or a list"),
        ([{"kind": "balanced", "clients": 2, "percent": 1, "groups": [["a"], []]}], "expected paper, code, or a"),
        ([{"kind": "equal", "clients": 2}, {"kind": "noise", "sd": -1}], "greater than or equal to 0"),
        ([{"kind": "equal", "clients": 2}, {"kind": "imbalance", "classes": ["0"], "ratio": 0.5}], "equal to 1"),
        ([{"kind": "equal", "clients": 2}, {"kind": "imbalance", "classes": [], "ratio": 2}], "at least 1"),
        (
            [{"kind": "equal", "clients": 2}, {"kind": "imbalance", "classes": [0, "0"], "ratio": 2}],
            "Value error, got the class '0' twice, expected it once",
        ),
        (
            [{"kind": "equal", "clients": 2}, {"kind": "merge_labels", "into": {"a": [1, 2], "b": [2]}}],
            "Value error, got the",
        ),
    ],
)
def test_what_no_law_allows_is_refused(params, scheme, said):
    with pytest.raises(ValidationError, match=said):
        params(scheme=scheme)


def test_classes_may_be_written_as_whole_numbers(params):
    (_, step) = params(
        scheme=[{"kind": "equal", "clients": 2}, {"kind": "imbalance", "classes": [0, "1"], "ratio": 2}]
    ).scheme
    assert step.classes == ("0", "1")


DEALS = {
    "equal": {},
    "quantity": {"beta": 1.0},
    "dirichlet": {"alpha": 1.0, "min_rows": 1},
    "shards": {"shards_per_client": 2},
    "balanced": {"percent": 50, "groups": [["0", "1"], ["2"]]},
    "classes_per_cluster": {"clusters": [["0", "1"], ["2"]]},
}


@pytest.mark.parametrize("kind", DEALS)
def test_another_seed_deals_other_rows(kind, numbered, make):
    step = {"kind": kind, "clients": 4, **DEALS[kind]}
    dealt = [[tuple(c.x[:, 0]) for c in make(numbered(120), step, seed=seed).clients] for seed in (0, 1, 2)]
    assert not any(one == other for one, other in combinations(dealt, 2))


DRAWN = {
    "noise": ({"sd": 1.0}, lambda client: client.x[:, 0] - np.arange(30)),
    "imbalance": ({"classes": ["0"], "ratio": 3}, lambda client: client.x[:, 0]),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_change_is_drawn_anew_for_another_seed_and_for_every_client(kind, make):
    """Two clients with the same rows, dealt by name, so that nothing else hangs on the seed."""
    options, seen = DRAWN[kind]
    x = np.tile(np.arange(30, dtype=np.float32), 2)[:, None]
    rows = Rows(x=x, y=x[:, 0].astype(int) % 2, classes=["0", "1"], client=np.repeat(["a", "b"], 30))
    by_name = {"kind": "column", "column": "client"}
    found = [
        tuple(seen(client))
        for seed in (0, 1)
        for client in make(rows, by_name, {"kind": kind, **options}, seed=seed).clients
    ]
    assert not any(one == other for one, other in combinations(found, 2))


def test_another_seed_renames_classes_in_another_way(numbered, make):
    step = {"kind": "permute_labels", "clusters": 2}
    labels = []
    for seed in (0, 1):
        clients = make(numbered(60, 9), {"kind": "equal", "clients": 2}, step, seed=seed).clients
        labels.append({int(row) % 9: int(y) for row, y in zip(clients[1].x[:, 0], clients[1].y, strict=True)})
    assert labels[0] != labels[1]


def test_a_step_that_is_there_twice_draws_twice(make):
    rows = Rows(x=np.zeros((50, 1), np.float32), y=np.zeros(50, np.int64), classes=["0"])
    noise = {"kind": "noise", "sd": 1.0}
    once, twice = (make(rows, {"kind": "equal", "clients": 1}, *[noise] * n).clients[0].x[:, 0] for n in (1, 2))
    assert abs(np.corrcoef(once, twice - once)[0, 1]) < 0.6


WARD = Feature(name="ward=eye", kind="categorical", categories=(0, 1))


@pytest.mark.parametrize("common", [False, True])
def test_a_class_or_category_that_only_test_rows_have_is_named(make, common):
    split = np.array(["train"] * 6 + ["test"] * 4)
    eye = np.isin(np.arange(10), [8, 9]).astype(np.float32)[:, None]
    rows = Rows(x=eye, y=np.array([0, 1] * 3 + [2, 0, 1, 2]), classes=["a", "b", "c"], split=split, features=(WARD,))
    where = {"test_rows": "common"} if common else {}
    assert make(rows, {"kind": "equal", "clients": 2}, **where).notes == (
        "no training row has the class 'c' (2), which test rows have",
        "no training row has the category 'ward=eye' (2), which test rows have",
    )
    both = replace(rows, x=np.ones((10, 1), np.float32), y=np.array([0, 1, 2, 0, 1, 2, 2, 0, 1, 2]))
    assert make(both, {"kind": "equal", "clients": 2}, **where).notes == ()


def test_rows_of_a_client_that_does_not_train_teach_no_class(make):
    rows = Rows(
        x=np.zeros((8, 1), np.float32),
        y=np.array([0, 0, 0, 0, 1, 1, 1, 1]),
        classes=["a", "b"],
        client=np.repeat(["n", "s"], 4),
        domain=np.repeat(["n", "s"], 4),
    )
    steps = ({"kind": "column", "column": "client"}, {"kind": "hold_out", "domains": ["s"]})
    assert make(rows, *steps, test=0.5).notes == ("no training row has the class 'b' (2), which test rows have",)


def test_a_label_with_one_class_is_named(make):
    rows = Rows(x=np.zeros((8, 1), np.float32), y=np.zeros(8, np.int64), classes=["ill"])
    assert make(rows, {"kind": "equal", "clients": 2}).notes == (
        "every row has the class 'ill', so there is nothing to predict: name another column as the label",
    )
