"""Attacks on single rows by who asks: each of them succeeded once, and is refused now."""

import json
import shutil

import numpy as np
import pytest

from flows.diagnose import run_diagnosis
from flows.diagnosis.query_clients import Bounds
from flows.project.make_partition import make
from silos.client_store import ClientStore
from silos.errors import UserError
from silos.privacy.owner_file import OWNER_FILE
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.json_io import write_json

NAMES = [f"x{at}" for at in range(12)]
BOUNDED = [{"name": name, "low": -4, "high": 4} for name in NAMES]
CATEGORY = [*BOUNDED[:3], {"name": "sex", "kind": "categorical", "categories": [0, 1]}]


def rows(seed, count=1500, features=12):
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    return rng.normal(size=(count, features)) + y[:, None] / 3, y


@pytest.fixture
def ask(world):
    """Writes a version of a silo, another one staying as it is, and returns what the silo answers: a report or a refusal."""
    here = world()

    def asked(mine, *overrides, features=BOUNDED, **arrays):
        here.write({"a": mine, "b": rows(9, features=mine[0].shape[1])}, features=features, **arrays)
        try:
            _, report = run_diagnosis(here.open(*overrides), PlainRunner())
        except UserError as error:
            return str(error)
        return report["refused"].get("a", report)

    asked.folder, asked.project, asked.write = here.folder, here.open, here.write
    asked.again = lambda *overrides: run_diagnosis(here.open(*overrides), PlainRunner())[1]
    return asked


FEW = "differ by fewer than 10 different rows"


@pytest.mark.slow
@pytest.mark.parametrize("came", [9, 30])
def test_one_patient_leaves_while_others_come(came, ask):
    """The one is the only -1 of 1,024 bins of each feature, and of the class."""
    x, y = rows(0)
    new = rows(1, came)
    assert "types" not in ask((x, y), "diagnose.bins=1024")
    later = np.concatenate([np.delete(x, 7, 0), new[0]]), np.concatenate([np.delete(y, 7), np.ones(came, int)])
    assert FEW in ask(later, "diagnose.bins=1024")


@pytest.mark.slow
@pytest.mark.parametrize("column", [3, "sex"])
def test_one_value_is_corrected_while_ten_rows_are_corrected_in_another_column(column, ask):
    x, y = rows(0)
    features = BOUNDED
    if column == "sex":
        x, features, column = np.column_stack([x[:, :3], np.arange(len(y)) // 2 % 2]), CATEGORY, 3
    ask((x, y), features=features)
    changed, x = np.flatnonzero(y == 0)[:60], x.copy()
    x[changed, 0] += 3
    assert not isinstance(ask((x, y), features=features), str), "sixty rows of one column are told"
    x[changed + 200, 0] += 3
    x[changed[0] + 200, column] = 1 - x[changed[0] + 200, column]
    assert FEW in ask((x, y), features=features)


@pytest.mark.slow
def test_one_row_leaves_while_ten_are_corrected_in_every_number(ask):
    """The category of the one who left is the only one that changed."""
    x, y = rows(0, features=3)
    x = np.column_stack([x, np.arange(len(y)) // 2 % 2])
    ask((x, y), features=CATEGORY)
    changed = np.flatnonzero(y == 0)[:11]
    later = x.copy()
    later[changed, :3] += 0.5
    assert FEW in ask((np.delete(later, changed[0], 0), np.delete(y, changed[0])), features=CATEGORY)


@pytest.mark.slow
def test_one_row_leaves_while_ten_are_given_another_class(ask):
    """Of each class ten rows or more change, and of both together the one who left."""
    x, y = rows(0)
    ask((x, y))
    zeros = np.flatnonzero(y == 0)[:12]
    y = y.copy()
    y[zeros] = 1
    assert FEW in ask((np.delete(x, zeros[0], 0), np.delete(y, zeros[0])))


@pytest.mark.slow
def test_five_rows_are_corrected(ask):
    x, y = rows(0)
    ask((x, y))
    later = x.copy()
    later[np.flatnonzero(y == 0)[:5], 3] += 0.1
    assert FEW in ask((later, y))


@pytest.mark.slow
def test_ten_values_are_corrected_within_their_bins_and_one_moves_to_another(ask):
    x, y = rows(0)
    x[:, 3] = np.round(x[:, 3] * 4) / 4 + 0.05
    ask((x, y))
    later, changed = x.copy(), np.flatnonzero((y == 0) & (np.abs(x[:, 3]) < 3))[:10]
    later[changed, 3] += 0.01
    later[changed[0], 3] += 0.5
    assert FEW in ask((later, y))


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"epsilon": 8.0, "budget": 1000.0}, "diagnose.noise.budget: got 1000, expected 8 or less"),
        ({"epsilon": 4.0, "delta": 0.5}, "diagnose.noise.delta: got 0.5, expected 1e-05 or less"),
        ({"epsilon": 1000.0}, "privacy budget of 8 at delta 1e-05"),
    ],
)
def test_params_ask_for_more_than_the_budget_of_a_silo(asked, key, ask):
    noise = f"diagnose.noise={json.dumps(asked)}"
    said = ask(rows(0), noise)
    assert key in said
    assert "a" in said.split(":")[0]


