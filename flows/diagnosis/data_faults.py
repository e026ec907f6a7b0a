"""What is plainly so in the data, before any test: classes and values that a silo does not have, and rows that repeat."""

from collections.abc import Sequence

import numpy as np

from models.diagnosis.client_summaries.client_summary import Summaries, mixture
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.magnitudes import absent_classes, constant_features
from models.diagnosis.other_units import find_other_units
from models.diagnosis.shared_rows import find_shared_rows
from tasks.diagnosis.compare_silos import Comparison
from tasks.tracking.result_types.diagnosis_result import DataFault, SilosFault


def data_faults(
    comparison: Comparison, query: Query, summaries: Summaries, persons: Sequence[str], by_unit: bool
) -> list[DataFault]:
    """List faults, each with `what`, `names` and `silos`; `what` is persons, shared, class, empty, constant or unit.

    summaries: of the comparison's clients; persons: the silos whose rows look like several of each person; by_unit: whether
    rows are counted by unit. Shared rows are looked for in counts of independent rows of tables without noise.
    """
    faults = list[DataFault]()
    if persons:
        faults.append({"what": "persons", "names": [], "silos": list(persons)})
    if looks_for_shared_rows(comparison, query, persons, by_unit):
        faults += _shared(comparison, summaries)
    clients, layout = np.array(comparison.clients), query.layout
    if not layout.targets:
        absent = absent_classes(summaries)
        for index in np.flatnonzero(absent.any(0)).tolist():
            faults.append({"what": "class", "names": [index], "silos": clients[absent[:, index]].tolist()})
    # a feature that is empty everywhere is a fault of no silo
    empty = comparison.missing.absent & ~comparison.missing.absent.all(0)
    for feature in np.flatnonzero(empty.any(0)).tolist():
        silos = clients[empty[:, feature]].tolist()
        faults.append({"what": "empty", "names": [layout.names[feature]], "silos": silos})
    if query.pictures is None:
        constant = constant_features(summaries, layout)
        for feature in np.flatnonzero(constant.any(0)).tolist():
            values = mixture(summaries.moments[constant[:, feature], feature])[:, 1].tolist()
            silos = clients[constant[:, feature]].tolist()
            faults.append({"what": "constant", "names": [layout.names[feature]], "silos": silos, "values": values})
        faults += [
            {
                "what": "unit",
                "names": [layout.names[found.feature]],
                "silos": [comparison.clients[client] for client in found.clients],
                "scale": found.scale,
                "offset": found.offset,
                "unit": found.unit,
                "usual_unit": found.usual_unit,
                "means": list(found.means),
                "usual_mean": found.usual_mean,
            }
            for found in find_other_units(summaries, layout)
        ]
    return faults


def looks_for_shared_rows(comparison: Comparison, query: Query, persons: Sequence[str], by_unit: bool) -> bool:
    """Return whether pairs of silos are searched for rows that both hold."""
    independent = not by_unit and not persons and query.pictures is None
    return independent and query.counts and not query.rho and not comparison.of_groups


def _shared(comparison: Comparison, summaries: Summaries) -> list[SilosFault]:
    pairs = comparison.pairs
    found = np.flatnonzero(find_shared_rows(summaries, pairs.first, pairs.second)).tolist()
    return [
        {
            "what": "shared",
            "names": [],
            "silos": [comparison.clients[clients[pair]] for clients in (pairs.first, pairs.second)],
        }
        for pair in found
    ]
