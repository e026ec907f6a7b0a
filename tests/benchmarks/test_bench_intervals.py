"""The simulations of `siloflow bench --intervals`, and what is recorded of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import bench_intervals
from benchmarks.bench_intervals import bca_interval, claims_of, interval_coverage, studentised_interval

RECORDS = Path(__file__).parents[2] / "docs" / "results" / "bench.json"


def test_the_truth_is_what_many_rows_and_runs_give():
    rng, gaps = np.random.default_rng(0), (0.2, 0.0)
    shifts = rng.normal(0, 0.4, (4000, 2, 1))
    measured = [bench_intervals._client(rng, 50, shift, gaps) for shift in shifts]
    difference = np.mean([right[0].mean() - right[1].mean() for right in measured])
    assert difference == pytest.approx(bench_intervals._truth(0.4**2), abs=0.006)


def test_bca_is_scipys():
    values = np.random.default_rng(1).exponential(size=20)
    found = bca_interval(values, np.random.default_rng(2))
    expected = stats.bootstrap((values,), np.mean, n_resamples=9999, rng=np.random.default_rng(3)).confidence_interval
    assert found == pytest.approx((expected.low, expected.high), abs=0.05)


def test_the_studentised_interval_of_many_normal_values_is_students():
    values = np.random.default_rng(4).normal(size=400)
    low, high = stats.ttest_1samp(values, 0).confidence_interval()
    error = values.std(ddof=1) / 20
    assert studentised_interval(values, float(error), np.random.default_rng(5)) == pytest.approx((low, high), abs=0.02)


def test_a_few_simulations_give_a_share_for_every_setting():
    said: list[str] = []
    found = interval_coverage(said.append, times=2)
    assert len(said) == 6
    lines = [line for name in ("rows", "silos", "partitions") for line in found[name]]
    assert all(line["covered"] in (0, 0.5, 1) for line in lines)
    assert all(line["corrected"] <= line["plain"] for line in found["holm"])


@pytest.mark.parametrize(
    ("sentence", "claims"),
    [
        ("ditto − fedavg +1.4 points, +0.3 to +2.1: ditto is better.", {("ditto", "fedavg")}),
        ("ditto − fedavg −1.4 points, −2.1 to −0.3: fedavg is better", {("fedavg", "ditto")}),
        ("ditto − fedavg +1.4 points, −0.3 to +2.1: not distinguishable.", set()),
        (
            "fedavg gains 2.1 points on average over training alone; 3 of 9 clients lose, none certainly.",
            {("fedavg", "local_only")},
        ),
        (
            "ifca loses 2.1 points on average against training alone; 3 of 9 clients lose, none certainly.",
            {("local_only", "ifca")},
        ),
        (
            "fedavg gains 2.1 points on average over training alone, not distinguishable from none; 1 of 9 clients loses.",
            set(),
        ),
        ("ditto is better than FedAvg: +1.4 points, +0.3 to +2.1.", {("ditto", "fedavg")}),
        ("Training alone is better than ditto: +1.4 points, +0.3 to +2.1.", {("local_only", "ditto")}),
        ("Whether ditto is better than FedAvg is not certain: +1.4 points, −0.3 to +2.1.", set()),
        ("Training on pooled rows would gain +4.0 points, +2.0 to +6.0: ask whether.", {("pooled", "ditto")}),
    ],
)
def test_claims_are_read_from_sentences(sentence, claims):
    assert claims_of([sentence], "ditto") == claims


def test_the_recorded_sentences_claim_what_corrected_intervals_show():
    read = json.loads(RECORDS.read_text())["intervals"]["measured"]["sentences"]
    assert read["times"] == 300
    assert 0.92 <= read["covered"] <= 0.98
    for name in ("advise", "compare"):
        assert read[name]["claims"] > 100
        assert read[name]["unsupported"] == 0
        assert read[name]["false"] <= 0.05


def test_the_recorded_intervals_cover_and_holm_seldom_errs():
    """92 to 98 % of truths, and 6 % of families, except where three seeds that vary more than rows are too few."""
    measured = json.loads(RECORDS.read_text())["intervals"]["measured"]
    assert measured["times"] >= 300
    for name in ("rows", "silos", "partitions"):
        for line in measured[name]:
            is_hard = line.get("seed_sd", 0) > 0.1 and line["seeds"] == 3
            assert (0.9 if is_hard else 0.92) <= line["covered"] <= 0.98, (name, line)
    for line in measured["holm"]:
        if line["seed_sd"] < 0.1 or line["seeds"] > 3:
            assert line["corrected"] <= 0.06, line
        assert line["corrected"] <= line["plain"]
    for line in measured["over_silos"]:
        assert line["student"] >= line["bca"]
