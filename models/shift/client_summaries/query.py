"""The query that the server sends to every client: the same for all, decided before any client answers."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from models.shift.client_summaries.client_summary import Layout


@dataclass(frozen=True, eq=False)
class Query:
    """Counts on a layout, and moments.

    schema: the id of the agreed features; pictures: how pictures are projected, as light or as other numbers, None for
    tables; counts: whether counts are requested besides moments; targets: whether the target is appended as a feature,
    which is how groups of targets are agreed on; rho: the cost in zCDP if clients add noise and report counts only, 0
    without noise.
    """

    schema: str
    layout: Layout
    pictures: Literal["light", "numbers"] | None = None
    counts: bool = True
    targets: bool = False
    rho: float = 0.0

    @cached_property
    def id(self) -> str:
        """Identify the requested numbers: equal for queries that request the same."""
        layout = self.layout
        request = {
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
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]
