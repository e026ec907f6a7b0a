"""Rows that a silo reported are reported by no other silo, in whatever way it is asked; each has one budget."""

import numpy as np
import pytest

from silos.errors import RefusalError
from silos.privacy.ledger import Ledger
from silos.privacy.owner_file import OWNER_FILE, make_store
from silos.privacy.report_rules import Kind
from silos.privacy.reported_rows import RowRegister
from silos.raw_cells import RawCells, RawColumns, hash_numbers

MEANS = Kind("means")
ROWS = np.random.default_rng(0).normal(size=(40, 3))


@pytest.fixture
def store(tmp_path):
    make_store(tmp_path / "visits")
    return tmp_path / "visits"


@pytest.fixture
def ways(of_rows):
    """The ways to be asked, of the rows of a ledger."""

    def answer(ledger, version="v1"):
        rows = of_rows({"oak": ledger.rows.cells.hashes.astype(float)})
        return ledger.answer(version, "counts", lambda _: {"n": np.ones(1)}, rows)

    def stand_in(ledger, version="v1"):
        rows = of_rows({"oak": ledger.rows.cells.hashes.astype(float)})
        return ledger.answer_or_stand_in(version, "all", lambda _: {"n": np.ones(1)}, rows, MEANS)

    def with_noise(ledger, version="v1"):
        return ledger.answer(version, "noisy", lambda draw: {"n": draw("n").normal(size=1)}, rho=0.1, budget=1.0)

    return {"answer": answer, "stand_in": stand_in, "with_noise": with_noise}


@pytest.fixture
def answer(ways):
    return ways["answer"]


def ledger(store, client, partition, rows=ROWS, names=("a", "b", "c")) -> Ledger:
    cells = RawCells(hash_numbers(rows), RawColumns(tuple(names), (0, 1, 2), 2))
    return Ledger.of(str(store), client, RowRegister(str(store), client, partition, cells))


WAYS = ["answer", "stand_in", "with_noise"]


