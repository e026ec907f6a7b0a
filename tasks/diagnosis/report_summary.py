"""Counts and moments of training rows by class, reported for a diagnosis as far as each client's ledger allows."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.diagnosis.client_summaries.client_summary import (
    ANY_ROWS,
    LEAST_ROWS,
    Columns,
    Layout,
    Summaries,
    assign_columns,
    concatenate_summaries,
    count_different,
    effective_rows,
    own_cells,
    summarize,
    withheld_columns,
)
from models.diagnosis.client_summaries.common_cells import count_in
from models.diagnosis.client_summaries.gaussian_mechanism import add_noise, counts_sensitivity
from models.diagnosis.client_summaries.least_cells import (
    columns_in_cells,
    fill_few_missing,
    merge_cells_of_client,
    moments_show_cells,
)
from models.diagnosis.client_summaries.query import Query, project_pictures
from models.diagnosis.client_summaries.rank_correlations import clip_far_values
from models.diagnosis.client_summaries.repeated_persons import has_repeated_persons
from models.privacy_accounting import epsilon, rho, sigma
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos
from silos.errors import RefusalError
from silos.param_limits import EPSILON
from silos.privacy.differencing import IN_BINS, OTHER, Values
from silos.privacy.ledger import Draw, Ledger
from silos.privacy.owner_file import check_command, check_messages, policy_file
from silos.privacy.report_rules import Unit
from silos.privacy.reported_rows import RowRegister
from silos.privacy.request_log import record_refusals
from silos.raw_cells import RawCells, cells_of_arrays, hash_numbers, hash_texts, join_cells
from silos.row_units import count_copies, number_units, unit_weights
from silos.sources.source_params import PUBLIC_KINDS
from silos.storage.manifest import schema_of
from silos.storage.partition_store import open_cells, open_missing, open_units
from tasks.execution.load_client_data import load_rows, number_different_rows
from tasks.execution.steps import step
from tasks.messages.statistics_messages import NoisyCounts, Refusal, ShiftNumbers


class LocalSummary:
    """One client's training rows: x (rows, *shape) as used in training, y (rows,), unit (rows,) uint64 or None.

    unit: a hash of the patient, plant or machine of each row, equal in all versions. Counts of different rows are then
    counts of units, too. cells: (rows, columns) uint32, the hashes of what each row was made from, described by `raw`; None
    of public data. By these the ledger compares rows and values, whatever params made of them. least_rows: different rows
    that each number stands for; least_cell: those that a cell of a class has, if it has any. partition: a hash of the rows
    of all silos.
    """

    def __init__(
        self,
        silos: Silos,
        client: str,
        x: Tensor,
        y: Tensor,
        least_rows: int = LEAST_ROWS,
    ) -> None:
        self.client, self._names, self.least_rows = client, silos.manifest.classes, least_rows
        self.least_cell = ANY_ROWS
        self._as_opened = x
        self.x, self.y = x.numpy().astype(np.float64), y.numpy()
        self.unit = open_units(Path(silos.folder), silos.entries(client), "train")
        self.partition = silos.partition
        self._raw, self._stored_cells = (
            silos.manifest.raw,
            open_cells(Path(silos.folder), silos.entries(client), "train"),
        )
        self._names_of_features = [feature.name for feature in schema_of(silos.manifest).features]
        self._changes = _changed_values(silos.manifest.params)
        self._unit_column = silos.manifest.params.get("source", {}).get("unit")
        masks = [open_missing(Path(silos.folder), entry, "train") for entry in silos.entries(client)]
        if any(mask is not None for mask in masks):
            flat = self.x.reshape(len(self.x), -1)
            flat[np.concatenate([mask for mask in masks if mask is not None])] = np.nan

    def select(self, rows: np.ndarray) -> "LocalSummary":
        """Return the summary of some of the rows: (rows,) bool."""
        chosen = copy(self)
        for cached in ("row_ids", "version", "cells"):
            chosen.__dict__.pop(cached, None)
        chosen._as_opened, chosen.x, chosen.y = self._as_opened[torch.from_numpy(rows)], self.x[rows], self.y[rows]
        chosen.unit = None if self.unit is None else self.unit[rows]
        chosen._stored_cells = None if self._stored_cells is None else self._stored_cells[rows]
        return chosen

    @cached_property
    def cells(self) -> RawCells:
        """The cells of the source that each row was made from, keyed; of public data those of the row."""
        if self._raw is not None and self._stored_cells is not None:
            return RawCells(self._stored_cells, self._raw)
        return cells_of_arrays(self.x, self.y, self._names_of_features)

    @cached_property
    def row_ids(self) -> np.ndarray:
        """The index of each row among the client's distinct rows, (rows,); and of its unit if it has one, (rows, 2)."""
        rows = number_different_rows(self._as_opened) if len(self.y) else np.zeros(0, np.int64)
        return rows if self.unit is None else np.stack([rows, number_units(self.unit)], 1)

    def weights(self, query: Query) -> np.ndarray | None:
        """Return the weight of each row, (rows,) float64, by which each unit counts the same; None without units.

        Without noise the weights add up to the `effective_rows`. With noise a unit adds 1, which bounds what it changes.
        """
        if self.unit is None:
            return None
        effective = effective_rows(self.features(query), self.y, number_units(self.unit), query.layout, query.counts)
        return unit_weights(self.unit, None if query.rho else effective)

    @cached_property
    def version(self) -> str:
        """A hash of these rows; changes at other clients do not change it. The keyed cells hide data of one's own."""
        parts = (self.x, self.y, self.unit, self._stored_cells)
        content = b"".join(part.tobytes() for part in parts if part is not None)
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    def features(self, query: Query) -> np.ndarray:
        """Return (rows, features) float64, NaN if missing."""
        pictures = query.pictures
        x = project_pictures(self.x, pictures == "light")[1] if pictures else self.x.reshape(len(self.x), -1)
        return np.concatenate([x, self.y[:, None].astype(np.float64)], 1) if query.targets else x

    def columns(self, query: Query) -> Columns:
        """Return the column of counts of each row."""
        return assign_columns(self.y, self.row_ids, query.layout, self.least_rows)

    def in_cells(self, query: Query) -> Columns:
        """Return the columns without rows of classes that are too rare for cells; see `columns_in_cells`."""
        return columns_in_cells(self.columns(query), self.row_ids, query.layout, self.least_cell)

    def merged_cells(self, query: Query, columns: Columns) -> np.ndarray:
        """Return the cell in which the rows of each cell are counted: (features, cells); see `merge_cells_of_client`."""
        x = self.features(query)
        return merge_cells_of_client(x, columns, self.row_ids, query.layout, self.least_rows, self.least_cell)

    def inputs_of_models(self, query: Query) -> np.ndarray:
        """Return the features, (rows, features), by which no cell of few rows shows in a model's weights.

        Merged categories are other values, and few missing values are filled.
        """
        x, layout, columns = self.features(query), query.layout, self.columns(query)
        counted_in = self.merged_cells(query, columns)
        x = fill_few_missing(x, columns, counted_in, self.withheld(query, x))
        for feature, values in enumerate(layout.categories):
            if values is not None:
                rare = np.flatnonzero(counted_in[feature] == len(values))
                x[np.isin(layout.cells_of(x)[:, feature], rare), feature] = max(values) + 1.0
        return x

    def withheld(self, query: Query, x: np.ndarray) -> np.ndarray:
        """Return the columns of counts that a feature does not report: (features, classes + 1) bool."""
        column, withheld = self.columns(query), np.zeros((x.shape[1], query.layout.classes + 1), bool)
        rows = np.flatnonzero(column.reported)
        few = withheld_columns(x[rows], column.index[rows], self.row_ids[rows], query.layout, self.least_rows)
        for feature, columns in few:
            withheld[feature] = columns
        return withheld

    def rows(self, query: Query) -> np.ndarray:
        """Hash the cells of each row with its class's name, or with its target if there are no classes: (rows,) uint64.

        The name is used since a class's code changes when another silo brings a label that sorts before it.
        """
        if query.layout.targets or query.targets:
            labels = hash_numbers(self.y)
        else:
            names = [self._name(c) for c in range(query.layout.classes)]
            labels = hash_texts(names)[query.layout.classes_of(self.y)]
        return join_cells(np.column_stack([self.cells.hashes, labels]))

    def units(self, ledger: Ledger, query: Query) -> np.ndarray:
        """Hash the unit of each row, which is the row itself if rows have none: (rows,) uint64, keyed."""
        return ledger.unit_hashes(self.rows(query) if self.unit is None else self.unit)

    def covered(self, ledger: Ledger, query: Query, halves: tuple[np.ndarray, np.ndarray] | None = None) -> Values:
        """Return the cells behind each count and moment, which the ledger compares with other answers.

        halves: which rows are in the second half of their class, (rows,) bool, and which classes are reported by halves.
        """
        layout, x, column = query.layout, self.features(query), self.columns(query)
        names = [self._name(c) for c in range(layout.classes)] + [OTHER]
        used = np.repeat(column.reported[:, None], x.shape[1], 1) & ~np.isnan(x)
        reported = np.flatnonzero(column.reported)
        for feature, withheld in withheld_columns(
            x[reported], column.index[reported], self.row_ids[reported], layout, self.least_rows
        ):
            used[:, feature] &= ~withheld[column.index]
        group = np.where(column.reported, column.index, -1)
        if halves is not None:
            second, included = halves
            group = np.where(np.append(included, False)[column.index], 2 * column.index + second, -1)
            names = [f"{name}, {half} half" for name in names for half in ("first", "second")]
        return self.values(
            ledger, query, layout.names, x, used, names, group, self._bins(layout) if query.counts else {}
        )

    def values(
        self,
        ledger: Ledger,
        query: Query,
        features: Sequence[str],
        x: np.ndarray,
        used: np.ndarray,
        names: Sequence[str],
        group: np.ndarray,
        bins: Mapping[str, str],
    ) -> Values:
        """Return the cells behind a report of x (rows, features), where `used`, by the groups of rows and their names.

        Each column of the source that a feature was made from is compared by its cells, the features by their bins if
        values are counted in bins, and rows as a whole. All features of a picture follow from its pixels, so of pictures
        whole rows are compared only. group: (rows,) the index in `names`, or -1 of rows that are not reported.
        """
        raw, pictures = self.cells.columns, query.pictures is not None or self.x.ndim > 2
        of_column: dict[int, list[int]] = {}
        for index, feature in enumerate(features):
            if feature == TARGET_COLUMN:
                of_column.setdefault(raw.label, []).append(index)
            elif not pictures:
                of_column.setdefault(raw.of_feature[index], []).append(index)
        columns = sorted(of_column)
        kinds, tokens = [raw.names[column] for column in columns], self.cells.hashes[:, columns]
        reported = [used[:, of_column[column]].any(1) for column in columns]
        if bins and not pictures:
            parts = zip(features, self._columns_of(features), strict=True)
            kinds += [f"{name if _is_of_value(name, column) else column}{IN_BINS}" for name, column in parts]
            tokens = np.concatenate([tokens, query.layout.cells_of(x)], 1)
            reported += list(used.T)
        # a group without rows has no cells that the ledger could compare
        present = np.unique(group[group >= 0])
        return Values.of(
            kinds,
            tokens,
            np.stack(reported, 1) if reported else np.zeros((len(x), 0), bool),
            np.where(group < 0, -1, np.searchsorted(present, group)),
            [names[index] for index in present],
            self.rows(query),
            None if self.unit is None else ledger.unit_hashes(self.unit),
            bins,
            "" if self.unit is None else str(self._unit_column),
        )

    def _columns_of(self, features: Sequence[str]) -> list[str]:
        """Return the name of the column that each of the first features was made from; of others their own name."""
        raw = self.cells.columns
        names = [raw.names[column] for column in raw.of_feature[: len(features)]]
        return [*names, *features[len(names) :]]

    def _bins(self, layout: Layout) -> dict[str, str]:
        """Return what identifies the bins of each column, and under "" the groups of targets, if there are any.

        A column that was made into a feature for each value is in other bins than as a number. What steps of the scheme
        add to values moves them to other bins, too.
        """
        parts = zip(layout.names, layout.categories, layout.low.tolist(), layout.high.tolist(), strict=True)
        bins = {name: json.dumps(values or [layout.bins, low, high]) for name, values, low, high in parts}
        if self.cells.columns.of_feature:
            columns = zip(layout.names, self._columns_of(layout.names), strict=True)
            bins = {
                column: "a feature for each value" if _is_of_value(name, column) else bins[name]
                for name, column in columns
            }
        bins = {name: f"{text}{self._changes}" for name, text in bins.items()}
        return bins | ({"": json.dumps(layout.targets)} if layout.targets else {})

    def _name(self, class_index: int) -> str:
        """Return the name of a class, or the index of a group of targets."""
        return self._names[class_index] if self._names else str(class_index)


