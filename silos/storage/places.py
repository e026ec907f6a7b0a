"""The parts of data that lie at several places: read their digests, and merge their manifests without rows."""

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from silos.errors import UserError, counted, shown
from silos.storage.manifest import (
    COLUMNS,
    MANIFEST,
    ClientTable,
    Manifest,
    Part,
    read_manifest,
)

_SAME = ("task", "classes", "shape", "dtype", "features", "common")
"""What the parts of one set of data have in common."""


def part_digest(folder: Path) -> str:
    """Return the digest of a part: of its manifest and of its columns, which hold the digest of each client's rows."""
    return digest_of_part(*((Path(folder) / file).read_bytes() for file in (MANIFEST, COLUMNS)))


def digest_of_part(manifest: bytes, columns: bytes) -> str:
    """Return the digest of a part with this manifest and these columns, as their files hold them."""
    return hashlib.blake2b(manifest + columns, digest_size=16).hexdigest()


def merge_parts(
    name: str, params: Mapping[str, Any], folders: Mapping[str, Path], digests: Mapping[str, str]
) -> Manifest:
    """Merge the manifests of places; no row is read.

    Clients are in the order of their places' names, and a file is named after its place.

    Args:
        name: The name of the data.
        params: The recipe of the coordinator's data.
        folders: Of each place a folder with its manifest and columns.
        digests: Of each place its `part_digest`.

    Raises:
        UserError: If parts differ in what a row is, or two places have a client of one name.
    """
    parts = {place: read_manifest(folder) for place, folder in sorted(folders.items())}
    (first, agreed), *_ = parts.items()
    owner_of: dict[str, str] = {}
    for place, part in parts.items():
        # each place is compared with the first, so that an error names two owners who can agree
        for key in _SAME:
            mine, theirs = getattr(part, key), getattr(agreed, key)
            if mine != theirs:
                name, got, expected = _difference(key, mine, theirs)
                raise UserError(
                    f"place {place}: {name}: got {got}, expected {expected}, as at place {first}. Let both owners write the "
                    "same data.features and label column, and run `siloflow partition` again."
                )
        for client in part.clients.names:
            if client in owner_of:
                raise UserError(
                    f"client {client}: got it at places {owner_of[client]} and {place}, expected it at one. Let one owner "
                    "rename it."
                )
            owner_of[client] = place
    return replace(
        agreed,
        name=name,
        params=dict(params),
        clients=_merge_tables({place: part.clients for place, part in parts.items()}),
        left_out=sum(part.left_out for part in parts.values()),
        places={
            place: Part(digests[place], tuple(file_at(place, file) for file in part.clients.files))
            for place, part in parts.items()
        },
    )


def _difference(key: str, mine: object, theirs: object) -> tuple[str, str, str]:
    """Return the name of what differs, with both values; of a list, the first entry that differs."""
    if isinstance(mine, tuple) and isinstance(theirs, tuple) and len(mine) == len(theirs):
        index = next(index for index, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1])
        return f"{key}[{index}]", shown(str(mine[index])), shown(str(theirs[index]))
    return key, shown(str(mine)), shown(str(theirs))


def file_at(place: str, file: str) -> str:
    """Return the name by which the coordinator lists a place's file."""
    return f"{place}.{file}"


def described(manifest: Manifest, place: str = "") -> str:
    """Say in words what a part holds, or what a place of a listing does."""
    table = manifest.clients
    here = np.ones(len(table), bool)
    if place:
        here = manifest.place_of_file[table.file] == list(manifest.places).index(place)
    return f"{counted(int(here.sum()), 'silo')} of {counted(int(table.rows[here].sum()), 'row')}"


def _merge_tables(tables: Mapping[str, ClientTable]) -> ClientTable:
    domains = {domain: code for code, domain in enumerate(sorted({d for t in tables.values() for d in t.domains}))}
    columns: dict[str, list[np.ndarray]] = {field.name: [] for field in fields(ClientTable)[3:]}
    files: list[str] = []
    for place, table in tables.items():
        codes = np.array([domains[domain] for domain in table.domains], np.int32)
        values = {"domain": codes[table.domain], "file": table.file + np.int32(len(files))}
        for name, parts in columns.items():
            parts.append(values.get(name, getattr(table, name)))
        files += [file_at(place, file) for file in table.files]
    return ClientTable(
        domains=tuple(domains),
        files=tuple(files),
        names=tuple(name for table in tables.values() for name in table.names),
        **{name: np.concatenate(parts) for name, parts in columns.items()},
    )
