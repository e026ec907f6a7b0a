"""Dealing moves stacks whole, once each and in order."""

from functools import cache
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from silos.cohort import Silos, make_stacks
from tasks.execution.task_runner import assign_stacks

COUNTS = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 50), min_size=1, max_size=20)


def sized(rows: dict[str, int]) -> Silos:
    """Silos of which only the row counts matter."""
    return SimpleNamespace(rows=lambda _: rows, clients=tuple(rows))


@given(rows=COUNTS, size=st.integers(1, 4), workers=st.integers(1, 8))
def test_dealing_covers_each_stack_once_and_in_order(rows, size, workers):
    silos = sized(rows)
    stacks = make_stacks(silos, size)
    cohorts = assign_stacks(silos, stacks, workers)
    assert tuple(stack for dealt in cohorts for stack in dealt.stacks) == stacks
    assert len(cohorts) <= workers
    assert all(dealt.stacks for dealt in cohorts)
    assert [name for dealt in cohorts for name in dealt.clients] == [n for s in stacks for n in s.clients]


@given(rows=COUNTS, workers=st.integers(1, 5))
def test_no_contiguous_dealing_has_a_smaller_largest_run(rows, workers):
    silos = sized(rows)
    weights = [rows[stack.clients[0]] for stack in make_stacks(silos, 1)]

    @cache
    def best(first: int, left: int) -> float:
        if first == len(weights):
            return 0
        if left == 0:
            return float("inf")
        ends = range(first + 1, len(weights) + 1)
        return min(max(sum(weights[first:end]), best(end, left - 1)) for end in ends)

    cohorts = assign_stacks(silos, make_stacks(silos, 1), workers)
    assert max(sum(rows[name] for name in dealt.clients) for dealt in cohorts) == best(0, workers)


def test_dealing_nothing_gives_no_cohorts():
    assert assign_stacks(sized({}), (), 4) == []
