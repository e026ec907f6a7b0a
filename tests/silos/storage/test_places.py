"""Parts of data at places: cut from a whole, and merged into a listing of all silos without their rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from silos.cohort import Silos, make_stacks
from silos.errors import UserError
from silos.storage.manifest import COLUMNS, MANIFEST, read_manifest, to_bytes, to_json
from silos.storage.places import file_at, merge_parts, part_digest
from tasks.execution.task_runner import cohort_calls
from tasks.local_train import local_train
from tests.silos.storage.cut_part import cut_part

CLIENTS = {"oslo": 11, "lyon": 7, "one": 1, "same": 6, "rome": 9}


@pytest.fixture
def parts(write_silos, tmp_path):
    whole = Path(write_silos(CLIENTS, domains={name: name[0] for name in CLIENTS}).folder)
    folders = {"south": tmp_path / "south", "north": tmp_path / "north"}
    cut_part(whole, folders["north"], ["oslo", "one"])
    cut_part(whole, folders["south"], ["rome", "lyon", "same"])
    return whole, folders


def test_a_merged_listing_has_every_silo_as_the_whole_had_it(parts):
    whole, folders = parts
    merged, manifest = merged_of({"source": {"kind": "places"}}, folders), read_manifest(whole)
    order = [name for group in (("oslo", "one"), ("lyon", "rome", "same")) for name in manifest.names if name in group]
    assert list(merged.clients.names) == order
    assert list(merged.places) == ["north", "south"]
    for entry in merged.clients:
        place = "north" if entry.name in ("oslo", "one") else "south"
        before = manifest.client(entry.name)
        assert entry == replace(before, file=file_at(place, before.file))
        assert entry.file in merged.places[place].files
    assert {place: part.digest for place, part in merged.places.items()} == {
        p: part_digest(f) for p, f in folders.items()
    }


def test_a_listing_survives_a_write_and_a_read_and_old_ones_stay_as_they_were(parts, tmp_path):
    whole, folders = parts
    merged = merged_of({}, folders)
    (tmp_path / "listing").mkdir()
    (tmp_path / "listing" / COLUMNS).write_bytes(to_bytes(merged.clients))
    (tmp_path / "listing" / MANIFEST).write_bytes(to_json(merged))
    assert read_manifest(tmp_path / "listing") == merged
    assert b"places" not in (whole / MANIFEST).read_bytes()


def test_no_stack_and_no_cohort_has_silos_of_two_places(parts, tmp_path):
    _, folders = parts
    silos = listed(folders, tmp_path)
    for workers in (1, 2, 5):
        cohorts = [args[0] for args, _ in cohort_calls(local_train, silos, 2, workers)]
        places = [
            {place for place, part in silos.by_place().items() if client in part}
            for c in cohorts
            for client in c.clients
        ]
        assert all(len(of_client) == 1 for of_client in places)
        for cohort in cohorts:
            cohort.silos.select(cohort.clients).only_place()
        stacks = [stack for cohort in cohorts for stack in cohort.stacks]
        assert [stack.clients for stack in stacks] == [("oslo", "one"), ("rome", "lyon"), ("same",)]
    assert {stack.clients for stack in make_stacks(silos, 8)} == {("oslo", "rome", "lyon", "same", "one")}


def test_rows_at_places_are_not_opened_nor_pooled_here(parts, tmp_path):
    silos = listed(parts[1], tmp_path)
    with pytest.raises(UserError, match="got rows at place north, which do not leave it"):
        silos.check(["oslo"])
    with pytest.raises(UserError, match="got rows of 2 places, expected those of one"):
        silos.pool().by_place()
    assert silos.select(["rome", "same"]).pool().only_place() == "south"


def test_parts_that_do_not_fit_are_refused(parts, write_silos, tmp_path):
    whole, folders = parts
    cut_part(whole, tmp_path / "again", ["oslo"])
    with pytest.raises(UserError, match="client oslo: got it at places again and north"):
        merged_of({}, {**folders, "again": tmp_path / "again"})
    other = write_silos({"lima": 5}, name="other", rows_of=lambda _, n: (np.ones((n, 3)), np.arange(n) % 2))
    with pytest.raises(UserError, match="place north: classes: got"):
        merged_of({}, {**folders, "lima": Path(other.folder)})


def merged_of(params, folders):
    return merge_parts("all", params, folders, {place: part_digest(folder) for place, folder in folders.items()})


def listed(folders, tmp_path):
    merged, folder = merged_of({}, folders), tmp_path / "listed"
    folder.mkdir()
    (folder / COLUMNS).write_bytes(to_bytes(merged.clients))
    (folder / MANIFEST).write_bytes(to_json(merged))
    return Silos.open(folder, "version")
