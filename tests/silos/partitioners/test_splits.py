"""Each row of a client is in one split, and one at least is left to train on."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from silos.data_params import SplitParams
from silos.dataset import SPLITS, ClientRows, Clients
from silos.errors import UserError
from silos.partitioners import splits
from silos.partitioners.splits import take_common

FRACTIONS = st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)).filter(lambda pair: sum(pair) < 1)


def client(n: int, split: np.ndarray | None = None) -> ClientRows:
    return ClientRows("lyon", "", np.zeros((n, 1), np.float32), np.zeros(n, np.int64), split)


def split_rows(client: ClientRows, params: SplitParams, seed: int) -> dict[str, np.ndarray]:
    """The numbers of one client's rows, by split."""
    codes = splits.split_rows(Clients.concatenate([client]), params, seed)
    return {name: np.flatnonzero(codes == code) for code, name in enumerate(SPLITS)}


@given(n=st.integers(1, 300), fractions=FRACTIONS, seed=st.integers(0, 2**32))
def test_each_row_is_in_one_split_and_one_at_least_trains(n, fractions, seed):
    params = SplitParams(validation=fractions[0], test=fractions[1])
    parts = split_rows(client(n), params, seed)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(n))
    assert len(parts["train"]) >= 1
    if fractions[0] * n + fractions[1] * n <= n - 2:
        assert len(parts["test"]) == int(n * fractions[1] + 0.5)
        assert len(parts["validation"]) == int(n * fractions[0] + 0.5)


def test_the_sources_own_split_is_kept():
    given_split = np.array(["test", "train", "validation", "train"])
    parts = split_rows(client(4, given_split), SplitParams(validation=0.5, test=0.2), 0)
    assert {name: rows.tolist() for name, rows in parts.items()} == {
        "train": [1, 3],
        "validation": [2],
        "test": [0],
    }


def test_validation_is_carved_from_train_where_the_source_gives_none():
    given_split = np.array(["train"] * 10 + ["test"] * 5)
    parts = split_rows(client(15, given_split), SplitParams(validation=0.2, test=0.5), 0)
    assert len(parts["validation"]) == 2
    assert set(parts["train"]) | set(parts["validation"]) == set(range(10))
    assert parts["test"].tolist() == list(range(10, 15))


def test_a_client_without_training_rows_is_named():
    with pytest.raises(UserError, match="client lyon: got no training rows in the source's own split, expected at"):
        split_rows(client(2, np.array(["test", "test"])), SplitParams(validation=0, test=0), 0)


def test_every_client_and_every_seed_draws_its_own_split():
    """Of clients with as many rows, and whether the source marks test rows or not."""
    params = SplitParams(validation=0.3, test=0.3)
    for marks in (None, np.array(["train"] * 50 + ["test"] * 10)):
        asked = [("lyon", 0), ("oslo", 0), ("lyon", 1)]
        drawn = [split_rows(replace(client(60, marks), name=name), params, seed)["validation"] for name, seed in asked]
        assert len({tuple(rows) for rows in drawn}) == len(asked)
        assert split_rows(client(60, marks), params, 0)["validation"].tolist() == drawn[0].tolist()


def test_a_client_is_split_alike_alone_and_among_others():
    params, marks = SplitParams(validation=0.3, test=0.3), np.array(["train"] * 50 + ["test"] * 10)
    for split in (None, marks):
        alone = [replace(client(60, split), name=name) for name in ("lyon", "oslo")]
        together = splits.split_rows(Clients.concatenate(alone), params, 0)
        for part, one in zip(np.split(together, 2), alone, strict=True):
            np.testing.assert_array_equal(part, splits.split_rows(Clients.concatenate([one]), params, 0))


# --- rows that no client owns ---


@settings(deadline=None)
@given(
    n=st.integers(2, 300),
    fractions=FRACTIONS,
    whose=st.tuples(*[st.sampled_from(["own", "common"])] * 2),
    seed=st.integers(0, 2**32),
)
def test_common_rows_are_the_fraction_of_all_rows(numbered, n, fractions, whose, seed):
    validation, test = fractions
    params = SplitParams(validation=validation, test=test, validation_rows=whose[0], test_rows=whose[1])
    wanted = {
        name: int(n * share + 0.5)
        for name, share, owner in (("validation", validation, whose[0]), ("test", test, whose[1]))
        if owner == "common"
    }
    assume(all(wanted.values()) and sum(wanted.values()) < n)
    owned, common = take_common(numbered(n), params, seed)
    if not wanted:
        assert common is None
        assert len(owned.y) == n
        return
    assert owned.split is None
    assert {name: int((common.split == name).sum()) for name in wanted} == wanted
    assert sorted([*owned.x[:, 0], *common.x[:, 0]]) == list(range(n))


