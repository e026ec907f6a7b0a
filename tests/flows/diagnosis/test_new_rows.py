"""Rows that came since a version are judged by themselves: in a whole version they are diluted."""

import numpy as np
import pytest

from flows.diagnose import compare_with_version
from silos.privacy.ledger import Ledger
from tasks.diagnosis.report_new_rows import copies_that_are_new
from tasks.execution.task_runner import PlainRunner

NAMED = [{"name": "age", "low": 0, "high": 120}, {"name": "sbp", "low": 60, "high": 220}]
AGE = 66.4


def visits(seed, count, older=0.0):
    """Ages of one decimal, with a deviation of 15 years, and blood pressures; the label follows from the age."""
    rng = np.random.default_rng(seed)
    x = np.stack([np.round(rng.normal(AGE + older, 15, count), 1), np.round(rng.normal(140, 20, count), 1)], 1)
    return x, (x[:, 0] + rng.normal(0, 20, count) > AGE).astype(np.int64)


def joined(*parts):
    return tuple(np.concatenate(each) for each in zip(*parts, strict=True))


def against(opened, revision, *overrides):
    return compare_with_version(opened.open(*overrides), PlainRunner(), revision)[1]


@pytest.fixture
def three():
    return {name: visits(seed, 500) for seed, name in enumerate(("east", "north", "west"))}


def test_new_rows_that_are_older_are_named_although_the_whole_version_hardly_moved(world, three):
    own = world()
    before = own.write(three, features=NAMED)
    own.write({**three, "north": joined(three["north"], visits(9, 135, 13.7))}, features=NAMED)
    found = against(own, before)
    assert not any(pair["types"] for pair in found["pairs"])
    (record,) = found["new_rows"]["silos"]
    assert (record["client"], record["rows"], record["types"]) == ("north", [135, 500], ["feature"])
    assert not record["undetermined"]
    assert record["features"] == {"age": pytest.approx(1.0, abs=0.15)}
    assert found["sentences"] == [
        f"No change was seen in whole versions in 3 silos since {before}; of 1 silo the new training rows differ by "
        "themselves.",
        "north: its 135 new training rows, by themselves, are unlike its 500 earlier ones: inputs differ, most in age "
        f"({record['features']['age']:+.1f} deviations).",
    ]
    assert found["next"] == ["If the change is real, train again on the present rows."]


def test_new_rows_like_the_earlier_ones_and_unchanged_silos_are_not_named(world, three):
    own = world()
    before = own.write(three, features=NAMED)
    own.write({**three, "north": joined(three["north"], visits(9, 135))}, features=NAMED)
    found = against(own, before)
    assert [(record["client"], record["types"]) for record in found["new_rows"]["silos"]] == [("north", [])]
    assert found["sentences"] == [f"No change was seen in 3 silos since {before}."]


def test_rows_that_another_draw_of_splits_moved_are_not_new(world, three):
    """And few new rows are not compared, though many rows moved between splits."""
    own = world()
    before = own.write(three, features=NAMED, test=0.3)
    more = {"north": visits(9, 135, 13.7), "west": visits(8, 5)}
    own.write(
        {name: joined(rows, more.get(name, visits(0, 0))) for name, rows in three.items()}, features=NAMED, test=0.3
    )
    found = against(own, before)
    new = found["new_rows"]
    (north,) = new["silos"]
    assert north["client"] == "north"
    assert 80 <= north["rows"][0] <= 110  # 95 expected of 135
    assert north["types"] == ["feature"]
    assert list(new["refused"]) == ["west"]
    assert "got no class with 10 different new training rows" in new["refused"]["west"]
    reason = new["refused"]["west"].removeprefix("client west: ")
    assert f"west did not compare its new rows by themselves: {reason}" in found["sentences"]


def test_rows_that_left_hide_no_new_ones(world, three):
    """As where the oldest visits are dropped each month."""
    own = world()
    before = own.write(three, features=NAMED)
    later = tuple(part[100:] for part in three["north"])
    own.write({**three, "north": joined(later, visits(9, 100, 13.7))}, features=NAMED)
    found = against(own, before)
    (record,) = found["new_rows"]["silos"]
    assert (record["rows"], record["types"]) == ([100, 500], ["feature"])
    assert "north" in found["refused"], "its whole version, of which few values of a column left"


def test_where_every_row_is_new_the_whole_is_compared_only(world, three):
    own = world()
    before = own.write(three, features=NAMED)
    own.write({**three, "north": visits(9, 500, 13.7)}, features=NAMED)
    assert against(own, before)["new_rows"] == {"silos": [], "refused": {}, "bytes": 0, "reason": None}


def test_new_rows_are_compared_once(world, three):
    """Answers to many questions about few rows would single them out; the same question has the same answer."""
    own = world()
    before = own.write(three, features=NAMED)
    own.write({**three, "north": joined(three["north"], visits(9, 135, 13.7))}, features=NAMED)
    first = against(own, before)["new_rows"]
    assert against(own, before)["new_rows"] == first
    again = against(own, before, "diagnose.verdict=paper")["new_rows"]
    assert again["silos"] == []
    assert "client north: got a second query of the kind `how new rows differ`" in again["refused"]["north"]


