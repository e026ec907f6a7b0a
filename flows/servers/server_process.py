"""The process of an embedded Prefect server: prefect_child SOCKET LOCK [ADDRESS USERS], the first a descriptor, then files.

The socket was bound by the parent: a port that is only known to be free may be another's by the time Prefect is imported.
Two that make the tables of one database at the same time would both fail, so that is done under LOCK.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
import sys
import threading
import traceback
from pathlib import Path

from flows.console import gc_tuning


def watch(offered: list[str]) -> None:
    """Ends the process when the parent is gone; a server that was offered to others stays for those who use it."""
    while os.read(0, 4096):
        pass
    if offered:
        address, users = offered
        with contextlib.suppress(OSError):  # somebody may have thrown the folder away
            Path(address).unlink()
            fcntl.flock(os.open(users, os.O_RDONLY), fcntl.LOCK_EX)
    os._exit(0)


def make_tables(lock: str) -> None:
    """Makes or migrates them; the last line of the log is what was wrong."""
    from prefect.server.database import provide_database_interface

    with Path(lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            asyncio.run(provide_database_interface().create_db())
        except Exception as error:
            traceback.print_exc()
            sys.exit(str(error).partition("\n")[0])


def main(descriptor: str, lock: str, *offered: str) -> None:
    """Serves until the parent is gone."""
    threading.Thread(target=watch, args=([*offered],), daemon=True).start()
    gc_tuning.pause_gc()
    make_tables(lock)
    import uvicorn

    app = "prefect.server.api.server:create_app"
    gc_tuning.resume_gc()
    config = uvicorn.Config(app, factory=True, log_level="warning", timeout_keep_alive=10)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main(*sys.argv[1:])
