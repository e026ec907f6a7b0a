"""What the intervals of a comparison are about: rows, silos or partitions, corrected for several methods."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flows.cli.training_commands import _comparison_overrides
from flows.compare import _measure, check_resume, compare, make_plan
from flows.experiments.comparison.client_gains import gains_in_data_alone
from flows.experiments.comparison.comparison_text import (
    has_too_few_silos,
    headline,
    interval_heading,
    not_complete,
    sentences_after,
    sentences_first,
    withheld_sentence,
)
from flows.experiments.comparison.run_trials import (
    Plan,
    can_draw,
    draw_partitions,
    missing_for_publication,
    shared_test_rows,
)
from flows.project.make_partition import make
from flows.project.project import Project
from flows.training.load_finished_run import finished_run
from flows.training.paired_runs import MeasuredPair, paired_records, withhold_winners
from models.metrics.paired_difference import (
    Stratum,
    difference,
    difference_over_partitions,
    difference_over_silos,
    holm,
)
from models.metrics.task_metrics import TASK_METRICS
from silos.client_store import ClientStore
from silos.errors import UserError
from tasks.evaluate import OUTCOMES
from tasks.tracking.json_io import write_json

ACCURACY, RMSE = TASK_METRICS["classification"], TASK_METRICS["regression"]
METHODS = ("fedprox", "pooled", "local_only")


def pairs(partitions: int = 1, scale: float = 1.0) -> list[MeasuredPair]:
    """Three methods against fedavg on nine silos: nearly as good, better for certain, and a little worse."""
    rng = np.random.default_rng(0)
    made = []
    for method, gain in zip(METHODS, (0.001, 0.2, -0.02), strict=True):
        drawn = [
            [
                Stratum.from_differences(scale * (gain + rng.normal(0, 0.05) + rng.normal(0, 0.3, (3, 40))))
                for _ in range(9)
            ]
            for _ in range(partitions)
        ]
        made.append(MeasuredPair(method, "fedavg", (0, 1, 2), drawn))
    return made


def test_records_keep_the_plain_interval_and_decide_by_holms():
    measured = pairs()
    records = paired_records(measured, "rows", 0.0, ACCURACY)
    plain = [difference(pair.partitions[0]) for pair in measured]
    for record, found, p in zip(records, plain, holm([d.p for d in plain]), strict=True):
        assert [record[name] for name in ("difference", "low", "high", "p")] == [
            found.mean,
            found.low,
            found.high,
            found.p,
        ]
        corrected = record["corrected"]
        assert corrected["p"] == p
        assert corrected["low"] <= found.low <= found.high <= corrected["high"]
        assert record["distinguishable"] is (record["better"] is not None) is (p <= 0.05)
        assert (record["better"], record["sentence"]) == (corrected["better"], corrected["sentence"])
        assert f" {ACCURACY.difference(found.mean, corrected['low'], corrected['high'])}: " in record["sentence"]
        assert "silos" not in record
    assert [record["better"] for record in records] == [None, "pooled", None]
    assert headline(records) == "Against fedavg: pooled better; fedprox, local_only not distinguishable."


def test_one_method_is_not_corrected():
    [record] = paired_records(pairs()[:1], "rows", 0.0, ACCURACY)
    assert {name: record["corrected"][name] for name in ("low", "high", "p")} == {
        name: record[name] for name in ("low", "high", "p")
    }


def test_over_silos_the_interval_of_these_silos_stays_and_the_sentence_is_about_others():
    measured = pairs()
    records = paired_records(measured, "silos", 0.0, ACCURACY)
    for record, pair in zip(records, measured, strict=True):
        rows, silos = (of(pair.partitions[0]) for of in (difference, difference_over_silos))
        assert [record[name] for name in ("low", "high", "p")] == [rows.low, rows.high, rows.p]
        assert record["silos"] == {"low": silos.low, "high": silos.high, "p": silos.p}
    assert [r["corrected"]["p"] for r in records] == holm([r["silos"]["p"] for r in records])


def test_over_partitions_a_record_is_of_all_of_them():
    measured = pairs(partitions=4, scale=9.0)
    records = paired_records(measured, "rows", 0.25, RMSE)
    for record, pair in zip(records, measured, strict=True):
        found = difference_over_partitions(pair.partitions, 0.25, bound=np.inf, pooled_variance=False)
        assert [record[name] for name in ("difference", "low", "high")] == [found.mean, found.low, found.high]
        assert "in rmse" in record["sentence"]


def test_a_winner_is_withheld_and_what_is_not_distinguishable_stays():
    records = withhold_winners(paired_records(pairs(), "rows", 0.0, ACCURACY))
    assert [record["better"] for record in records] == [None] * 3
    assert [record["sentence"].rpartition(": ")[2] for record in records] == [
        "not distinguishable",
        "no winner is named",
        "not distinguishable",
    ]
    assert records[1]["corrected"]["sentence"] == records[1]["sentence"]
    assert headline(records) == "No winner is named."
    comparison = {"failed": [], "not_published_for": ["5 seeds (got 3)", "--tune"]}
    assert sentences_after(comparison) == ["No winner is named, since --publish needs 5 seeds (got 3), --tune."]


def test_a_difference_that_does_not_matter_is_certain_and_names_no_winner():
    measured = pairs()
    plain = paired_records(measured, "rows", 0.0, ACCURACY)
    records = paired_records(measured, "rows", 0.0, ACCURACY, matters=0.5)
    assert [record["better"] for record in records] == [None] * 3
    assert [record["distinguishable"] for record in records] == [record["distinguishable"] for record in plain]
    assert [record["matters"] for record in records] == [0.5] * 3
    assert records[1]["sentence"].endswith(": certain, but smaller than what matters (50.0 points)")
    assert headline(records) == (
        "Against fedavg: pooled different for certain, but by less than what matters; "
        "fedprox, local_only not distinguishable."
    )
    withheld = withhold_winners(records)
    assert withheld[1]["sentence"].endswith(": no winner is named")
    assert withheld[1]["distinguishable"] is False


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Prefect, since no flow runs
def test_a_pair_is_measured_on_the_seeds_that_both_methods_finished_on_every_partition(write_silos, tmp_path, prefect):
    silos = write_silos({"a": 5, "b": 9}, test=6)
    project: Any = SimpleNamespace(
        root=tmp_path,
        scored=silos,
        quantity=ACCURACY,
        store=SimpleNamespace(private=lambda folder: ClientStore(f"{folder}/private")),
        params=SimpleNamespace(runner=SimpleNamespace(kind="threads", workers=1, address=None)),
    )
    finished = [{"fedavg": (0, 1, 2), "fedprox": (0, 2, 3)}, {"fedavg": (0, 1, 2, 3), "fedprox": (1, 2, 3)}]
    drawn = []
    for index, seeds_of in enumerate(finished):
        results = {}
        for method, seed in ((method, seed) for method, seeds in seeds_of.items() for seed in seeds):
            folder = tmp_path / "runs" / f"partition{index}-{method}-seed{seed}"
            right = np.full((2, 6), method == "fedprox", np.uint8)
            write_json(
                folder / "outcomes.json",
                project.store.private(folder).save(OUTCOMES, ["a", "b"], {"correct": right}, "outcomes"),
            )
            results[method, seed] = {"folder": str(folder.relative_to(tmp_path))}
        drawn.append((dict.fromkeys(("fedavg", "fedprox"), project), results))
    plan = Plan(["fedavg", "fedprox"], [0, 1, 2, 3], "fedavg", 0, "v1")
    both, one = _measure(plan, "fedprox", drawn), _measure(plan, "fedprox", drawn[:1])
    assert (both.seeds, one.seeds) == ([2], [0, 2])
    assert [stratum.by_seed for of in both.partitions for stratum in of] == [[6.0]] * 4
    assert _measure(plan, "fedprox", [(drawn[0][0], {})]) is None


def test_gains_of_several_partitions_are_said_to_be_of_one():
    gains = {"methods": {"fedavg": {"sentence": "fedavg gains 2.1 points"}}, "sentences": ["fedavg gains 2.1 points"]}
    assert sentences_after({"failed": [], "gains": gains}) == ["fedavg gains 2.1 points"]
    of_one = gains_in_data_alone(gains)
    assert of_one["of"] == "data/ alone"
    assert of_one["methods"]["fedavg"]["sentence"] == "In data/ alone, fedavg gains 2.1 points"
    assert sentences_after({"failed": [], "gains": of_one}) == ["In data/ alone, fedavg gains 2.1 points"]
    assert gains["sentences"] == ["fedavg gains 2.1 points"]


def test_that_no_method_is_better_than_a_constant_is_said_first_and_once():
    comparison = {"failed": [], "baseline": {"sentence": 'No method is better than always predicting "no".'}}
    assert sentences_first(comparison) == [comparison["baseline"]["sentence"]]
    assert sentences_after(comparison) == []
    assert sentences_first({"failed": [], "baseline": {"sentence": None}}) == sentences_first({"failed": []}) == []


@pytest.mark.parametrize(
    ("over", "seeds", "methods", "said"),
    [
        (None, 3, 1, "95 % intervals over seeds and rows"),
        ({"draws": "rows"}, 3, 3, "95 % intervals over seeds and rows, corrected for 3 methods (Holm)"),
        ({"draws": "rows"}, 1, 2, "95 % intervals over rows, corrected for 2 methods (Holm)"),
        ({"draws": "silos", "silos": 12}, 3, 1, "95 % intervals over seeds and 12 silos"),
        ({"draws": "silos", "silos": 12}, 1, 1, "95 % intervals over 12 silos"),
        ({"draws": "partitions", "partitions": 5}, 3, 1, "95 % intervals over seeds, rows and 5 partitions"),
    ],
)
def test_the_heading_says_what_the_intervals_are_over(over, seeds, methods, said):
    comparison = {"over": over, "paired": [{"seeds": list(range(seeds)), "corrected": {}}] * methods}
    assert interval_heading(comparison) == said


def test_comparisons_of_earlier_versions_have_plain_intervals():
    assert interval_heading({"paired": [{"seeds": [0, 1]}] * 3}) == "95 % intervals over seeds and rows"


@pytest.fixture
def opened(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a recorded version of its data; the current folder."""
    monkeypatch.chdir(project)
    make(Project.open())
    return project