TARGET_COLUMN = "the target"
"""The name of the column of a regression's target."""


def _is_of_value(feature: str, column: str) -> bool:
    """Return whether a feature is one of those that a column of texts has for each of its values."""
    return feature.startswith(f"{column}=") or feature == f"{column} is missing"


_VALUE_STEPS = ("noise",)  # of data.scheme, which change numbers; others turn or permute pictures, or change labels


def _changed_values(params: Mapping[str, Any]) -> str:
    """Return what identifies the steps of a scheme that change the values of tables; "" if none does."""
    steps = [step for step in params.get("scheme", ()) if step.get("kind") in _VALUE_STEPS]
    return f" {json.dumps([params.get('seed'), steps])}" if steps else ""


def open_ledger(
    silos: Silos, private: ClientStore, client: str, x: Tensor, y: Tensor, command: str = "diagnose"
) -> tuple[Ledger, LocalSummary]:
    """Open a client's ledger, and summarise its training rows x (rows, *shape), y (rows,); errors as of `Ledger.of`.

    RefusalError if the client does not answer the command.
    """
    check_command(Path(private.folder), command, [client])
    local = LocalSummary(silos, client, x, y)
    is_public = silos.manifest.is_public
    register = None if is_public else RowRegister(private.folder, client, local.partition, local.cells)
    ledger = Ledger.of(private.folder, client, register)
    local.least_cell = _least_cell(ledger, silos)
    local.least_rows = max(ledger.policy.least_rows, local.least_cell)  # a class is a cell, too
    return ledger, local


