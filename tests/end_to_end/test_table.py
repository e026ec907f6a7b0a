"""A CSV as typed: silos of its hospitals, a comparison on them, and a file that changes afterwards."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from silos.storage.manifest import read_manifest

pytestmark = pytest.mark.slow

SOURCE = "{kind: table, path: visits.csv, label: outcome, client: hospital, missing: {fill: 0}}"
OWN = ("data.name=visits", f"data.source={SOURCE}", "data.scheme=[{kind: column, column: client}]")
SET = tuple(part for each in OWN for part in ("--set", each))


@pytest.fixture(scope="module")
def folder(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A project with 150 visits at three hospitals; at 007 people are older."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("table") / "project", server)
    rng = np.random.default_rng(0)
    visits = pd.DataFrame(
        {
            "hospital": np.repeat(["007", "north", "7"], 50),
            "age": (rng.normal(size=150) + np.repeat([3, 0, 0], 50)).round(2),
            "smokes": rng.random(150) < 0.5,
            "ward": rng.choice(["day", "eye", "\x1b[31mred"], 150),
        }
    )
    visits["outcome"] = np.where(visits["age"] + visits["smokes"] > 0.5, "ill", "well")
    visits.loc[3, "age"] = np.nan
    visits.to_csv(folder.path / "visits.csv", index=False)
    return folder


def test_a_csv_is_partitioned_shown_compared_and_diagnosed(folder: Any) -> None:
    made = folder.type("partition", *SET, "--json").json
    assert (made["clients"], sum(made["rows"].values())) == (3, 150)
    assert made["notes"][3] == "features: 5 = 1 number (age) + 1 true or false (smokes) + 3 one-hot (ward)"
    manifest = read_manifest(folder.path / "data" / "visits")
    assert list(manifest.names) == ["007", "7", "north"]
    assert [feature.name for feature in manifest.features[2:]] == ["ward=\x1b[31mred", "ward=day", "ward=eye"]
    screen = folder.type("partition", *SET).out
    assert "missing: age (1) filled in" in screen
    assert "\x1b" not in screen
    assert "007" in folder.type("show", *SET).out
    quick = (
        "--set",
        "training.rounds=2",
        "--set",
        "comparison.seeds=[0]",
        "--set",
        "training.optimiser.learning_rate=0.1",
    )
    compared = folder.type("compare", "local_only", "fedavg", *SET, *quick, "--json").json
    assert compared["data_version"] == made["data_version"]
    policy = folder.path / "private" / "visits" / "owner.yaml"  # thirty rows have few cells of ten
    policy.write_text(policy.read_text().replace("least_cell: 10", "least_cell: 1"))
    found = folder.type("diagnose", *SET, "--json").json
    assert found["ranking"][0]["feature"] == "age"


def test_a_file_that_changed_is_another_version_once_it_is_partitioned(folder: Any) -> None:
    before = folder.type("partition", *SET, "--json").json
    with (folder.path / "visits.csv").open("a") as file:
        file.write("north,0.5,True,day,ill\n")
    after = folder.type("partition", *SET, "--json").json
    assert (after["changed"], sum(after["rows"].values())) == (True, 151)
    assert after["data_version"] != before["data_version"]
