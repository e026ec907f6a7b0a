"""Find rows that other silos reported, as a source has under another column of clients, or a copy of it.

Each silo has a budget, and compares its reports with its own earlier ones. A row that is dealt to another silo, or is asked
for through another ledger, would get another budget, and the difference of a silo with and without it would reveal it. So
a silo that reports records the keyed hashes of its cells, in `private/.rows/<store>/<ledgers>/<partition>/<silo>`. A silo
refuses to report rows that silos of another partition reported, but for those that it has reported there as well: its own
ledger covers these. Each partition of a sweep has ledgers of its own, which cover no rows of others.

Rows are found by their cells in the columns of both, whatever their names. Not found are fewer than LEAST_ROWS rows, or as
many as coincide by chance, as in a table of a few categories.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from silos.errors import RefusalError
from silos.io.atomic_io import write_bytes
from silos.privacy.differencing import LEAST_ROWS
from silos.privacy.owner_file import DEFAULT, OWNER_FILE, Policy, folder_name, policy_file, read_owner_file
from silos.privacy.secret import REGISTER
from silos.raw_cells import MOST_TOKEN, RawCells, join_cells

_CHANCE = 2.0  # times the expected number of rows that coincide by chance


@dataclass(frozen=True, eq=False)
class RowRegister:
    """A silo's rows in one partition, and what silos of other partitions reported of them.

    folder: the silo's store; partition: a hash of the silos of the data; cells: the keyed cells of its training rows.
    """

    folder: str
    client: str
    partition: str
    cells: RawCells = field(repr=False)

    def check(self) -> None:
        """Raise RefusalError if silos of another partition reported rows that this silo did not report there."""
        for partition in sorted(self._home.glob("*/*/*")):
            if partition == self._own:
                continue
            store = self._home.parent / partition.parent.parent.name
            stamps = tuple(path.stat().st_mtime_ns for path in (partition, store / OWNER_FILE) if path.exists())
            reported = _read(partition, store / OWNER_FILE, stamps)
            # a main store has one ledger for all partitions
            is_same_ledger = partition.parent == self._own.parent == self._home / store.name / _MAIN
            silo = reported.silo_with(self.cells, self.client if is_same_ledger else "") if reported else ""
            if silo:
                # without their number, which would confirm a guessed row among known ones
                raise RefusalError(
                    f"client {self.client}: got training rows that other silos of private/{store.name} "
                    f"reported, such as {silo}, expected none. A row in several silos, or in silos of several partitions, "
                    "would have several budgets, and differences between silos would reveal it. Partition the data into the "
                    "earlier silos. Or, if you own both, change `other_silos: false` to `other_silos: true` in "
                    f"private/{store.name}/{OWNER_FILE}."
                )

    def record(self, policy: Policy) -> None:
        """Record that these rows are reported, unless the silo's policy allows others to report them as well.

        The partitions of a sweep of data without a store have no owner, so nothing is recorded of them.
        """
        path = self._own / f"{folder_name(self.client)}.safetensors"
        if policy.other_silos or path.exists() or not policy_file(Path(self.folder)).exists():
            return
        from safetensors.numpy import save

        hashes = self.cells.hashes[np.lexsort(self.cells.hashes.T)]  # hides the order of rows
        names = {"client": self.client, "columns": json.dumps(self.cells.columns.names)}
        write_bytes(path, save({"cells": np.ascontiguousarray(hashes)}, names))

    @property
    def _home(self) -> Path:
        return policy_file(Path(self.folder)).parent.parent / REGISTER

    @property
    def _own(self) -> Path:
        store = policy_file(Path(self.folder)).parent
        return self._home / store.name / (_MAIN if store == Path(self.folder) else "sweeps") / self.partition


_MAIN = "main"


@lru_cache(maxsize=4)
def _read(partition: Path, policies: Path, _: object) -> "_Reported | None":
    """Read what the silos of a partition reported, without those whose policy leaves their rows to others, too."""
    from safetensors import safe_open

    silos, parts, columns = list[str](), list[np.ndarray](), list[str]()
    owner = read_owner_file(policies) if policies.exists() else None
    for path in sorted(partition.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            names = file.metadata()
            if not (DEFAULT if owner is None else owner.of(names["client"])).other_silos:
                columns = json.loads(names["columns"])
                silos.append(names["client"])
                parts.append(file.get_tensor("cells"))
    if not parts:
        return None
    return _Reported(columns, np.concatenate(parts), np.repeat(silos, [len(part) for part in parts]))


@dataclass(frozen=True, eq=False)
class _Reported:
    """The rows that a partition's silos reported: cells (rows, columns) uint32, silos (rows,) names."""

    columns: Sequence[str]
    cells: np.ndarray
    silos: np.ndarray

    def silo_with(self, cells: RawCells, own: str) -> str:
        """Return the silo that has most of these rows; empty if all silos have fewer than LEAST_ROWS, or as by chance.

        own: the silo that reports these rows, if its ledger covers those that it has here.
        """
        pairs = self._common_columns(cells)
        if not pairs or not len(cells.hashes):
            return ""
        mine = np.unique(join_cells(cells.hashes[:, [index for index, _ in pairs]]))
        theirs = join_cells(self.cells[:, [index for _, index in pairs]])
        mine = np.setdiff1d(mine, theirs[self.silos == own], assume_unique=False)
        distinct, first, counts = np.unique(theirs, return_index=True, return_counts=True)
        found = first[np.isin(distinct, mine, assume_unique=True)]
        by_chance = counts[counts > 1].sum() / len(theirs) + len(theirs) / MOST_TOKEN
        # a source of one guessed row must not be refused: that would confirm the guess
        if len(found) < LEAST_ROWS or len(found) <= _CHANCE * by_chance * len(mine):
            return ""
        names, rows = np.unique(self.silos[found], return_counts=True)
        return str(names[rows.argmax()])

    def _common_columns(self, cells: RawCells) -> list[tuple[int, int]]:
        """Return which columns have the same cells here and there, by name if enough are in common, or by cells.

        Enough are LEAST_ROWS different ones, or all of fewer. The columns of arrays are named by params.
        """
        names, values = cells.columns.names, [np.unique(column) for column in cells.hashes.T]
        common = np.array([[len(np.intersect1d(a, b, assume_unique=True)) for b in self._distinct] for a in values])
        at = {name: index for index, name in enumerate(self.columns)}
        pairs = [
            (mine, at[name])
            for mine, name in enumerate(names)
            if name in at and common[mine, at[name]] >= min(LEAST_ROWS, len(values[mine]))
        ]
        for mine in sorted({*range(len(names))} - {mine for mine, _ in pairs}):
            common[:, [theirs for _, theirs in pairs]] = 0
            if common[mine].max() >= LEAST_ROWS:
                pairs.append((mine, int(common[mine].argmax())))
        return pairs

    @cached_property
    def _distinct(self) -> list[np.ndarray]:
        return [np.unique(column) for column in self.cells.T]