def test_a_spent_budget_is_not_raised_by_params(ask):
    ask(rows(0), "diagnose.noise={epsilon: 8}")
    for more in ("budget: 100", "delta: 0.5"):
        with pytest.raises(
            UserError, match=r"diagnose\.noise\.\w+: got .*, expected .* or less, as .*owner\.yaml says"
        ):
            ask.again(f"diagnose.noise={{epsilon: 7, {more}}}")
    with pytest.raises(UserError, match="of which 8 is spent"):
        ask.again("diagnose.noise={epsilon: 7}")


def test_a_silo_that_reports_with_noise_only_is_not_asked_without_it(ask):
    ask(rows(0), "diagnose.noise={epsilon: 1}")
    policy = ask.folder / "private" / "own" / OWNER_FILE
    policy.write_text(policy.read_text().replace("silos: {}", "silos: {a: {without_noise: false, budget: 2.0}}"))
    assert "client a: got a query without noise" in ask.again()["refused"]["a"]
    refused = ask.again("diagnose.noise={epsilon: 2, delta: 1.0e-6}")["refused"]["a"]
    assert "its privacy budget of 2" in refused


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "content", ["", "# budget: 8.0\n", "budget: -1\n", "text\n", "budgit: 8.0\n", "silos: {a: }\n"]
)
def test_a_policy_that_says_nothing_or_nonsense_permits_nothing(content, ask):
    ask(rows(0), "diagnose.noise={epsilon: 1}")
    policy = ask.folder / "private" / "own" / OWNER_FILE
    policy.write_text(content)
    with pytest.raises(UserError, match=r"owner\.yaml: .*got .*Correct owner\.yaml; its silos report nothing"):
        ask.again()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("budget: much", "budget: got 'much', expected a number from 0 on. "),
        ("budget: -1", "budget: got -1, expected a number from 0 on. "),
        ("delta: 1", "delta: got 1, expected a number between 0 and 1. "),
        ("least_rows: 5", "least_rows: got 5, expected a whole number of 10 or more. "),
        ("bins: ", "bins: got nothing, expected a whole number from 1 to 1024. "),
        ("budgit: 8", "budgit: got an unknown key. Did you mean budget? "),
        ("silos: {a: {without_noise: 7}}", "silos.a.without_noise: got 7, expected true or false. "),
        ("silos: {A: {without_noise: false}}", "silos: got A, expected a silo of the data. Did you mean a? "),
    ],
)
def test_a_fault_in_a_policy_is_named_with_its_key_and_what_is_expected(line, fault, ask):
    ask(rows(0))
    policy = ask.folder / "private" / "own" / OWNER_FILE
    policy.write_text(f"{line}\n")
    with pytest.raises(UserError) as raised:
        ask.again("diagnose.bins=16")
    assert f"{policy}: {fault}Correct " in str(raised.value)


@pytest.mark.slow
def test_a_policy_may_name_a_silo_that_left(ask):
    ask(rows(0))
    policy = ask.folder / "private" / "own" / OWNER_FILE
    policy.write_text("silos: {b: {budget: 1.0}}\n")
    ask.write({"a": rows(0), "c": rows(12)}, features=BOUNDED)
    assert ask.again()["refused"] == {}


def test_more_bins_than_a_silo_has_rows_or_its_owner_allows(ask):
    few = rows(0, 100)
    assert "diagnose.bins: got 1024, expected 100 or less: the client has 100 training rows" in ask(
        few, "diagnose.bins=1024"
    )
    policy = ask.folder / "private" / "own" / OWNER_FILE
    policy.write_text(policy.read_text().replace("bins: 1024", "bins: 16"))
    with pytest.raises(UserError, match=r"diagnose\.bins: got 32, expected 16 or less, as .*owner\.yaml says"):
        ask.again()


