"""The server's groups of clients that are right on the same rows."""

import numpy as np
import pytest
import torch

from models.clustering import cluster_by_threshold, overlaps
from tasks.cluster_clients import admit, candidates, overlap, split_rows
from tasks.messages.round_messages import CorrectnessBits

ROWS = 41  # the last byte is not full


def told(right: dict[str, np.ndarray], stack: int = 2) -> list[CorrectnessBits]:
    """Messages of clients in stacks, in the order given; right: (rows,) bool of each."""
    names = list(right)
    stacks = [tuple(names[at : at + stack]) for at in range(0, len(names), stack)]
    return [CorrectnessBits(s, torch.from_numpy(np.packbits([right[c] for c in s], axis=1))) for s in stacks]


def laws(seed: int = 0) -> dict[str, np.ndarray]:
    """Two laws, of whose rows each client knows nine in ten."""
    rng = np.random.default_rng(seed)
    first = np.arange(ROWS) % 2 == 0
    return {name: (first if name[0] == "l" else ~first) & (rng.random(ROWS) < 0.9) for name in ("r1", "l2", "l1", "r2")}


TRUTH = (("l1", "l2"), ("r1", "r2"))


@pytest.mark.parametrize("kind", ["dot", "equal", "jaccard"])
@pytest.mark.parametrize("threshold", [0.3, None])
def test_laws_are_told_apart_and_the_margins_say_how_far(kind, threshold):
    made = overlap.fn(told(laws()), ROWS, kind, threshold, "complete", 0 if threshold is None else None)
    assert made.groups == TRUTH
    assert made.across < made.within
    assert made.across < made.threshold
    assert threshold is None or made.threshold == threshold
    assert made.flagged == ()


def test_clients_with_nothing_to_part_are_one_group_and_a_fixed_threshold_is_not_tested():
    """Five classes: laws know three or two of them, and clients that are alike miss rows at random."""
    labels, rng = np.arange(ROWS) % 5, np.random.default_rng(1)
    known = {"l": labels < 3, "r": labels >= 3, "a": np.ones(ROWS, bool)}

    def made(names, threshold=None):
        right = {name: known[name[0]] & (rng.random(ROWS) < 0.8) for name in names}
        return overlap.fn(told(right), ROWS, "dot", threshold, "complete", 0, labels)

    apart, alike = made(["l1", "l2", "l3", "r1", "r2", "r3"]), made(["a1", "a2", "a3", "a4", "a5"])
    assert (len(apart.groups), apart.chance <= 0.05) == (2, True)
    assert (len(alike.groups), alike.threshold, alike.chance > 0.05) == (1, 0.0, True)
    fixed = made(["a1", "a2", "a3", "a4", "a5"], 0.99)
    assert (len(fixed.groups), fixed.chance) == (5, None)


def test_the_order_of_listing_and_of_stacks_is_nothing():
    known = laws()
    one, other = (
        overlap.fn(told(dict(sorted(known.items(), reverse=turned)), stack), ROWS, "jaccard", None, "greedy", 0)
        for turned, stack in ((False, 1), (True, 3))
    )
    assert one == other