def _least_cell(ledger: Ledger, silos: Silos) -> int:
    """Return the least rows of a cell; a sweep of public data without a store has no owner who would set it."""
    public = silos.manifest.params.get("source", {}).get("kind") in PUBLIC_KINDS
    return ANY_ROWS if public and not policy_file(Path(ledger.folder)).exists() else ledger.policy.least_cell


def answers_by_stack(
    cohort: Cohort,
    private: ClientStore,
    answer: Callable[[Ledger, LocalSummary], list[np.ndarray]],
    kind: str,
    command: str = "diagnose",
) -> Iterator[tuple[dict[str, list[np.ndarray]], list[Refusal]]]:
    """Yield for each stack the answers by client, and one refusal with the reasons of the clients that may not answer."""
    for stack in cohort.stacks:
        opened = load_rows(cohort.silos, stack, "train", "cpu")
        counts = opened.counts.tolist()[: len(stack.clients)]
        answers, refusals = {}, {}
        for client, x, y, n in zip(stack.clients, opened.x, opened.y, counts, strict=False):
            try:
                check_messages(Path(private.folder), [client], kind)
                answers[client] = answer(*open_ledger(cohort.silos, private, client, x[:n], y[:n], command))
            except RefusalError as refusal:
                refusals[client] = str(refusal)
        record_refusals(Path(private.folder), refusals)
        yield answers, [Refusal(tuple(refusals), refusals)] if refusals else []


