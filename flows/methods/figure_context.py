"""Defines what a figure of a run may show, and the function that draws it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from flows.methods.round_context import RoundContext
from models.client_model import Model
from models.metrics.task_metrics import TaskMetrics
from silos.cohort import Silos
from tasks.tracking.result_types.journal_record import RoundRecord, RoundSummary


@dataclass(frozen=True)
class FigureContext:
    """What a figure may show: the reported model, its clients, and the journal's records of rounds."""

    folder: Path
    model: Model
    silos: Silos
    round: RoundContext
    records: list[RoundSummary]
    journal: Callable[[], Iterable[RoundRecord]]  # records with a row for each client, one in memory at a time
    quantity: TaskMetrics
    personal: bool  # whether params allow personal data of clients to be shown (tracking.personal_models)


FigureWriter = Callable[[FigureContext], Path | None]
"""Draws a file into the context's folder; returns None if there is nothing to show."""
