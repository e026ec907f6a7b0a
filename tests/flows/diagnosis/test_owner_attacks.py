"""An asker may run any command with any params, and not write private/: attacks that got rows of a table once."""

import hashlib
import json
import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from flows.cli.diagnosis_commands import show
from flows.cli.method_commands import methods
from flows.cli.result_commands import clean, results
from flows.cli.serving_commands import history
from flows.diagnose import run_diagnosis
from flows.diagnosis import describe_data
from flows.diagnosis.query_clients import build_query
from flows.project.make_partition import make
from flows.results.serving import describe_place as place_flow
from flows.results.serving.client_statistics import client_statistics
from flows.results.serving.describe_place import describe_place, serve_place, working
from flows.training.run_context import check_allowed
from flows.training.training_setup import training_setup
from silos.client_store import ClientStore
from silos.cohort import Stack
from silos.errors import RefusalError, UserError
from silos.privacy.owned_source import check_file, store_of
from silos.privacy.owner_file import OWNER_FILE, copy_policies, read_owner_file
from silos.privacy.request_log import forget_missing_requests, record_request, recording, user
from tasks.diagnosis.report_summary import LocalSummary, report_summary
from tasks.execution.load_client_data import load_rows
from tasks.execution.task_runner import PlainRunner, map_clients

FIXED = "as the silos' owner has set in private/visits/owner.yaml"
FEW = "differ by fewer than 10 different rows"


def answered(said):
    return not isinstance(said, str)


def test_another_name_for_the_same_file_has_the_same_owners_file(hospital):
    """Once, a new name had a new policy, which allowed exact numbers."""
    hospital.owner(without_noise=False)
    assert "got a query without noise" in hospital.diagnose()
    assert "got a query without noise" in hospital.diagnose("data.name=v2")
    shutil.copy(hospital.folder / "visits.csv", hospital.folder / "copy.csv")
    assert FIXED in hospital.diagnose("data.name=v2", "data.source.categorical=[age, crp]")
    linked = hospital.folder / "link.csv"
    linked.symlink_to(hospital.folder / "visits.csv")
    assert "got a query without noise" in hospital.diagnose("data.name=v3", "data.source.path=./link.csv")


def test_a_copy_of_the_file_is_known_by_its_cells_whatever_is_made_of_them(hospital):
    """The copy has an owner's file of its own, and the register knows the rows under any recoding."""
    assert answered(hospital.diagnose())
    shutil.copy(hospital.folder / "visits.csv", hospital.folder / "copy.csv")
    for recoding in ([], ["data.source.categorical=[age, crp]", "data.features=[]"], ["data.source.label=sex"]):
        said = hospital.diagnose(f"data.name=v{len(recoding)}", "data.source.path=copy.csv", *recoding)
        assert "training rows that other silos of private/visits reported" in said
        shutil.rmtree(hospital.folder / "private" / f"v{len(recoding)}")


@pytest.mark.parametrize(
    "recoding",
    [
        ["data.source.categorical=[age, crp]", "data.source.drop=[patient, sex, ward]", "data.features=[]"],
        ["data.source.drop=[patient, crp]", "data.features=[{name: age, low: 0, high: 120}]"],
        ["data.source.label=sex"],
    ],
)
def test_one_patient_leaves_and_all_numbers_are_recoded(recoding, hospital):
    """Once, no hash of a row was then what it was, and the difference of two reports was the patient."""
    assert answered(hospital.diagnose())
    hospital.save(hospital.table()[2:])
    assert FEW in hospital.diagnose(), "the usual question is refused"
    assert FIXED in hospital.diagnose(*recoding)
    hospital.owner(may_differ=["source", "features"])
    said = hospital.diagnose(*recoding)
    assert not answered(said)
    assert FEW in said or "got other bins of" in said, (
        "the ledger knows the cells also where the owner allows recodings"
    )


