"""The schema's id is the same wherever the meaning is, and another wherever it differs; what cannot be meant is refused."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from silos.schema import Feature, Schema
from silos.storage.manifest import MANIFEST, read_manifest, schema_of, to_json

AGE = {"name": "age", "low": 0, "high": 120, "missing": {"fill": 40}}
SEX = {"name": "sex", "kind": "categorical", "categories": [1, 2]}
NUMBERS = st.floats(-(2.0**126), 2.0**126, width=32)


def schema(*features: dict, **changes: object) -> Schema:
    base = Schema(tuple(map(Feature.model_validate, features)), ("no", "yes"), "classification", (2,), "float32")
    return replace(base, **changes)


@st.composite
def entries(draw) -> dict:
    """An entry of data.features that is right."""
    entry = {"name": draw(st.text(min_size=1, max_size=20)), "missing": draw(st.just("refuse") | filled())}
    if draw(st.booleans()):
        return entry | {
            "kind": "categorical",
            "categories": draw(st.lists(NUMBERS, min_size=1, max_size=5, unique_by=float)),
        }
    low, high = sorted(draw(st.lists(NUMBERS, min_size=2, max_size=2, unique_by=float)))
    return entry | draw(st.sampled_from([{}, {"low": low, "high": high}]))


def filled() -> st.SearchStrategy[dict]:
    return NUMBERS.map(lambda number: {"fill": number})


def test_the_id_is_the_start_of_the_hash_of_canonical_json():
    text = (
        '{"classes":["no","yes"],"dtype":"float32","features":[{"high":120.0,"low":0.0,"missing":{"fill":40.0},'
        '"name":"age"},{"categories":[1.0,2.0],"kind":"categorical","name":"sex"}],"shape":[2],"task":"classification"}'
    )
    assert schema(AGE, SEX).id == hashlib.sha256(text.encode()).hexdigest()[:16]


@given(entries(), st.randoms(use_true_random=False))
def test_the_id_does_not_depend_on_the_order_of_keys(entry, rng):
    keys = list(entry)
    rng.shuffle(keys)
    assert schema({key: entry[key] for key in keys}).id == schema(entry).id


@given(entries())
def test_what_is_written_of_a_feature_reads_back_as_that_feature(entry):
    feature = Feature.model_validate(entry)
    assert Feature.model_validate(json.loads(json.dumps(feature.written()))) == feature


def test_saying_what_is_so_anyway_leaves_the_id():
    said = {"name": "a", "kind": "numeric", "categories": [], "low": None, "high": None, "missing": "refuse"}
    assert schema(said).id == schema({"name": "a"}).id
    assert schema({"name": "a", "low": -0.0, "high": 1}).id == schema({"name": "a", "low": 0, "high": 1.0}).id


def test_every_change_of_meaning_is_another_id():
    ids = [
        each.id
        for each in (
            schema(AGE, SEX),
            schema(SEX, AGE),
            schema(AGE),
            schema(AGE | {"name": "Age"}, SEX),
            schema(AGE | {"low": 1}, SEX),
            schema(AGE | {"high": 121}, SEX),
            schema(AGE | {"low": None, "high": None}, SEX),
            schema(AGE | {"missing": {"fill": 41}}, SEX),
            schema(AGE | {"missing": {"fill": 0}}, SEX),
            schema(AGE | {"missing": "refuse"}, SEX),
            schema(AGE, SEX | {"categories": [2, 1]}),
            schema(AGE, SEX | {"categories": [1, 2, 3]}),
            schema(AGE, {"name": "sex"}),
            schema(AGE, SEX, classes=("yes", "no")),
            schema(AGE, SEX, classes=("no", "yes", "perhaps")),
            schema(AGE, SEX, task="regression"),
            schema(AGE, SEX, shape=(3,)),
            schema(AGE, SEX, dtype="uint8"),
        )
    ]
    assert len(set(ids)) == len(ids)


def test_a_manifest_that_knows_no_features_still_reads_and_names_them_by_number(tmp_path, params):
    from silos.storage.partition_store import write

    np.savez(tmp_path / "own.npz", x=np.eye(9, 3), y=np.arange(9) % 2)
    folder = tmp_path / "data" / "small"
    written = write(folder, params(source={"kind": "npz", "path": "own.npz"}), tmp_path)
    assert "features" not in json.loads((folder / MANIFEST).read_text())
    schema = schema_of(read_manifest(folder))
    assert [feature.name for feature in schema.features] == ["x0", "x1", "x2"]
    assert {(f.kind, f.low, f.high, f.fill, f.categories) for f in schema.features} == {
        ("numeric", None, None, None, ())
    }
    named = replace(written, features=schema.features)
    assert schema_of(named).id == schema.id
    assert b"features" in to_json(named)


def test_pictures_have_no_features(tmp_path, params):
    from silos.storage.partition_store import write

    schema = schema_of(write(tmp_path / "data" / "small", params(), tmp_path))
    assert (schema.features, schema.shape, schema.dtype) == ((), (8, 8), "uint8")


@given(NUMBERS, NUMBERS, st.lists(NUMBERS, min_size=1, max_size=9))
def test_a_bound_itself_lies_inside(low, high, values):
    low, high = min(low, high), max(low, high)
    if low == high:
        return
    feature = Feature(name="a", low=low, high=high)
    expected = [not low <= value <= high for value in [*values, low, high]]
    assert feature.outside(np.array([*values, low, high], np.float32)).tolist() == expected


def test_a_bound_or_category_that_float32_rounds_holds_the_values_that_are_rounded_with_it():
    values = np.array([0.1, 0.3, 0.2], np.float32)
    assert Feature(name="a", low=0.1, high=0.3).outside(values).tolist() == [False] * 3
    categorical = Feature(name="a", kind="categorical", categories=(0.1, 0.3))
    assert categorical.outside(values).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"low": 3, "high": 3}, "Value error, 'a': got low 3 and high 3, expected low below high"),
        ({"low": 3, "high": 2}, "Value error, 'a': got low 3 and high 2, expected low below high"),
        ({"low": 1, "high": 1 + 1e-12}, "Value error, 'a': got low 1 and"),  # in float32, in which rows are kept
        ({"low": 3}, "Value error, 'a': got low without high, expected both bounds or none"),
        ({"high": 3}, "Value error, 'a': got high without low, expected both bounds or none"),
        ({"categories": [1]}, "Value error, 'a': got categories for a numeric feature, expected none"),
        ({"kind": "categorical"}, "Value error, 'a': got no categories, expected the values of a categorical"),
        ({"kind": "categorical", "categories": [1, 2, 1.0]}, "Value error, 'a': got the category 1 twice, expected"),
        ({"kind": "categorical", "categories": [1], "low": 0, "high": 2}, "Value error, 'a': got low or high for a"),
        ({"missing": {"fill": np.inf}}, r"expected refuse or \{fill: v\} with a finite number v or mean"),
        ({"missing": {"fill": np.nan}}, r"expected refuse or \{fill: v\} with a finite number v or mean"),
        ({"missing": {"fill": 1e39}}, r"expected refuse or \{fill: v\} with a finite number v or mean"),
        ({"missing": {"fill": True}}, r"expected refuse or \{fill: v\} with a finite number v or mean"),
        ({"missing": "drop"}, r"Value error, got 'drop', expected refuse or \{fill: v\} with a finite number v or"),
        ({"low": -1e39, "high": 0}, r"greater than or equal to -340{37}$|greater than or equal to -34"),
        ({"name": ""}, "at least 1"),
        ({"bins": 3}, "bins"),
    ],
)
def test_what_cannot_be_meant_is_refused(entry, said):
    with pytest.raises(ValidationError, match=said):
        Feature.model_validate({"name": "a"} | entry)


def test_two_features_of_one_name_are_refused(params):
    with pytest.raises(ValidationError, match="Value error, got the name 'b' for the columns 1 and 3, expected"):
        params(features=[{"name": name} for name in "abcbc"])
