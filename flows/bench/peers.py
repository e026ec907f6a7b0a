"""Which peers `siloflow bench` knows, and with which interpreter each runs."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from shutil import which
from typing import NamedTuple

from silos.errors import UserError

_OURS = ("numpy", "psutil", "pydantic", "safetensors")  # what it takes to open rows
_LOOK = "import sys; from importlib.util import find_spec; print(*(m for m in sys.argv[1:] if not find_spec(m)))"


class _Peer(NamedTuple):
    program: str  # of flows/bench/contestants
    package: str  # as pip is asked for it
    modules: tuple[str, ...]


PEERS = {
    "flower": _Peer("flower", "'flwr[simulation]'", ("flwr", "ray")),
    "pfl": _Peer("pfl_research", "pfl", ("pfl",)),
    "fedlab": _Peer("fedlab", "fedlab", ("fedlab",)),
}


def check_peers(peers: Sequence[str]) -> None:
    """UserError for a peer that is unknown, or whose packages are not installed."""
    for name in peers:
        if name not in PEERS:
            raise UserError(f"there is no peer {name!r}; there are {', '.join(PEERS)}.")
        python, install = interpreter(name), _install(name)
        if not which(python):
            raise UserError(f"{variable(name)} is {python!r}, which is no interpreter; make one with `{install}`.")
        asked = [python, "-c", _LOOK, *PEERS[name].modules, "torch", *_OURS]
        missing = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
        if missing:
            raise UserError(f"{name} needs {', '.join(missing)}, not installed for {python}; install with `{install}`.")


def program(contestant: str) -> list[str]:
    """The start of its command line: an interpreter, and a module of flows/bench/contestants."""
    peer = PEERS.get(contestant)
    return [interpreter(contestant), "-m", f"flows.bench.contestants.{peer.program if peer else contestant}"]


def interpreter(contestant: str) -> str:
    """The one that runs it: for a peer the one named in the environment; for all others this one."""
    return (contestant in PEERS and os.environ.get(variable(contestant))) or sys.executable


def variable(peer: str) -> str:
    """Of the environment: it names this peer's interpreter."""
    return f"SILOFLOW_{peer.upper()}_PYTHON"


def _install(peer: str) -> str:
    """An environment of its own, with our version of torch."""
    torch = version("torch").partition("+")[0]
    packages = " ".join([PEERS[peer].package, f"torch=={torch}", *_OURS])
    python = f"{variable(peer)}=$PWD/{peer}/bin/python"
    return f"python3.11 -m venv {peer} && {peer}/bin/pip install {packages} && export {python}"
