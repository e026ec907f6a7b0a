"""What a client records of private training: it pays once for a run's answers, and never answers twice otherwise."""

import math
from dataclasses import replace

import pytest

from silos.errors import RefusalError
from silos.privacy.owner_file import OWNER_FILE, make_store, policy_of
from silos.privacy.training_ledger import Purchase, TrainingLedger

RHO = 0.5
RUN = Purchase("v1", "s1", answers=3, rho=RHO, budget=1.2)


def _none():
    return None


@pytest.fixture
def ledger(tmp_path):
    make_store(tmp_path / "private")
    folder = tmp_path / "private"
    return TrainingLedger(str(folder), "oslo", policy_of(folder, "oslo"))


def _spent(ledger, purchase=RUN):
    return ledger.account(purchase)


def test_a_run_pays_with_its_first_answer_for_all_of_its_rounds(ledger):
    assert _spent(ledger) == (0.0, 0)
    for number in range(3):
        ledger.record(RUN, f"q{number}", f"a{number}", _none)
        assert _spent(ledger) == (RHO, 2 - number)
    assert [entry.rho for entry in ledger.entries()] == [RHO]


def test_a_repeated_question_costs_nothing_and_must_have_the_same_answer(ledger):
    ledger.record(RUN, "q", "a", _none)
    ledger.record(RUN, "q", "a", _none)
    assert _spent(ledger) == (RHO, 2)
    with pytest.raises(RefusalError, match="other bytes than the answer that was sent"):
        ledger.record(RUN, "q", "b", _none)
    assert _spent(ledger) == (RHO, 2)


def test_other_weights_than_a_run_has_rounds_cost_another_run(ledger):
    for number in range(4):
        ledger.record(RUN, f"q{number}", "a", _none)
    assert _spent(ledger) == (2 * RHO, 2)


@pytest.mark.parametrize("answers", [1, 3])
def test_sums_that_are_made_again_cost_one_answer_each_after_those_of_a_whole_run(ledger, answers):
    """A run of secure sums is paid for as a whole, as any other; another list of silos makes one sum again."""
    run = replace(RUN, answers=answers, singly=True, budget=RHO + 2 * RHO / answers)
    for number in range(answers + 2):
        ledger.check(run, f"q{number}")
        ledger.record(run, f"q{number}", "a", _none)
        further = max(number + 1 - answers, 0)
        assert _spent(ledger, run) == (pytest.approx(RHO + further * RHO / answers), max(answers - 1 - number, 0))
    with pytest.raises(RefusalError, match="spent"):
        ledger.check(run, "more")
    with pytest.raises(RefusalError, match="spent"):
        ledger.record(run, "more", "a", _none)


def test_beyond_the_budget_nothing_is_recorded_and_what_was_answered_is_answered_again(ledger):
    for number in range(6):
        ledger.record(RUN, f"q{number}", "a", _none)
    with pytest.raises(RefusalError, match=r"expected one within its privacy budget of 1\.2"):
        ledger.record(RUN, "q6", "a", _none)
    assert _spent(ledger) == (2 * RHO, 0)
    ledger.record(RUN, "q5", "a", _none)


def test_diagnoses_and_runs_share_one_budget(ledger):
    def compute(draw):
        return {"x": draw("x").standard_normal(2)}

    ledger.answer("v1", "counts", compute, rho=0.8, budget=1.2)
    with pytest.raises(RefusalError, match=r"of which 0\.8 is spent"):
        ledger.record(RUN, "q", "a", _none)
    ledger.record(replace(RUN, rho=0.4), "q", "a", _none)
    with pytest.raises(RefusalError, match="spent"):
        ledger.answer("v2", "counts", compute, rho=0.1, budget=1.2)
    assert math.fsum(entry.rho for entry in ledger.entries()) == pytest.approx(1.2)


def test_another_version_or_another_noise_is_paid_again_and_draws_other_noise(ledger):
    ledger.record(RUN, "q", "a", _none)
    other = replace(RUN, partition="v2", settings="s2")
    assert _spent(ledger, other) == (RHO, 0)
    ledger.record(other, "q", "b", _none)
    assert _spent(ledger, other) == (2 * RHO, 2)
    first, second = (ledger.noise_key(version, "q") for version in ("v1", "v2"))
    assert first != second
    assert first == ledger.noise_key("v1", "q") != ledger.noise_key("v1", "r")


def test_two_clients_draw_other_noise_for_the_same_question(ledger):
    other = replace(ledger, client="bergen")
    assert ledger.noise_key("v1", "q") != other.noise_key("v1", "q")


def test_a_line_without_its_end_was_not_sent_and_is_overwritten_by_no_other(ledger):
    ledger.record(RUN, "q", "a", _none)
    with ledger._file.open("a") as file:
        file.write('{"answer": ["s1", "r", "b"]} 0')  # killed while it wrote
    ledger.record(RUN, "r", "c", _none)
    ledger.record(RUN, "r", "c", _none)
    assert _spent(ledger) == (RHO, 1)


def test_rows_are_registered_when_the_client_pays_and_not_read_for_later_answers(ledger):
    seen = []

    class Register:
        def check(self):
            seen.append("check")

        def record(self, policy):
            seen.append(policy.budget)

    ledger.record(RUN, "q", "a", Register)
    ledger.record(RUN, "r", "a", Register)
    assert seen == ["check", ledger.policy.budget]


def test_a_missing_store_is_refused(tmp_path):
    (tmp_path / "private").mkdir()
    with pytest.raises(RefusalError, match=OWNER_FILE):
        policy_of(tmp_path / "private", "oslo")


def test_an_answer_that_is_paid_for_syncs_no_folder(ledger, monkeypatch):
    """It names no new file, and a sync takes milliseconds in each round of each silo."""
    ledger.record(RUN, "q0", "a", _none)
    monkeypatch.setattr("silos.privacy.ledger.sync_folder", lambda _: pytest.fail("synced"))
    ledger.record(RUN, "q1", "a", _none)
    assert _spent(ledger) == (RHO, 1)