_PARTS = ("rows", "labels", "counts", "moments", "counted_in")
FLAGS = ("repeats", "persons")  # of rows that are not independent, in an answer only if they are set
USUAL_BINS = 32
"""Bins that a client counts in whatever its number of rows; it counts in more only if it has as many rows, or units."""


@step
def report_summary(
    cohort: Cohort,
    private: ClientStore,
    query: Query,
    budget: float | None = None,
    delta: float | None = None,
    command: str = "diagnose",
) -> list[ShiftNumbers | NoisyCounts | Refusal]:
    """Report counts and moments, or with noise counts only.

    Returns one message a stack, and one of its clients that may not answer. For a repeated query a client repeats its
    answer bit for bit. It refuses if its budget is spent, or if an answer without noise and an earlier one would
    differ by a few rows. The answers of other clients do not need it. budget: the requested epsilon of all reports of
    a client with noise, at most that of its policy, which holds if there is none; delta: at which it is counted;
    command: what the clients are asked for.
    """
    messages: list[ShiftNumbers | NoisyCounts | Refusal] = []
    report = partial(_answer, query=query, budget=budget, delta=delta)
    kind = NoisyCounts.__name__ if query.rho else ShiftNumbers.__name__
    for answers, refusals in answers_by_stack(cohort, private, report, kind, command):
        if answers:
            arrays = [torch.from_numpy(np.concatenate(part)) for part in zip(*answers.values(), strict=True)]
            if query.rho:
                messages.append(NoisyCounts(tuple(answers), *arrays))
            else:
                parts, flags = arrays[: len(_PARTS)], arrays[len(_PARTS) :]
                repeats, persons = (tuple(itertools.compress(answers, flag.tolist())) for flag in flags)
                messages.append(ShiftNumbers(tuple(answers), *parts, repeats=repeats, persons=persons))
        messages += refusals
    return messages


