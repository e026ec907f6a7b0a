"""`siloflow diagnose` as typed: the embedded project, whose digits are turned, and a table whose groups are known."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from publications.synthetic_pairs.fixed_pairs import SixFeatures

PNG = b"\x89PNG\r\n\x1a\n"
UPRIGHT, TURNED, UPSIDE_DOWN = ["c00", "c01", "c02"], ["c03", "c04", "c05"], ["c06", "c07", "c08"]


@pytest.fixture(scope="module")
def digits(partitioned: Any, tmp_path_factory: pytest.TempPathFactory, server: str) -> Any:
    """A partitioned copy of the embedded project."""
    return partitioned[0].copy(tmp_path_factory.mktemp("diagnose") / "digits", server)


def test_the_embedded_project_s_three_angles_are_found_and_asked_again_silos_tell_the_same(
    digits: Any, assert_quiet: Any
) -> None:
    answer = digits.type("diagnose")
    (first,) = (json.loads(file.read_text()) for file in digits.path.glob("runs/diagnose-*/report.json"))
    assert_quiet(answer.err)
    said = " ".join(answer.out.split())
    assert said.startswith("What differs The 9 silos form 3 groups; 27 of 36 pairs of silos differ.")
    assert "c00, c01 and c02 differ from c03, c04 and c05: inputs differ, most in" in said
    assert "the inputs hardly overlap: the data cannot show whether labels follow from them by the same rule" in said
    assert "Pictures that are turned far have this effect" in said
    assert "siloflow compare fedavg ifca conditional uefl" in said  # a model a group, a model of statistics, codebooks
    assert "look closer" in said
    assert max(map(len, answer.out.splitlines())) <= 80

    again = digits.type("diagnose", "--json")
    assert again.out.count("\n") == 1
    second = again.json
    assert second["groups"] == [UPRIGHT, TURNED, UPSIDE_DOWN]
    folder = digits.path / second["folder"]
    assert json.loads((folder / "report.json").read_text()) == second
    for picture in second["pictures"]:
        assert (folder / picture).read_bytes().startswith(PNG)
    assert first["folder"] != second["folder"]
    for name in ("matrices", "pairs", "ranking", "sentences"):
        assert first[name] == second[name]
    runs = digits.in_mlflow("tags.kind = 'diagnosis'")
    assert {Path(one["folder"]).name for one in (first, second)} <= {run.info.run_name for run in runs}


def test_the_ledger_says_what_each_silo_reported_and_a_missing_one_is_started_anew(digits: Any) -> None:
    def ledger(*arguments: str) -> Any:
        return digits.type("data", "ledger", "--json", *arguments).json["silos"]

    digits.type("diagnose")
    silos = ledger()
    assert [silo["name"] for silo in silos] == [*UPRIGHT, *TURNED, *UPSIDE_DOWN]
    assert all(silo["exact"] > 0 and (silo["noisy"], silo["spent"], silo["missing"]) == (0, 0, False) for silo in silos)
    digits.type("diagnose")
    assert ledger() == silos, "the same answer is no new one"

    shutil.move(digits.path / "private", digits.path / "elsewhere")
    code, out, err = digits.run(["data", "ledger"])
    assert (code, "siloflow data ledger --new" in out + err) == (2, True), err
    assert {(silo["exact"], silo["missing"]) for silo in ledger("--new")} == {(0, False)}


@pytest.mark.slow
def test_against_a_version_that_is_the_same_nothing_moved_and_the_command_ends_in_peace(
    partitioned: Any, tmp_path: Path, assert_quiet: Any
) -> None:
    """With a server of its own, as a person has it: what is imported before that has an address would look for another."""
    folder = partitioned[0].copy(tmp_path / "since")
    git(folder.path, "init", "-q")
    git(folder.path, "add", "data.dvc", "params.yaml")
    git(folder.path, "commit", "-qm", "nine silos")
    answer = folder.type("diagnose", "--against", "HEAD")
    assert_quiet(answer.err)
    assert answer.out.startswith("What differs\n  No change was seen in 9 silos since HEAD.")


@pytest.mark.slow
def test_groups_of_a_table_that_are_known_are_found_with_what_parts_them(
    partitioned: Any, tmp_path: Path, server: str
) -> None:
    """Two silos as they are, one with moved ages, one with fewer of a label, one whose labels are the other way round."""
    folder = partitioned[0].copy(tmp_path / "table", server)
    rng = np.random.default_rng(0)
    silos = {}
    for name in ("plain", "same", "moved", "fewer", "swapped"):
        x = rng.normal(size=(3000, 3))
        x[:, 0] += 1.5 * (name == "moved")
        y = rng.random(3000) < 1 / (1 + np.exp(-2 * x[:, 0]))
        kept = ~y | (rng.random(3000) < (0.25 if name == "fewer" else 1.0))
        silos[name] = x[kept][:1000], (y ^ (name == "swapped"))[kept][:1000].astype(int)
    x, y = (np.concatenate(part) for part in zip(*silos.values(), strict=True))
    client = np.concatenate([[name] * len(silos[name][1]) for name in silos])
    np.savez(folder.path / "own.npz", x=x, y=y, client=client, features=["age", "height", "weight"])
    asked = ["data.name=own", "data.source={kind: npz, path: own.npz}", "data.scheme=[{kind: column, column: client}]"]
    sets = [part for one in asked for part in ("--set", one)]
    folder.type("partition", *sets)
    found = folder.type("diagnose", *sets, "--json").json
    assert sorted(found["groups"]) == sorted([["plain", "same"], ["moved"], ["fewer"], ["swapped"]])
    pairs = {frozenset((pair["first"], pair["second"])): pair for pair in found["pairs"]}
    for name, kind in (("moved", "feature"), ("fewer", "label"), ("swapped", "concept")):
        for other in ("plain", "same"):
            assert pairs[frozenset((name, other))]["types"] == [kind]
    assert found["ranking"][0]["feature"] == "age"
    assert next(iter(pairs[frozenset(("plain", "moved"))]["features"])) == "age"


@pytest.mark.slow
def test_a_second_look_as_typed_says_who_sent_what_and_that_no_rule_differs(
    partitioned: Any, tmp_path: Path, server: str
) -> None:
    """Two silos whose labels follow from six features by one rule; in one of them one feature is wider."""
    folder = partitioned[0].copy(tmp_path / "looked", server)
    laws = {"plain": (2000, SixFeatures()), "wide": (1000, SixFeatures(width=1.8))}
    rows = {name: law(np.random.default_rng([9, at]), count) for at, (name, (count, law)) in enumerate(laws.items())}
    x, y = (np.concatenate(part) for part in zip(*rows.values(), strict=True))
    np.savez(folder.path / "own.npz", x=x, y=y, client=np.repeat(list(rows), [len(own) for _, own in rows.values()]))
    data = ["data.name=own", "data.source={kind: npz, path: own.npz}", "data.scheme=[{kind: column, column: client}]"]
    sets = [part for one in (*data, "data.split={validation: 0, test: 0}") for part in ("--set", one)]
    folder.type("partition", *sets)
    before, after = (
        folder.type("diagnose", *sets, "--set", f"diagnose.second_look={choice}", "--json").json
        for choice in ("false", "true")
    )
    assert [pair["types"] for found in (before, after) for pair in found["pairs"]] == [["feature"]] * 2
    assert [found["pairs"][0]["resolved_by_pairs"] for found in (before, after)] == [True, False]
    assert after["second_look"]["silos"] == ["plain", "wide"]
    assert "plain and wide sent models of their labels, and predicted counts of their rows." in after["notes"]
    assert f"All silos together sent {after['second_look']['bytes']['up']:,} bytes for it." in after["notes"]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=n@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, check=True)
