"""Predicts raw rows of a table, each for its own client, and finds the rows that cannot be predicted, with the reason."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flows.project.project import Project
from flows.results.serving.open_model import OpenModel
from flows.results.serving.raw_rows import client_column, ignored_columns
from models.model_card import Column, ModelCard
from models.preprocessing import Faults, RowFault, encode_usable
from silos.errors import RefusalError, near_names, shown, some
from silos.privacy.owner_file import check_command, check_own_models, policy_of_run
from silos.sources.source_params import Table
from silos.storage.partition_store import open_client, open_missing
from tasks.tracking.result_types.model_results import FilledIn, UnknownClient

Clients = Sequence[str | None]
"""The client of each row; None where it is not known."""

ParamsOf = Callable[[str | None], Mapping[str, Any]]
"""Returns what a model reads of a client besides its rows: the arguments of `OpenModel.predict`."""


class ClientMismatchError(ValueError):
    """The client that the user names is another one than a row's own."""


_HINTED = 10  # unknown clients that are compared with all known ones: of thousands that takes seconds


@dataclass(frozen=True)
class RowPredictor:
    """Predicts rows by one model; what it needs of a client is read from data/.

    Attributes:
        project: The open project.
        opened: The model.
        option: How the user names the client of all rows.
        of_data: Whether the statistics that a conditional model reads are those of data/.
    """

    project: Project
    opened: OpenModel
    option: str
    of_data: bool = True

    @property
    def client_column(self) -> str | None:
        """Return the column that names each row's client, unless it is a feature of the model."""
        column = client_column(self.project.params.data)
        features = [each["name"] for each in self.opened.card["columns"] or ()]
        return None if column in features else column

    def clients(self, own: Clients | None, client: str | None, numbers: Sequence[int]) -> Clients:
        """Return the client of each row.

        Args:
            own: The rows' own clients; None if the rows do not name them.
            client: The client whose rows they are, as the user says.
            numbers: The number of each row.

        Raises:
            ClientMismatchError: If a row's own client is another one.
        """
        if own is None:
            return [client] * len(numbers)
        for each, number in zip(own, numbers, strict=True):
            if client is not None and each not in (None, client):
                raise ClientMismatchError(
                    f"{self.option}: got {shown(client)}, expected {shown(each)}, which the column "
                    f"{shown(repr(self.client_column))} names in row {number}. Leave out {self.option}: each row is "
                    "predicted for its own client."
                )
        return [client if each is None else each for each in own]

    def predict(self, rows: pd.DataFrame | np.ndarray, clients: Clients, params_of: ParamsOf) -> pd.DataFrame:
        """Return one prediction per row; ValueError for rows that cannot be predicted; `faults` explains it.

        Args:
            rows: The rows.
            clients: Their clients.
            params_of: What the model reads of a client besides its rows.
        """
        groups = list(self._groups(clients))
        if len(groups) < 2 or not self._differs_by_client(rows):
            client = clients[0] if clients else None
            return self._predict(client, rows, params_of)
        parts = []
        for client, at in groups:
            of_client = rows.iloc[at] if isinstance(rows, pd.DataFrame) else rows[at]
            try:
                part = self._predict(client, of_client, params_of)
            except ValueError as error:
                raise ValueError(
                    f"rows of {shown(client or 'no client')} (row numbers count only these rows): {error}"
                ) from None
            parts.append(part.set_axis(at, axis=0))
        return pd.concat(parts).sort_index().reset_index(drop=True)

    def _predict(self, client: str | None, rows: pd.DataFrame | np.ndarray, params_of: ParamsOf) -> pd.DataFrame:
        if self.opened.card["statistics"] is not None and (expected := self.expected_client(client)):
            raise ValueError(
                f"client: got {shown(client or 'none')}, expected {expected}. {self.hint(client)}Name one of them."
            )
        return self._for(client, rows).predict(rows, client or "", **params_of(client))

    def faults(
        self, rows: pd.DataFrame | np.ndarray, clients: Clients, numbers: Sequence[int], named_by: str
    ) -> Faults:
        """Return why rows cannot be predicted, by position: a value that the model does not take, or their own client.

        Args:
            rows: The rows.
            clients: Their clients.
            numbers: The number by which a message names each row.
            named_by: The column or option that names the clients.

        Raises:
            ValueError: If columns are missing, unknown or repeated.
        """
        found, named = Faults(), np.asarray(numbers)
        if isinstance(rows, pd.DataFrame):
            rows = rows.drop(columns=ignored_columns(self.opened.card), errors="ignore")
        for client, at in self._groups(clients):
            if named_by != self.option and (expected := self.expected_client(client)):
                got = "no client" if client is None else shown(repr(client))
                hint = self.hint(client)  # of all rows: it compares the name with all others
                for row in at.tolist():
                    place = f"{named_by}: got {got} in row {named[row]}"
                    message = f"{place}, expected {expected}. {hint}Correct the client, or drop the row."
                    found[row] = RowFault(message, named_by, client is None)
            elif isinstance(rows, pd.DataFrame):
                of_client = rows.iloc[at]
                columns = self._for(client, of_client).card["columns"] or []
                _, faults = encode_usable(of_client, columns, named[at].tolist())
                found |= {
                    int(at[row]): self._with_way_out(fault, client, columns, named[at[row]])
                    for row, fault in faults.items()
                }
        return dict(sorted(found.items()))

    def leaves_out(self, fault: RowFault) -> bool:
        """Return whether a row with this fault was left out of training, too: by `missing: drop_rows`."""
        data = self.project.params.data
        if not isinstance(data.source, Table) or data.source.missing != "drop_rows" or not fault.is_missing:
            return False
        return all(each.name != fault.column or "missing" not in each.model_fields_set for each in data.features)

    def _differs_by_client(self, rows: pd.DataFrame | np.ndarray) -> bool:
        card = self.opened.card
        return bool(card["personal"] or card["statistics"] is not None or _without_mean(card, rows))

    def _groups(self, clients: Clients) -> Iterator[tuple[str | None, np.ndarray]]:
        """Yield each client with the positions of its rows, in the order of their first rows."""
        if not clients:
            return
        codes, names = pd.factorize(np.array(clients, object), use_na_sentinel=False)
        order = np.argsort(codes, kind="stable")
        for name, at in zip(names, np.split(order, np.cumsum(np.bincount(codes))[:-1]), strict=True):
            yield None if pd.isna(name) else str(name), at

    def expected_client(self, client: str | None) -> str:
        """Return which clients the model answers for, and why; "" if it answers for this one."""
        card = self.opened.card
        if card["personal"] and client not in card["clients"]:
            return f"one of {some(card['clients'], 5)}, since {self.opened.name} has a model for each client"
        if self.of_data and card["statistics"] is not None and client not in self.project.silos.manifest.names:
            return f"a client of data/, since {self.opened.name} also reads the client's statistics"
        return ""

    def _with_way_out(self, fault: RowFault, client: str | None, columns: Sequence[Column], number: int) -> RowFault:
        """Return the fault of a missing value without a client's mean, with what the user can do about it."""
        rule = next(each["missing"] for each in columns if each["name"] == fault.column)
        if not fault.is_missing or rule != "mean":
            return fault
        if client is None:
            column = f" or in the column {self.client_column!r}" if self.client_column else ""
            reason = "since the row's client, whose mean fills it in, is not known"
            advice = f"Name the client by {self.option}{column}"
        elif client in self.project.silos.manifest.names:
            reason = (
                f"since the owner of {shown(client)} keeps its means, or few of its rows have a value (own_models in "
                "owner.yaml)"
            )
            advice = "Fill in a value"
        else:
            reason = f"since data/ has no rows of {shown(client)}, whose mean would fill it in"
            advice = f"{self.hint(client)}Correct the client, fill in a value"
        return fault._replace(
            message=f"{fault.column}: got no value in row {number}, expected one, {reason}. {advice}, or drop the row."
        )

    def hint(self, client: str | None) -> str:
        """Return a sentence with the known clients that are spelled like this one, or with some of all; "" without one."""
        if client is None:
            return ""
        card = self.opened.card
        names = card["clients"] if card["personal"] else [*self.project.silos.manifest.names]
        near = near_names(client, names)
        if near or card["personal"]:  # of which the error lists the clients anyway
            return f"Did you mean {' or '.join(map(shown, near))}? " if near else ""
        return f"Clients are {some(names, 5)}. "

    def unknown_clients(self, clients: Clients) -> dict[str, UnknownClient]:
        """Count the rows of each client that data/ lacks, with a hint; a model for all clients answers for it, too."""
        counts = Counter(client for client in clients if client is not None)
        known = {*self.project.silos.manifest.names, *self.opened.card["clients"]}
        unknown = {client: count for client, count in counts.items() if client not in known}
        return {
            client: {"rows": count, "hint": self.hint(client).strip() if index < _HINTED else ""}
            for index, (client, count) in enumerate(unknown.items())
        }

    def filled_in(self, rows: pd.DataFrame | np.ndarray, clients: Clients) -> list[FilledIn]:
        """Return what replaced missing numbers."""
        found: list[FilledIn] = []
        for column in self.opened.card["columns"] or ():
            if column["kind"] == "text" or column["missing"] == "refuse" or not isinstance(rows, pd.DataFrame):
                continue
            name, rule = column["name"], column["missing"]
            lacking = rows[name].isna().to_numpy()
            if not lacking.any():
                continue
            if rule != "mean":
                found.append({"column": name, "client": None, "rows": int(lacking.sum()), "value": float(rule)})
                continue
            for client, at in self._groups(clients):
                if client is not None and lacking[at].any():
                    mean = self._means_of(client).get(name)
                    if mean is not None:
                        found.append({"column": name, "client": client, "rows": int(lacking[at].sum()), "value": mean})
        return found

    def _for(self, client: str | None, rows: pd.DataFrame | np.ndarray) -> OpenModel:
        """Return the model with the client's means for columns with `fill: mean`, if these rows lack values.

        The model refuses what stays missing: a client that is not in data/ has no mean here.
        """
        lacking = _without_mean(self.opened.card, rows)
        if not lacking or client is None or client not in self.project.silos.manifest.names:
            return self.opened
        means = self._means_of(client)
        served = self.opened.served
        columns: list[Column] = []
        for each in served.card["columns"] or ():
            if each["kind"] == "text" or each["name"] not in lacking:
                columns.append(each)
            else:
                columns.append({**each, "missing": means.get(each["name"], each["missing"])})
        return replace(self.opened, served=type(served)({**served.card, "columns": columns}, served.tensors))

    def _means_of(self, client: str) -> dict[str, float]:
        """Return the means of a client's training rows that fill in its values; none if its owner keeps them."""
        means: dict[str, float] = self.project.once(("means", client), lambda: _means(self.project, client))
        return means