def test_the_threshold_of_the_gap_is_of_one_half_of_the_rows_and_the_groups_of_the_other():
    """On the first half everybody is right alone, on the second two and two: on the first, nobody would be together."""
    order = np.random.default_rng(3).permutation(40)
    right = {name: np.zeros(40, bool) for name in "abcd"}
    for at, name in enumerate("abcd"):
        right[name][order[at:20:4]] = True
        right[name][order[20 + at // 2 :: 2]] = True
    made = overlap.fn(told(right), 40, "jaccard", None, "complete", 3)
    assert made.threshold == 0
    assert made.groups == (("a", "b", "c", "d"),)
    right["a"][order[1]] = right["d"][order[2]] = True
    made = overlap.fn(told(right), 40, "jaccard", None, "complete", 3)
    assert made.threshold == pytest.approx(1 / 20)  # 0 and 1 of 10
    assert made.groups == (("a", "b"), ("c", "d"))
    assert (made.within, made.across) == (1, 0)


@pytest.mark.parametrize("kind", ["dot", "equal", "jaccard"])
def test_two_clients_have_no_gap_and_are_together_however_their_halves_differ(kind):
    """They agree on the half that thresholds are found on, and less on the other."""
    order = np.random.default_rng(3).permutation(40)
    right = {name: np.ones(40, bool) for name in "ab"}
    right["a"][order[30:]] = False
    made = overlap.fn(told(right), 40, kind, None, "complete", 3)
    assert made.groups == (("a", "b"),)
    assert made.threshold == 0


@pytest.mark.parametrize("rows", [2, 3, 40, 41])
def test_every_row_is_in_one_half_and_halves_differ_by_one_at_most(rows):
    first, second = split_rows(rows, 0)
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(rows))
    assert len(second) - len(first) == rows % 2


def test_one_row_is_both_halves():
    assert [half.tolist() for half in split_rows(1, 0)] == [[0], [0]]


def test_who_is_right_on_no_row_is_alone_and_named_also_where_equal_bits_count():
    right = {**laws(), "dead": np.zeros(ROWS, bool), "gone": np.zeros(ROWS, bool)}
    made = overlap.fn(told(right), ROWS, "equal", 0.0, "complete")
    assert made.flagged == ("dead", "gone")
    assert made.groups == (("dead",), ("gone",), ("l1", "l2", "r1", "r2"))
    assert made.across is None, "of clients that are right on some row nobody was parted"


@pytest.mark.parametrize("assign", ["complete", "greedy", "first_member"])
def test_where_nobody_is_right_on_any_row_everybody_is_alone_and_named(assign):
    right = {name: np.zeros(ROWS, bool) for name in "ab"}
    made = overlap.fn(told(right), ROWS, "jaccard", None, assign, 3)
    assert (made.groups, made.flagged) == ((("a",), ("b",)), ("a", "b"))
    assert candidates.fn(told(right), ROWS, "jaccard", assign, 3) == [(0.0, ())]


def test_one_client_is_a_group_without_margins():
    made = overlap.fn(told({"a": np.ones(ROWS, bool)}), ROWS, "jaccard", None, "complete", 3)
    assert made.groups == (("a",),)
    assert (made.within, made.across) == (None, None)


def test_newcomers_join_the_group_that_they_fit_or_make_their_own_and_nobody_moves():
    known = laws()
    (members,) = told(dict(sorted(known.items())), 4)
    rng = np.random.default_rng(5)
    fresh = {
        "dead": np.zeros(ROWS, bool),
        "left": known["l1"] ^ (rng.random(ROWS) < 0.05),
        "other": np.arange(ROWS) < 9,
    }
    made = admit.fn(told(fresh, 3), TRUTH, members, ROWS, "jaccard", 0.5)
    assert made == [["l1", "l2", "left"], ["r1", "r2"], ["dead"], ["other"]]


def test_nobody_joins_one_who_is_right_on_no_row():
    (members,) = told({"dead": np.zeros(ROWS, bool)}, 1)
    made = admit.fn(told({"new": np.arange(ROWS) < 3}), [["dead"]], members, ROWS, "equal", 0.5)
    assert made == [["dead"], ["new"]]


def test_a_threshold_that_nobody_chose_needs_a_half_to_be_found_on():
    with pytest.raises(ValueError, match="seed: got none, expected one, since the threshold is found on one half"):
        overlap.fn(told(laws()), ROWS, "jaccard", None, "complete")


def test_a_given_threshold_that_was_found_on_one_half_makes_groups_on_the_other():
    order = np.random.default_rng(3).permutation(40)
    right = {name: np.zeros(40, bool) for name in "ab"}
    right["a"][order[:20]] = right["b"][order[:20]] = True
    right["a"][order[20::2]] = right["b"][order[21::2]] = True
    assert overlap.fn(told(right), 40, "jaccard", 0.4, "complete").groups == (("a", "b"),)
    assert overlap.fn(told(right), 40, "jaccard", 0.4, "complete", 3).groups == (("a",), ("b",))


@pytest.mark.slow
@pytest.mark.parametrize("assign", ["complete", "greedy", "first_member"])
@pytest.mark.parametrize("kind", ["dot", "equal", "jaccard"])
def test_candidates_are_all_groups_that_any_threshold_makes_of_the_first_half(kind, assign):
    rng = np.random.default_rng(1)
    right = {name: rng.random(ROWS) < 0.6 for name in "abcde"} | {"dead": np.zeros(ROWS, bool)}
    made = candidates.fn(told(right), ROWS, kind, assign, 5, most=1000)
    first = np.sort(split_rows(ROWS, 5)[0])
    bits = np.packbits([right[name][first] for name in "abcde"], axis=1)
    likeness = overlaps(bits, len(first), kind)
    by_hand = {
        tuple(tuple("abcde"[at] for at in group) for group in cluster_by_threshold(likeness, threshold, assign))
        for threshold in np.linspace(0, 1, 2003)
    }
    assert {groups for _, groups in made} == by_hand
    for threshold, groups in made:
        assert (
            tuple(tuple("abcde"[at] for at in group) for group in cluster_by_threshold(likeness, threshold, assign))
            == groups
        )
    assert [threshold for threshold, _ in made] == sorted(threshold for threshold, _ in made)
    few = candidates.fn(told(right), ROWS, kind, assign, 5, most=3)
    assert (few[0], few[-1]) == (made[0], made[-1])
    assert len(few) == 3


def test_of_many_pairs_few_thresholds_are_looked_at_and_a_gap_is_among_them():
    rng = np.random.default_rng(2)
    law = rng.random((2, 600)) < 0.5
    right = {f"{which}{at:02d}": law[which] & (rng.random(600) < 0.9) for which in (0, 1) for at in range(60)}
    made = candidates.fn(told(right), 600, "jaccard", "first_member", 5, most=10_000)
    assert len(made) <= 200
    names = sorted(right)
    assert (tuple(names[:60]), tuple(names[60:])) in [groups for _, groups in made]
