"""Named random streams of data do not depend on each other, the machine or NumPy's version; how names are listed."""

import pytest

from silos.dataset import DataStreams, data_stream
from silos.errors import counted, near_names, some


def test_a_stream_is_the_same_whenever_it_is_opened():
    assert data_stream(3, "split", "c01").bytes(16) == data_stream(3, "split", "c01").bytes(16)


def test_streams_of_other_seeds_and_names_differ():
    names = [
        (0, "a", "b"),
        (1, "a", "b"),
        (0, "a", "c"),
        (0, "a/b"),
        (0, "ab"),
        (0, "a/", "b"),
        (0, "a", "/b"),
    ]
    assert len({data_stream(*name).bytes(16) for name in names}) == len(names)


def test_draws_are_the_ones_that_recorded_data_hang_on():
    assert data_stream(0, "split", "c00").permutation(8).tolist() == [6, 1, 0, 5, 2, 7, 4, 3]


def test_one_after_another_from_one_generator_are_the_same_streams():
    streams = DataStreams()
    for name in ("a", "b", "a"):
        drawn = streams.begin(5, "noise", name).standard_normal(3)  # an odd number leaves half a pair behind
        assert drawn.tolist() == data_stream(5, "noise", name).standard_normal(3).tolist()


@pytest.mark.parametrize(
    ("count", "text"),
    [(2, "0, 1"), (3, "0, 1, 2"), (4, "0, 1, 2, 3"), (5, "0, 1, 2 and 2 more"), (2000, "0, 1, 2 and 1,997 more")],
)
def test_a_list_of_names_counts_what_it_leaves_out_and_never_leaves_out_one(count: int, text: str) -> None:
    assert some([str(number) for number in range(count)], 3) == text


def test_a_count_of_one_has_its_noun_in_the_singular() -> None:
    assert [counted(count, "silo") for count in (0, 1, 2000)] == ["0 silos", "1 silo", "2,000 silos"]
    assert [counted(count, "class", "classes") for count in (1, 2)] == ["1 class", "2 classes"]


def test_names_that_are_spelled_alike_are_near_in_any_case_and_an_equal_one_is_the_only_one() -> None:
    names = ["north", "south", "Atlanta"]
    assert near_names("NORTH", names) == ["north"]
    assert near_names("Atlantis", names) == ["Atlanta"]
    assert near_names("nouth", names) == ["south", "north"]
    assert near_names("x", names) == near_names("c1", [f"c{number}" for number in range(20_000)]) == []