def _without_mean(card: ModelCard, rows: pd.DataFrame | np.ndarray) -> list[str]:
    """Return the columns in which rows lack a value that a client's mean fills in."""
    if not isinstance(rows, pd.DataFrame):
        return []
    lacking = []
    for column in card["columns"] or ():
        values = rows[column["name"]] if column["missing"] == "mean" and column["name"] in rows else None
        if isinstance(values, pd.Series) and values.isna().any():
            lacking.append(column["name"])
    return lacking


def _means(project: Project, client: str) -> dict[str, float]:
    """Return the means of a client's training rows that fill in missing values, as in training, by feature.

    What a silo's owner does not let leave is left out: all of them without own_models, and those of few rows.
    """
    manifest, folder, store = project.silos.manifest, Path(project.silos.folder), Path(project.ledgers.folder)
    least = 1
    if not manifest.is_public:
        try:
            check_command(store, "predict", [client])
            check_own_models(store, [client], "a missing value: got the mean")
        except RefusalError:
            return {}
        least = policy_of_run(store, client).least_rows
    project.silos.check([client])
    x, _ = open_client(folder, manifest.client(client), "train")
    missing, means = open_missing(folder, manifest.client(client), "train"), {}
    for index, feature in enumerate(manifest.features):
        present = np.ones(len(x), bool) if missing is None else ~missing[:, index]
        if feature.fill != "mean" or (present.sum() < least and not manifest.is_public):
            continue
        # without a value, the client's rows hold what training filled in: a mean over other clients
        counted = present if present.any() else slice(None)
        means[feature.name] = float(x[counted, index].astype(np.float64).mean())
    return means