def test_a_value_is_made_missing_to_leave_out_its_row(hospital):
    """Once, `na_values` with one value and `drop_rows` left out the one patient who has it."""
    lone = hospital.table()[0][3]
    assert answered(hospital.diagnose())
    asked = ["data.source.missing=drop_rows", f'data.source.na_values=["{lone}"]']
    refused = hospital.diagnose(*asked)
    assert FIXED in refused
    assert "let the owner add source.missing, source.na_values to may_differ there" in refused, "both at once"
    hospital.owner(may_differ=["source", "features"])
    assert FEW in hospital.diagnose(*asked)


def test_the_column_of_patients_is_left_out(hospital):
    """Once, a patient of many visits was counted as many rows."""
    grown = type(hospital)(hospital.here, unit="patient", drop=[])
    (grown.folder / "private" / "visits" / "owner.yaml").unlink()
    assert answered(grown.diagnose()), "the owner names the column before any report"
    new = [["north", "new", 50 + visit, 59 + visit / 20, "f", "eye", "well"] for visit in range(14)]
    grown.save(hospital.table() + new)
    assert FEW in grown.diagnose(), "one patient came"
    for asked in ([], ["diagnose.noise={epsilon: 4}"]):
        assert FIXED in grown.diagnose("data.source.unit=null", "data.source.drop=[patient]", *asked)


def test_public_data_are_partitioned_first_under_the_name(hospital):
    """Once, the store of digits, whose rows anyone may report, stayed that of the table after it."""
    split = "data.split={validation: 0.15, test: 0.25}"
    digits = ["data.source={kind: digits}", "data.scheme=[{kind: equal, clients: 3}]", "data.features=[]", split]
    assert "whose store private/visits belongs to the source visits.csv" in hospital.diagnose(*digits)
    make(hospital.here.open("data.name=later", *digits))
    shutil.rmtree(hospital.folder / "private" / "visits")
    make(hospital.here.open("data.name=later"))
    file = (hospital.folder / "private" / "later" / "owner.yaml").read_text()
    assert "other_silos: false" in file
    assert "owners_view: false" in file
    assert 'path: "visits.csv"' in file


def test_any_column_is_the_label(hospital):
    for column in ("crp", "sex", "ward"):
        assert FIXED in hospital.diagnose(f"data.source.label={column}", "diagnose.bins=300")


def counts(hospital, *overrides):
    """The bytes of the noisy answers of both silos."""
    project = hospital.here.open("diagnose.noise={epsilon: 1}", *overrides)
    make(project)
    query = build_query(project.silos, project.params.diagnose, None)
    messages = map_clients(PlainRunner(), report_summary, project.silos, stack=4, private=project.ledgers, query=query)
    return {c: m.counts[i].numpy().tobytes() for m in messages for i, c in enumerate(m.clients)}


def test_under_noise_equal_bytes_do_not_tell_that_no_row_changed(hospital):
    """Once, the bytes of a silo were the same exactly if none of its rows had changed."""
    first = counts(hospital)
    assert counts(hospital) == first, "the same question on the same version"
    hospital.save(hospital.table()[:-1])  # a patient of south leaves
    second = counts(hospital)
    assert first["north"] != second["north"], "no row of north changed"
    assert first["south"] != second["south"]
    spent = {s["name"]: s["spent"] for s in describe_data.ledgers(hospital.here.open(), False)["silos"]}
    assert spent["north"] == spent["south"] > 1, "a version with changed rows costs budget, at every silo"


def test_the_hash_of_a_version_confirms_no_guess(hospital, world_at, tmp_path):
    """An attacker who knows all rows but one value makes the version of each guess; without the secret none is equal."""
    version = make(hospital.here.open())["data_version"]
    guess = type(hospital)(world_at(tmp_path / "elsewhere"))
    guess.save(hospital.table())
    assert make(guess.here.open())["data_version"] != version
    assert make(hospital.here.open("data.seed=1", "data.seed=0"))["data_version"] == version, (
        "with the secret it is equal"
    )
    assert version_of_north(hospital) != version_of_north(guess), "a message names it if it prevents a mean and scale"


def version_of_north(hospital):
    silos = hospital.here.open().silos
    opened = load_rows(silos, Stack(("north",), 1), "train", "cpu")
    return LocalSummary(silos, "north", opened.x[0], opened.y[0]).version


