"""torchvision can be imported beside any build of torch."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_torchvision_imports_and_imports_again():
    program = (
        "from silos.sources.torchvision_datasets import torchvision\n"
        "first = torchvision()\n"
        "assert torchvision() is first\n"
        "from torchvision.datasets import MNIST\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], check=True)


def test_the_room_imports_without_torch():
    program = (
        "import sys; sys.path.insert(0, '.')\n"
        "import silos.storage.partition_store, silos.cohort, silos.data_overview, silos.versioning.dvc_files\n"
        "assert 'torch' not in sys.modules and 'PIL' not in sys.modules and 'dvc' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], check=True)
