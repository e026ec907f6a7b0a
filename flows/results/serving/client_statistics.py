"""Compute one client's statistics on its own machine: the context that a served conditional model needs with its rows."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from flows.diagnosis.query_clients import moments_query
from flows.methods.method_settings import method_of
from flows.project.project import Project
from flows.training.fit_standardizer import FittedStandardization, load_standardizer
from models.statistics.feature_vector import Statistic, too_few_rows
from models.statistics.statistic_base import STEADY, made_as
from silos.cohort import Stack
from silos.errors import RefusalError, UserError
from silos.privacy.owner_file import check_command, policy_file, policy_of_run
from silos.privacy.report_rules import Kind
from silos.standardizer import Standardization
from tasks.client_stats import describe
from tasks.diagnosis.report_summary import open_ledger
from tasks.execution.load_client_data import load_rows
from tasks.tracking.json_io import output_file, unwritable, write_json


def client_statistics(
    project: Project, client: str, method: str, output: str | None = None, scaling: Standardization | None = None
) -> dict[str, Any]:
    """Return the statistics that the client's conditional model reads, and notes on them, as plain JSON.

    They are computed from training rows, scaled as in a run, by the method's section of params.yaml.

    Args:
        project: The open project.
        client: A client of data/.
        method: A method that reads statistics.
        output: A file to write the result to.
        scaling: How rows were scaled in training; by default as in the project's runs.

    Raises:
        UserError: For a method without statistics, an unknown client, an output that cannot be written, and too few rows
            if `few_rows` is refuse.
    """
    reads = method_of(project.params, method).conditioning()
    if reads is None or not reads.private:
        raise UserError(
            f"method {method}: got a method that reads no statistics, expected one that does. Use "
            "conditional, or set its source in params.yaml."
        )
    manifest = project.silos.manifest
    # both lines only raise: for an unknown client, and for statistics that these data do not have
    manifest.client(client)
    reads.count(project.silos)
    agreement = load_standardizer(project) if scaling is None else FittedStandardization(scaling, 0, 0)
    stack, silos = Stack((client,), 1), replace(project.silos, scaling=agreement.scaling).select([client])
    check_command(Path(project.ledgers.folder), "stats", [client])
    if not manifest.is_public and not policy_of_run(Path(project.ledgers.folder), client).owners_view:
        _check_guard(
            project, client, json.dumps([reads.specs, reads.few_rows, agreement.scaling.as_json()], default=str)
        )
    ((rows, statistics),) = describe(silos, stack, reads.statistics, reads.few_rows == "refuse")
    shape = (math.prod(manifest.shape), len(manifest.classes))
    lengths = [statistic.length(*shape) for statistic in reads.statistics]
    kinds = [
        {**spec, "length": length, "ok": ok, "gap": gap, "agreement": agreement}
        for spec, length, ok, gap, agreement in zip(
            reads.specs, lengths, statistics.ok, statistics.gap, statistics.agreement, strict=True
        )
    ]
    opened = load_rows(silos, stack, "train", "cpu")
    notes = [
        *(note["sentence"] for note in agreement.notes),
        *_few(client, rows, reads.statistics, *shape),
        *_unsteady(client, reads.statistics, statistics.agreement),
        *_constant(client, opened.x[0, :rows], opened.y[0, :rows]),
    ]
    result: dict[str, Any] = {
        "client": client,
        "method": method,
        "data_version": silos.version,
        "rows": rows,
        "kinds": kinds,
        "made_as": made_as(reads.specs),
        "statistics": statistics.vector.float().tolist(),
        "notes": notes,
        "written": output,
    }
    if output is not None:
        _write(project, output, result)
    return result


_STATISTICS = Kind(
    "statistics of a client",
    once="ask for the statistics of the first query, or let the owner set owners_view: true, read them, and set it back",
)


def _check_guard(project: Project, client: str, question: str) -> None:
    """Count the statistics as a report in the client's ledger, whose rows and values all reported statistics cover.

    Raises:
        RefusalError: If a class has too few rows, or few rows differ from those of an earlier report.
    """
    silos, stack = project.silos.select([client]), Stack((client,), 1)
    opened = load_rows(silos, stack, "train", "cpu")
    ledger, local = open_ledger(silos, project.ledgers, client, opened.x[0], opened.y[0], "stats")
    query = moments_query(silos)
    small = ~local.columns(query).reported
    if small.any():
        raise RefusalError(
            f"client {client}: got a class with fewer than {local.least_rows} different training rows, expected as many in "
            "every class, since statistics by class would reveal these rows. Its owner may set owners_view: true in "
            f"{policy_file(Path(ledger.folder))}, read them, and set it back."
        )
    digest = hashlib.sha256(question.encode()).hexdigest()
    # one set of statistics: each further one is another projection of the same rows
    ledger.answer(local.version, digest, lambda _: {}, local.covered(ledger, query), kind=_STATISTICS)


def _write(project: Project, output: str, result: dict[str, Any]) -> None:
    """Write the file, as `output_file` finds it."""
    source = getattr(project.params.data.source, "path", None)
    try:
        write_json(output_file(project.root, output, source), result)
    except OSError as error:
        raise UserError(f"--output: {unwritable(error) or f'cannot write {output}: {error.strerror}.'}") from None


def _few(client: str, rows: int, statistics: Sequence[Statistic], features: int, classes: int) -> Iterator[str]:
    for statistic in statistics:
        few = too_few_rows([statistic], rows, features, classes)
        if few:
            yield (f"client {client} {few}; zeros, or the directions and the solution that exist, are used instead.")


def _unsteady(client: str, statistics: Sequence[Statistic], agreement: Sequence[float | None]) -> Iterator[str]:
    for statistic, alike in zip(statistics, agreement, strict=True):
        if alike is not None and alike < STEADY:
            yield (
                f"the {statistic.kind} of two halves of client {client}'s rows agree only to {alike:.2f} (1 is "
                "full agreement): they reflect single rows more than what the client shares with others."
            )


def _constant(client: str, x: Tensor, y: Tensor) -> Iterator[str]:
    """x: (rows, *shape); y: (rows,)."""
    if not len(y):
        return
    x = x.flatten(1)
    same = int((x.amax(0) == x.amin(0)).sum())
    if same:
        yield (
            f"{same} of the {x.shape[1]} features of client {client} are constant: they add nothing to the statistics."
        )
    if bool((y == y[0]).all()):
        yield f"the label of client {client} is constant: its covariance with everything is 0."
