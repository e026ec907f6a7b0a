"""Run a broker or a place as a process of its own: `python serve_loopback.py broker|place ARGUMENT...`."""

import os
import signal
import sys
from pathlib import Path

from tasks.places import broker
from tasks.places.envelopes import Header, PrivateKey, PublicKey
from tasks.places.planes import open_plane
from tasks.places.sessions import PlaceSessions


def serve_broker(folder: str, host: str, port: str, certificate: str, key: str, limit: str) -> None:
    broker.serve_broker(Path(folder), host, int(port), Path(certificate), Path(key), int(limit))


def serve_place(
    place: str, key: str, coordinator: str, folder: str, address: str, certificate: str, token: str
) -> None:
    """Serve a place that logs each call of its handler, and dies in the first call for `die`."""
    calls = Path(folder) / "calls"

    def handle(header: Header, body: bytes) -> bytes:
        with calls.open("a", encoding="utf-8") as file:
            file.write(f"{header.subject} {body.hex()}\n")
        if header.subject == "die" and calls.read_text(encoding="utf-8").count("die") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return body[::-1]

    plane = open_plane(address, Path(certificate) if certificate else None, token)
    own, theirs = PrivateKey.read(Path(key)), PublicKey.from_text(coordinator)
    PlaceSessions(plane, own, place, theirs, Path(folder) / "sessions", handle).serve_forever()


if __name__ == "__main__":
    {"broker": serve_broker, "place": serve_place}[sys.argv[1]](*sys.argv[2:])
