"""Find rows that other silos reported, as the same table has under another column of clients or another data.name.

Each silo has a budget, and compares its reports with its own earlier ones. Rows that are dealt to other silos would get
another budget, and the difference of a silo with and without a row would reveal that row. So each report is recorded with
keyed hashes of its values, in `private/.rows/<data.name>/<partition>/<silo>`. A silo refuses to report rows that silos
of other partitions reported, unless it was one of these silos: then its own ledger covers them.

Rows are found by their values in the columns that both partitions have, whatever their names. Not found are:
- fewer than LEAST_ROWS rows, or as many as coincide by chance, as in a table of a few categories;
- rows that were all stored differently in between, such as scaled rows, or without the columns that tell them apart.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from silos.errors import RefusalError
from silos.io.atomic_io import write_bytes
from silos.privacy.differencing import LEAST_ROWS, MOST_TOKEN, WHOLE
from silos.privacy.owner_file import OWNER_FILE, Policy, folder_name, policy_file, recorded_policy
from silos.privacy.secret import REGISTER, register_secret

_CHANCE = 2.0  # times the expected number of rows that coincide by chance


@dataclass(frozen=True, eq=False)
class RowRegister:
    """A silo's rows in one partition, and what silos of other partitions reported of them.

    folder: the silo's store; partition: a hash of the silos of the data; x: the hashes of their cells (rows, columns), or of
    data without cells the rows (rows, *shape), NaN if missing; columns: the names of a table's columns.
    """

    folder: str
    client: str
    partition: str
    x: np.ndarray = field(repr=False)
    columns: Sequence[str] = ()

    def check(self) -> None:
        """Raise RefusalError if silos of another partition, to which this one did not belong, reported these rows."""
        for family in _folders(self._home):
            for partition in _folders(family):
                if family.name == self._data and (
                    partition.name == self.partition or (partition / self._file_name).exists()
                ):
                    continue
                policies = self._home.parent / family.name / OWNER_FILE
                stamps = tuple(path.stat().st_mtime_ns for path in (partition, policies) if path.exists())
                reported = _read(partition, policies, stamps)
                silo, rows = reported.silo_with(self._columns, self._tokens) if reported else ("", 0)
                if rows:
                    raise RefusalError(
                        f"client {self.client}: got {rows} training rows that other silos of private/{family.name} "
                        f"reported, such as {silo}, expected none. A row in several silos would have several budgets, "
                        "and differences between silos would reveal it. Partition the data into the earlier silos. Or, if "
                        "you own both, change `other_silos: false` to `other_silos: true` in "
                        f"private/{family.name}/{OWNER_FILE}."
                    )

    def record(self, policy: Policy) -> None:
        """Record that these rows are reported, unless the silo's policy allows others to report them as well.

        The partitions of a sweep of data without a store have no owner, so nothing is recorded of them.
        """
        path = self._home / self._data / self.partition / self._file_name
        if policy.other_silos or path.exists() or not policy_file(Path(self.folder)).exists():
            return
        from safetensors.numpy import save

        tokens = self._tokens[np.lexsort(self._tokens.T)]  # hides the order of rows
        names = {"client": self.client, "columns": json.dumps(self._columns)}
        write_bytes(path, save({"tokens": np.ascontiguousarray(tokens)}, names))

    @property
    def _home(self) -> Path:
        return policy_file(Path(self.folder)).parent.parent / REGISTER

    @property
    def _data(self) -> str:
        return policy_file(Path(self.folder)).parent.name

    @property
    def _file_name(self) -> str:
        return f"{folder_name(self.client)}.safetensors"

    @cached_property
    def _columns(self) -> list[str]:
        return [f"{WHOLE}{part}" for part in range(2)] if self.x.ndim > 2 else list(self.columns)

    @cached_property
    def _tokens(self) -> np.ndarray:
        """The keyed hash of each value, (rows, columns) uint32; the key is that of all silos under private/."""
        secret = register_secret(self._home)
        if self.x.ndim <= 2:
            return secret.value_hashes(self.x.reshape(len(self.x), -1))
        whole = secret.row_hashes(self.x.reshape(len(self.x), -1), "")
        parts = (whole & np.uint64(MOST_TOKEN >> 1), whole >> np.uint64(34))
        return np.stack([part.astype(np.uint32) for part in parts], 1)


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else []


@lru_cache(maxsize=4)
def _read(partition: Path, policies: Path, _: object) -> "_Reported | None":
    """Read what the silos of a partition reported, without those whose policy leaves their rows to others, too."""
    from safetensors import safe_open

    silos, parts, columns = list[str](), list[np.ndarray](), list[str]()
    for path in sorted(partition.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            names = file.metadata()
            if not recorded_policy(policies, names["client"]).other_silos:
                columns = json.loads(names["columns"])
                silos.append(names["client"])
                parts.append(file.get_tensor("tokens"))
    if not parts:
        return None
    return _Reported(columns, np.concatenate(parts), np.repeat(silos, [len(part) for part in parts]))


@dataclass(frozen=True, eq=False)
class _Reported:
    """The rows that a partition's silos reported: tokens (rows, columns) uint32, silos (rows,) names."""

    columns: Sequence[str]
    tokens: np.ndarray
    silos: np.ndarray

    def silo_with(self, columns: Sequence[str], tokens: np.ndarray) -> tuple[str, int]:
        """Return a silo that has some of these rows, and how many all have: 0 if they are no more than by chance."""
        pairs = self._common_columns(columns, tokens)
        if not pairs or not len(tokens):
            return "", 0
        mine = np.unique(_joined(tokens[:, [own for own, _ in pairs]]))
        theirs, first, counts = np.unique(
            _joined(self.tokens[:, [other for _, other in pairs]]), return_index=True, return_counts=True
        )
        found = first[np.isin(theirs, mine, assume_unique=True)]
        by_chance = counts[counts > 1].sum() / len(self.tokens) + len(self.tokens) / MOST_TOKEN
        if len(found) < min(LEAST_ROWS, len(mine)) or len(found) <= _CHANCE * by_chance * len(mine):
            return "", 0
        return str(self.silos[found[0]]), len(found)

    def _common_columns(self, columns: Sequence[str], tokens: np.ndarray) -> list[tuple[int, int]]:
        """Return which columns have the same values here and there: by name if they have common values, or by values."""
        names = {name: index for index, name in enumerate(self.columns)}
        values = [np.unique(column) for column in tokens.T]
        pairs = [
            (own, names[name])
            for own, name in enumerate(columns)
            if name in names
            and _in_common(values[own], self._distinct[names[name]]) >= min(LEAST_ROWS, len(values[own]))
        ]
        left = [other for other in range(len(self.columns)) if other not in {other for _, other in pairs}]
        for own in sorted({*range(len(columns))} - {own for own, _ in pairs}):
            common = {other: _in_common(values[own], self._distinct[other]) for other in left}
            most = max(common, key=lambda other: common[other], default=None)
            if most is not None and common[most] >= LEAST_ROWS:
                pairs.append((own, most))
                left.remove(most)
        return pairs

    @cached_property
    def _distinct(self) -> list[np.ndarray]:
        return [np.unique(column) for column in self.tokens.T]


def _in_common(values: np.ndarray, others: np.ndarray) -> int:
    """Count the values that are among others, both sorted and without repeats."""
    index = np.minimum(np.searchsorted(others, values), len(others) - 1)
    return int((others[index] == values).sum())


def _joined(tokens: np.ndarray) -> np.ndarray:
    """Hash each row of tokens (rows, columns) to 64 bits."""
    joined = np.zeros(len(tokens), np.uint64)
    for column in tokens.T:
        joined = (joined ^ column) * np.uint64(0x9E3779B97F4A7C15)
        joined ^= joined >> np.uint64(29)
    return joined
