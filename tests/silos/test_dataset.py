"""Named random streams of data do not depend on each other, the machine or NumPy's version."""

from silos.dataset import DataStreams, data_stream


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
