"""`siloflow compare --tune`, as typed: methods are ranked at their best of equally many settings."""

import json
import re
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ASKED = [
    "compare",
    "fedavg",
    "ditto",
    "--seeds",
    "0,1",
    "--tune",
    "--set",
    "comparison.tune=4",
    "--set",
    "training.rounds=2",
]


@pytest.fixture(scope="module")
def tuned(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = partitioned[0].copy(tmp_path_factory.mktemp("end_to_end") / "tune", server)
    return folder, folder.type(*ASKED, "--json")


def test_what_is_to_come_is_said_before(tuned):
    said = tuned[1].err.splitlines()
    assert said[0].startswith("tuning tries 4 settings for each of 2 methods on seed 0 (and 2 more beyond each edge")
    assert said[0].endswith("10 runs or a few more")
    assert any(re.fullmatch(r"about \d+ seconds for the other 8 runs", line) for line in said)


def test_every_methods_runs_have_what_it_chose_and_its_run_on_the_first_seed_is_the_one_that_was_tried(tuned):
    folder, answer = tuned
    found = answer.json
    assert [one["method"] for one in found["tuning"]] == ["fedavg", "ditto"]
    for one in found["tuning"]:
        assert one["tried"] >= 4
        rate = float(one["settings"][0].partition("=")[2])
        runs = [run for run in found["runs"] if run["method"] == one["method"]]
        assert [run["seed"] for run in runs] == [0, 1]
        assert f"setting{one['at']}-{one['method']}-seed0" in runs[0]["folder"]
        assert runs[0]["metrics"]["validation/accuracy/mean"] == pytest.approx(one["score"])
        for run in runs:
            params = _params(folder, run)
            assert params["training"]["optimiser"]["learning_rate"] == rate
    weight = float(found["tuning"][1]["settings"][1].partition("=")[2])
    assert _params(folder, found["runs"][-1])["method"]["personal_weight"] == weight


def _params(folder, run):
    return json.loads((folder.path / run["folder"] / "run.json").read_text())["params"]


def test_resumed_it_runs_nothing_and_says_the_same(tuned):
    folder, answer = tuned
    again = folder.type(*ASKED, "--json", "--resume")
    assert "accuracy" not in again.err
    assert "for the other" not in again.err
    assert again.json == answer.json


def test_the_screen_names_what_was_chosen(tuned):
    folder, answer = tuned
    shown = folder.type(*ASKED, "--resume").out
    assert "settings, chosen on validation rows of seed 0:" in shown
    for one in answer.json["tuning"]:
        assert re.search(rf"{one['method']}: learning_rate [\d.]+.*; the best of {one['tried']}", shown)


PAGE = """
from flows.core.search_space import axes
from flows.methods import fedavg
from flows.plugins import register_method


@register_method("mine")
class Mine(fedavg.FedAvg):
    tuned = axes(weight=({values}))
    weight: float = 0.1

    def run_round(self, state, round):
        raise RuntimeError("no round")
"""


def own(folder, values):
    (folder.path / "mine.py").write_text(PAGE.format(values=values))
    return ["--set", "plugins=[mine.py]", "--set", "comparison.tune=2", "--reference", "mine", "--seeds", "0"]


def test_a_comparison_of_which_every_run_failed_says_so(tuned):
    asked = own(tuned[0], "0.1, 1.0")
    shown = tuned[0].type("compare", "mine", *asked, code=1)
    assert "settings, chosen on validation rows of seed 0:" in shown.out
    assert "the first of 4, since none gave a finite score" in " ".join(shown.out.split())
    assert "4 of 4" in shown.err
    assert "5 of 4" not in shown.err


def test_options_that_a_page_is_tuned_by_and_has_not_are_told_before_anything_runs(tuned):
    refused = tuned[0].type("compare", "mine", *own(tuned[0], "'much', 'more'"), code=2)
    assert (
        "comparison.tune: mine cannot run with weight much, which tuning tries: params.yaml: method.mine.weight"
        in refused.err
    )
    assert "settings for each" not in refused.err


def test_without_validation_rows_nothing_is_tuned(tuned):
    none = ["--set", "data.split.validation=0", "--set", "data.name=none"]
    folder = tuned[0]
    folder.type("partition", *none)
    refused = folder.type(*ASKED, *none, code=2)
    assert (
        "comparison.tune: got no validation rows in the data, expected some, since settings are "
        "scored on them. Set data.split.validation" in refused.err
    )
