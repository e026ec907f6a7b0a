"""Records of benchmarks name their command and machine and fill tables, and `bench` refuses what it would ignore."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import bench_codebook, run_benchmark
from benchmarks.bench_results import BenchRecords, busy_cores, machine, processor_name
from benchmarks.workloads import Workload
from flows import cli
from publications.render.doc_tables import renewed

MEASURED = {"ratio": 2.5}


def test_what_is_measured_again_takes_the_place_of_what_was_and_no_others(tmp_path):
    records = BenchRecords(tmp_path)
    records.keep("W1", "siloflow bench W1", {"ratio": 1.0})
    records.keep("W2", "siloflow bench W2", {"ratio": 2.0})
    records.keep("W1", "siloflow bench W1 --repeats 5", {"ratio": 3.0})
    kept = json.loads((tmp_path / "docs" / "results" / "bench.json").read_text())
    assert {name: record["measured"]["ratio"] for name, record in kept.items()} == {"W1": 3.0, "W2": 2.0}
    assert kept["W1"]["command"] == "siloflow bench W1 --repeats 5"
    assert kept["W1"]["versions"].keys() == {"torch", "numpy", "python"}


def test_ratios_of_all_recordings_stay_with_their_commits_so_that_a_slower_one_is_seen(tmp_path, monkeypatch):
    records = BenchRecords(tmp_path, busy=0.5)
    for commit, ratios in (("abc", [2.0, 2.2]), ("def+changes", [1.5])):
        monkeypatch.setattr("benchmarks.bench_results.git_commit", lambda *_, commit=commit: commit)
        records.keep("W1", "siloflow bench W1", {"ratio_by_turn": ratios})
    records.keep("W2", "siloflow bench W2", {"ratio": 2.0})
    history = records.all()["W1"]["history"]
    assert [(line["commit"], line["ratio_by_turn"]) for line in history] == [
        ("abc", [2.0, 2.2]),
        ("def+changes", [1.5]),
    ]
    assert {line["processor"] for line in history} == {processor_name("cpu")}
    assert "history" not in records.all()["W2"]
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "speed.md"
    line = "| {{ line.commit }} | {{ line.ratio_by_turn | join(', ') }} |"
    page.write_text(
        f"<!-- table: bench\n{{% for line in bench.W1.history %}}\n{line}\n{{% endfor %}}\n-->\n<!-- end -->\n"
    )
    assert "| abc | 2.0, 2.2 |\n| def+changes | 1.5 |\n" in renewed(page)


@pytest.mark.parametrize(("busy", "said"), [(0.0, "no other load"), (1000.0, "other load")])
def test_a_machine_is_described_without_its_name(busy, said):
    described = machine(busy)
    assert described.endswith(f" GiB; {said}")
    assert " cores, " in described
    assert platform.node() not in described
    assert "/" not in described


@pytest.mark.slow
def test_a_core_that_somebody_uses_is_seen():
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as other:
        try:
            other.stdout.readline()  # it has started
            assert busy_cores() > 0.5  # of the one, however many there are
        finally:
            other.kill()


def test_the_records_of_the_project_name_no_machine():
    kept = (Path(__file__).parents[2] / "docs" / "results" / "bench.json").read_text()
    assert platform.node() not in kept
    assert "/home" not in kept


def test_a_table_of_the_docs_may_be_of_benchmarks(tmp_path, monkeypatch):
    BenchRecords(tmp_path).keep("W1", "siloflow bench W1", MEASURED)
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "speed.md"
    page.write_text("<!-- table: bench\n| W1 | {{ bench.W1.measured.ratio | number(1) }} |\n-->\n<!-- end -->\n")
    assert "| W1 | 2.5 |" in renewed(page)


@pytest.mark.parametrize("kept", [True, False])
def test_a_benchmark_is_recorded_where_that_is_asked_for(tmp_path, monkeypatch, kept):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_codebook, "_ENCODERS", {"residual": ((8, 8), {"widths": (4, 8)})})
    asked = ["bench", "--codebook", "--repeats", "1", "--json", *(["--record"] if kept else [])]
    answer = json.loads(CliRunner().invoke(cli.app, asked).stdout)
    assert BenchRecords(tmp_path).all().keys() == ({"codebook"} if kept else set())
    if kept:
        record = BenchRecords(tmp_path).all()["codebook"]
        assert record["command"] == "siloflow bench --codebook --repeats 1"
        assert record["measured"] == answer


@pytest.mark.slow
def test_records_that_are_damaged_are_told_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    BenchRecords(tmp_path).keep("W1", "siloflow bench W1", MEASURED)
    file = tmp_path / "docs" / "results" / "bench.json"
    file.write_text(file.read_text()[:-9])
    monkeypatch.setattr(bench_codebook, "_ENCODERS", None)  # which a benchmark would stumble over
    answer = CliRunner().invoke(cli.app, ["bench", "--codebook", "--record"])
    assert answer.exit_code == 2
    assert "bench.json is damaged" in " ".join(answer.stderr.split())


@pytest.mark.parametrize(
    ("named", "shown"), [(["--live", "--advice"], "--advice, --live"), (["--intervals", "W1"], "--intervals, W1")]
)
def test_two_parts_are_refused_before_one_is_measured(named, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(cli.app, ["bench", *named])
    assert answer.exit_code == 2
    assert f"bench: got {shown}, expected one of them" in " ".join(answer.stderr.split())


@pytest.mark.slow
def test_workloads_are_recorded_one_by_one_so_that_an_interrupt_loses_only_the_one_it_meets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_benchmark, "_contest", measured_or_stopped)
    answer = CliRunner().invoke(cli.app, ["bench", "W1", "W2", "--repeats", "1", "--record"])
    assert answer.exit_code == 130
    assert {name: kept["command"] for name, kept in BenchRecords(tmp_path).all().items()} == {
        "W1": "siloflow bench W1 --repeats 1"
    }


def measured_or_stopped(root: Path, workload: Workload, *_: object) -> dict[str, object]:
    if workload.name == "W2":
        raise KeyboardInterrupt
    return {"workload": workload.name, **MEASURED}


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["--live", "--set", "advise.minutes=1"], "--set with --live, expected it only with --tune"),
        (["W1", "--set", "training.epochs=2"], "--set with workloads, expected it only with --tune"),
        (["--intervals", "--device", "cuda"], "--device with --intervals, expected it only with workloads"),
        (["--intervals", "--peer", "flower"], "--peer with --intervals, expected it only with workloads"),
        (["--tune", "--device", "cuda"], "--device with --tune, expected it only with workloads"),
        (["--live", "--repeats", "3"], "--repeats with --live, expected it only with workloads or --codebook or"),
        (["--tune", "--record"], "--record with --tune, expected it only with workloads or --codebook or"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused_before_anything_is_measured(
    typed, shown, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(cli.app, ["bench", *typed])
    assert answer.exit_code == 2
    assert f"bench: got {shown}" in " ".join(answer.stderr.split())
    assert f"Leave out {shown.split()[0]}." in answer.stderr.replace("\n", " ")