NATURAL = "data.scheme=[{kind: column, column: client}]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["comparison.over=silos"], "comparison.over: got silos with 6 silos, expected at least 8 that take part"),
        (
            ["comparison.over=silos", "comparison.partitions=2"],
            "comparison.over: got silos with comparison.partitions 2, expected rows",
        ),
        (["comparison.over=silo"], "comparison.over: got 'silo', expected 'rows' or 'silos'"),
        (["comparison.partitions=0"], "comparison.partitions: got 0, expected "),
    ],
)
def test_what_the_data_cannot_say_is_refused_before_anything_starts(opened, overrides, said):
    with pytest.raises(UserError) as refused:
        make_plan(Project.open(overrides), (), (), "")
    assert said in str(refused.value)


def test_natural_silos_are_not_drawn_again(opened):
    archive = {"x": np.zeros((8, 5), np.float32), "y": np.arange(8) % 2, "client": np.repeat(["a", "b"], 4)}
    np.savez(opened / "hospital.npz", **archive)
    overrides = ["data.source={kind: npz, path: hospital.npz}", NATURAL]
    natural = Project.open([*overrides, "comparison.partitions=2"], derived=True)
    assert not can_draw(natural.params.data)
    with pytest.raises(
        UserError,
        match=r"comparison\.partitions: got 2, expected 1, since a column of the source names the silos of data/",
    ):
        make_plan(natural, (), (), "")
    assert can_draw(Project.open(["data.source={kind: synthetic, task: logistic}", NATURAL]).params.data)


