"""What a refusal beyond a budget names as the way out can be taken."""

import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.privacy_accounting import epsilon, rho
from silos.errors import RefusalError
from silos.privacy.report_rules import RHO, Unit, check_budget

DELTA = 1e-5
EPSILONS = Unit("epsilon", partial(epsilon, delta=DELTA), 0.01, " at delta 1e-05")
AMOUNTS = st.floats(1e-3, 100.0)


@given(AMOUNTS, AMOUNTS, AMOUNTS)
def test_what_a_refusal_says_may_be_asked_is_within_the_budget_in_rho_and_in_epsilon(budget, spent, asked):
    for unit, back in ((RHO, float), (EPSILONS, partial(rho, delta=DELTA))):
        try:
            check_budget("oslo", back(budget), back(spent), back(asked), unit)
        except RefusalError as refused:
            named = re.search(rf"lower {unit.name} to (\S+) or less", str(refused))
            left = unit.from_rho(max(back(budget) - back(spent), 0.0))
            assert named is not None or left <= 1.001 * unit.least
            if named:
                check_budget("oslo", back(budget), back(spent), back(float(named[1])), unit)


def test_amounts_are_said_as_people_set_them():
    with pytest.raises(RefusalError) as refused:
        check_budget("oslo", *(rho(amount, DELTA) for amount in (8, 7, 4)), EPSILONS)
    assert str(refused.value) == (
        "client oslo: got a query that costs epsilon 4, expected one within its privacy budget of 8 at delta 1e-05, of "
        "which 7 is spent. Repeat an earlier query, lower epsilon to 3.116 or less, or let the client's owner raise budget "
        "in its owner.yaml."
    )


def test_where_nothing_that_can_be_asked_for_is_left_none_is_named():
    with pytest.raises(RefusalError, match="Repeat an earlier query, or let"):
        check_budget("oslo", *(rho(amount, DELTA) for amount in (4, 4, 2)), EPSILONS)


def test_a_budget_of_8_allows_three_queries_of_4():
    spent = 0.0
    for _ in range(3):
        check_budget("oslo", rho(8, DELTA), spent, rho(4, DELTA), EPSILONS)
        spent += rho(4, DELTA)
    with pytest.raises(RefusalError, match=r"of which 7\.631 is spent\. .* lower epsilon to 1\.804 or less"):
        check_budget("oslo", rho(8, DELTA), spent, rho(4, DELTA), EPSILONS)


def test_a_silo_that_spent_nothing_is_named_its_whole_budget():
    with pytest.raises(RefusalError, match=r"budget of 4 .* of which 0 is spent\. .* lower epsilon to 4 or less"):
        check_budget("oslo", rho(4, DELTA), 0.0, rho(5, DELTA), EPSILONS)
    check_budget("oslo", rho(4, DELTA), 0.0, rho(4, DELTA), EPSILONS)