def test_the_sources_own_test_rows_are_the_common_ones(numbered):
    rows = numbered(9, split=np.array(["train", "test", "validation"] * 3))
    params = SplitParams(validation=0, test=0, test_rows="common")
    owned, common = take_common(rows, params, 0)
    assert common.x[:, 0].tolist() == [1, 4, 7]
    assert set(owned.split) == {"train", "validation"}
    owned, common = take_common(rows, SplitParams(validation=0, test=0.3, validation_rows="common"), 0)
    assert common.x[:, 0].tolist() == [2, 5, 8]
    assert set(owned.split) == {"train", "test"}


def test_common_validation_rows_are_taken_from_training_rows(numbered):
    rows = numbered(90, split=np.array(["train", "train", "test"] * 30))
    params = SplitParams(validation=0.5, test=0, validation_rows="common", test_rows="common")
    owned, common = take_common(rows, params, 0)
    assert (common.split == "validation").sum() == 30
    assert (common.x[common.split == "test", 0] % 3 == 2).all()
    assert (common.x[common.split == "validation", 0] % 3 != 2).all()
    assert set(owned.split) == {"train"}


@pytest.mark.parametrize("seed", [0, 1])
def test_common_validation_rows_from_the_start_are_the_first_that_may_train(numbered, seed):
    rows = numbered(60, split=np.array(["test", "train", "train"] * 20))
    params = SplitParams(validation=1 / 4, test=0, validation_rows="common", validation_from="start")
    owned, common = take_common(rows, params, seed)
    assert common.x[:, 0].tolist() == [1, 2, 4, 5, 7, 8, 10, 11, 13, 14]
    assert set(common.split) == {"validation"}
    assert sorted([*owned.x[:, 0], *common.x[:, 0]]) == list(range(60))


def test_common_validation_rows_from_the_start_are_none_that_test(numbered):
    split = {"validation": 0.5, "test": 0.25, "test_rows": "common", "validation_rows": "common"}
    _, drawn = take_common(numbered(40), SplitParams(**split), 0)
    _, common = take_common(numbered(40), SplitParams(**split, validation_from="start"), 0)
    tested = common.x[common.split == "test", 0].tolist()
    assert tested == drawn.x[drawn.split == "test", 0].tolist()
    first = [number for number in range(40) if number not in tested][:20]
    assert common.x[common.split == "validation", 0].tolist() == first


@pytest.mark.parametrize("start", ["start", "anywhere"])
@pytest.mark.parametrize("marked", ["validation", "test"])
def test_a_start_is_said_to_have_no_effect_where_the_source_marks_validation_rows(numbered, make, marked, start):
    rows = numbered(40, split=np.array(["train", "train", "train", marked] * 10))
    split = {"validation": 0.25, "validation_rows": "common", "validation_from": start}
    made = make(rows, {"kind": "equal", "clients": 2}, **split)
    said = marked == "validation" and start == "start"
    assert [note.split(" has no effect")[0] for note in made.notes] == ["data.split.validation_from: start"] * said
    if marked == "validation":
        assert made.common.x[:, 0].tolist() == list(range(3, 40, 4))


def test_rows_of_clients_own_are_not_from_the_start():
    with pytest.raises(ValidationError, match="Value error, validation_from: got start, expected it only for"):
        SplitParams(validation=0.5, test=0, validation_from="start")


def test_another_seed_draws_other_common_rows_and_the_same_the_same(numbered):
    params = SplitParams(validation=0, test=0.3, test_rows="common")
    drawn = [tuple(take_common(numbered(60), params, seed)[1].x[:, 0]) for seed in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1]


def test_common_rows_leave_some_to_train_on(numbered):
    params = SplitParams(validation=0.25, test=0.25, validation_rows="common", test_rows="common")
    with pytest.raises(UserError, match=r"data\.split: got shares that take all 2 rows, expected rows left for"):
        take_common(numbered(2), params, 0)


@pytest.mark.parametrize("kind", ["test", "validation"])
def test_common_rows_that_would_be_none_are_a_sentence(numbered, kind):
    params = SplitParams(**{"validation": 0, "test": 0, f"{kind}_rows": "common"})
    with pytest.raises(
        UserError, match=rf"data.split.{kind}_rows: got common without common rows, .* Raise data.split.{kind}"
    ):
        take_common(numbered(9), params, 0)
