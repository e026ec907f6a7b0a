"""A report is one file that a reader without the program can use, on a phone, on paper and with a screen reader."""

import json
import re
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.project.make_partition import make
from flows.project.project import Project
from flows.results.reports import html_report
from flows.results.reports.comparison_report import comparison_sections, diagnosis_section, write_comparison_report
from flows.results.reports.html_report import Figure, Section, Table, write_report
from flows.results.run_history.comparison_cost import costs_of
from models.metrics.task_metrics import TASK_METRICS
from silos.io import atomic_io
from tasks.tracking.cost_to_target import cost_curve

EVIL = "<script>alert('c')</script> & \"q\" \x1b[31m"
METHODS = ["fedavg", "local_only", "pooled"]
ACCURACY, RMSE = TASK_METRICS["classification"], TASK_METRICS["regression"]


class Page(HTMLParser):
    """What a page holds: elements with their attributes, the text of each, and elements that were not closed."""

    EMPTY = ("meta", "img", "br", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text_of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def comparison(clients: int, quantity: Any = ACCURACY, evil: str = EVIL) -> tuple[dict[str, Any], Any, Any]:
    """A made comparison of three methods and two seeds, its curves, and its curves of cost."""
    name = quantity.name
    runs, table, curves, costs = [], [], {}, {}
    for index, method in enumerate(METHODS):
        curve = [(number, 0.3 + 0.1 * index + 0.02 * number) for number in range(1, 11)]
        curves[method] = [curve, curve]
        records = [
            {
                "round": number,
                "metrics": {quantity.headline: value, "bytes/up": 900 + index, "bytes/down": 100},
                "seconds": {"round": 0.5},
            }
            for number, value in curve
        ]
        costs[method] = cost_curve([records, records], quantity)
        rows = [
            {"client": evil if i == 0 else f"c{i:04d}", "role": "federated", name: 0.5 + i / (3 * clients)}
            for i in range(clients)
        ]
        metrics = {f"{name}/by_client": rows, **dict.fromkeys(quantity.columns, curve[-1][1])}
        runs += [{"method": method, "seed": seed, "metrics": metrics} for seed in (0, 1)]
        row = dict.fromkeys(quantity.columns, curve[-1][1]) | {f"{column}/sd": 0.01 for column in quantity.columns}
        more = {"seconds": 5.0, "bytes/up": 9000.0, "bytes/down": 1000.0}
        table.append({"method": method, "model": "global", "seeds": 2, **row, **more})
    clients_ = [
        {"client": row["client"], "role": "federated", "rows": 1234, "test_rows": 10, "domain": ""}
        | {"metrics": dict.fromkeys(METHODS, row[name])}
        for row in runs[0]["metrics"][f"{name}/by_client"]
    ]
    pair = {"method": "pooled", "reference": "fedavg", "difference": 0.2, "low": 0.1, "high": 0.3, "seeds": [0, 1]}
    constant = dict.fromkeys(quantity.columns, 0.1 if quantity is ACCURACY else 0.9)
    found = {
        "experiment": "compare-x",
        "data_version": "0123456789abcdef.dir",
        "task": "classification",
        "table": table,
        "runs": runs,
        "failed": [],
        "tuning": [],
        "notes": [],
        "baseline": {"name": f'always "{evil}"', "metrics": constant, "sentence": None},
        "clients": clients_,
        "gains": {"against": "local_only", "level": 0.05, "methods": {}, "sentences": []},
        "paired": [{**pair, "better": "pooled", "sentence": f"pooled − fedavg at {evil}: pooled is better"}],
    }
    found["cost"] = costs_of(found["table"], found["baseline"], costs, quantity)
    return found, curves, costs


def page_of(folder: Path, sections: list[Section]) -> str:
    return write_report(folder / "report.html", f"Comparison on {EVIL}", EVIL, sections).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    found, curves, costs = comparison(1000)
    return page_of(tmp_path_factory.mktemp("page"), comparison_sections(found, ACCURACY, curves, costs))


def test_a_report_of_1000_silos_has_less_than_two_megabytes_and_shows_50(page: str) -> None:
    assert len(page.encode()) < 2_000_000
    assert "the first 50 of 1,000" in page
    assert all(f"c{i:04d}" in page for i in range(1, 1000))
    visible, _, folded = page.rpartition("<details>")
    assert sum(f">c{i:04d}<" in visible for i in range(1, 1000)) == 49
    assert folded.count("<tr>") == 951


def test_rows_beyond_a_thousand_folded_ones_are_left_to_the_file_of_the_results(tmp_path: Path) -> None:
    table = Table.long("Silos", ["silo"], [[f"c{i}"] for i in range(5000)], "comparison.json")
    assert (len(table.rows), len(table.others)) == (50, 1000)
    assert "3,950 more rows are in comparison.json." in page_of(tmp_path, [Section("Each silo", tables=[table])])


def test_a_report_refers_to_nothing_outside_itself_and_runs_nothing(page: str) -> None:
    parsed = Page(page)
    assert parsed.open == []
    tags = {tag for tag, _ in parsed.elements}
    assert tags.isdisjoint({"script", "link", "iframe", "object", "embed", "form", "base", "video", "audio"})
    links = [value for _, at in parsed.elements for name, value in at.items() if name in ("src", "href", "srcset")]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert not any(name.startswith("on") or name == "style" for _, at in parsed.elements for name in at)
    styles = " ".join(parsed.text_of("style"))
    assert "url(" not in styles
    assert "@import" not in styles
    assert "http" not in re.sub(r"http-equiv", "", page.replace(EVIL, ""))
    (policy,) = [at["content"] for at in parsed.all("meta") if "http-equiv" in at]
    assert policy.startswith("default-src 'none'")


def test_names_of_the_data_are_text_and_nothing_else(page: str) -> None:
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(" in page
    assert r"\x1b[31m" in page


def test_headings_are_in_order_and_every_part_can_be_reached(page: str) -> None:
    parsed = Page(page)
    levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    titles = parsed.text_of("h2")
    assert titles == [
        "What came out",
        "Generalisation to other silos",
        "Fairness: who gains and who loses",
        "Overhead: bytes and seconds",
        "Convergence",
        "Each silo",
    ]
    (document,) = parsed.all("html")
    assert document["lang"] == "en"
    targets = {at["id"] for _, at in parsed.elements if "id" in at}
    assert [at["href"] for at in parsed.all("a")] == [f"#section-{i}" for i in range(1, 1 + len(titles))]
    assert {at["href"][1:] for at in parsed.all("a")} == targets
    assert {at["aria-labelledby"] for at in parsed.all("section")} == targets


def test_pictures_have_descriptions_and_tables_captions_and_headings(page: str) -> None:
    parsed = Page(page)
    assert all(len(picture["alt"]) > 20 for picture in parsed.all("img"))
    assert len(parsed.all("figcaption")) == len(parsed.all("img"))
    assert len(parsed.all("caption")) == len(parsed.all("table"))
    assert {at["scope"] for at in parsed.all("th")} == {"col", "row"}
    assert all(
        {"role", "aria-label", "tabindex"} <= at.keys() for at in parsed.all("div") if at.get("class") == "scroll"
    )
    text = " ".join(picture["alt"] for picture in parsed.all("img"))
    assert "At the reported round: fedavg 0.500, local_only 0.600, pooled 0.700" in text


def test_on_a_phone_each_cell_stands_below_the_last_one_with_the_title_of_its_column(page: str) -> None:
    cells, titles = Page(page).all("td"), set(re.findall(r'<th scope="col">([^<]*)</th>', page))
    assert cells
    assert {cell["data-title"] for cell in cells} < titles
    row = page[page.index("<tbody>") :].partition("</tr>")[0]
    head = page[: page.index("<tbody>")].rpartition("<thead>")[2]
    assert re.findall(r'data-title="([^"]*)"', row) == re.findall(r'scope="col">([^<]*)<', head)[1:]
    assert re.search(r"@media screen and \(max-width: 40rem\) \{[^@]*td::before \{ content: attr\(data-title\)", page)


def test_colours_have_the_contrast_that_wcag_asks_for(page: str) -> None:
    """4.5 to 1 on white, and on the grey of code for its colour."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    colours = re.findall(r"[{; ]color: (#[0-9a-f]{6})", page)
    assert len(colours) >= 4
    for ground in ("#ffffff", "#f2f2f2"):
        assert all((luminance(ground) + 0.05) / (luminance(colour) + 0.05) >= 4.5 for colour in colours)


@pytest.mark.slow
def test_what_other_parts_wrote_stands_in_the_report_and_its_absence_is_no_error(tmp_path: Path) -> None:
    found, curves, costs = comparison(3)
    plain = page_of(tmp_path, comparison_sections(found, ACCURACY, curves, costs))
    assert "worst tenth" not in plain
    record = {"mean": 0.02, "better": 2, "worse": 1, "certain_better": [], "certain_worse": ["c0002"]}
    record["clients"] = {"c0001": {"difference": 0.013, "p_holm": 0.5}, "c0002": {"difference": -0.05, "p_holm": 0.01}}
    side = {"worst_tenth": 0.7, "worst": 0.7, "worst_client": "c0002", "sd": 0.1}
    record |= {"spread": {"alone": side, "method": side}, "sentence": "Federating gains 2 points on average."}
    clients = [
        {"client": c, "role": "unseen", "rows": 1234, "test_rows": 10, "domain": "d1"}
        | {"metrics": {"fedavg": v, "pooled": None}}
        for c, v in (("c0001", 0.5), ("c0002", 0.9))
    ]
    more = {
        "gains": {"against": "local_only", "level": 0.05, "sentences": [], "methods": {"fedavg": record}},
        "clients": clients,
    }
    more["paired"] = [{**found["paired"][0], "sentence": "pooled is better after Holm"}]
    full = page_of(tmp_path, comparison_sections({**found, **more}, ACCURACY, curves, costs))
    for text in (
        "Federating gains 2 points",
        "1, 1 certainly",
        "0.700 c0002",
        "1,234",
        "d1",
        "after Holm",
        "0.900\N{NO-BREAK SPACE}−5.0*",
        "+1.3",
    ):
        assert text in full
    each = full[full.index("Each silo</h2>") :]
    assert each.index("c0002") < each.index("c0001"), "a certain loss stands before a low score"
    found["cost"] = {}
    found["baseline"] = None
    assert "90 %" not in page_of(tmp_path, comparison_sections(found, ACCURACY, curves, dict.fromkeys(METHODS)))


@pytest.mark.slow
def test_silos_that_did_not_train_have_a_table_of_their_own(tmp_path: Path) -> None:
    found, curves, costs = comparison(3)
    name = f"fresh/{ACCURACY.headline}"
    for row, value in zip(found["table"], (0.25, None, 0.75), strict=True):
        row |= {name: value, f"{name}/sd": 0.0}
    text = page_of(tmp_path, comparison_sections(found, ACCURACY, curves, costs))
    part = text[text.index("Generalisation") : text.index("Fairness: who gains and who loses</h2>")]
    assert "fresh silos" in part
    assert "0.250" in part
    assert "no model" in part
    assert "unseen" not in part.lower()


@pytest.mark.slow
def test_a_regression_reads_as_one(tmp_path: Path) -> None:
    found, curves, costs = comparison(4, RMSE)
    text = page_of(tmp_path, comparison_sections(found, RMSE, curves, costs))
    assert "Test rmse of each silo" in text
    assert "The target is rmse 0.54" in text, "90 % of the way from 0.9 down to 0.5"
    assert "accuracy" not in text.lower()


def test_a_figure_that_is_too_large_stays_a_file_of_its_own(tmp_path: Path) -> None:
    header = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (640).to_bytes(4, "big") + (480).to_bytes(4, "big")
    for size, count in ((1000, 1), (html_report.MAX_FIGURE + 1, 0)):
        (tmp_path / "pairs.png").write_bytes(header.ljust(size, b"\0"))
        assert len(html_report.figure_of(tmp_path / "pairs.png", "Pairs", "pairs")) == count
    assert html_report.figure_of(tmp_path / "none.png", "Pairs", "pairs") == []
    assert Figure(header, "Pairs", "pairs").size == (640, 480)


def test_a_kill_leaves_the_old_report_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = page_of(tmp_path, [Section("One", ["old"])])

    def killed(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(atomic_io.os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            page_of(tmp_path, [Section("One", ["new"])])
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == old
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, write_params: Callable[[Path], dict[str, Any]]) -> Project:
    """A partitioned and committed project."""
    folder = tmp_path_factory.mktemp("reported") / "project"
    write_params(folder)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    make(Project.open(root=folder))
    for command in (["add", "params.yaml", "data.dvc"], ["commit", "-qm", "Partition"]):
        subprocess.run([*git, *command], check=True)
    return Project.open(["training.rounds=7", "data.source={kind: digits}"], root=folder)


def diagnosis(project: Project, name: str, started: str, sentence: str, **about: str) -> None:
    folder = project.store.runs / name
    folder.mkdir(parents=True)
    made = {"kind": "diagnose", "name": name, "started": started, "data_version": project.silos.version, **about}
    (folder / "experiment.json").write_text(json.dumps(made))
    (folder / "report.json").write_text(json.dumps({"sentences": [sentence]}) if sentence else "{")


def test_the_newest_diagnosis_of_the_same_data_says_how_the_silos_differ(project: Project) -> None:
    version = project.silos.version
    assert "`siloflow diagnose`" in diagnosis_section(project, version).sentences[0]
    diagnosis(project, "diagnose-1", "20260102-000000", "Two silos differ.")
    diagnosis(project, "diagnose-2", "20260101-000000", "An older one.")
    diagnosis(project, "diagnose-3", "20260103-000000", "Of other data.", data_version="other")
    diagnosis(project, "diagnose-4", "20260104-000000", "Since a version.", since="other")
    assert diagnosis_section(project, version).sentences[0] == "Two silos differ."
    diagnosis(project, "diagnose-5", "20260105-000000", "")
    assert "`siloflow diagnose`" in diagnosis_section(project, version).sentences[0], (
        "damaged, which is no reason to fail"
    )


def test_the_report_of_a_project_ends_with_data_commands_and_versions(project: Project) -> None:
    found, curves, costs = comparison(3)
    found |= {"data_version": project.silos.version}
    (project.store.runs / "compare-x").mkdir(parents=True)
    about = {"kind": "compare", "name": "compare-x", "started": "20260105-120000"}
    (project.store.runs / "compare-x" / "experiment.json").write_text(json.dumps(about))
    plan = SimpleNamespace(methods=METHODS, seeds=[0, 1], reference="fedavg")
    path = write_comparison_report(project, plan, found, curves, costs)  # type: ignore[arg-type]
    text = path.read_text(encoding="utf-8")
    parsed = Page(text)
    assert path == project.store.runs / "compare-x" / "report.html"
    assert "begun 2026-01-05." in text
    (commands,) = parsed.text_of("pre")
    lines = commands.splitlines()
    assert re.fullmatch(r"git checkout [0-9a-f]{12}", lines[0])
    assert lines[1] == f"siloflow data use {project.silos.version[:10]}"
    assert lines[2] == (
        "siloflow compare fedavg local_only pooled --seeds 0,1 --reference fedavg "
        "--set training.rounds=7 --set 'data.source={kind: digits}'"
    )
    terms = parsed.text_of("dt")
    assert terms[:4] == ["data", "data version", "git commit", "training"]
    assert {"Python", "siloflow", "torch", "mlflow", "prefect"} <= set(terms)
    assert str(project.root) not in text
