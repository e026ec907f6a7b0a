"""The list of published tables is complete, says what is missing and why, and is there at once."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.core.console.safe_text import PlainConsole
from publications.print_tables import listing as printed
from publications.published_tables import names, tables
from publications.render.table_list import lines, listing, read_sentences
from silos.errors import UserError

CHECKOUT = Path(__file__).parents[3]
NUMBERED = {"conditioning": (7, 2), "fed-focal": (7, 3), "selective": (2, 8), "shift-types": (0, 0), "uefl": (16, 14)}
"""How many tables and figures the papers have."""

LIGHT = """
import sys
from flows.cli import app
try:
    app(["reproduce", "--json"])
except SystemExit as end:
    assert not end.code, end.code
assert not {"torch", "prefect", "mlflow", "matplotlib", "scipy.stats"} & sys.modules.keys()
"""


@pytest.fixture(scope="module")
def papers():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(CHECKOUT)
        return {paper["paper"]: paper for paper in listing()["papers"]}


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_numbered_table_and_figure_of_a_paper_is_listed(papers, paper):
    wanted = {
        (kind, n) for kind, most in zip(("table", "figure"), NUMBERED[paper], strict=True) for n in range(1, most + 1)
    }
    found = {numbered for entry in papers[paper]["tables"] for numbered in named(entry["name"])}
    found |= {numbered for entry in papers[paper]["absent"] for numbered in named(entry["name"])}
    assert wanted <= found


@pytest.mark.parametrize("paper", names())
def test_a_recorded_table_has_a_verdict_and_one_without_records_says_why(papers, paper):
    page = read_sentences(paper)
    for entry in papers[paper]["tables"]:
        name, states = entry["name"], {scale["state"] for scale in entry["scales"]}
        if "recorded" in states:
            assert entry["verdict"], f"{paper}, table {name} is recorded: say what came out under verdicts"
            assert name not in page.not_run, f"{paper}, table {name} is recorded: take it off not_run"
        elif states == {"not run"}:
            assert entry["not_run"], f"{paper}, table {name} has no record: say why under not_run"
            assert name not in page.verdicts, f"{paper}, table {name} has no record, and no verdict that could be"


@pytest.mark.parametrize("paper", names())
def test_of_a_scale_at_which_nothing_is_recorded_the_page_says_why(papers, paper):
    runs: dict[str, int] = {}
    for scale in (scale for entry in papers[paper]["tables"] for scale in entry["scales"]):
        runs[scale["scale"]] = runs.get(scale["scale"], 0) + scale["runs"]
    assert {scale for scale, count in runs.items() if not count} == read_sentences(paper).not_at.keys()


@pytest.mark.parametrize("paper", names())
def test_what_is_said_is_a_short_sentence_with_no_figure_left_open(papers, paper):
    for name, _, sentence in lines(papers[paper]):
        assert re.fullmatch(r"[^{}]{10,260}\.", sentence), f"{paper}, {name}: {sentence}"
        assert sentence[0] in "`" or not sentence[0].islower(), sentence


def test_every_scale_of_every_table_is_counted(papers):
    for paper in papers.values():
        for entry in paper["tables"]:
            assert [scale["scale"] for scale in entry["scales"]] == list(
                tables(paper["paper"])[entry["name"]]["scales"]
            )
            assert all(0 <= scale["runs"] <= scale["of"] for scale in entry["scales"])
    assert papers["fed-focal"]["tables"][0]["command"] == "siloflow reproduce fed-focal --table 2"
    assert papers["selective"]["tables"][0]["command"] == "siloflow reproduce selective --figure 3"


@pytest.fixture
def nothing_shipped(tmp_path, monkeypatch):
    """As where siloflow comes without records."""
    monkeypatch.setattr("publications.sweep.RECORDS", tmp_path / "installed")


@pytest.mark.usefixtures("nothing_shipped")
def test_runs_are_counted_where_some_are_missing(tmp_path, monkeypatch):
    results = json.loads((CHECKOUT / "docs" / "results" / "fed-focal.json").read_text())
    del results["3"]["cpu"]["virtual-ffl"][0], results["2"]["cpu"]["fedavg"][0], results["6"]
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "fed-focal.json").write_text(json.dumps(results))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match="fed-focal, table 2, scale cpu: the cell fedavg is not recorded, or not with all"
    ):
        listing("fed-focal")
    monkeypatch.setattr("publications.render.table_list.render", lambda *_, **__: "said")
    states = {entry["name"]: entry["scales"][0]["state"] for entry in listing("fed-focal")["papers"][0]["tables"]}
    assert states["3"] == "35 of 36 runs"
    assert states["2"] == "25 of 28 runs"  # what the choice was made from is missing, so that no other seed counts
    assert states["6"] == "not run"


@pytest.mark.usefixtures("nothing_shipped")
def test_without_records_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (paper,) = listing("uefl")["papers"]
    assert {(entry["verdict"], scale["state"]) for entry in paper["tables"] for scale in entry["scales"]} == {
        (None, "not run")
    }


@pytest.mark.parametrize("section", ["verdicts", "not_run"])
def test_a_sentence_about_a_table_that_is_not_there_is_refused(tmp_path, monkeypatch, section):
    table = (
        "{title: t, source: s, known_errors: n, method: fedavg, cells: {a: {about: w}}, scales: {cpu: {seeds: [0]}}}"
    )
    (tmp_path / "mine.yaml").write_text(f"tables: {{1: {table}}}\n{section}: {{2: 'Better.'}}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"{section} speaks of '2', and there is no such table"):
        listing("mine.yaml")


@pytest.mark.parametrize("table", ["", "[]", "{scales: 3}", "{scales: {}}", "{scales: {cpu: {seeds: [0]}}}", "word"])
def test_a_page_that_holds_no_table_is_refused_as_where_one_is_named(tmp_path, monkeypatch, table):
    (tmp_path / "mine.yaml").write_text(f"tables: {{a: {table}}}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"mine\.yaml, table a: "):
        listing("mine.yaml")


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_every_line_fits_and_nothing_is_cut(papers, width):
    out = io.StringIO()
    printed({"papers": list(papers.values())}, PlainConsole(file=out, width=width))
    assert max(map(len, out.getvalue().splitlines())) <= width
    said = " ".join(out.getvalue().split())
    for paper in papers.values():
        for name, state, sentence in lines(paper):
            assert f"{name} {state} {sentence}" in said


@pytest.mark.slow
def test_the_list_needs_neither_torch_nor_prefect():
    subprocess.run([sys.executable, "-c", LIGHT], cwd=CHECKOUT, check=True, capture_output=True)


def named(name: str) -> set[tuple[str, int]]:
    """`1-fmnist`, `figure-3`, `table II`, `figures 4 to 10` and `figures 1 and 2`, as kinds and numbers."""
    roman = {"I": "1", "II": "2"}
    kind = "figure" if name.startswith("figure") else "table"
    numbers = [int(roman.get(n, n)) for n in re.findall(r"\b(\d+|II?)\b", name.partition(",")[0])]
    if re.match(r"\d+-", name):
        numbers = numbers[:1]
    return {(kind, n) for n in (range(numbers[0], numbers[-1] + 1) if " to " in name else numbers)}