@pytest.mark.sample(2)
@pytest.mark.parametrize("gone", ["private", "private/own/.ledgers", "private/own/owner.yaml", "private/own/.opened"])
def test_what_silos_keep_is_deleted_to_ask_again(gone, ask):
    """Each time with new noise and a full budget: the mean of thirty answers is the truth."""
    mine = rows(0)
    ask(mine, "diagnose.noise={epsilon: 8}")
    path = ask.folder / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    for overrides in (["diagnose.noise={epsilon: 8}"], []):
        with pytest.raises(UserError, match="`siloflow data ledger --new`"):
            ask.again(*overrides)


@pytest.mark.slow
def test_partition_makes_a_store_with_new_data_and_none_over_data_that_lost_it(ask):
    ask(rows(0))
    private = ask.folder / "private"
    shutil.rmtree(private)
    project = ask.project()
    assert any("was made here before" in note for note in make(project)["notes"])
    assert not (private / "own" / OWNER_FILE).exists()
    shutil.rmtree(ask.folder / "data")
    assert any("was made here before" in note for note in make(project)["notes"]), "DVC's cache has them"
    made = make(ask.project("data.name=other"))
    assert not any("made here before" in note for note in made["notes"])
    assert (private / "other" / OWNER_FILE).exists()


@pytest.mark.slow
def test_bounds_are_moved_until_they_tell_the_largest_value(ask):
    """Three questions of 1,024 bins each would tell it to nine digits."""
    x, y = rows(0)
    ask((x, y))
    for high in (3.9, 4.1):
        moved = [{**BOUNDED[0], "high": high}, *BOUNDED[1:]]
        assert "got other bins of feature 'x0'" in ask((x, y), features=moved)
    assert "got other bins of" in ask((x, y), "diagnose.bins=64")
    grown = [np.concatenate(parts) for parts in zip((x, y), rows(1, 60), strict=True)]
    assert "got other bins of" in ask(grown, features=[{**BOUNDED[0], "high": 3.9}, *BOUNDED[1:]])
    assert not isinstance(ask(grown), str)
    fewer = [{**BOUNDED[0], "high": 3.9}, *BOUNDED[1:-1]]
    assert "got other bins of" in ask((x[:, :-1], y), features=fewer), "rows without a column have the same values"


@pytest.mark.slow
@pytest.mark.parametrize("names", [["v0", "v1", "v2"], ["x1", "x0", "x2"]])
def test_features_are_renamed_to_move_their_bounds_or_to_hide_a_value(names, ask):
    x, y = rows(0, features=3)
    ask((x, y), features=BOUNDED[:3])
    renamed = [{"name": name, "low": -4, "high": 4} for name in names]
    assert "got other bins of" in ask((x, y), features=[{**renamed[0], "high": 3.9}, *renamed[1:]])
    later, changed = x.copy(), np.flatnonzero(y == 0)[:60]
    later[changed, 0] += 3
    later[changed[0], 1] = 0.1
    assert FEW in ask((later, y), features=renamed)


@pytest.mark.slow
def test_one_patient_leaves_while_a_column_is_left_out(ask):
    """No hash of a row is then what it was, and the values of the other columns are."""
    x, y = rows(0)
    ask((x, y))
    assert FEW in ask((np.delete(x, 7, 0)[:, :-1], np.delete(y, 7)), features=BOUNDED[:-1])


