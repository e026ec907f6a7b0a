"""The types of a diagnosis are those of real reports: of every kind, at every depth, also as report.json holds them."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import pytest
from pydantic import ValidationError

from flows.diagnose import compare_with_version, diagnose, run_diagnosis
from flows.diagnosis.describe_data import diff, ledgers, log, overview_with_figure
from tasks.diagnosis import compare_silos
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.json_io import replace_nonfinite
from tasks.tracking.result_types.data_results import LedgersResult, ShownOverview, VersionDiff, VersionLog
from tasks.tracking.result_types.diagnosis_records import (
    ChangeRecord,
    GroupPairRecord,
    OddSilosRecord,
    PairRecord,
    SiloRecord,
)
from tasks.tracking.result_types.diagnosis_result import SiloReport, SiloResult, VersionReport, VersionResult
from tests.typed_json import assert_typed

NAMED = [{"name": "heart", "low": -5, "high": 5}, {"name": "lung", "low": -5, "high": 5}]
NOISE = "diagnose.noise={epsilon: 4}"
LOOK = "diagnose.second_look=true"


def rows(seed, count=300, classes=2, move=0.0):
    """Two normal features: the first depends on the class, and the second is moved."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % classes
    x = rng.normal(size=(count, 2))
    x[:, 0] += 2 * y - 1
    x[:, 1] += move
    return x, y


def two_groups(own):
    own.write({name: rows(seed, move=2.0 * (seed > 1)) for seed, name in enumerate("abcd")})


def regression(own):
    """Five silos are alike; the targets of two others differ by unlike amounts, an offset and a factor."""
    silos = {name: rows(seed)[0] for seed, name in enumerate("abcdefg")}
    targets = {name: 10 + x[:, 0] for name, x in silos.items()}
    targets |= {"f": targets["f"] + 3, "g": targets["g"] * 4}
    own.write({name: (x, targets[name]) for name, x in silos.items()}, "regression")


def odd_silos(own):
    """One of nine silos has all labels exchanged, and another one has far fewer of one label."""
    silos = {f"s{seed}": rows(seed) for seed in range(9)}
    (x, y), (other, _) = silos["s4"], silos["s2"]
    own.write({**silos, "s4": (x, 1 - y), "s2": (other, (np.arange(300) % 5 == 0).astype(int))})


def wider_inputs(own):
    """The rule is not linear, so that moved inputs look like another rule in counts."""
    silos = {}
    for seed, name in enumerate("abc"):
        rng = np.random.default_rng(seed)
        x = rng.normal((1.2 * (seed > 0), 0), size=(500, 2))
        chance = 1 / (1 + np.exp(-2 * x[:, 0] - x[:, 0] ** 2))
        silos[name] = x, (rng.random(500) < chance).astype(int)
    own.write(silos)


def faulty(own):
    """A constant, an absent class, codes for missing values, shared rows, few rows, copies and missing values."""
    silos = {name: rows(seed, classes=4) for seed, name in enumerate("abcde")}
    (silos["a"][0][:, 1], silos["c"][0][:7, 1]), (x, y) = (2.5, -999), silos["b"]
    silos["b"] = x[y < 2], y[y < 2]
    silos["d"] = rows(9, 12, 4)
    silos["e"][0][:150] = silos["a"][0][:150]
    silos["f"] = tuple(np.repeat(part, 5, 0) for part in rows(10, 60, 4))
    own.write(silos)