def join_summaries(messages: Sequence[ShiftNumbers | NoisyCounts]) -> Summaries:
    """Concatenate the reports without noise, in the order of the messages."""
    precise = [message for message in messages if isinstance(message, ShiftNumbers)]
    joined = concatenate_summaries([Summaries(**{part: getattr(m, part).numpy() for part in _PARTS}) for m in precise])
    merged = own_cells(joined) != np.arange(joined.counts.shape[2])
    return joined if np.any(merged) else replace(joined, counted_in=None)


def _answer(
    ledger: Ledger, local: LocalSummary, query: Query, budget: float | None, delta: float | None
) -> list[np.ndarray]:
    check_request(ledger, local, query, budget, delta)
    if query.rho:
        policy, at = ledger.policy, ledger.policy.delta if delta is None else delta
        most = [rho(policy.budget, policy.delta)] + ([] if budget is None else [rho(budget, at)])
        unit = Unit("epsilon", partial(epsilon, delta=at), EPSILON, f" at delta {at:g}")
        noisy_counts = _noisy_counts(local, query)
        # by the version of all silos' rows: by the client's own, equal bytes would show that none of its rows changed
        return [ledger.answer(local.partition, query.id, noisy_counts, None, query.rho, min(most), unit=unit)["counts"]]

    def compute_summary(_: Draw) -> dict[str, np.ndarray]:
        return summary_without_noise(local, query)

    recorded = ledger.recorded(local.version, query.id)
    answer = recorded.answer if recorded else None
    if answer is None:
        answer = ledger.answer(local.version, query.id, compute_summary, local.covered(ledger, query))
    if "counted_in" not in answer:  # recorded by an earlier version, which merged nothing
        answer = {**answer, "counted_in": _as_sent(np.arange(answer["counts"].shape[2]), answer["counts"])}
    return [*(answer[part] for part in _PARTS), *(answer.get(flag, np.array([False])) for flag in FLAGS)]


