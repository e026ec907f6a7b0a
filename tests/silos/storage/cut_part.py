"""Cut a folder of silos into parts, as if places held them."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from silos.storage.manifest import COLUMNS, COMMON, MANIFEST, ClientTable, read_manifest, to_bytes, to_json


def cut_part(folder: Path, target: Path, clients: Sequence[str]) -> None:
    """Write the part of a folder of silos that holds these clients' rows, to simulate a place.

    Args:
        folder: The whole data, in which each client has its own files.
        target: A new folder.
        clients: The clients, in any order.
    """
    manifest = read_manifest(folder)
    chosen = np.array(sorted(manifest.index(client) for client in clients), np.int64)
    table = manifest.clients
    files = np.unique(table.file[chosen])
    assert np.isin(table.file, files).sum() == len(chosen), "cut at most 128 clients, which have a file each"
    part = ClientTable(
        domains=table.domains,
        files=tuple(table.files[index] for index in files),
        names=tuple(table.names[index] for index in chosen),
        file=np.searchsorted(files, table.file[chosen]).astype(np.int32),
        **{name: getattr(table, name)[chosen] for name in ("domain", "role", "rows", "digest")},
    )
    target.mkdir(parents=True)
    for file in (*part.files, *([COMMON] if manifest.common else [])):
        shutil.copy(Path(folder) / file, target / file)
    (target / COLUMNS).write_bytes(to_bytes(part))
    (target / MANIFEST).write_bytes(to_json(replace(manifest, clients=part)))