def test_the_hash_of_outcomes_in_runs_confirms_no_guess(hospital, world_at, tmp_path):
    """Of twelve test rows, an attacker stores each of the 4,096 outcomes elsewhere, and compares the hashes."""
    outcomes = {"correct": np.array([[1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0]], np.uint8)}
    elsewhere = type(hospital)(world_at(tmp_path / "elsewhere"))
    elsewhere.save(hospital.table())
    make(elsewhere.here.open())
    runs = [project.store.runs / "first" / "fedavg-0" for project in (hospital.here.open(), elsewhere.here.open())]
    own, guess = (each.here.open().store.private(run) for each, run in zip((hospital, elsewhere), runs, strict=True))
    ref = own.save("outcomes", ["north"], outcomes)
    assert ref != guess.save("outcomes", ["north"], outcomes)
    assert ref != ClientStore(str(tmp_path / "plain")).save("outcomes", ["north"], outcomes)
    later = hospital.here.open().store.private(runs[0].parent.parent / "second" / "fedavg-0")
    assert later.save("outcomes", ["north"], outcomes) == ref, "equal outcomes of two runs are found"
    np.testing.assert_array_equal(own.load("outcomes", ref, "north")["correct"], outcomes["correct"][0])


def test_no_seed_draws_other_training_rows_to_be_reported(hospital):
    """Once, sums under as many seeds as a silo has rows gave all rows, if columns had mostly different values."""
    split = "data.split={validation: 0.0, test: 0.4}"
    hospital.owner(may_differ=["split"])
    assert answered(hospital.diagnose(split))
    assert f"params.yaml: data.seed: got 1, expected 0, {FIXED}" in hospital.diagnose(split, "data.seed=1")


DEALT = "data.scheme=[{kind: equal, clients: 2}]"


def test_rows_that_are_dealt_at_random_are_reported_under_one_seed(hospital):
    """Once, each seed dealt a row to another silo of the same names, with a budget of its own."""
    hospital.owner(may_differ=["scheme", "seed"])
    asked = [DEALT, "diagnose.noise={epsilon: 1}"]
    assert answered(hospital.diagnose(*asked))
    said = hospital.diagnose(*asked, "data.seed=1")
    assert "training rows that other silos of private/visits reported, such as c0" in said
    assert "(and 1 more silos likewise" in said


def test_rows_of_a_sweep_over_partitions_are_reported_through_one_ledger(hospital):
    """Once, each partition of a sweep had ledgers of its own, with other silos of the same names."""
    hospital.owner(may_differ=["scheme"])
    project = hospital.here.open(DEALT)
    make(project)
    assert not run_diagnosis(project, PlainRunner())[1]["refused"]
    swept = project.derive([DEALT, "data.seed=1"], derived=True)
    with pytest.raises(UserError, match="or in silos of several partitions, would have several budgets"):
        run_diagnosis(swept, PlainRunner())
    with pytest.raises(
        RefusalError, match=r"got data of private/visits/owner\.yaml, expected public or simulated data"
    ):
        _ = replace(project, scratch=hospital.folder / "scratch").ledgers


def test_other_rows_of_a_plugins_kind_need_a_file_that_the_owner_writes(hospital):
    """Which keys of a plugin choose its rows, and which recode them, is not known."""
    private, found = hospital.folder / "private", []
    for name in ("first", "second"):
        (private / name).mkdir()
        (private / name / "owner.yaml").write_text(f"data: {{source: {{kind: warehouse, table: {name}}}}}")
        found.append(
            [store_of(hospital.folder, asked, "warehouse", None).name for asked in ("first", "second", "third")]
        )
    assert found == [["first", "first", "first"], ["first", "second", "first"]]


def test_no_hash_of_the_source_lies_in_runs(hospital):
    """Once, its md5 in runs/sources.json confirmed a guess of the last unknown cell."""
    md5 = hashlib.md5((hospital.folder / "visits.csv").read_bytes()).hexdigest().encode()
    files = [path for path in hospital.folder.rglob("*") if path.is_file()]
    found = {path.relative_to(hospital.folder).parts[0] for path in files if md5 in path.read_bytes()}
    assert found == {"private"}
    assert not hospital.here.open().data.is_source_changed()


