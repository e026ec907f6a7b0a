"""A table of trials: pairs drawn and judged cell by cell, what is kept of them, and what is printed."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import beta

from flows.core.console.safe_text import PlainConsole
from publications import verdict_trials
from publications.compare_with_published import table_of_records
from publications.detection_rates import mean_of, share
from publications.fill_sweep import estimate
from publications.fill_sweep import fill as fill_sweep
from publications.print_tables import reproduce
from publications.sweep import Sweep
from silos.errors import UserError

CHECKOUT = Path(__file__).parents[2]
ABOUT = {"title": "t", "source": "s", "known_errors": "none"}


def cell(row: str, pairs: int = 4, **more):
    return {"about": "w", "trial": {"row": row, "rows": [200, 200], "pairs": pairs}, **more}


ONE = {
    **ABOUT,
    "family": "one_feature",
    "cells": {
        "none": cell("none", of=4, said={"guarded": {"none": 4}}, distances={"D_Y": [0.1, None]}),
        "label": cell("label"),
        "both": cell("label+feature"),
    },
    "confusions": {"single": {"cells": ["none", "label"], "published": {"guarded": 0.9}}, "all": {"cells": ["both"]}},
    "scales": {"cpu": {"seeds": [3, 4]}},
}
RANDOM = {
    **ABOUT,
    "family": "random",
    "cells": {"moved": {"about": "w", "trial": {"row": "feature", "rows": [300, 900], "pairs": 6, "effect": 0.6}}},
    "confusions": {"all": {"cells": ["moved"], "by": True}},
    "scales": {"cpu": {"seeds": [1]}},
}
FEWER = {**RANDOM, "cells": {"moved": {"about": "w", "trial": {**RANDOM["cells"]["moved"]["trial"], "pairs": 3}}}}
FEW = {
    **ABOUT,
    "family": "one_feature",
    "cells": {"none": {"about": "w", "trial": {"row": "none", "rows": [15, 15], "pairs": 4}}},
    "confusions": {"all": {"cells": ["none"]}},
    "scales": {"cpu": {"seeds": [1]}},
}
NOISY = {
    **ABOUT,
    "family": "five_features",
    "cells": {
        name: {"about": "w", "trial": {"row": "none", "rows": [2000, 2000], "pairs": 10, "epsilon": epsilon}}
        for name, epsilon in (("much", 0.7), ("little", 1000), ("without", 0))
    },
    "confusions": {"all": {"cells": ["much"]}},
    "scales": {"cpu": {"seeds": [1]}},
}

LOOKED = {
    **ABOUT,
    "family": "six_features",
    "second_look": True,
    "cells": {
        name: {"about": "w", "trial": {"row": row, "rows": [2000, 1000], "pairs": 4}}
        for name, row in (("wide", "x1 sd 1.8"), ("swapped", "x0 + 1 and swap"))
    },
    "confusions": {"all": {"cells": ["wide", "swapped"]}},
    "scales": {"cpu": {"seeds": [22]}},
}


TABLES = {"one": ONE, "random": RANDOM, "fewer": FEWER, "few": FEW, "noisy": NOISY, "looked": LOOKED}


def make_folder(folder: Path) -> Path:
    """Write what a sweep needs: params.yaml, and the tables."""
    shutil.copy(CHECKOUT / "params.yaml", folder)
    (folder / "tiny.yaml").write_text(yaml.safe_dump({"tables": TABLES}, sort_keys=False))
    return folder


def open_sweep(table="one", **more) -> Sweep:
    return Sweep("tiny.yaml", table, "cpu", **more)


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(make_folder(tmp_path))
    return open_sweep


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A folder with all cells of two tables; no run is started for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(make_folder(tmp_path_factory.mktemp("filled")))
        patch.setattr("publications.fill_sweep.run", None)
        for table in ("one", "random"):
            fill_sweep(open_sweep(table))
            assert open_sweep(table).finished
        return Path.cwd()


@pytest.fixture
def sweep_of_filled(filled, monkeypatch):
    """Opens the sweeps of `filled`, which is the current folder."""
    monkeypatch.chdir(filled)
    return open_sweep


def kept() -> dict:
    return json.loads(Path("docs/results/tiny.json").read_text())


@pytest.mark.slow
def test_a_sweep_that_was_interrupted_goes_on_after_the_cells_that_are_recorded(sweep, monkeypatch):
    judged, opinion = [], verdict_trials.opinion

    def interrupted(pair):
        judged.append(pair)
        if len(judged) == 10:
            raise KeyboardInterrupt
        return opinion(pair)

    monkeypatch.setattr(verdict_trials, "opinion", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill_sweep(sweep())
    assert list(kept()["one"]["cpu"]) == ["none"]  # both seeds of the first cell
    assert not sweep().finished
    before = kept()["one"]["cpu"]["none"]
    fill_sweep(sweep())
    assert len(judged) == 9 + 1 + 4 * 4
    assert sweep().finished
    assert kept()["one"]["cpu"]["none"] == before
    fill_sweep(sweep())
    assert len(judged) == 26  # nothing is judged again
    assert not Path("runs/reproduce-tiny-one-cpu").exists()  # no run, no experiment


@pytest.mark.slow
def test_what_is_kept_and_what_is_shown_count_the_same_pairs(sweep_of_filled):
    found, records = table_of_records(sweep_of_filled()), kept()["one"]["cpu"]
    rows = {row["cell"]: row for row in found["rows"]}
    assert {name: row["truth"] for name, row in rows.items()} == {
        "none": "none",
        "label": "label",
        "both": "feature+label",
    }
    for name, row in rows.items():
        assert row["pairs"] == 8
        for judge, ours in row["ours"].items():
            assert sum(ours["said"].values()) == 8
            assert ours["right"] == sum(record["said"][judge].get(row["truth"], 0) for record in records[name])
    assert rows["none"]["published"]["guarded"]["of"] == 4
    assert rows["none"]["distances"]["D_Y"]["published"] == [0.1, None]
    assert rows["none"]["distances"]["D_Y"]["ours"][0] == pytest.approx(
        np.mean([record["distances"]["D_Y"][0] for record in records["none"]])
    )
    assert "distances" not in records["label"][0]
    single, every = found["confusions"]["single"], found["confusions"]["all"]
    shares = [rows[name]["ours"]["guarded"]["share"] for name in ("none", "label")]
    assert single["balanced_accuracy"]["guarded"]["share"] == pytest.approx(np.mean(shares))
    assert single["false_alarms"]["guarded"]["right"] == 8 - rows["none"]["ours"]["guarded"]["right"]
    assert every["false_alarms"] == {}
    assert single["ranked"] == {}  # no feature is said to carry these shifts


def test_of_random_pairs_it_is_kept_what_they_were_and_how_features_are_ranked(sweep_of_filled):
    table = table_of_records(sweep_of_filled("random"))
    (record,), found = kept()["random"]["cpu"]["moved"], table["confusions"]["all"]
    assert record["ranked"]["pairs"] == 6
    assert record["ranked"]["all"] <= record["ranked"]["first"] <= 6
    kinds = [counts["pairs"] for about, counts in record["by"].items() if about in ("numeric", "discrete", "mixed")]
    assert sum(kinds) == 6
    assert all(counts["guarded"] <= counts["pairs"] for counts in record["by"].values())
    assert found["ranked"]["first"]["of"] == 6
    assert {name: of["guarded"]["of"] for name, of in found["by"].items()} == {
        name: counts["pairs"] for name, counts in record["by"].items()
    }


@pytest.mark.slow
def test_of_counts_with_noise_a_verdict_that_knows_of_it_and_one_that_does_not_are_kept(sweep):
    fill_sweep(sweep("noisy"))
    said = {name: records[0]["said"] for name, records in kept()["noisy"]["cpu"].items()}
    assert said["much"].keys() == said["little"].keys() == {"guarded", "unaware"}
    assert said["without"].keys() == {"guarded", "moments", "paper"}
    assert said["much"]["unaware"].get("none", 0) <= 4 < said["much"]["guarded"]["none"]
    assert said["little"]["unaware"] == said["little"]["guarded"]
    judges = table_of_records(sweep("noisy"))["confusions"]["all"]["false_alarms"]
    assert judges["unaware"]["right"] >= 6 > judges["guarded"]["right"]


@pytest.mark.slow
def test_of_a_table_with_a_second_look_what_was_said_before_and_after_it_stand_side_by_side(sweep):
    fill_sweep(sweep("looked"))
    said = {name: records[0]["said"] for name, records in kept()["looked"]["cpu"].items()}
    assert all(of.keys() == {"guarded", "moments", "paper", "second look"} for of in said.values())
    assert said["wide"]["second look"] == {"feature": 4}
    assert said["swapped"]["guarded"] == said["swapped"]["second look"] == {"feature+label+concept": 4}
    right = table_of_records(sweep("looked"))["confusions"]["all"]["right"]
    assert right["second look"]["feature"]["right"] == 4 >= right["guarded"]["feature"]["right"]


def test_who_cannot_tell_has_missed_what_is_alike_and_raised_no_alarm(sweep):
    fill_sweep(sweep("few"))
    said = kept()["few"]["cpu"]["none"][0]["said"]
    found = table_of_records(sweep("few"))["confusions"]["all"]
    assert said["guarded"] == said["moments"] == {"undetermined": 4}  # of fifteen rows each
    assert found["right"]["guarded"]["none"]["right"] == 0
    assert (found["false_alarms"]["guarded"]["right"], found["false_alarms"]["guarded"]["of"]) == (0, 4)
    assert found["false_alarms"]["paper"]["right"] == 4 - said["paper"].get("none", 0)


@pytest.mark.slow
def test_other_seeds_are_other_pairs_and_the_same_seed_gives_the_same_counts(sweep):
    fill_sweep(sweep("fewer", seeds=[5, 6]))
    first, second = kept()["fewer"]["cpu"]["moved"]
    assert (first["seed"], second["seed"]) == (5, 6)
    assert first["by"] != second["by"]
    again = verdict_trials.run_trials(sweep("fewer", seeds=[5]), "moved", 5)
    assert {name: again[name] for name in ("said", "by", "ranked")} == {
        name: first[name] for name in ("said", "by", "ranked")
    }


def test_settings_change_no_pair_and_are_refused(sweep):
    with pytest.raises(UserError, match="draws pairs of clients, which no setting changes; drop `--set`"):
        sweep(overrides=["training.rounds=1"])


@pytest.mark.slow
def test_an_estimate_judges_a_few_pairs_and_writes_nothing(sweep):
    assert estimate(sweep())["seconds"].keys() == {"none", "label", "both"}
    assert not Path("docs").exists()


@pytest.mark.parametrize("counts", [(0, 8), (5, 8), (8, 8)])
def test_an_interval_is_that_of_the_beta_distribution(counts):
    right, of = counts
    found = share(right, of)
    assert found["low"] == pytest.approx(beta.ppf(0.025, right, of - right + 1) if right else 0)
    assert found["high"] == pytest.approx(beta.ppf(0.975, right + 1, of - right) if right < of else 1)
    assert share(0, 0)["share"] is None


def test_the_interval_of_a_mean_holds_it_as_often_as_it_says():
    rng, chances, of = np.random.default_rng(0), np.array([0.97, 0.9, 0.99, 0.8]), 60
    inside = 0
    for right in rng.binomial(of, chances, (300, 4)):
        found = mean_of([share(int(one), of) for one in right])
        inside += found["low"] <= chances.mean() <= found["high"]
    assert inside >= 280  # 285 of 300 are 95 %


@pytest.mark.parametrize("width", [80, 120])
def test_a_truth_table_prints_every_number_within_the_columns(sweep_of_filled, width):
    for table in ("one", "random"):
        console = PlainConsole(file=io.StringIO(), width=width)
        reproduce(table_of_records(sweep_of_filled(table)), console)
        said = console.file.getvalue()
        assert max(map(len, said.splitlines())) <= width
        for part in ("guarded", "moments", "paper", "balanced accuracy"):
            assert part in said
        if table == "one":
            assert "(4/4)" in said
            assert "(published 0.900)" in said
            assert "seeds [3, 4]" in said
        else:
            assert "guarded ranks every shifted feature before all others in" in said
