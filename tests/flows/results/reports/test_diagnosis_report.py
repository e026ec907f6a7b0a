"""A diagnosis can be found again: on disk, in MLflow, on Prefect's page; nothing is there by half."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

from flows.diagnose import diagnose
from flows.project.make_partition import make
from flows.project.project import Project
from flows.results.reports import diagnosis_report
from silos.errors import UserError
from tasks.tracking.json_io import replace_nonfinite
from tasks.tracking.metric_names import as_markdown
from tasks.tracking.mlflow_logging.connection import connect

pytestmark = pytest.mark.slow

NAMES = ["$a$ and $b$", "<b>bold</b>", "c|d_e_"]
COLUMN = [{"kind": "column", "column": "client"}]
PICTURES = ["pairs.png", "features.png", "closely.png"]
FILES = ["report.json", "report.html", "findings.md", *PICTURES]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, write_params: Callable[[Path], dict[str, Any]]) -> Path:
    """Silos of a table; inputs of the third and fourth are moved in the feature with <b> in its name, the last is small."""
    folder = tmp_path_factory.mktemp("diagnosed") / "project"
    raw = write_params(folder)
    raw["data"] |= {"name": "own", "source": {"kind": "npz", "path": "own.npz"}, "scheme": COLUMN}
    (folder / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    rng = np.random.default_rng(0)
    client = np.repeat(["<i>", "_b", "c", "d", "small"], [400, 400, 400, 400, 20])
    x = rng.normal(size=(1620, 3))
    x[800:, 1] += 2
    y = (rng.random(1620) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    np.savez(folder / "own.npz", x=x, y=y, client=client, features=NAMES)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    make(Project.open(root=folder))
    return folder


@pytest.fixture(scope="module")
def answer(project: Path, prefect: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the flow answers there, its MLflow a database of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.delenv("MLFLOW_TRACKING_URI")
        return diagnose()


def test_the_folder_holds_the_whole_report_the_sentences_and_the_pictures(project, answer):
    folder = project / answer["folder"]
    assert folder.name.startswith("diagnose-")
    assert {path.name for path in folder.iterdir()} == {"experiment.json", *FILES}
    assert json.loads((folder / "report.json").read_text()) == json.loads(json.dumps(replace_nonfinite(answer)))
    for picture in PICTURES:
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
        assert (folder / picture).stat().st_size > 5000


def test_the_report_has_matrices_verdicts_chances_and_features(answer):
    assert answer["features"] == NAMES
    assert answer["groups"] == [["<i>", "_b"], ["c", "d"], ["small"]]
    apart = [[(a < 2) != (b < 2) for b in range(4)] for a in range(4)]
    found = answer["matrices"]
    expected = [[["feature"] if there else [] for there in line] + [["undetermined"]] for line in apart]
    assert found["verdict"] == [*expected, [["undetermined"]] * 4 + [[]]]
    assert [found["names"][at] for at in found["order"]] == ["<i>", "_b", "c", "d", "small"]
    for name in ("feature", "label", "concept", "in_classes", "wasserstein", "chance"):
        table = np.array(found[name])
        np.testing.assert_array_equal(table, table.T)
        assert (np.diag(table) == (name == "chance")).all()
    all_chances = np.array(found["chance"])
    chances = all_chances[:4, :4]
    assert (chances[np.array(apart)] < 1e-6).all()
    assert (chances[~np.array(apart)] > 1e-3).all()
    far = np.array(found["wasserstein"])[:4, :4]
    assert far[np.array(apart)].min() > 1 > far[~np.array(apart)].max()
    assert [pair["chance"] for pair in answer["pairs"]] == all_chances[np.triu_indices(5, 1)].tolist()
    assert answer["ranking"][0]["feature"] == "<b>bold</b>"
    assert all(list(pair["features"]) == ["<b>bold</b>"] for pair in answer["pairs"] if pair["types"])


def test_names_are_text_in_the_sentences_on_disk_and_nothing_else(project, answer):
    page = (project / answer["folder"] / "findings.md").read_text(encoding="utf-8")
    assert r"\<b\>bold\</b\>" in page
    assert r"\<i\> and \_b differ from c and d: " in page
    assert "<b>" not in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert [line.replace(r"\|", "").count("|") for line in rows] == [5] * len(rows)


def test_the_report_to_hand_on_has_sentences_pictures_and_every_silo_with_names_as_text(project, answer):
    page = (project / answer["folder"] / "report.html").read_text(encoding="utf-8")
    assert page.count("<img ") == len(PICTURES)
    assert "<b>" not in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    rows = [line for line in page.splitlines() if ">the rest</td>" in line]
    assert [line.partition("</th>")[0] for line in rows] == [
        f'<tr><th scope="row">{name}' for name in ("&lt;i&gt;", "_b", "c", "d", "small")
    ]
    assert "siloflow diagnose" in page
    assert answer["data_version"] in page


def test_mlflow_has_one_run_with_all_of_it(project, answer, tmp_path):
    client = connect(f"sqlite:///{project / 'runs' / 'mlflow.db'}")
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()], "tags.kind = 'diagnosis'")
    assert run.info.run_name == Path(answer["folder"]).name
    assert run.info.status == "FINISHED"
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {*FILES}
    assert run.data.params["diagnose.verdict"] == "guarded"
    expected = {"clients": 5, "groups": 3, "pairs": 10, "pairs/differ": 4, "pairs/feature": 4, "pairs/label": 0}
    expected |= {"pairs/concept": 0, "pairs/undetermined": 4, "bytes/up": answer["bytes"]["up"]}
    assert run.data.metrics == expected
    assert run.data.tags["data_version"] == answer["data_version"]
    assert run.data.tags["verdict"] == "guarded"
    (data,) = run.inputs.dataset_inputs
    assert data.dataset.digest == answer["data_version"][:36]
    held = Path(client.download_artifacts(run.info.run_id, "report.json", str(tmp_path)))
    assert held.read_bytes() == (project / answer["folder"] / "report.json").read_bytes()


def test_prefects_page_has_the_same_sentences_under_the_same_name(project, answer, prefect):
    def found(kind: str, asked: dict[str, Any]) -> Any:
        return httpx.post(f"{prefect.url}/{kind}/filter", json=asked).raise_for_status().json()

    called = f"diagnose own, {answer['folder'].rpartition('-')[2]}"
    (run,) = found("flow_runs", {"flow_runs": {"name": {"any_": [called]}}})
    (shown,) = found("artifacts", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert (shown["key"], shown["type"]) == ("diagnosis", "markdown")
    folder = project / answer["folder"]
    assert shown["data"].startswith((folder / "findings.md").read_text(encoding="utf-8"))
    assert f"[{as_markdown(folder.name)}/report.html]({folder.as_uri()}/report.html)" in shown["data"]


def test_a_store_that_is_away_is_said_and_is_no_reason_to_fail(project, answer, prefect, told, monkeypatch):
    monkeypatch.chdir(project)
    again = diagnose(overrides=["tracking.uri=http://127.0.0.1:9"])
    assert again["matrices"] == answer["matrices"]
    assert (project / again["folder"] / "report.json").is_file()
    (said,) = [line for line in told.said if "MLflow" in line]
    assert "it has nothing of this diagnosis" in said
    assert again["folder"] in said


@pytest.mark.parametrize("last", ["draw_pairs", "draw_ranking", "draw_close_ups", "report_markdown", "write_bytes"])
def test_what_is_stopped_on_the_way_is_no_finished_report(project, answer, prefect, monkeypatch, last):
    before = set((project / "runs").glob("diagnose-*"))

    def stop(*_: Any, **__: Any) -> None:
        raise UserError("stopped")

    monkeypatch.chdir(project)
    monkeypatch.setattr(diagnosis_report, last, stop)
    with pytest.raises(UserError, match="stopped"):
        diagnose()
    (left,) = set((project / "runs").glob("diagnose-*")) - before
    assert not (left / "report.json").exists()
    assert not [path for path in left.iterdir() if path.name.startswith(".")]
    shutil.rmtree(left)