def test_show_stats_and_diff_tell_no_class_of_one_row(hospital):
    rows = hospital.table()
    rows[0][-1] = "lost"  # a class of one patient of north
    hospital.save(rows)
    before = make(hospital.here.open())["data_version"]
    shown = {c["name"]: c["label_shares"] for c in describe_data.overview_with_figure(hospital.here.open())["clients"]}
    assert shown["north"]["lost"] is None
    with pytest.raises(RefusalError, match="got a class with fewer than 10 different training rows"):
        client_statistics(hospital.here.open(), "north", "conditional")
    hospital.save(rows[:2] + rows[4:])
    after = make(hospital.here.open())["data_version"]
    (change,) = (
        each for each in describe_data.diff(hospital.folder, before, after)["silos"] if each["client"] == "north"
    )
    assert change["before"] == change["before"] | {"label_shares": {}, "mean": None}
    shown = describe_data.overview_with_figure(hospital.here.open())
    assert FEW in shown["refused"]["north"], "the difference of both would be the patient who left"
    hospital.owner(owners_view=True)
    shares = {c["name"]: c["label_shares"] for c in describe_data.overview_with_figure(hospital.here.open())["clients"]}
    assert sum(shares["north"].values()) == pytest.approx(1)


def test_statistics_of_a_silo_that_lost_a_patient_are_refused(hospital):
    assert client_statistics(hospital.here.open(), "north", "conditional")["rows"] == 90
    hospital.save(hospital.table()[2:])
    make(hospital.here.open())
    with pytest.raises(RefusalError, match=FEW):
        client_statistics(hospital.here.open(), "north", "conditional")


def test_an_owner_refuses_methods_that_send_gradients_of_few_rows(hospital):
    project = hospital.here.open()
    setup = training_setup(project, 0)
    check_allowed(project, "fedsgd", setup)
    hospital.owner(methods=["fedavg"])
    with pytest.raises(RefusalError, match="got fedsgd, expected one of fedavg, as the owner has set under methods"):
        check_allowed(project, "fedsgd", setup)
    check_allowed(project, "fedavg", setup)
    hospital.owner(methods="all", training_rows=91)
    with pytest.raises(RefusalError, match=r"client north \(and 1 more\): got 90 training rows, expected 91 or more"):
        check_allowed(project, "fedavg", setup)
    hospital.owner(training_rows=1, silos={"north": {"commands": ["diagnose"]}})
    with pytest.raises(RefusalError, match="client north: got run, expected one of diagnose"):
        check_allowed(project, "fedavg", setup)
    check_allowed(hospital.here.open("clients.leave={north: 1}"), "fedavg", setup)


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ("data.scheme=[{kind: column, column: client}, {kind: noise, sd: 20}]", "scheme"),
        ("data.scheme=[{kind: equal, clients: 2}]", "scheme"),
        ("data.split={validation: 0.5, test: 0.49}", "split.validation"),
    ],
)
def test_rows_are_dealt_changed_or_split_in_another_way(asked, key, hospital):
    """Once, answers under known noise were projections from which all rows followed; a split left one row to score."""
    said = hospital.diagnose(asked)
    assert f"data.{key}: got" in said
    assert FIXED in said


def test_one_set_of_statistics_is_told_of_a_version(hospital):
    asked = "method.conditional.statistics=[{kind: class_means}]"
    first = client_statistics(hospital.here.open(), "north", "conditional")
    assert client_statistics(hospital.here.open(), "north", "conditional")["statistics"] == first["statistics"]
    with pytest.raises(RefusalError, match="got a second query of the kind `statistics of a client`"):
        client_statistics(hospital.here.open(asked), "north", "conditional")


def test_a_link_to_the_source_has_the_same_owner_and_is_not_predicted_where_he_refuses(hospital):
    (hospital.folder / "hard.csv").hardlink_to(hospital.folder / "visits.csv")
    hospital.owner(commands=[])
    for link in ("hard.csv", "visits.csv"):
        with pytest.raises(RefusalError, match="got partition, expected nothing"):
            make(hospital.here.open("data.name=v2", f"data.source.path={link}"))
        with pytest.raises(RefusalError, match="got predict, expected nothing"):
            check_file(hospital.folder, hospital.folder / link)
    check_file(hospital.folder, hospital.folder / "params.yaml")


