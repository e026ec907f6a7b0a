"""What a bench leaves behind where it is ended from outside."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

BENCH = """
import sys
from benchmarks.run_benchmark import child, scratch

with scratch() as root:
    print(root, flush=True)
    child([sys.executable, "-c", "import os, time; print(os.getpid(), file=open('pid', 'w')); time.sleep(600)"], root)
"""


def test_a_bench_that_is_ended_leaves_neither_its_folder_nor_a_contestant(tmp_path):
    bench = subprocess.Popen(
        [sys.executable, "-c", BENCH],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert bench.stdout is not None
    bench.stdout.readline()
    (root,) = tmp_path.iterdir()
    told, until = root / "pid", time.monotonic() + 200
    while not (told.exists() and told.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    contestant = int(told.read_text())
    bench.send_signal(signal.SIGTERM)
    bench.communicate(timeout=600)
    assert bench.returncode
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(ProcessLookupError):
        os.kill(contestant, 0)