KINDS = {
    "groups": (two_groups, ()),
    "a second look": (wider_inputs, (LOOK,)),
    "pairs in doubt": (wider_inputs, ()),
    "moments": (two_groups, ("diagnose.verdict=moments",)),
    "the published rule": (two_groups, ("diagnose.verdict=paper",)),
    "regression": (regression, ()),
    "odd silos": (odd_silos, ()),
    "faults": (faulty, ()),
    "one silo": (lambda own: own.write({"a": rows(0)}), ()),
    "noise": (lambda own: own.write({name: rows(0) for name in "ab"}, features=NAMED), (NOISE,)),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_report_on_silos_is_what_its_type_says(kind, world):
    own, (write, overrides) = world(), KINDS[kind]
    write(own)
    assert_both(run_diagnosis(own.open(*overrides), PlainRunner())[1], SiloReport)


def test_a_report_on_groups_of_very_many_silos_is_what_its_type_says(world, monkeypatch):
    own = world()
    two_groups(own)
    monkeypatch.setattr(compare_silos, "MOST_PAIRS", 3)
    report = run_diagnosis(own.open(LOOK), PlainRunner())[1]
    assert report["pairs_of"] == "groups"
    assert_both(report, SiloReport)


@pytest.mark.parametrize("overrides", [(), (NOISE,)], ids=["counts", "noise"])
def test_a_report_on_versions_is_what_its_type_says(overrides, world):
    """One silo's new rows differ, one has another rule, one refuses, one has few rows, one came and one went."""
    own = world()
    silos = {name: rows(seed) for seed, name in enumerate(("east", "north", "west", "gone"))}
    few = rows(9, 15)
    before = own.write({**silos, "few": few}, features=NAMED)
    (x, y), (other, labels), (one_row_moved, of_east) = silos["north"], silos["west"], silos["east"]
    one_row_moved = one_row_moved + 3 * np.eye(300, 2)[:, :1]
    more = np.concatenate([x, x[:60] + np.array([1.5, 3])]), np.concatenate([y, 1 - y[:60]])
    now = {"north": more, "west": (other, 1 - labels), "east": (one_row_moved, of_east), "few": few, "new": rows(11)}
    own.write(now, features=NAMED)
    report = compare_with_version(own.open(*overrides), PlainRunner(), before)[1]
    assert report["new_rows"]["reason"] if overrides else report["new_rows"]["silos"]
    assert_both(report, VersionReport)


@pytest.mark.slow
def test_what_is_saved_and_printed_is_what_its_type_says(world, prefect, monkeypatch):
    own = world()
    before = own.write({name: rows(seed, move=2.0 * (seed > 1)) for seed, name in enumerate("abc")})
    monkeypatch.chdir(own.folder)
    assert_both(diagnose(), SiloResult)
    own.write({name: rows(seed, move=seed) for seed, name in enumerate("abd")})
    assert_both(diagnose(against=before), VersionResult)
    for path in (own.folder / "runs").glob("diagnose-*/report.json"):
        saved = json.loads(path.read_text())
        assert_typed(with_pairs(saved), VersionResult if "against" in saved else SiloResult)
    project = own.open()
    assert_typed(overview_with_figure(project), ShownOverview)
    assert_typed(ledgers(project, new=False), LedgersResult)
    assert_typed(log(own.folder), VersionLog)
    assert_typed(diff(own.folder, before, None), VersionDiff)


def test_a_key_too_many_a_key_too_few_and_another_type_are_seen_at_every_depth(world):
    own = world()
    odd_silos(own)
    report = run_diagnosis(own.open(), PlainRunner())[1]
    assert_both(report, SiloReport)
    places = [*records(report, SiloReport)]
    assert {GroupPairRecord, PairRecord, SiloRecord, OddSilosRecord, ChangeRecord} <= {kind for _, kind in places}
    for path, kind in places:
        for spoil in (add_a_key, remove_a_key, change_a_type):
            spoiled = deepcopy(report)
            record: Any = spoiled
            for step in path:
                record = record[step]
            spoil(record, kind)
            with pytest.raises(ValidationError):
                assert_typed(spoiled, SiloReport)


def add_a_key(record, kind):
    record["unknown"] = 1


def remove_a_key(record, kind):
    del record[min(kind.__required_keys__)]


def change_a_type(record, kind):
    record[min(kind.__required_keys__)] = [{"another": [None]}]


def assert_both(report, kind) -> None:
    """Check the report as Python has it, and as it is in a file, where numbers that JSON lacks are null."""
    assert_typed(report, kind)
    assert_typed(with_pairs(json.loads(json.dumps(replace_nonfinite(report)))), kind)


def with_pairs(saved):
    """Return the report with tuples where JSON has lists of two texts: what differs in a row of the table."""
    for row in saved["overview"]["rows"]:
        row["differ"] = [tuple(pair) for pair in row["differ"]]
    return saved


def records(value: Any, kind: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the path and type of the first record of each TypedDict, within a value of this type."""
    seen: set[Any] = set()

    def walk(value: Any, kind: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
        if is_typeddict(kind):
            if kind not in seen:
                seen.add(kind)
                yield path, kind
            for name, hint in get_type_hints(kind).items():
                if name in value:
                    yield from walk(value[name], hint, (*path, name))
        elif get_origin(kind) is list:
            for index, item in enumerate(value):
                yield from walk(item, get_args(kind)[0], (*path, index))
        elif get_origin(kind) is dict:
            for name, item in value.items():
                yield from walk(item, get_args(kind)[1], (*path, name))
        else:
            kinds = [part for part in get_args(kind) if is_typeddict(part)]
            if value is not None and len(kinds) == 1:
                yield from walk(value, kinds[0], path)

    return walk(value, kind, ())