@pytest.mark.parametrize("second", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_rows_of_another_silo_have_no_second_budget_however_either_is_asked(store, first, second, ways):
    first, second = ways[first], ways[second]
    first(ledger(store, "oslo", "first"))
    other = ledger(store, "bergen", "second", ROWS[:30])
    with pytest.raises(
        RefusalError, match="client bergen: got training rows that other silos of private/visits reported"
    ):
        second(other)
    assert other.entries() == []
    second(ledger(store, "bergen", "second", ROWS + 7))  # rows of its own


@pytest.mark.parametrize("way", WAYS)
def test_rows_under_another_name_of_the_data_are_the_same_rows(store, way, ways):
    way = ways[way]
    way(ledger(store, "oslo", "first"))
    make_store(store.parent / "copy")
    with pytest.raises(RefusalError, match="other silos of private/visits reported, such as oslo"):
        way(ledger(store.parent / "copy", "oslo", "first"))


@pytest.mark.parametrize("way", WAYS)
def test_a_silo_may_report_its_rows_in_another_partition_if_it_was_one_of_the_reporting_ones(store, way, ways):
    way = ways[way]
    way(ledger(store, "oslo", "first"))
    way(ledger(store, "oslo", "second", ROWS[:29]))
    way(ledger(store, "bergen", "first"))  # silos of one partition may share rows


@pytest.mark.parametrize("way", WAYS)
def test_a_policy_that_leaves_rows_to_others_records_none(store, way, ways):
    way = ways[way]
    policy = store / OWNER_FILE
    policy.write_text(policy.read_text().replace("other_silos: false", "other_silos: true "))
    way(ledger(store, "oslo", "first"))
    assert not [*store.parent.rglob(".rows/*/*/*/*.safetensors")]
    way(ledger(store, "bergen", "second"))


def test_an_answer_that_another_version_stands_in_for_records_no_rows(store, ways):
    stand_in = ways["stand_in"]
    stand_in(ledger(store, "oslo", "first"))
    assert stand_in(ledger(store, "oslo", "second", ROWS[:35]), "v2").earlier == "v1"
    assert len([*store.parent.rglob(".rows/*/*/*/*.safetensors")]) == 1


def test_fewer_rows_than_the_least_are_found_by_chance_and_pass(store, answer):
    answer(ledger(store, "oslo", "first"))
    few = np.concatenate([ROWS[:9], np.random.default_rng(1).normal(size=(31, 3))])
    answer(ledger(store, "bergen", "second", few))
    few[9] = ROWS[9]
    with pytest.raises(RefusalError, match="got training rows"):
        answer(ledger(store, "rome", "third", few))


@pytest.mark.parametrize(("common", "is_refused"), [(20, False), (21, True)])
def test_rows_are_another_silos_if_they_are_more_than_twice_as_many_as_coincide_by_chance(
    store, common, is_refused, answer
):
    """A fifth of the reported rows have a copy, so of 50 rows ten are expected to coincide."""
    single, twice, own = (
        np.random.default_rng(seed).normal(size=(count, 3)) for seed, count in enumerate((80, 10, 50))
    )
    answer(ledger(store, "oslo", "first", np.concatenate([single, twice, twice])))
    own[:common] = single[:common]
    other = ledger(store, "bergen", "second", own)
    if is_refused:
        with pytest.raises(RefusalError, match="got training rows"):
            answer(other)
    else:
        answer(other)


def test_silos_with_the_few_rows_that_a_table_of_categories_can_have_are_no_copies_of_each_other(store, answer):
    rng = np.random.default_rng(3)
    answer(ledger(store, "oslo", "first", rng.integers(0, 3, (200, 3)).astype(float)))
    answer(ledger(store, "bergen", "second", rng.integers(0, 3, (200, 3)).astype(float)))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
@pytest.mark.parametrize("names", ["xyz", "ayz"])
def test_rows_are_the_same_under_other_names_and_in_another_order_of_columns(store, names, order, answer):
    """Two columns have the same values, so each is compared with one of the others only."""
    rows = np.stack([np.arange(40.0), np.random.default_rng(0).permutation(40), 100 + np.arange(40.0)], 1)
    answer(ledger(store, "oslo", "first", rows))
    with pytest.raises(RefusalError, match="got training rows"):
        answer(ledger(store, "bergen", "second", rows[:, order], [names[at] for at in order]))


def test_rows_that_were_dealt_to_another_silo_are_reported_by_none_and_its_own_are(store, answer):
    """Silos that are dealt at random have the same names under every seed, and other rows."""
    answer(ledger(store, "client-0", "first", ROWS[:20]))
    answer(ledger(store, "client-1", "first", ROWS[20:]))
    with pytest.raises(RefusalError, match="client client-0: got training rows that other silos"):
        answer(ledger(store, "client-0", "second", ROWS[10:30]), "v2")
    answer(ledger(store, "client-0", "third", ROWS[:10]), "v3")


def test_a_partition_of_a_sweep_has_ledgers_of_its_own_so_rows_are_asked_through_one_of_them_only(store, answer):
    """Once, a silo of the same name was taken for the one that the main ledger covers."""
    first, second = (store / ".partitions" / version for version in ("aaa", "bbb"))
    answer(ledger(first, "client-0", "first"))
    for folder, partition in ((second, "second"), (store, "third"), (store, "first")):
        with pytest.raises(
            RefusalError, match=r"got training rows that other silos .* or in silos of several partitions"
        ):
            answer(ledger(folder, "client-0", partition))
    answer(ledger(first, "client-1", "first", ROWS + 1))
    answer(ledger(store, "client-0", "third", ROWS + 2), "v2")
    with pytest.raises(RefusalError, match="got training rows"):
        answer(ledger(second, "client-0", "second", ROWS + 2))


def test_what_silos_report_later_and_what_their_policy_allows_later_counts_at_once(store, answer):
    later, other = ROWS + 5, ledger(store, "rome", "second", ROWS + 9)
    answer(ledger(store, "oslo", "first"))
    answer(other)  # reads what the first partition reported
    answer(ledger(store, "bergen", "first", later))
    with pytest.raises(RefusalError, match="reported, such as bergen"):
        answer(ledger(store, "lyon", "third", later))
    policy = store / OWNER_FILE
    policy.write_text(policy.read_text().replace("silos: {}", "silos: {bergen: {other_silos: true}}"))
    answer(ledger(store, "lyon", "third", later))
    with pytest.raises(RefusalError, match="reported, such as oslo"):
        answer(ledger(store, "kiel", "fourth"))