def _as_sent(counted_in: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the cells in which rows are counted as a message has them: (1, features, cells) int16."""
    return np.broadcast_to(counted_in, counts.shape[:3]).astype(np.int16)


def summary_without_noise(local: LocalSummary, query: Query) -> dict[str, np.ndarray]:
    """Compute the parts of a `ShiftNumbers` of one client, with flags only if they are true; nothing is reported."""
    x, columns, in_cells = local.features(query), local.columns(query), local.in_cells(query)
    # of moments all classes are protected, also those that are too rare to be counted in cells
    counted_in, merged = local.merged_cells(query, in_cells), local.merged_cells(query, columns)
    filled = fill_few_missing(x, columns, merged, local.withheld(query, x))
    of_moments = filled if query.pictures else np.where(query.layout.numeric, clip_far_values(filled), filled)
    rest = (local.y, local.row_ids, query.layout, local.weights(query), local.least_rows)
    summary_ = summarize(x, *rest)
    if query.counts:  # else bounds are derived from moments, and a single far value would make all bins too wide
        of_moments = _unclipped_where_many(local, query, x, filled, of_moments)
    if not np.array_equal(x, of_moments, equal_nan=True):
        summary_ = replace(summary_, moments=summarize(of_moments, *rest).moments)
    shown = moments_show_cells(x, columns, local.row_ids, query.layout, merged, local.least_cell)
    moments = np.where(shown[:, None, None], np.nan, summary_.moments)
    rare = np.setdiff1d(columns.index, columns.index[in_cells.reported])
    summary_.counts[..., rare] = 0
    summary_ = replace(summary_, moments=moments, counts=count_in(summary_.counts, counted_in[None]))
    summary_ = summary_ if local.unit is None else whole_units(summary_)
    counts = summary_.counts if query.counts else summary_.counts[..., :0, :]
    flags = {"repeats": count_copies(local.x, local.y) > 0, "persons": has_repeated_persons(local.x)}
    parts = {"rows": summary_.rows, "labels": summary_.labels, "counts": counts, "moments": summary_.moments}
    parts |= {"counted_in": _as_sent(counted_in[:, : counts.shape[2]], counts)}
    return parts | {name: np.array([True]) for name, flag in flags.items() if flag and local.unit is None}


def _unclipped_where_many(
    local: LocalSummary, query: Query, x: np.ndarray, filled: np.ndarray, clipped: np.ndarray
) -> np.ndarray:
    """Return `filled` (rows, features) with `clipped` for far values of few rows, which moments would reveal.

    Few are less than the client's least of different rows below, or above, the others. Rows without a value in x are
    not counted.
    """
    result, index = filled.copy(), local.columns(query).index
    for side in (clipped > filled, clipped < filled):
        for feature in np.flatnonzero(side.any(0)).tolist():
            for group in np.unique(index[side[:, feature]]).tolist():
                rows = side[:, feature] & (index == group)
                if count_different(local.row_ids[rows & ~np.isnan(x[:, feature])]) < local.least_rows:
                    result[rows, feature] = clipped[rows, feature]
    return result


def whole_units(summary: Summaries) -> Summaries:
    """Round the weighted rows of a client's units to whole numbers, so that no weight shows.

    A row counts 1 / (rows of its unit). A unit with a rare number of rows has a rare weight, and sums of weights in bins
    would show where its rows lie. Numbers of cells still add up to those of classes, and these to all rows.
    """
    counts = summary.counts[0]
    of_columns = counts.sum(1).max(0, initial=0.0)  # a feature's column is empty if it is withheld
    # a rare class is in no cell, but its share is reported
    of_columns[:-1] = np.where(np.isnan(summary.labels[0]), of_columns[:-1], summary.labels[0])
    total = _whole(np.append(of_columns, max(summary.rows[0] - of_columns.sum(), 0.0)), int(summary.rows[0]))[:-1]
    rounded = np.zeros_like(counts)
    for feature, column in np.argwhere(counts.any(1)).tolist():
        rounded[feature, :, column] = _whole(counts[feature, :, column], int(total[column]))
    labels = np.where(np.isnan(summary.labels), np.nan, total[:-1])
    moments, with_value = summary.moments.copy(), rounded[:, :-1].sum(1)
    in_no_cell = ~counts.any((0, 1))
    of_class = np.minimum(np.rint(moments[0, :, in_no_cell, 0].T), total[in_no_cell])
    all_present = of_columns[in_no_cell] <= moments[0, :, in_no_cell, 0].T + _SLACK
    with_value[:, in_no_cell] = np.where(all_present, total[in_no_cell], of_class)
    moments[0, :, :, 0] = np.where(np.isnan(moments[0, :, :, 0]), np.nan, with_value)
    return Summaries(summary.rows, labels, rounded[None], moments)


_SLACK = 1e-9  # of sums of weights


def _whole(numbers: np.ndarray, total: int) -> np.ndarray:
    """Round numbers, (n,), to whole ones of this sum: down, and those with the largest remainders up."""
    whole = np.floor(numbers + _SLACK)
    up = np.argsort(whole - numbers, kind="stable")[: max(total - int(whole.sum()), 0)]
    whole[up] += 1
    return whole


def check_request(ledger: Ledger, local: LocalSummary, query: Query, budget: float | None, delta: float | None) -> None:
    """Raise RefusalError for a query for more than the client's policy, or its number of rows or units, allows."""
    policy, file = ledger.policy, policy_file(Path(ledger.folder))
    for key, got, allowed in (
        ("noise.budget", budget, policy.budget),
        ("noise.delta", delta, policy.delta),
        ("bins", query.layout.bins if query.counts else None, policy.bins),
    ):
        if got is not None and got > allowed:
            raise RefusalError(
                f"client {ledger.client}: diagnose.{key}: got {got:g}, expected {allowed:g} or less, as {file} says. Lower "
                "it, or let the client's owner change that file."
            )
    rows, what = (len(local.y), "rows") if local.unit is None else (len(np.unique(local.unit)), "units")
    most = max(rows, USUAL_BINS)
    if query.counts and query.layout.bins > most:
        raise RefusalError(
            f"client {ledger.client}: diagnose.bins: got {query.layout.bins}, expected {most} or less: the client has "
            f"{rows} training {what}, and a bin of a single one would show its values. Lower it."
        )


def _noisy_counts(local: LocalSummary, query: Query) -> Callable[[Draw], dict[str, np.ndarray]]:
    """Compute counts of all classes: which classes are reported must not depend on their rows."""

    def compute(draw: Draw) -> dict[str, np.ndarray]:
        classes = query.layout.classes_of(local.y)
        counts = query.layout.counts(local.features(query), classes, weights=local.weights(query))
        noise_sd = sigma(counts_sensitivity(counts.shape[0]), query.rho)
        return {"counts": add_noise(counts[None], noise_sd, draw("counts"))}

    return compute
