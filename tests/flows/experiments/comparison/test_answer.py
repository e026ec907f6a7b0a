"""The one line in which a comparison ends."""

from typing import Any

import pytest

from flows.experiments.comparison.comparison_text import answer_sentence


def comparison(better: dict[str, float], worse: dict[str, float] | None = None, **more: Any) -> dict[str, Any]:
    """A comparison with fedavg: differences of the methods that are better, of those that are worse, and of `even`."""
    differences = {**better, **(worse or {}), "even": 0.001}
    winners = {method: method if method in better else "fedavg" for method in (*better, *(worse or {}))}
    paired = [
        {
            **{"method": method, "reference": "fedavg", "difference": value, "better": winners.get(method)},
            **{"distinguishable": method in winners, "matters": 0.005, "seeds": [0, 1, 2]},
        }
        for method, value in differences.items()
    ]
    return {"task": "classification", "metric": "accuracy", "paired": paired, "failed": [], **more}


def test_it_names_every_method_that_is_better_the_best_first():
    assert answer_sentence(comparison({"ditto": 0.02, "ifca": 0.043}, {"uefl": -0.04})) == (
        "ifca (by 4.3 points) and ditto (by 2.0 points) are better than fedavg on these silos, for certain"
    )


def test_of_an_error_the_largest_decrease_is_the_best():
    found = comparison({"ditto": -2.0, "ifca": -33.0}, task="regression", metric="rmse")
    assert answer_sentence(found).startswith("ifca (by 33.0")


def test_it_claims_nothing_where_no_method_is_better():
    assert (
        answer_sentence(comparison({}, {"uefl": -0.04})) == "no method is better than fedavg on these silos for certain"
    )


@pytest.mark.parametrize(
    ("draws", "where"),
    [("rows", "on these silos"), ("silos", "on silos like these"), ("partitions", "over partitions like these")],
)
def test_it_is_about_what_the_intervals_are_over(draws, where):
    over = {"draws": draws, "silos": 40, "partitions": 5}
    better = answer_sentence(comparison({"ifca": 0.043}, over=over))
    assert better == f"ifca (by 4.3 points) is better than fedavg {where}, for certain"
    assert answer_sentence(comparison({}, over=over)) == f"no method is better than fedavg {where} for certain"


@pytest.mark.parametrize(
    ("difference", "least"),
    [(0.003, " by what matters (0.5 points)"), (-0.003, "")],
    ids=["a small gain", "a small loss"],
)
def test_a_certain_gain_that_is_smaller_than_what_matters_is_not_denied(difference, least):
    found = comparison({})
    found["paired"][0] |= {"difference": difference, "distinguishable": True}
    assert answer_sentence(found) == f"no method is better than fedavg{least} on these silos for certain"


def test_one_seed_claims_nothing_of_others():
    found = comparison({"ifca": 0.043})
    for pair in found["paired"]:
        pair["seeds"] = [0]
    assert (
        answer_sentence(found)
        == "ifca (by 4.3 points) is better than fedavg on these silos with this seed, for certain"
    )


@pytest.mark.parametrize(
    "more",
    [
        {"failed": [{"method": "uefl", "seed": 1}]},
        {"not_published_for": ["5 seeds"]},
        {"baseline": {"sentence": "No method is better than always 3."}},
    ],
)
def test_there_is_none_where_a_restriction_comes_first(more):
    assert answer_sentence(comparison({"ifca": 0.043}, runs=[], **more)) is None
