"""At which loopback port Prefect's page is: the one that is asked for, a schedule's last one, or 4200."""

import contextlib
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from silos.errors import UserError
from silos.io.atomic_io import write_bytes
from tasks.tracking.address_masking import is_port

PORT = 4200


def ui_address(port: int | None, option: str) -> dict[str, Any]:
    """What PrefectServer is told of the port that is asked for, UserError if it is taken; of none, where it tries first."""
    if port is None:
        return {"port": PORT}
    must_be_free(port, option)
    return {"port": port, "own": True}


def last_port(root: Path, port: int | None) -> dict[str, Any]:
    """The same for a schedule, whose page stays where it was."""
    with contextlib.suppress(OSError, ValueError):
        before = int(_file(root).read_text())
        if port is None and is_port(before):
            return {"port": before}
    return ui_address(port, "--port")


def save_port(root: Path, url: str) -> None:
    """The next schedule's page is there, too."""
    write_bytes(_file(root), f"{urlsplit(url).port}\n".encode())


def must_be_free(port: int, option: str) -> None:
    """Else the page of whoever listens there would be taken for ours."""
    if not is_port(port):
        raise UserError(f"{option} is {port}, and ports are numbers from 1 to 65535.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(f"port {port} cannot be used ({error.strerror}); choose another {option}.") from None


def _file(root: Path) -> Path:
    return root / ".prefect" / "schedule-port"