def test_bounds_without_declared_ones_stay_when_other_silos_change_and_cannot_be_moved_by_their_file(ask, world):
    x, y = rows(0, features=3)
    assert not isinstance(ask((x, y), features=None), str)
    grown = [np.concatenate(parts) for parts in zip((x, y), rows(1, 60, 3), strict=True)]
    report = ask(grown, features=None)
    assert report["refused"] == {}
    store = ClientStore(str(ask.folder / "private" / "own"))
    Bounds({name: [low, high + 0.1] for name, (low, high) in Bounds.read(store).features.items()}).write(store)
    with pytest.raises(UserError, match="got other bins of"):
        ask.again()


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_bounds_that_no_silo_has_rows_for_are_asked_again_when_there_are_some(task, world):
    here, rng = world(), np.random.default_rng(0)

    def diagnosed(count):
        owned = {}
        for name in ("a", "b"):
            x = rng.normal(50, 5, (count, 2))
            owned[name] = x, (x[:, 0] > 50).astype(int) if task == "classification" else x.sum(1).astype(np.float32)
        here.write(owned, task=task)
        return run_diagnosis(here.open(), PlainRunner())[1]

    diagnosed(6)
    store = ClientStore(str(here.folder / "private" / "own"))
    assert (dict(Bounds.read(store).features), tuple(Bounds.read(store).targets)) == ({}, ())
    assert diagnosed(300)["refused"] == {}
    bounds = Bounds.read(store)
    assert all(30 < low < 40 and 60 < high < 70 for low, high in bounds.features.values())
    assert len(bounds.features) == 2
    assert bool(bounds.targets) == (task == "regression")


def test_bounds_and_cuts_without_numbers_that_an_earlier_version_wrote_are_none(tmp_path):
    write_json(tmp_path / "bounds.json", {"features": {"a": [0, 1], "b": [0.0, 0.0]}, "targets": [None, None]})
    assert Bounds.read(ClientStore(str(tmp_path))) == Bounds({"a": (0, 1)}, ())


@pytest.fixture
def deal(world):
    """Writes the rows of one table as silos by one of its columns, and returns what their report refuses."""
    here = world()
    x, y = rows(0)

    def dealt(by, *overrides, x=x, y=y, features=BOUNDED):
        here.write({name: (x[by == name], y[by == name]) for name in np.unique(by).tolist()}, features=features)
        project = here.open(*overrides)
        if project.params.data.name != "own":
            make(project)
        try:
            return run_diagnosis(project, PlainRunner())[1]["refused"]
        except UserError as error:
            return str(error)

    dealt.policy = here.folder / "private" / "own" / OWNER_FILE
    return dealt


HOSPITAL, DOCTOR = np.array(["a", "b"])[np.arange(1500) // 750], np.array(["d", "e", "f"])[np.arange(1500) % 3]
TAKEN = "training rows that other silos of private/own reported, such as"


@pytest.mark.slow
@pytest.mark.parametrize("noise", [[], ["diagnose.noise={epsilon: 8}"]])
def test_the_same_rows_are_asked_under_another_column_or_name(noise, deal):
    """Each column of the table would have a budget of its own, and a silo without one row shows that row."""
    assert deal(HOSPITAL, *noise) == {}
    assert TAKEN in deal(DOCTOR, *noise)
    fewer = [{**feature, "name": f"v{at}"} for at, feature in enumerate(BOUNDED[:3])]
    assert TAKEN in deal(DOCTOR, *noise, x=rows(0)[0][:, [4, 2, 7]], features=fewer)
    a_row_less = np.where(np.arange(1500) == 7, "c", HOSPITAL)
    assert TAKEN in str(deal(np.char.replace(a_row_less.astype("U2"), "a", "aa"), *noise))
    assert deal(HOSPITAL, *noise) == {}
    deal.policy.write_text(deal.policy.read_text().replace("other_silos: false", "other_silos: true "))
    assert deal(DOCTOR, *noise) == {}


def test_the_same_rows_are_asked_under_another_name_in_a_store_of_its_own(deal):
    assert deal(HOSPITAL) == {}
    deal.policy.write_text(f"data: {{source: {{kind: npz, path: moved.npz}}}}\n{deal.policy.read_text()}")
    assert TAKEN in deal(HOSPITAL, "data.name=other")


@pytest.mark.slow
def test_rows_of_new_silos_are_new_also_in_a_table_of_few_values(deal):
    new = np.append(HOSPITAL, np.repeat("c", 300))
    assert deal(HOSPITAL) == {}
    assert deal(new, x=np.concatenate([rows(0)[0], rows(3, 300)[0]]), y=np.append(rows(0)[1], rows(3, 300)[1])) == {}
    few = np.random.default_rng(1).integers(0, 6, (3000, 3)).astype(float)
    features = [{"name": name, "low": 0, "high": 5} for name in ("p", "q", "r")]
    assert deal(np.char.add("g", HOSPITAL), x=few[:1500], y=rows(0)[1], features=features) == {}
    assert deal(np.char.add("h", HOSPITAL), x=few[1500:], y=rows(0)[1], features=features) == {}
