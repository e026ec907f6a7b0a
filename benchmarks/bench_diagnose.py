"""Measure the cost of diagnosing many silos, at a client, on the wire and on the server, and of the printed rule."""

import time
import tracemalloc
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from models.diagnosis.client_summaries.client_summary import (
    Layout,
    Summaries,
    assign_columns,
    concatenate_summaries,
    own_cells,
    summarize,
)
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.client_summaries.rank_correlations import correlate_features, count_far_values
from models.diagnosis.fomichev_distances import Readings, statistics_from_summaries
from models.diagnosis.name_shift_types import judge_all_pairs
from tasks.diagnosis.compare_feature_pairs import pair_question, refine_by_feature_pairs
from tasks.diagnosis.compare_silos import Comparison, compare_silos
from tasks.messages.statistics_messages import FeatureCorrelations, ShiftNumbers

CLIENTS, ROWS, FEATURES, CLASSES = 1000, 500, 100, 10
LAWS = 5
TIMED_FEATURES = 5  # for the printed rule, which takes equally long for each


def diagnose_cost(say: Callable[[str], None]) -> dict[str, Any]:
    """Diagnose clients of five laws; keys with `extrapolated` are not measured."""
    torch.set_num_threads(1)
    layout = Layout(
        tuple(f"x{at}" for at in range(FEATURES)),
        (None,) * FEATURES,
        np.full(FEATURES, -3.0),
        np.full(FEATURES, 3.0),
        32,
        CLASSES,
    )
    say(f"{CLIENTS:,} clients of {ROWS} rows compute counts and moments")
    summaries, seconds = _summaries(layout)
    message = ShiftNumbers(_names(), *(torch.from_numpy(part) for part in _parts(summaries)))
    pairs = CLIENTS * (CLIENTS - 1) // 2
    say(f"the server compares {pairs:,} pairs")
    start = time.perf_counter()
    found = compare_silos.fn([message], Query("bench", layout), "guarded", Readings(grid="federation"), say)
    server = time.perf_counter() - start
    say(f"{CLIENTS:,} clients tell how features go together, and the server compares that")
    pairs_client, pairs_server, pairs_bytes = _feature_pairs(found, message, layout)
    say("once more, for its memory")
    return {
        "clients": CLIENTS,
        "rows": ROWS,
        "features": FEATURES,
        "classes": CLASSES,
        "pairs": pairs,
        "client_seconds": median(seconds) + pairs_client,
        "server_seconds": server + pairs_server,
        "feature_pairs": {"client_seconds": pairs_client, "server_seconds": pairs_server},
        "server_peak_bytes": _peak(message, layout),
        "bytes_of_a_client": {"told": message.bytes_up // CLIENTS + pairs_bytes, "rows": 4 * ROWS * (FEATURES + 1)},
        "groups": [len(group) for group in found.groups],
        "laws_found": sorted(map(sorted, found.groups)) == [list(range(at, CLIENTS, LAWS)) for at in range(LAWS)],
        "printed_rule": _printed(summaries, layout, say),
    }


def _summaries(layout: Layout) -> tuple[Summaries, list[float]]:
    summaries, seconds = [], []
    for client in range(CLIENTS):
        x, y = _rows(client, ROWS)
        start = time.perf_counter()
        summaries.append(summarize(x, y, np.arange(len(y)), layout))
        seconds.append(time.perf_counter() - start)
    return concatenate_summaries(summaries), seconds


def _rows(client: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a client of law c mod 5: plain, three features shifted, labels renamed, half the labels rare, a feature wider."""
    draw, law = np.random.default_rng([22, client]), client % LAWS
    centres = 0.3 * np.random.default_rng(22).normal(size=(CLASSES, FEATURES))
    shares = np.where(np.arange(CLASSES) < CLASSES // 2, 1.0, 0.2 if law == 3 else 1.0)
    y = draw.choice(CLASSES, rows, p=shares / shares.sum())
    x = draw.normal(size=(rows, FEATURES)) + centres[y]
    x[:, :3] += 0.7 * (law == 1)
    x[:, 7] *= 1.0 + (law == 4)
    return x, (y + (law == 2)) % CLASSES


def _feature_pairs(found: Comparison, message: ShiftNumbers, layout: Layout) -> tuple[float, float, int]:
    """Return the median seconds of a client, the server's seconds, and the bytes of a client for pairs of features."""
    query, parts, seconds = Query("bench", layout), [], []
    question = pair_question(found, [message], query)
    for client in range(CLIENTS):
        x, y = _rows(client, ROWS)
        start = time.perf_counter()
        row_ids, features = np.arange(len(y)), np.array(question.features)
        correlations = correlate_features(x, assign_columns(y, row_ids, layout), row_ids, layout, features)
        parts.append((correlations.values, correlations.variances, count_far_values(x)[None]))
        seconds.append(time.perf_counter() - start)
    arrays = (torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True))
    reported = FeatureCorrelations(_names(), *arrays)
    start = time.perf_counter()
    refine_by_feature_pairs.fn(found, [message], [reported], question)
    return median(seconds), time.perf_counter() - start, reported.bytes_up // CLIENTS


def _names() -> tuple[str, ...]:
    return tuple(f"c{at:05d}" for at in range(CLIENTS))


def _parts(summaries: Summaries) -> tuple[np.ndarray, ...]:
    parts = summaries.rows, summaries.labels, summaries.counts, summaries.moments
    return *parts, own_cells(summaries).astype(np.int16)


def _peak(message: ShiftNumbers, layout: Layout) -> int:
    """Measure the peak memory beyond the messages, by tracemalloc, in a separate call since it takes time."""
    tracemalloc.start()
    try:
        compare_silos.fn([message], Query("bench", layout), "guarded", Readings(grid="federation"), lambda _: None)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _printed(summaries: Summaries, layout: Layout, say: Callable[[str], None]) -> dict[str, Any]:
    """Time D_X, D_Y and D_{Y|X} of all pairs on 100 points, on some features."""
    say(f"the printed rule of all pairs, on {TIMED_FEATURES} features")
    statistics = statistics_from_summaries(summaries, layout).select(slice(0, TIMED_FEATURES))
    start = time.perf_counter()
    judge_all_pairs(statistics, Readings(grid="federation"))
    seconds = time.perf_counter() - start
    return {"features": TIMED_FEATURES, "seconds": seconds, "all_extrapolated": seconds / TIMED_FEATURES * FEATURES}