def test_an_owner_keeps_the_partition_and_all_else_to_himself(hospital):
    hospital.owner(commands=[])
    with pytest.raises(
        RefusalError, match="silos: got partition, expected nothing, as the owner has set under commands"
    ):
        make(hospital.here.open())
    assert "got diagnose, expected nothing" in hospital.diagnose(partition=False)
    with pytest.raises(RefusalError, match="got stats, expected nothing"):
        client_statistics(hospital.here.open(), "north", "conditional")
    shown = describe_data.overview_with_figure(hospital.here.open())
    assert [client["label_shares"] for client in shown["clients"]] == [{}, {}]
    with pytest.raises(RefusalError, match="got run, expected nothing"):
        check_allowed(hospital.here.open(), "fedavg", training_setup(hospital.here.open(), 0))


def test_a_kind_of_message_that_the_owner_does_not_list_does_not_leave(hospital):
    hospital.owner(messages=["Update"])
    assert "got ShiftNumbers, expected one of Update, as the owner has set under messages" in hospital.diagnose()


def test_one_silo_lets_a_kind_of_message_leave_and_another_does_not(hospital):
    hospital.owner(silos={"north": {"messages": ["Update"]}})
    project = hospital.here.open()
    said = run_diagnosis(project, PlainRunner())[1]["refused"]
    assert "client north: got ShiftNumbers, expected one of Update" in said["north"]
    assert describe_data.ledgers(project, False)["silos"][0]["exact"] == 0, "nothing is charged for what does not leave"


def test_the_secret_of_cells_is_not_made_anew_once_silos_have_reported(hospital):
    assert answered(hospital.diagnose())
    (hospital.folder / "private" / ".rows" / "secret").unlink()
    assert "by which cells of rows are compared with those that were reported, is missing" in hospital.diagnose()


def test_versions_under_the_name_of_public_data_are_told_by_numbers_of_rows(hospital):
    split = "data.split={validation: 0.15, test: 0.25}"
    make(
        hospital.here.open(
            "data.name=v2",
            "data.source={kind: digits}",
            "data.scheme=[{kind: equal, clients: 3}]",
            "data.features=[]",
            split,
        )
    )
    before = make(hospital.here.open("data.name=v2"))["data_version"]
    hospital.save(hospital.table()[2:])
    after = make(hospital.here.open("data.name=v2"))["data_version"]
    sides = [
        change[side]
        for change in describe_data.diff(hospital.folder, before, after)["silos"]
        for side in ("before", "after")
    ]
    assert {json.dumps([side["label_shares"], side["mean"]]) for side in sides} == {"[{}, null]"}


def test_the_owner_reads_what_was_asked_what_it_cost_and_why_it_was_refused(hospital):
    assert answered(hospital.diagnose())
    hospital.diagnose("diagnose.noise={epsilon: 1}")
    hospital.save(hospital.table()[2:])
    assert FEW in hospital.diagnose()
    lines = describe_data.ledgers(hospital.here.open(), False, log=True)["log"]
    assert [line["when"] for line in lines] == sorted(line["when"] for line in lines)
    north = [line for line in lines if line["silo"] == "north"]
    assert {"counts and moments without noise", "counts and moments with noise"} <= {line["asked"] for line in north}
    exact = next(line for line in north if line["asked"] == "counts and moments without noise")
    assert (exact["rows"], exact["rho"], exact["by"]) == (90, 0.0, user())
    noisy = next(line for line in north if line["asked"] == "counts and moments with noise")
    assert noisy["epsilon"] == pytest.approx(1, rel=0.01)
    assert {line["silo"]: FEW in line["answer"] for line in lines if line["answer"].startswith("refused")} == {
        "north": True,
        "south": True,
    }


