"""Run a broker as a process of its own: `python serve_loopback.py broker ARGUMENT...`."""

import sys
from pathlib import Path

from tasks.places import broker


def serve_broker(folder: str, port: str, certificate: str, key: str, limit: str) -> None:
    broker.serve_broker(Path(folder), "127.0.0.1", int(port), Path(certificate), Path(key), int(limit))


if __name__ == "__main__":
    {"broker": serve_broker}[sys.argv[1]](*sys.argv[2:])