def test_new_rows_are_not_compared_with_other_earlier_rows_as_well(world, three):
    """The earlier answer is not repeated for them either."""
    own, new = world(), visits(9, 135, 13.7)
    before = own.write(three, features=NAMED)
    own.write({**three, "north": joined(three["north"], new)}, features=NAMED)
    assert against(own, before)["new_rows"]["silos"]
    more = {**three, "north": joined(three["north"], visits(8, 200))}
    before = own.write(more, features=NAMED)
    own.write({**more, "north": joined(more["north"], new)}, features=NAMED)
    found = against(own, before)["new_rows"]
    assert found["silos"] == []
    assert "client north: got a second query of the kind `how new rows differ`" in found["refused"]["north"]


def test_new_rows_that_differ_by_few_from_those_compared_before_are_not_compared(world, three):
    """Each version is compared with the first: the second and third decision would differ by five rows."""
    own, new = world(), visits(9, 135, 13.7)
    before = own.write(three, features=NAMED)
    own.write({**three, "north": joined(three["north"], new)}, features=NAMED)
    assert against(own, before)["new_rows"]["silos"]
    own.write({**three, "north": joined(three["north"], tuple(part[:130] for part in new))}, features=NAMED)
    found = against(own, before)["new_rows"]
    assert found["silos"] == []
    assert "fewer than 10" in found["refused"]["north"]


def test_under_noise_no_silo_is_asked_about_its_new_rows(world, three):
    own = world()
    before = own.write(three, features=NAMED)
    own.write({**three, "north": joined(three["north"], visits(9, 135, 13.7))}, features=NAMED)
    found = against(own, before, "diagnose.noise={epsilon: 2}")
    assert found["new_rows"]["silos"] == []
    assert found["new_rows"]["reason"] == "new rows are not compared by themselves under noise"
    assert [len(Ledger(str(own.folder / "private" / "own"), name).entries()) for name in three] == [2, 2, 2]


def test_visits_of_few_new_patients_are_not_compared(world, three):
    """Eighty visits of eight new patients; of twelve patients there are enough."""
    own, before = world(), ""
    patients = {name: np.arange(500) // 2 + 1000 * at for at, name in enumerate(three)}
    for new in (0, 8, 12):
        x, _ = visits(9, 10 * new, 13.7)
        patient = {**patients, "north": np.r_[patients["north"], 5000 + np.arange(10 * new) // 10]}
        rows = {**three, "north": joined(three["north"], (x, np.ones(len(x), np.int64)))}
        version = own.write(rows, features=NAMED, patient=np.concatenate(list(patient.values())).astype(str))
        before = before or version
        found = against(own, before)["new_rows"]
        assert [record["rows"][0] for record in found["silos"]] == ([120] if new == 12 else [])
        assert list(found["refused"]) == (["north"] if new == 8 else [])


@pytest.mark.parametrize("copies", [1, 7])
def test_new_copies_of_rows_are_found_as_often_as_rows_without_copies(copies):
    """A table of few categories: what is new is drawn, so that no value is more often new than another."""
    rng = np.random.default_rng(0)
    earlier = np.repeat(np.arange(400), copies)
    now = np.r_[earlier, np.repeat(np.arange(300, 500), copies)]  # 100 values come again, and 100 for the first time
    is_train = rng.random(len(now)) < 0.7
    found = copies_that_are_new(now[is_train], now[~is_train], earlier, np.random.default_rng(1))
    assert found is not None
    of_new, train = now[is_train][found], now[is_train]
    assert of_new.min() >= 300
    assert (found[train >= 400]).all()
    again = ((of_new >= 300) & (of_new < 400)).sum()
    assert again == pytest.approx(0.7 * 100 * copies, abs=4 * np.sqrt(0.21 * 100 * copies))


def test_with_many_copies_and_rows_that_left_new_rows_are_not_known():
    earlier, rng = np.repeat(np.arange(50), 2), np.random.default_rng(0)
    assert copies_that_are_new(np.r_[earlier[2:], 60], earlier[:0], earlier, rng) is None
    alone = np.arange(100)
    found = copies_that_are_new(np.r_[alone[2:], 160], alone[:0], alone, rng)
    assert found is not None
    assert found.tolist() == [False] * 98 + [True]


def test_one_more_newcomer_is_not_compared_whatever_columns_are_left_out(world, three):
    """Rows of other columns are other rows to the ledger; values of the columns that stay tell that one row came."""
    own = world()
    sets = (["age", "sbp"], ["age"], ["sbp"])
    columns = {feature["name"]: index for index, feature in enumerate(NAMED)}

    def written(rows, names):
        kept = [columns[name] for name in names]
        features = [feature for feature in NAMED if feature["name"] in names]
        return own.write({client: (x[:, kept], y) for client, (x, y) in rows.items()}, features=features)

    before = {tuple(names): written(three, names) for names in sets}
    newcomers = joined(visits(9, 40, 30.0), (np.array([[20.0, 140.0]]), np.array([1])))
    answered = []
    for names, count in ((sets[0], 40), (sets[1], 41), (sets[2], 41)):
        rows = tuple(part[:count] for part in newcomers)
        written({**three, "north": joined(three["north"], rows)}, names)
        answered.append([record["client"] for record in against(own, before[tuple(names)])["new_rows"]["silos"]])
    assert answered == [["north"], [], []]