def test_each_partition_has_the_next_data_seed_and_is_made_once(opened):
    project = Project.open()
    drawn = draw_partitions(project, 3)
    assert [one.params.data.seed for one in drawn] == [project.params.data.seed + index for index in range(3)]
    assert drawn[0] is project
    assert len({one.silos.version for one in drawn}) == 3
    again = draw_partitions(Project.open(), 3)
    assert [one.silos.version for one in again] == [one.silos.version for one in drawn]
    assert len([*(opened / "cache" / "partitions").glob("*.version")]) == 2, "data/ itself is no copy"
    assert json.loads((opened / "data" / project.params.data.name / "manifest.json").read_text())


def test_the_shared_rows_are_all_marked_ones_or_the_share_that_is_tested_or_none(opened):
    project = Project.open()
    tested, rows = (sum(project.silos.rows(split).values()) for split in ("test", "train"))
    validation = sum(project.silos.rows("validation").values())
    assert shared_test_rows(project) == pytest.approx(tested / (tested + rows + validation))
    synthetic = Project.open(["data.source={kind: synthetic, task: logistic}", NATURAL], derived=True)
    assert shared_test_rows(synthetic) == 0
    x, split = np.zeros((40, 5), np.float32), np.repeat(["train", "test"], 20)
    np.savez(opened / "marked.npz", x=x, y=np.arange(40) % 2, split=split)
    marked = ["data.source={kind: npz, path: marked.npz}", "data.scheme=[{kind: equal, clients: 2}]"]
    assert shared_test_rows(Project.open(marked, derived=True)) == 1


