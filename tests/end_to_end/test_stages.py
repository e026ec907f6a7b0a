"""DVC's own commands on the stages that `siloflow init --ops` writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
NAMED = {f"GIT_{role}_{key}": "test" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}


@pytest.fixture
def typed(tmp_path, environment, server):
    """What types a command in the project, and returns what it printed."""
    setting = {**environment, **NAMED, "PATH": f"{BIN}:{environment['PATH']}", "PREFECT_API_URL": server}
    setting |= {"DVC_NO_ANALYTICS": "1"}

    def run(*words: str, folder: str = "study") -> str:
        done = subprocess.run(words, cwd=tmp_path / folder, env=setting, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_repro_does_nothing_twice_and_an_experiment_is_compared_with_what_is_committed(typed, tmp_path):
    made = json.loads(typed("siloflow", "init", "study", "--ops", "--json", folder="."))
    assert made["ops"]
    params = tmp_path / "study" / "params.yaml"
    text = params.read_text().replace("rounds: 50", "rounds: 2").replace("seeds: [0, 1, 2]", "seeds: [0]")
    params.write_text(text.replace("methods: [local_only, fedavg, fedprox, pooled]", "methods: [fedavg, fedsgd]"))

    assert "Running stage 'compare'" in typed("dvc", "repro")
    assert "Data and pipelines are up to date." in typed("dvc", "repro")
    assert not json.loads(typed("dvc", "status", "--json"))
    typed("git", "add", "--all")
    typed("git", "commit", "--quiet", "--message", "First")
    assert "data" not in typed("git", "ls-files").split(), "data.dvc owns it"

    said = typed("dvc", "exp", "run", "-S", "training.rounds=4")
    assert "Stage 'partition' didn't change, skipping" in said
    (changed,) = json.loads(typed("dvc", "params", "diff", "--json")).values()
    assert changed == {"training.rounds": {"old": 2, "new": 4, "diff": 2}}
    (metrics,) = json.loads(typed("dvc", "metrics", "diff", "--json")).values()
    assert metrics["methods.fedavg.accuracy/mean"]["diff"] > 0
    assert {"paired.fedsgd.difference", "paired.fedsgd.low", "paired.fedsgd.high"} <= metrics.keys()
    rows = (tmp_path / "study" / "summary" / "curves.csv").read_text().splitlines()
    assert rows[0] == "round,fedavg,fedsgd"
    assert [row.split(",")[0] for row in rows[1:]] == ["1", "2", "3", "4"]
    typed("dvc", "plots", "diff", "--out", "plots")
    assert "fedsgd" in (tmp_path / "study" / "plots" / "index.html").read_text()


def test_a_summary_needs_a_folder(partitioned, tmp_path, server):
    folder = partitioned[0].copy(tmp_path / "project", server)
    (folder.path / "taken").touch()
    said = folder.type("compare", "--summary", "taken", code=2).err
    assert "--summary: got taken, which is a file, expected a folder. Name another." in said
