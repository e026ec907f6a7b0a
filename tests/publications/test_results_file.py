"""The file that sweeps share."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from models.metrics.paired_difference import ACCURACY, Difference, cell_difference_record
from publications.results_file import Results

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RECORDED = sorted(file for file in RESULTS.glob("*.json") if file.stem != "bench")  # that one compares no cells

WRITER = """
import sys
from pathlib import Path
from publications.results_file import Results
folder, table = Path(sys.argv[1]), sys.argv[2]
results = Results(folder / "paper.json", folder / "lock")
print("ready", flush=True)
sys.stdin.readline()
for seed in range(30):
    results.keep((table, "cpu", "cell"), {"seed": seed}, {"seed": seed, "value": table})
"""


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "paper.json", tmp_path / "lock")


def test_what_the_project_has_no_record_of_is_looked_for_where_siloflow_is_installed(tmp_path):
    place, shipped = ("1", "cpu", "cell"), Results(tmp_path / "installed.json", tmp_path / "other")
    for seed in (0, 1):
        shipped.keep(place, {"seed": seed}, {"value": "shipped"})
    before = shipped.file.read_bytes()
    results = Results(tmp_path / "docs" / "paper.json", tmp_path / "lock", shipped.file)
    assert results.where(tmp_path) == str(shipped.file)
    results.keep(place, {"seed": 0}, {"value": "ours"})
    assert [(results.find(place, {"seed": seed}) or {}).get("value") for seed in range(3)] == ["ours", "shipped", None]
    assert results.where(tmp_path) == "docs/paper.json"
    assert shipped.file.read_bytes() == before


def test_two_processes_that_write_at_once_lose_no_record(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, table], **pipes) for table in ("1", "2")]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=600)
    written = json.loads((tmp_path / "paper.json").read_text())
    for table in ("1", "2"):
        expected = [{"seed": seed, "value": table} for seed in range(30)]
        assert sorted(written[table]["cpu"]["cell"], key=lambda record: record["seed"]) == expected


def test_a_record_that_is_kept_twice_is_there_once(results):
    for value in (1, 2):
        results.keep(("1", "cpu"), {"seed": 0}, {"seed": 0, "value": value})
        results.keep(("1", "cpu"), {"seed": 1}, {"seed": 1, "value": value})
    assert json.loads(results.file.read_text())["1"]["cpu"] == [{"seed": 0, "value": 2}, {"seed": 1, "value": 2}]


def test_what_is_not_there_is_not_found_and_looking_writes_nothing(results):
    assert results.find(("1", "cpu"), {"seed": 0}) is None
    assert not results.file.exists()


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_a_recorded_difference_has_the_sentence_that_its_numbers_tell(file):
    """All that are recorded are of accuracy."""
    sections = json.loads(file.read_text()).values()
    records = [record for table in sections for scale in table.get("paired", {}).values() for record in scale]
    assert records or file.stem in ("advice", "mcmahan", "selective", "shift-types", "shifts-baselines")
    for record in records:
        difference = Difference(*(record[name] for name in ("difference", "low", "high")))
        told = cell_difference_record(record["first"], record["second"], difference, ACCURACY, record["classes"])
        assert {name: record[name] for name in told} == told
