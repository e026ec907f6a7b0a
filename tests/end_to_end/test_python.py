"""Verbs called from a script and from a notebook: the project's own server, no noise, one line where something is wrong."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor

import prefect
from flows.run import run

os.environ["PREFECT_HOME"] = os.path.expanduser("~/.prefect")
os.environ["PREFECT_DEFAULT_RESULT_STORAGE_BLOCK"] = "s3/of-another-server"
before = dict(os.environ)
with ThreadPoolExecutor() as threads:  # which take turns
    results = list(threads.map(lambda seed: run("fedavg", seed, overrides=["training.rounds=2"]), (0, 1)))
after = dict(os.environ)
assert {k: after.get(k) for k in {*before, *after} if k.startswith("PREFECT_")} == {
    k: v for k, v in before.items() if k.startswith("PREFECT_")
}
assert logging.getLogger("prefect").level == logging.INFO
print(json.dumps(results))
run("fedavgg")
"""
IN_A_KERNEL = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], 4)
notebook.cells.append(nbformat.v4.new_code_cell('run("fedavgg")', metadata={"tags": ["raises-exception"]}))
NotebookClient(notebook, timeout=600, resources={"metadata": {"path": "."}}).execute()
nbformat.write(notebook, "done.ipynb")
"""

AS_A_FILE = """
import pathlib
import subprocess
import sys

pathlib.Path("script.py").write_text(sys.argv[1])
sys.exit(subprocess.run([sys.executable, "script.py"]).returncode)
"""


@pytest.fixture
def in_python(partitioned: Any, tmp_path: Path, environment: dict[str, str]) -> Any:
    """Runs code in an interpreter of its own in a project, with another home; the folder, and how it ended."""
    folder = partitioned[0].copy(tmp_path / "project")
    (tmp_path / "home").mkdir()

    def typed(code: str, *arguments: str) -> tuple[Any, subprocess.CompletedProcess[str]]:
        command = [sys.executable, "-c", code, *arguments]
        environ = {**environment, "HOME": str(tmp_path / "home")}
        done = subprocess.run(command, cwd=folder.path, env=environ, capture_output=True, text=True, check=False)
        return folder, done

    return typed


def test_a_script_gets_what_the_command_prints_quietly_and_a_mistake_without_prefects_frames(in_python, living, server):
    folder, done = in_python(SCRIPT)
    *trace, mistake = done.stderr.strip().splitlines()
    assert mistake == "silos.errors.UserError: method: got 'fedavgg', expected a known method. Did you mean fedavg?"
    assert trace[0].startswith("Traceback")
    assert len(trace) < 8
    assert "site-packages" not in done.stderr
    (line,) = done.stdout.splitlines()
    from_command = (
        replace(folder, server=server).type("run", "fedavg", "--seed", "1", "--set", "training.rounds=2", "--json").json
    )
    differ = {"seconds", "folder", "mlflow_run_id"}
    (_, called) = json.loads(line)
    assert called.keys() == from_command.keys()
    assert {k: called[k] for k in called.keys() - differ} == {k: from_command[k] for k in called.keys() - differ}
    assert living(folder.path) == []


def test_the_notebook_runs_in_a_kernel_says_nothing_else_and_leaves_the_home_alone(in_python, tmp_path, living):
    shutil.copy(ROOT / "docs" / "examples" / "from_python.ipynb", tmp_path)
    folder, done = in_python(IN_A_KERNEL, str(tmp_path / "from_python.ipynb"))
    assert done.returncode == 0, done.stderr
    cells = [c for c in json.loads((folder.path / "done.ipynb").read_text())["cells"] if c["cell_type"] == "code"]
    *shown, told, failed = [cell["outputs"] for cell in cells]
    assert [[output["output_type"] for output in outputs] for outputs in shown] == [["execute_result"]] * 3, shown
    assert told[0]["text"] == ["method: got 'fedavgg', expected a known method. Did you mean fedavg?\n"]
    assert failed[0]["traceback"] == ["UserError: method: got 'fedavgg', expected a known method. Did you mean fedavg?"]
    assert [*(tmp_path / "home").glob(".prefect/*")] == []  # Prefect's import makes the folder
    assert living(folder.path) == []


def test_a_script_that_its_workers_would_run_again_is_refused_and_a_guarded_one_runs(in_python, living):
    head = "from flows.run import run\n\n"
    call = 'print(run("fedavg", overrides={"training.rounds": 1, "runner.kind": "processes"})["rounds"])\n'
    folder, done = in_python(AS_A_FILE, head + call)
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .endswith(
            "script.py: got a script that would run again in each worker of runner.kind processes, "
            "expected a guarded one. Put its commands under "
            '`if __name__ == "__main__":`, or use threads.'
        )
    )
    assert done.stderr.count("Traceback") == 1  # no worker has begun
    _, done = in_python(AS_A_FILE, f'{head}if __name__ == "__main__":\n    {call}')
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert living(folder.path) == []
