"""Names reach MLflow as it takes them, and stay as many as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.exceptions import MlflowException
from mlflow.utils.validation import _validate_length_limit, _validate_metric_name

from tasks.tracking.metric_names import metric_name_fault, metric_name_parts

NAMES = st.text(max_size=12) | st.sampled_from(
    ["", ".", "..", "a/b", "a|b", "a_b", "a_b-2", "x" * 300, "x" * 299 + "y"]
)


def taken(name: str) -> bool:
    """MLflow's own verdict."""
    try:
        _validate_metric_name(name)
        _validate_length_limit("Metric name", 250, name)
    except MlflowException:
        return False
    return True


@given(st.sets(NAMES, max_size=8))
def test_different_names_stay_different_whatever_they_are_and_mlflow_takes_them(names):
    found = metric_name_parts(names)
    assert set(found) == names
    assert len(set(found.values())) == len(names)
    assert all(taken(f"domain/{part}/uncertainty/entropy") and taken(part) for part in found.values())
    assert metric_name_parts(sorted(names, reverse=True)) == found


def test_a_name_that_mlflow_takes_stays_as_it_is():
    assert metric_name_parts(["a|b", "a/b", "a_b", "東京", "京都", "rot-50"]) == {
        "a_b": "a_b",
        "a/b": "a_b-2",
        "a|b": "a_b-3",
        "東京": "東京",
        "京都": "京都",
        "rot-50": "rot-50",
    }


@given(NAMES | st.from_regex(r"\A[/\w.\- :‖]{1,9}\Z"))
def test_a_name_without_fault_is_one_that_mlflow_takes(name):
    assert (metric_name_fault(name) is None) <= taken(name)
    assert (metric_name_fault(name) is None) or not taken(name) or name.endswith("\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("invariant/‖λ‖", "got '‖', expected letters"),
        ("a//b", "empty part"),
        ("x" * 251, "251 characters"),
        ("", "empty"),
    ],
)
def test_what_is_wrong_with_a_name_is_told(name, said):
    assert said in metric_name_fault(name)


@pytest.mark.parametrize(("letters", "fault"), [(250, None), (251, "got 251 characters, expected at most 250")])
def test_a_name_may_have_as_many_characters_as_mlflow_takes(letters, fault):
    assert metric_name_fault("x" * letters) == fault
