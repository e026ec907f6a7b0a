"""A client that may not tell of its rows tells what it reported of nearly the same ones, or nothing, and stays with it."""

import numpy as np
import pytest

from silos.errors import RefusalError
from silos.io.locks import in_turn
from silos.privacy.differencing import Values
from silos.privacy.ledger import Ledger, StandInAnswer
from silos.privacy.report_rules import Kind
from silos.raw_cells import hash_numbers, join_cells

MEANS, SPREADS = Kind("means"), Kind("spreads")
rows_at = np.random.default_rng(0).normal(size=(200, 3))


@pytest.fixture
def ledger(tmp_path):
    return Ledger(str(tmp_path), "oslo")


def stands_for(count):
    rows, none = join_cells(hash_numbers(rows_at[:count])), np.zeros((count, 0), np.uint32)
    return Values.of((), none, none.astype(bool), np.zeros(count, int), ["oak"], rows)


def ask(ledger, count, kind=MEANS) -> StandInAnswer:
    def compute(_):
        return {"sums": rows_at[:count].sum(0)}

    return ledger.answer_or_stand_in(f"v{count}", "all", compute, stands_for(count), kind)


def stood_in(ledger, version, kind) -> StandInAnswer | None:
    return ledger.recorded(version, "all", kind=kind, or_earlier=True)


def sums(count):
    return rows_at[:count].sum(0).tobytes()


def test_of_nearly_the_same_rows_it_tells_what_it_told(ledger):
    assert ask(ledger, 40).answer["sums"].tobytes() == sums(40)
    for count in (41, 49, 31):
        again = ask(ledger, count)
        assert (again.answer["sums"].tobytes(), again.earlier) == (sums(40), "v40")
    assert (ask(ledger, 50).answer["sums"].tobytes(), ask(ledger, 50).earlier) == (sums(50), "")


def test_of_several_answers_that_stand_near_it_tells_the_latest(ledger):
    for count in (40, 50):
        assert ask(ledger, count).earlier == ""
    again = ask(ledger, 45)
    assert (again.answer["sums"].tobytes(), again.earlier) == (sums(50), "v50")


def test_each_version_keeps_its_answer_whatever_is_told_after_it(ledger):
    first = [ask(ledger, count) for count in (40, 45, 54, 62, 70)]
    again = [ask(ledger, count) for count in (70, 62, 54, 45, 40)][::-1]
    assert [one.earlier for one in first] == [one.earlier for one in again] == ["", "v40", "", "v54", ""]
    assert [one.answer["sums"].tobytes() for one in first] == [one.answer["sums"].tobytes() for one in again]


def test_where_another_question_is_in_the_way_it_tells_nothing_then_and_later(ledger):
    ask(ledger, 40, SPREADS)
    assert ask(ledger, 45) == StandInAnswer(None, "v40")
    ask(ledger, 54)  # nine rows from 45, fourteen from what is in the way
    assert ask(ledger, 45) == StandInAnswer(None, "v40")
    assert ask(ledger, 40).answer["sums"].tobytes() == sums(40)  # all that both reported are the same rows


def test_what_stands_in_for_an_answer_is_in_the_way_of_others_as_what_it_was_told_of(ledger):
    ask(ledger, 40)
    ask(ledger, 45)
    with pytest.raises(
        RefusalError,
        match=r"its rows and those of an earlier report without noise differ by fewer",
    ):
        ledger.answer("v49", "counts", lambda _: {}, values=stands_for(49))
    ledger.answer("v50", "counts", lambda _: {}, values=stands_for(50))  # 45 rows were never reported of


def test_what_was_answered_is_known_without_a_turn_and_nobody_gets_a_ledger_by_being_looked_up(ledger, tmp_path):
    assert stood_in(ledger, "v40", MEANS) is None
    assert not [*tmp_path.iterdir()]
    ask(ledger, 40)
    (lock,) = tmp_path.rglob("lock")
    with in_turn(lock):  # which somebody else has
        assert stood_in(ledger, "v40", MEANS).answer["sums"].tobytes() == sums(40)
        assert [stood_in(ledger, *other) for other in (("v40", SPREADS), ("v41", MEANS))] == [
            None,
            None,
        ]
    ask(ledger, 45)
    assert stood_in(ledger, "v45", MEANS).earlier == "v40"
    ask(ledger, 46, SPREADS)
    assert stood_in(ledger, "v46", SPREADS) == StandInAnswer(None, "v40")
