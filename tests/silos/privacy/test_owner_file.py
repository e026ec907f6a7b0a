"""A silo's own keys change no other key, and every run of its data goes by its policy."""

import pytest

from silos.data_params import DataParams
from silos.errors import RefusalError, UserError
from silos.privacy.owner_file import (
    DEFAULT,
    OPENED,
    OWNER_FILE,
    Policy,
    check_messages,
    check_named_silos,
    check_training,
    folder_name,
    least_rows_of,
    make_store,
    policy_file,
    policy_of,
    policy_of_run,
)
from silos.privacy.report_rules import Unit, check_budget

TEXT = "budget: 2.0\nleast_rows: 30\nwithout_noise: false\nsilos: {oslo: {budget: 1.0}, rome: {least_rows: 20}}\n"


@pytest.fixture
def store(tmp_path):
    make_store(tmp_path / "visits")
    (tmp_path / "visits" / OWNER_FILE).write_text(TEXT)
    return tmp_path / "visits"


EXPECTED = {
    "oslo": Policy(budget=1.0, least_rows=30, without_noise=False),
    "rome": Policy(budget=2.0, least_rows=20, without_noise=False),
    "lyon": Policy(budget=2.0, least_rows=30, without_noise=False),
}


@pytest.mark.parametrize("client", EXPECTED)
@pytest.mark.parametrize("place", ["", ".partitions/0123"])
def test_a_silos_section_keeps_the_general_keys_also_for_partitions_of_a_sweep(store, client, place):
    assert policy_of(store / place, client) == EXPECTED[client]
    assert policy_file(store / place) == store / OWNER_FILE


@pytest.mark.parametrize("place", ["", "paper", "paper/0"])
@pytest.mark.parametrize("client", EXPECTED)
def test_a_run_goes_by_the_policy_of_the_store_that_its_folder_lies_in(store, client, place):
    assert policy_of_run(store / place, client) == EXPECTED[client]


def test_a_sweep_of_data_without_a_store_has_the_defaults_and_a_store_that_was_deleted_reports_nothing(tmp_path):
    assert policy_of(tmp_path / "drawn" / ".partitions" / "0123", "oslo") == DEFAULT
    with pytest.raises(
        RefusalError,
        match=r"client oslo: got no .*owner\.yaml, expected the file or folder that `siloflow partition` makes",
    ):
        policy_of(tmp_path / "drawn", "oslo")


def test_least_rows_of_several_silos_are_the_smallest_and_the_largest(store):
    assert least_rows_of(store, ["oslo", "rome", "lyon"]) == (20, 30)


def test_what_is_left_of_a_budget_is_rounded_down_so_that_asking_for_it_is_answered():
    unit = Unit("epsilon", lambda rho: 3 * rho)
    spent, budget = 0.123456, 1.0
    with pytest.raises(RefusalError, match=r"lower epsilon to 2\.629 or less, ") as refused:  # 2.629632
        check_budget("oslo", budget, spent, 0.9, unit)
    left = float(str(refused.value).split("lower epsilon to ")[1].split(" ")[0]) / 3
    check_budget("oslo", budget, spent, left, unit)
    with pytest.raises(RefusalError, match=r"lower rho to 0\.8765 or less, "):  # 0.87658
        check_budget("oslo", budget, 0.12342, 0.9, Unit())


def test_a_policy_may_name_silos_of_the_data_and_those_that_have_a_ledger(store):
    check_named_silos(store, ["oslo", "rome", "lyon"])
    with pytest.raises(UserError, match=r"silos: got rome, expected a silo of the data\. The silos are oslo, lyon"):
        check_named_silos(store, ["oslo", "lyon"])
    with pytest.raises(UserError, match=r"got rome, .* Did you mean Rome\?"):
        check_named_silos(store, ["oslo", "Rome"])
    (store / OPENED / folder_name("rome")).touch()
    check_named_silos(store, ["oslo", "lyon"])
    check_named_silos(store / "elsewhere", [])


def test_cells_of_one_row_are_reported_of_public_rows_only_unless_the_owner_allows_it(tmp_path):
    split = {"validation": 0.15, "test": 0.25}
    scheme = [{"kind": "equal", "clients": 3}]
    digits = DataParams.model_validate(
        {"name": "digits", "seed": 0, "source": {"kind": "digits"}, "scheme": scheme, "split": split}
    )
    make_store(tmp_path / "own")
    make_store(tmp_path / "digits", digits)
    policies = [policy_of(tmp_path / name, "oslo") for name in ("own", "digits")]
    assert [(policy.least_cell, policy.other_silos) for policy in policies] == [(10, False), (1, True)]
    (tmp_path / "own" / OWNER_FILE).write_text("silos: {oslo: {least_cell: 1}, rome: {least_cell: 0}}\n")
    with pytest.raises(UserError, match=r"silos\.rome\.least_cell: got 0, expected a whole number of 1 or more\. "):
        policy_of(tmp_path / "own", "oslo")


def test_a_silos_folder_begins_with_what_is_readable_of_its_name():
    assert folder_name("St. Olav, ward 3").startswith("St-Olav-ward-3-")
    names = ["a" * 60, "a" * 61, "a" * 62]
    assert len({folder_name(name) for name in names}) == 3
    assert {folder_name(name)[:-16] for name in names} == {f"{'a' * 60}-"}


def test_no_amount_is_named_below_the_least_that_can_be_asked_for():
    unit = Unit("epsilon", float, least=0.01)
    with pytest.raises(RefusalError, match=r"lower epsilon to 0\.02 or less"):
        check_budget("oslo", 1.0, 0.98, 0.5, unit)
    with pytest.raises(RefusalError, match="Repeat an earlier query, or let"):
        check_budget("oslo", 1.0, 0.995, 0.5, unit)


@pytest.mark.parametrize("place", ["", "paper/0"])
def test_only_silos_with_fewer_rows_than_their_own_least_take_no_part_in_training(store, place):
    (store / OWNER_FILE).write_text("training_rows: 30\nsilos: {oslo: {training_rows: 20}}\n")
    check_training(store / place, "fedavg", [("oslo", 20), ("rome", 30)])
    for rows, refused in (([("oslo", 19), ("rome", 30)], "oslo"), ([("oslo", 20), ("rome", 29)], "rome")):
        with pytest.raises(RefusalError, match=rf"client {refused}: got {dict(rows)[refused]} training rows"):
            check_training(store / place, "fedavg", rows)


@pytest.mark.parametrize("place", ["", "paper/0"])
def test_methods_and_messages_are_those_of_each_silo(store, place):
    (store / OWNER_FILE).write_text("silos: {oslo: {methods: [fedavg], messages: [Scores]}}\n")
    check_training(store / place, "ditto", [("rome", 1)])
    check_messages(store / place, ["rome"], "Update")
    with pytest.raises(RefusalError, match="client oslo: got ditto, expected one of fedavg"):
        check_training(store / place, "ditto", [("rome", 1), ("oslo", 1)])
    with pytest.raises(RefusalError, match="client oslo: got Update, expected one of Scores"):
        check_messages(store / place, ["rome", "oslo"], "Update")