@pytest.mark.parametrize("others", [0, 1])
def test_a_command_that_began_before_the_log_was_renewed_ends_no_other(others, hospital, monkeypatch):
    """Once, its end was that of the line with its number, or there was none and the log could not be shown."""
    store, seconds = hospital.folder / "private" / "visits", count()
    monkeypatch.setattr("silos.privacy.request_log.now", lambda: f"2026-01-01T00:00:{next(seconds):02}Z")
    with recording(lambda: store, "siloflow diagnose"):
        (store / "requests.log").unlink()
        forget_missing_requests(store)
        for _ in range(others):
            record_request(store, "siloflow run fedavg")
    lines = describe_data.ledgers(hospital.here.open(), False, log=True)["log"]
    assert [(line["asked"], line["answer"]) for line in lines] == [
        ("siloflow run fedavg", "has not ended, or was killed")
    ] * others


def test_a_place_serves_no_owners_file_that_was_changed_since_its_approval(hospital, monkeypatch):
    monkeypatch.setattr("flows.results.serving.describe_place.open_membership", lambda _: None)
    project = hospital.here.open()
    with pytest.raises(RefusalError, match=r"got no approval of private/visits/owner\.yaml, expected"):
        serve_place(project, print)
    assert describe_place(project, approves=True)["approved"].endswith(f" by {user()}")
    hospital.owner(budget=100)
    assert describe_place(project)["approved"] == ""
    changed = r"owner\.yaml as it is now, since it was changed after an approval, expected"
    with pytest.raises(RefusalError, match=changed):
        serve_place(project, print)


def test_a_place_that_serves_answers_only_by_the_owners_file_that_was_approved(hospital):
    """Once, a change took effect at once, and what the first partition wrote while the place served needed no approval."""
    project, store = hospital.here.open(), hospital.folder / "private" / "visits"
    describe_place(project, approves=True)
    with working(project, store):
        pass
    hospital.owner(budget=100)
    changed = r"owner\.yaml as it is now, since it was changed after an approval, expected"
    with pytest.raises(RefusalError, match=changed), working(project, store):
        pass
    describe_place(project, approves=True)
    with working(project, store):
        pass


def test_what_is_approved_is_the_owners_file_that_was_read(hospital, monkeypatch):
    """An edit while it is read, and before it is printed, is not approved."""
    project = hospital.here.open()
    read = place_flow.read_owner_file

    def edit_then_read(path):
        path.write_text(path.read_text() + "# later\n")
        return read(path)

    monkeypatch.setattr(place_flow, "read_owner_file", edit_then_read)
    assert describe_place(project, approves=True)["approved"] == ""


def test_commands_that_ask_no_silo_need_no_log_of_requests(hospital, monkeypatch, capsys):
    monkeypatch.chdir(hospital.folder)
    log = hospital.folder / "private" / "visits" / "requests.log"
    log.write_text("damaged\n")
    history(json=True)
    results(json=True)
    clean(json=True)
    methods(json=True)
    assert log.read_text() == "damaged\n"
    with pytest.raises(SystemExit):
        show(json=True)
    assert "requests.log, the record of what was asked of these silos, is damaged" in capsys.readouterr().err


def test_silos_that_are_here_do_not_get_the_owners_file_of_places(hospital):
    """Once, `watch` and the flow `partition` replaced it by what the asker's own place said."""
    owner = hospital.folder / "private" / "visits" / OWNER_FILE
    before = owner.read_bytes()
    with suppress(UserError):
        make(hospital.here.open("data.source={kind: places}"))
    with pytest.raises(RefusalError, match=r"visits/owner\.yaml is of silos that are here, expected another data"):
        copy_policies(owner.parent, {"north": {"owners_view": True}})
    assert owner.read_bytes() == before
    elsewhere = owner.parent.parent / "others"
    for budget in (1.0, 2.0):
        copy_policies(elsewhere, {"rome": {"budget": budget}})
    assert read_owner_file(elsewhere / OWNER_FILE).of("rome").budget == 2


def test_an_owners_file_without_a_source_lets_no_other_name_have_a_file_of_its_own(hospital):
    owner = hospital.folder / "private" / "visits" / OWNER_FILE
    owner.write_text("commands: [partition]\nbudget: 1.0\n")
    with pytest.raises(RefusalError, match=r"private/visits/owner\.yaml: data: got none, expected at least the source"):
        make(hospital.here.open("data.name=x"))
    assert not (owner.parent.parent / "x").exists()
