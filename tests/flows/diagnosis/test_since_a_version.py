"""What is found against an earlier version can be found again, as any diagnosis can."""

import io
import json
from pathlib import Path

import httpx
import numpy as np
import pytest

from flows.cli.diagnosis_commands import print_diagnose
from flows.core.console.safe_text import PlainConsole
from flows.diagnose import diagnose
from tasks.tracking.json_io import replace_nonfinite
from tasks.tracking.mlflow_logging.connection import connect

pytestmark = pytest.mark.slow

PICTURES = ["features.png", "closely.png"]
FILES = ["report.json", "report.html", "findings.md", *PICTURES]


@pytest.fixture
def moved(world, prefect, monkeypatch):
    """What is said of three silos of which the inputs of the second have moved in one feature since the version `before`."""
    own, rng = world(), np.random.default_rng(0)
    there = {name: (rng.normal(size=(400, 2)), np.arange(400) % 2) for name in ("east", "north", "west")}
    features = [{"name": name, "low": -5, "high": 5} for name in ("heart", "lung")]
    before = own.write(there, features=features)
    x, y = there["north"]
    own.write({**there, "north": (x + np.array([0.0, 1.5]), y)}, features=features)
    monkeypatch.chdir(own.folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return own.folder, before, diagnose(against=before)


def test_a_silo_that_moved_is_in_the_table_the_pictures_the_run_the_page_and_has_a_next_step(moved, prefect):
    project, before, answer = moved
    rows = answer["overview"]["rows"]
    assert [(row["first"], row["second"]) for row in rows] == [(name, before) for name in ("north", "east", "west")]
    assert [row["differ"][0][0] for row in rows] == ["inputs", "nothing", "nothing"]
    assert [row["features"] for row in rows] == [["lung"], [], []]
    assert answer["next"] == [
        "Check at north why lung differs: other cases (case mix), or another way of measuring.",
        "If the change is real, train again on the present rows.",
    ]
    assert answer["pictures"] == PICTURES
    _is_printed(answer)
    _is_on_disk(project / answer["folder"], answer)
    _is_in_mlflow(project, answer)
    _is_on_prefects_page(project / answer["folder"], prefect.url)


def _is_printed(answer):
    out = io.StringIO()
    print_diagnose(answer, PlainConsole(file=out, width=200))
    lines = out.getvalue().splitlines()
    assert [line.strip() for line in lines[: 1 + len(answer["sentences"])]] == ["What differs", *answer["sentences"]]
    assert f"  {answer['next'][0]}" in [line.rstrip() for line in lines]
    assert f"data version  {answer['data_version']}, since {answer['since']}" in lines


def _is_on_disk(folder: Path, answer):
    assert {path.name for path in folder.iterdir()} == {"experiment.json", *FILES}
    assert json.loads((folder / "report.json").read_text()) == json.loads(json.dumps(replace_nonfinite(answer)))
    assert json.loads((folder / "experiment.json").read_text())["since"] == answer["since"]
    for picture in PICTURES:
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    page = (folder / "findings.md").read_text(encoding="utf-8")
    assert page.startswith(f"# How the silos of own changed since {answer['against']}\n")
    assert all(sentence.partition(":")[0] in page for sentence in answer["sentences"])


def _is_in_mlflow(project: Path, answer):
    client = connect(f"sqlite:///{project / 'runs' / 'mlflow.db'}")
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()], "tags.kind = 'diagnosis'")
    assert (run.info.run_name, run.info.status) == (Path(answer["folder"]).name, "FINISHED")
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {*FILES}
    assert run.data.tags["since"] == answer["since"]
    expected = {"clients": 3, "pairs": 3, "pairs/differ": 1, "pairs/feature": 1, "pairs/label": 0, "pairs/concept": 0}
    assert run.data.metrics == expected | {"pairs/undetermined": 0, "bytes/up": answer["bytes"]["up"]}


def _is_on_prefects_page(folder: Path, url: str):
    def found(kind, asked):
        return httpx.post(f"{url}/{kind}/filter", json=asked).raise_for_status().json()

    (run,) = found("flow_runs", {"flow_runs": {"name": {"like_": folder.name.rpartition("-")[2]}}})
    (shown,) = found("artifacts", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert shown["key"] == "diagnosis"
    assert shown["data"].startswith((folder / "findings.md").read_text(encoding="utf-8"))
