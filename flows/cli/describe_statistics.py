"""One client's statistics, on that client's own machine: what a served conditional model is given beside its rows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from flows.config.method_settings import method_of
from flows.experiment.fit_standardizer import load_standardizer
from flows.experiment.project import Project
from models.statistics.feature_vector import Statistic, too_few_rows
from models.statistics.statistic_base import STEADY, made_as
from silos.cohort import Stack
from silos.errors import UserError, shown
from tasks.client_stats import describe
from tasks.execution.load_client_data import load_rows
from tasks.tracking.json_io import unwritable, write_json


def client_statistics(project: Project, client: str, method: str, output: str | None = None) -> dict[str, Any]:
    """The numbers that the client's conditional model reads, and what is odd about them, as plain JSON.

    Computed as the method's section of params.yaml says, from training rows, scaled as a run's if they are; written to the
    file `output` if there is one.
    UserError for a method without statistics, an unknown client, a place that takes no file and, where `few_rows` is
    refuse, too few rows.
    """
    reads = method_of(project.params, method).conditioning()
    if reads is None or not reads.private:
        raise UserError(f"method {method} reads no statistics of a client as params.yaml sets it; conditional does.")
    manifest = project.manifest
    manifest.client(client)
    reads.count(project.silos)
    agreement = load_standardizer(project)
    stack, silos = Stack((client,), 1), replace(project.silos, scaling=agreement.scaling).select([client])
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
    answer: dict[str, Any] = {
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
        _write(output, answer)
    return answer


def _write(output: str, answer: dict[str, Any]) -> None:
    """Where the user said: a file, or a link to one; a folder or a device would be lost under it."""
    place = Path(output).resolve()
    try:
        if place.exists() and not place.is_file():
            raise UserError(f"--output {shown(repr(output))}: that is there, and no file; name one.")
        write_json(place, answer)
    except OSError as error:
        raise UserError(f"--output: {unwritable(error) or f'cannot write {place}: {error.strerror}.'}") from None


def _few(client: str, rows: int, statistics: Sequence[Statistic], features: int, classes: int) -> Iterator[str]:
    for statistic in statistics:
        few = too_few_rows([statistic], rows, features, classes)
        if few:
            yield f"client {client} {few}; zeros, or the directions and the solution that there are, stand in."


def _unsteady(client: str, statistics: Sequence[Statistic], agreement: Sequence[float | None]) -> Iterator[str]:
    for statistic, alike in zip(statistics, agreement, strict=True):
        if alike is not None and alike < STEADY:
            yield (
                f"the {statistic.kind} of two halves of client {client}'s rows agree to {alike:.2f} only (1 is wholly): "
                "they tell more of single rows than of what it has in common with others."
            )


def _constant(client: str, x: Tensor, y: Tensor) -> Iterator[str]:
    """x: (rows, *shape); y: (rows,)."""
    if not len(y):
        return
    x = x.flatten(1)
    same = int((x.amax(0) == x.amin(0)).sum())
    if same:
        yield f"{same} of the {x.shape[1]} features of client {client} are constant: nothing varies with them."
    if bool((y == y[0]).all()):
        yield f"the label of client {client} is constant: its covariance with everything is 0."
