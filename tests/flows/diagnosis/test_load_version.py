"""An earlier version of data/ beside others that look at it, and before Prefect may be imported."""

import signal
import subprocess
import sys
from threading import Thread

import numpy as np
import pytest

from flows.diagnosis.load_version import load_version

pytestmark = pytest.mark.slow

LOOKS = """
import sys
from pathlib import Path
from flows.cli.diagnosis_commands import _check_version
from flows.project.project import Project
_check_version(Project.open(root=Path(sys.argv[1])), sys.argv[2])
print("prefect" in sys.modules)
"""


@pytest.fixture
def committed(world):
    """A project of one silo, and the revision that holds it."""
    own = world()
    return own, own.write({"north": (np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2)})


def test_looking_whether_a_version_can_be_compared_leaves_prefect_unimported(committed):
    """Prefect reads its server's address once, and there is none yet: it would start another server, and wait for it."""
    own, revision = committed
    looked = subprocess.run(
        [sys.executable, "-c", LOOKS, own.folder, revision], capture_output=True, text=True, check=False, timeout=600
    )
    assert (looked.stdout, looked.returncode) == ("False\n", 0), looked.stderr


def test_who_opens_a_version_that_another_has_open_waits_for_its_end(committed):
    own, revision = committed
    opened: list[str] = []

    def other():
        with load_version(own.open(), revision) as silos:
            opened.extend(silos.clients)

    waiting = Thread(target=other)
    with load_version(own.open(), revision) as silos:
        waiting.start()
        waiting.join(1.0)
        assert waiting.is_alive()
        assert (opened, silos.clients) == ([], ("north",))
    waiting.join(60)
    assert opened == ["north"]


def test_a_diagnosis_that_waits_says_so_and_one_that_is_interrupted_says_what_to_do_again(committed):
    own, revision = committed
    typed = [sys.executable, "-c", "from flows.cli import main; main()", "diagnose", "--against", revision]
    with load_version(own.open(), revision):
        waiting = subprocess.Popen(typed, cwd=own.folder, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "waiting for another `siloflow diagnose --against` to end\n"
        waiting.send_signal(signal.SIGINT)
        _, said = waiting.communicate(timeout=600)
    # an interrupt inside of a line's printing prints that line again
    assert (
        said.splitlines()[-1]
        == "stopped; all completed work is saved: run the command again; silos then report the same bytes."
    )
    assert waiting.returncode == 130
