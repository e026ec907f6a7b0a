"""Clients' statistics after a real run: with the clients, and nowhere else."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from models.statistics.feature_vector import compute, make
from silos.storage.manifest import read_manifest
from silos.storage.partition_store import open_client

pytestmark = pytest.mark.slow

KINDS = ("mean", "loadings", "fingerprint", "covariance_xy")
ASKED = tuple(make({"kind": kind}) for kind in KINDS)


@pytest.fixture(scope="module")
def folder(partitioned, tmp_path_factory) -> Path:
    """A user's folder in which two rounds of the conditional method were run by two workers."""
    there = partitioned[0].copy(tmp_path_factory.mktemp("statistics") / "project")
    kinds = f"method.conditional.statistics=[{', '.join(f'{{kind: {kind}}}' for kind in KINDS)}]"
    settings = (kinds, "training.rounds=2", "runner.workers=2", "engine.stack=3")
    there.type("run", "conditional", *(part for setting in settings for part in ("--set", setting)))
    return there.path


def test_each_clients_statistics_are_in_private_and_no_file_of_the_run_holds_them(folder):
    kept = [row for path in folder.glob("private/**/statistics/*") for row in load_file(path)["statistics"]]
    computed = described(folder)
    assert {vector.astype(np.float32).tobytes() for vector in computed} == {row.tobytes() for row in kept}
    hidden = {trace for vector in computed for trace in traces(vector)}
    assert len(hidden) > 3000
    searched = set()
    for path in files(folder):
        assert not hidden & windows(path.read_bytes()), path
        searched.add(path.relative_to(folder).parts[0])
    assert {"runs", ".prefect"} <= searched
    assert all(hidden & windows(path.read_bytes()) for path in folder.glob("private/**/statistics/*"))


def described(folder: Path) -> list[np.ndarray]:
    """Each client's statistics, from its training rows on disk: float64."""
    data = folder / "data" / "digits"
    found = []
    for client in read_manifest(data).clients:
        x, y = open_client(data, client, "train")
        x = torch.from_numpy(x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.copy())
        found.append(compute(ASKED, x, torch.from_numpy(y.copy()), 10).vector.numpy())
    return found


def traces(vector: np.ndarray) -> Iterator[bytes]:
    """Two neighbours in float32, a number in float64, its first ten digits: eight or twelve bytes each."""
    single = vector.astype(np.float32)
    for at, number in enumerate(vector[:-1]):
        if len(repr(float(number))) > 14 and single[at + 1]:
            yield single[at : at + 2].tobytes()
            yield number.tobytes()
            yield repr(float(number))[:12].encode()
            yield repr(float(single[at]))[:12].encode()


def windows(content: bytes) -> set[bytes]:
    """Everything of eight or twelve bytes in it."""
    return {content[at : at + size] for size in (8, 12) for at in range(len(content) - size + 1)}


def files(folder: Path) -> Iterator[Path]:
    """Everything but the clients' own: their rows, and what they keep."""
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).parts[0] not in ("data", "private", ".dvc", "cache"):
            yield path
