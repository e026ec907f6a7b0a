"""Which peers `siloflow bench` knows, and with which interpreter each runs."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from shutil import which

from silos.errors import UserError

PYTHON = "SILOFLOW_FLOWER_PYTHON"
_NEEDED = {"flower": ("flwr", "ray", "torch", "numpy", "pydantic", "safetensors")}
_LOOK = "import sys; from importlib.util import find_spec; print(*(m for m in sys.argv[1:] if not find_spec(m)))"


def check_peers(peers: Sequence[str]) -> None:
    """UserError for a peer that is unknown, or whose packages are not installed."""
    for name in peers:
        if name not in _NEEDED:
            raise UserError(f"there is no peer {name!r}; there is {', '.join(_NEEDED)}.")
        python = interpreter(name)
        if not which(python):
            raise UserError(f"{PYTHON} is {python!r}, which is no interpreter; make one with `{_install()}`.")
        asked = [python, "-c", _LOOK, *_NEEDED[name]]
        missing = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
        if missing:
            raise UserError(
                f"{name} needs {', '.join(missing)}, not installed for {python}; install with `{_install()}`."
            )


def interpreter(contestant: str) -> str:
    """The one that runs it: for flower the one named in the environment; for all others this one."""
    return (contestant == "flower" and os.environ.get(PYTHON)) or sys.executable


def _install() -> str:
    """An environment of its own, with our version of torch."""
    torch = version("torch").partition("+")[0]
    packages = f"'flwr[simulation]' torch=={torch} numpy pydantic safetensors"
    return f"python3.11 -m venv flower && flower/bin/pip install {packages} && export {PYTHON}=$PWD/flower/bin/python"