def test_what_a_published_comparison_lacks_is_listed(opened):
    def lacking(*overrides: str) -> list[str]:
        project = Project.open(overrides)
        plan = make_plan(project, ("fedavg", "pooled"), project.params.comparison.seeds, "fedavg")
        return missing_for_publication(project, plan, [])

    five = "comparison.seeds=[0, 1, 2, 3, 4]"
    assert lacking() == []
    assert lacking("comparison.publish=true", "comparison.seeds=[0, 1]") == [
        "5 seeds (got 2)",
        "5 partitions (got 1)",
        "--tune",
    ]
    assert lacking("comparison.publish=true", five, "comparison.partitions=5", "comparison.tune=2") == []


def test_the_pair_with_the_fewest_common_seeds_decides_whether_a_comparison_is_published(opened):
    project = Project.open(["comparison.publish=true", "comparison.tune=2", "comparison.partitions=5"])
    plan = make_plan(project, ("fedavg", "pooled"), (0, 1, 2, 3, 4), "fedavg")
    pairs_of = [{"seeds": [0, 1, 2, 3, 4]}, {"seeds": [0, 2, 4]}]
    assert missing_for_publication(project, plan, pairs_of) == ["5 seeds (got 3)"]
    assert missing_for_publication(project, plan, pairs_of[:1]) == []


