"""What every client is asked of its rows: the same of all, decided before anybody answers."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from models.shift.client_summaries.client_summary import Layout


@dataclass(frozen=True, eq=False)
class Query:
    """Counts on a layout, and moments.

    schema: of the agreed features; pictures: they are projected first, as light or as
    other numbers; counts: whether they are asked for; targets: the
    target is asked for as one feature more, behind the others, which is how groups of targets are agreed on. rho: what the
    answer costs, in zCDP, where clients add noise; then counts are all that is told.
    """

    schema: str
    layout: Layout
    pictures: Literal["light", "numbers"] | None = None
    counts: bool = True
    targets: bool = False
    rho: float = 0.0

    @cached_property
    def id(self) -> str:
        """The same of two questions that ask for the same numbers."""
        layout = self.layout
        asked = {
            "schema": self.schema,
            "pictures": self.pictures,
            "counts": self.counts,
            "of targets": self.targets,
            "noise": self.rho > 0,
            "names": layout.names,
            "categories": layout.categories,
            "low": layout.low.tolist(),
            "high": layout.high.tolist(),
            "bins": layout.bins,
            "classes": layout.classes,
            "targets": layout.targets,
            "missing": layout.missing,
        }
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