ASKED = {"training.rounds": 1, "comparison.partitions": 2}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints
def test_a_comparison_over_partitions_ends_after_a_stop_as_without_one(opened: Path, prefect: Any) -> None:
    """Runs of the second partition, its cache and the conclusions are deleted, as if a kill had come before them."""
    whole = compare(["fedavg", "local_only"], [0], overrides=ASKED, name="drawn")
    assert [len(whole["runs"]), [len(drawn["runs"]) for drawn in whole["partitions"]]] == [2, [2]]
    assert whole["over"] == {"draws": "partitions", "silos": 6, "partitions": 2}
    [drawn] = whole["partitions"]
    assert (drawn["data_seed"], drawn["data_version"] != whole["data_version"]) == (1, True)
    assert [row["seeds"] for row in whole["table"]] == [2, 2], "the table is over all partitions"
    means = [
        np.mean(
            [
                a["metrics"]["accuracy/mean"] - b["metrics"]["accuracy/mean"]
                for a, b in zip(runs[1::2], runs[::2], strict=True)
            ]
        )
        for runs in (whole["runs"], drawn["runs"])
    ]
    assert whole["paired"][0]["difference"] == pytest.approx(np.mean(means))

    (run,) = (run["folder"] for run in drawn["runs"] if run["method"] == "fedavg")
    assert finished_run(Project.open(), run).project.silos.version == drawn["data_version"]

    folder = opened / "runs" / "drawn"
    shutil.rmtree(folder / "partition1-local_only-seed0")
    (folder / "partition1-fedavg-seed0" / "result.json").unlink()
    (folder / "comparison.json").unlink()
    shutil.rmtree(opened / "cache" / "partitions")
    project = Project.open([f"{key}={value}" for key, value in ASKED.items()])
    check_resume(project, make_plan(project, ("fedavg", "local_only"), (0,), ""), "drawn")
    again = compare(["fedavg", "local_only"], [0], overrides=ASKED, resume=True, name="drawn")
    for name in ("table", "runs", "partitions"):
        for one, other in zip(_without_times(whole[name]), _without_times(again[name]), strict=True):
            assert one == other
    assert again["paired"] == whole["paired"]
    with pytest.raises(UserError, match="--resume: got partitions 1, expected 2 as in the comparison drawn"):
        compare(["fedavg", "local_only"], [0], overrides={"training.rounds": 1}, resume=True, name="drawn")


def _without_times(records: Any) -> Any:
    """Drop what a run took, and where MLflow and the resumed run began."""
    dropped = ("seconds", "mlflow_run_id", "resumed_from_round", "peak_bytes", "seconds/sd")
    if isinstance(records, dict):
        return {key: _without_times(value) for key, value in records.items() if key not in dropped}
    return [_without_times(each) for each in records] if isinstance(records, list) else records


def test_a_failed_run_says_of_which_partition_it_is():
    failed = [{"method": "fedavg", "seed": 1, "partition": 3, "error": "diverged"}]
    comparison = {"failed": failed, "runs": [{}] * 4, "partitions": [{"runs": [{}] * 4}, {"runs": [{}] * 3}]}
    assert not_complete(comparison) == "not complete: 1 of 12 runs failed (fedavg seed 1 of partition 3)"


def test_publish_stands_for_five_seeds_five_partitions_and_tuning_where_params_have_none(opened):
    def overrides(*params: str, **options: Any) -> list[str]:
        project = Project.open(params, derived=True)
        return _comparison_overrides(project, **({"tune": False, "partitions": None, "publish": True} | options))

    both = ["comparison.tune=8", "comparison.publish=true", "comparison.seeds=[0, 1, 2, 3, 4]"]
    assert overrides() == [*both, "comparison.partitions=5"]
    assert overrides(partitions=7) == ["comparison.partitions=7", *both]
    assert overrides(NATURAL, "data.source={kind: npz, path: hospital.npz}") == both, "natural silos cannot be drawn"
    own = ("comparison.tune=3", "comparison.seeds=[1, 2, 3, 4, 5, 6]", "comparison.partitions=6")
    assert overrides(*own) == ["comparison.publish=true"]
    assert overrides(publish=False) == []
    assert overrides(publish=False, tune=True, partitions=2) == ["comparison.partitions=2", "comparison.tune=8"]


@pytest.mark.parametrize(("over", "count"), [("silos", 3), ("silos", 8), ("rows", 3)])
def test_no_winner_is_named_over_too_few_silos_that_define_the_metric(over, count):
    comparison = {"over": {"draws": over, "silos": count}, "not_published_for": []}
    said = withheld_sentence(comparison)
    assert has_too_few_silos(comparison["over"]) == bool(said) == (over == "silos" and count == 3)
    if said:
        assert said == "No winner is named, since intervals over silos need 8 silos, and 3 can be scored."
