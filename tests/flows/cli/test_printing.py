"""What is printed shows every name as it is written, on any terminal, and obeys none."""

import ast
import io
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Task
from typer.main import get_group

from benchmarks import print_benchmark
from flows import cli
from flows.cli.command_session import Session
from flows.core.console.progress_bar import Terminal
from flows.core.console.safe_text import PlainConsole, say, shortened
from models.metrics.task_metrics import TASK_METRICS
from publications import print_tables
from silos.errors import UserError

EVIL = "[/b][red]:heart:{}é日±\x1b]0;x\x07\x1b[2J\r\n\u202e\u2028\ud800"
SHOWN = r"[/b][red]:heart:{}é日±\x1b]0;x\x07\x1b[2J\r\n\u202e\u2028\ud800"
ASCII = r"[/b][red]:heart:{}\xe9\u65e5+-\x1b]0;x\x07\x1b[2J\r\n\u202e\u2028\ud800"

CHECKOUT = {
    print_benchmark: (
        "bench",
        "overhead",
        "regroup",
        "population",
        "diagnose_cost",
        "serving",
        "tune",
        "intervals",
        "cells",
        "privacy_cost",
        "regret",
        "races",
    ),
    print_tables: ("reproduce", "estimate", "again", "listing", "stale"),
}
PRINTERS = {
    name.removeprefix("print_"): value
    for group in cli._GROUPS
    for name, value in vars(group).items()
    if name.startswith("print_")
} | {name: getattr(of, name) for of, names in CHECKOUT.items() for name in names}

QUANTITY = TASK_METRICS["classification"]
ROWS = {"train": 1, "validation": 2, "test": 3}
SIDE = {"domain": EVIL, "rows": ROWS, "label_shares": {EVIL: 1.0}, "mean": 0.5}
NOTHING = {"seeds": 1, **dict.fromkeys(QUANTITY.columns)}
NUMBERS = {"published": 0.5, "ours": 0.25, "sd": 0.1}
SERVICES = [
    {"service": name, "state": "up", "address": EVIL, "pid": 12, "memory": 10**8, "restarts": 0}
    for name in ("prefect", "mlflow", "worker")
]
DECISION = {
    **{"decision": "refused", "at": "2026-01-02T03:04:05+00:00", "version": "3", "champion": "2", "run": EVIL},
    **{"against": {"sentence": EVIL}, "reason": EVIL, "data_version": EVIL, "git_commit": EVIL},
    "next": EVIL,
    "comparison": {"experiment": EVIL, "open_faults": [EVIL], "sentences": [f"{EVIL}: better"], "omitted": 1},
}
# what each function is given, with a name of the user's wherever one can stand, and how many of them it prints
SAMPLES: dict[str, tuple[dict[str, Any], int]] = {
    "init": (
        {
            **{"folder": EVIL, "repositories": ["git"], "copied": EVIL, "guessed": [EVIL]},
            **{"left_out": [EVIL], "read": None, "network": {"kind": "mlp"}, "committed": False},
            **{"missing": [EVIL], "replaced": EVIL},
        },
        8,
    ),
    "coordinator": ({"place": None, "address": EVIL, "fingerprint": EVIL, "file": None}, 2),
    "invitation": ({"place": EVIL, "address": EVIL, "fingerprint": EVIL, "file": EVIL}, 4),
    "joined": ({"place": EVIL, "address": EVIL, "fingerprint": EVIL, "file": None}, 3),
    "accepted": ({"place": EVIL, "address": EVIL, "fingerprint": EVIL, "file": None}, 1),
    "revoked": ({"place": EVIL, "address": EVIL, "fingerprint": None, "file": None}, 2),
    "place": (
        {
            **{
                "place": EVIL,
                "address": EVIL,
                "data": EVIL,
                "part": "ab",
                "owner_file": EVIL,
                "approved": EVIL,
                "task": "classification",
            },
            **{"classes": [EVIL], "features": [EVIL], "steps": [EVIL], "messages": [EVIL]},
            "silos": [{"silo": EVIL, "rows": ROWS, "policy": {"methods": EVIL}}],
            "machine": {"torch": EVIL},
        },
        12,
    ),
    "sent": (
        {"run": EVIL, "version": "1", "places": [{"place": EVIL, "joined": True, "answer": EVIL}]},
        3,
    ),
    "ends": (
        {
            **{"role": "place", "name": EVIL, "address": EVIL, "fingerprint": EVIL},
            "places": [{"place": EVIL, "joined": True, "answer": EVIL}],
        },
        5,
    ),
    "partition": (
        {
            **{"folder": EVIL, "clients": 1, "rows": ROWS, "common": {}, "changed": True},
            **{
                "data_version": EVIL,
                "notes": [EVIL],
                "params_yaml": [EVIL],
                "uncommitted": True,
                "to_commit": ["data.dvc"],
            },
        },
        4,
    ),
    "run": (
        {
            "method": EVIL,
            "task": "classification",
            "seed": 0,
            "reported_round": 1,
            "rounds": 1,
            "model": "global",
            "metrics": {},
            "baseline": {"name": EVIL, "kind": "commonest class", "metrics": {"accuracy/mean": 0.5}},
            "data_version": EVIL,
            "weights_sha256": "ab",
            "folder": EVIL,
        },
        4,
    ),
    "compare": (
        {
            "task": "classification",
            "table": [
                {"method": EVIL, "model": "global", "seeds": 1, "seconds": 1.0, **dict.fromkeys(QUANTITY.columns)}
            ],
            "baseline": {"name": EVIL, "sentence": EVIL, "metrics": {"accuracy/mean": 0.5}},
            "runs": [{"method": EVIL, "seed": 0}],
            "paired": [{"sentence": EVIL, "seeds": [0]}],
            "tuning": [{"method": EVIL, "settings": [EVIL], "at_edge": [EVIL], "tried": 8, "score": 1.0, "seed": 0}],
            "failed": [{"method": EVIL, "seed": 1, "error": EVIL}],
            "data_version": EVIL,
            "figure": EVIL,
            "report": EVIL,
            "experiment": EVIL,
            "registry": {
                **{"model": EVIL, "champion": "1"},
                "candidates": [{"method": EVIL, "version": "2", "better": True}],
            },
            "open_faults": [EVIL],
        },
        18,
    ),
    "advice": (
        {
            "lines": [EVIL],
            "diagnosis": {"sentences": [EVIL]},
            "race": {"rungs": [1], "legs": {EVIL: [1, [0.5, 0.1], 1.0, ""]}, "dropped": {EVIL: "time"}},
            "proved": [],
            "data_version": EVIL,
            "experiment": EVIL,
            "apply": EVIL,
        },
        5,
    ),
    "races": (
        {
            "minutes": 2,
            "races": {
                EVIL: {
                    **{"advised": [EVIL], "replayed": [EVIL], "winner": EVIL, "replayed_winner": EVIL},
                    **{"same_end": 9, "both": 12, "slower": 1.5},
                }
            },
        },
        5,
    ),
    "intervals": (
        {
            "rows": [{"data": EVIL, "seeds": 3, "seed_sd": 0.1, "covered": 0.95}],
            "silos": [{"silos": 8, "seeds": 3, "covered": 0.95}],
            "partitions": [{"partitions": 5, "shared": 0.2, "seeds": 3, "covered": 0.95}],
            "holm": [{"methods": 3, "equal": 2, "seeds": 3, "seed_sd": 0.1, "plain": 0.1, "corrected": 0.05}],
            "over_silos": [{"differences": EVIL, "silos": 8, "student": 0.95, "bca": 0.9, "studentised": 0.92}],
            "times": 600,
            "sentences": {
                **{name: {"claims": 9, "unsupported": 0, "false": 0.01} for name in ("advise", "compare")},
                **{"times": 300, "covered": 0.97, "gain_covered": 0.99},
            },
        },
        2,
    ),
    "cells": (
        {
            "least_cell": 10,
            "lines": [
                {
                    "shift": EVIL,
                    "rows": 300,
                    "rare": 0,
                    "draws": 50,
                    "off": {"named": 9, "any": 9},
                    "on": {"named": 8, "any": 9},
                }
            ],
        },
        1,
    ),
    "cost_to_target": (
        {
            "task": "classification",
            "cost": {EVIL: {"target": 0.5, "of_best": None, "rounds": None, "bytes": None, "seconds": None}},
        },
        1,
    ),
    "show": (
        {
            "classes": [EVIL],
            "clients": [
                {
                    "name": EVIL,
                    "domain": EVIL,
                    "rows": ROWS,
                    "target": None,
                    "label_shares": {EVIL: 1.0},
                    "mean": 0.0,
                    "standard_deviation": 1.0,
                }
            ],
            "count": 3,
            "opened": 1,
            "reported": True,
            "refused": {EVIL: EVIL},
            "rows": ROWS,
            "sizes": {split: {"least": 1, "median": 1.5, "most": 2} for split in ROWS},
            "laws": [{"domain": EVIL, "clients": 2, "rows": ROWS, "label_shares": {EVIL: 1.0}, "target": None}],
            "mixed_units": False,
            "feature_spread": 0.0,
            "label_spread": 0.0,
            "target_spread": None,
            "data_version": EVIL,
            "figure": EVIL,
        },
        7,
    ),
    "diagnose": (
        {
            **{name: [EVIL] for name in ("sentences", "notes", "next", "pictures")},
            "bytes": {"up_of_a_client": 1},
            "data_version": EVIL,
            "since": EVIL,
            "folder": EVIL,
        },
        7,
    ),
    "diagnose_cost": (
        {
            **{"clients": 3, "rows": 20, "features": 2, "classes": 2, "pairs": 3, "groups": [[0]], "laws_found": True},
            **{"client_seconds": 0.1, "server_seconds": 1.0, "server_peak_bytes": 1},
            "bytes_of_a_client": {"told": 1, "rows": 1},
            "printed_rule": {"seconds": 1.0, "features": 1, "all_extrapolated": 1.0},
        },
        0,
    ),
    "methods": (
        {
            "methods": [{"method": EVIL, "model": "global", "options": {EVIL: EVIL}, "summary": f"Name: {EVIL}"}],
            "unlisted": [{"method": EVIL, "file": EVIL}],
        },
        4,
    ),
    "method": (
        {
            **{"method": EVIL, "model": "global", "summary": EVIL, "page": EVIL},
            "options": [{"name": EVIL, "takes": EVIL, "choices": [EVIL], "default": EVIL, "meaning": EVIL}],
        },
        8,
    ),
    "stats": (
        {
            "client": EVIL,
            "rows": 1,
            "kinds": [{"kind": EVIL, "length": 1, "ok": True, "gap": None, "agreement": 0.5}],
            "statistics": [0.5],
            "notes": [EVIL],
            "written": EVIL,
        },
        4,
    ),
    "cost": (
        {
            "method": EVIL,
            "network": EVIL,
            "shape": [8, 8],
            "outputs": 10,
            "parameters": 1,
            "buffers": 0,
            "macs": {"forward": 1, "forward_and_backward": 2, "round": 3},
            "largest_client": {"client": EVIL, "rows": 1, "epochs": 1},
            "bytes": {"file": 1, "up": 1, "down": 1},
            "latency": {"milliseconds": 1.0, "quartiles": [0.5, 1.5], "passes": 2},
            "memory": {
                "rows": [
                    {
                        "rows": 1,
                        "what": EVIL,
                        "largest_activation": 1,
                        "training_floor": None,
                        "evaluation": 1,
                        "training": None,
                    }
                ],
                "repeats_within": 0,
                "note": EVIL,
            },
        },
        5,
    ),
    "audit": (
        {
            **{"client": EVIL, "silos": 2, "rows": 1, "rounds": 1, "canaries": 20, "inside": 10},
            **{"claimed": {"epsilon": 1.0, "delta": 1e-5, "mu": 0.3}, "weakest": {"weights": EVIL, "noise": 1.0}},
            **{"noise": 1.0, "noise_of_sum": 1.0, "mu": 0.3, "mu_error": 0.1, "least_mu": 0.1, "least_epsilon": 0.2},
            **{"guesses": 10, "right": 7, "least_epsilon_by_guesses": 0.1, "most_epsilon_by_guesses": 1.0},
            "faults": ["noise", "canaries"],
        },
        2,
    ),
    "export": (
        {
            "method": EVIL,
            "seed": 0,
            "round": 1,
            "client": EVIL,
            "classes": [EVIL],
            "shape": [8, 8],
            "dtype": "uint8",
            "file": EVIL,
            "bytes": 1,
            "personal": True,
            "compared": {"rows": 1, "whose": "random", "largest_difference": 0.0},
        },
        4,
    ),
    "bench": (
        {
            "workloads": [
                {
                    "workload": EVIL,
                    "about": EVIL,
                    "seconds_per_round": {"plain 1": 1.0, "siloflow": 1.0, EVIL: 1.0},
                    "better_plain": "plain 1",
                    "ratio": 1.0,
                    "ratio_by_turn": [1.0],
                    "times": {EVIL: [1.0]},
                    "accuracy": {EVIL: 1.0},
                    "local_train_ratio": 1.0,
                    "orchestration_share": 0.1,
                    "peak_bytes": {"siloflow": 1},
                    "limits": {
                        "flop_of_a_round": 1e9,
                        "flop_per_second": 1e11,
                        "bytes_per_second": 1e10,
                        "share_of_products": 0.5,
                        "kernel_seconds": 0.5,
                    },
                }
            ],
            "repeats": 1,
            "cores": 1,
        },
        6,
    ),
    "privacy_cost": (
        {
            "lines": [
                {
                    "workload": EVIL,
                    "rows": 32,
                    "milliseconds": {"plain": 1.0},
                    "ratio": {"clipped": 1.0, "noisy": 2.0},
                    "ratio_by_turn": {"clipped": [1.0], "noisy": [2.0]},
                    "times_memory": 1.0,
                }
            ],
            "normal_nanoseconds": 2.5,
        },
        1,
    ),
    "overhead": (
        {
            "encoders": [
                {
                    "encoder": EVIL,
                    "parameters": {"fedavg": 1, "uefl": 2},
                    "milliseconds": {"fedavg": 1.0, "uefl": 2.0},
                    "ratio": 2.0,
                    "ratio_by_turn": [2.0],
                }
            ],
            "rows": 1,
            "words": 1,
            "repeats": 1,
        },
        1,
    ),
    "regroup": (
        {
            "server": [{"clients": 2, "groups": 1, "seconds": {"least": 1.0, "median": 1.0}, "peak_bytes": 1}],
            "round": {
                "clients": 2,
                "trained_rows": 1,
                "seconds": {"fedavg": 1.0, "selective": 2.0},
                "share": 1.0,
                "share_by_turn": [1.0],
                "task_seconds": {EVIL: 1.0},
            },
            "rows": 1,
            "repeats": 1,
        },
        1,
    ),
    "serving": (
        {
            "requests": 1000,
            "columns": 11,
            "lines": [{"rows": 1, "p50": 0.005, "p99": 0.009}],
            "bytes_before": 2**29,
            "bytes_after": 2**29,
        },
        0,
    ),
    "regret": (
        {
            "federations": 24,
            "strategies": {
                "always fedavg": {
                    "regret": [5.2, 2.1, 8.3],
                    "worst": 20.5,
                    "within_a_point": 7,
                    "behind": [4.1, 1.0, 7.2],
                    "seconds": 9.5,
                }
            },
        },
        0,
    ),
    "population": (
        {
            "called": 100,
            "rows": 8,
            "scored": 1000,
            "repeats": 3,
            "sizes": {
                "1000000": {
                    "clients": 1_000_000,
                    "partition_seconds": 113.4,
                    "partition_peak_bytes": 2**31,
                    "data_bytes": 2**29,
                    "opened": 1.4,
                    "first": 1.07,
                    "round": 0.093,
                    "around": 17.9,
                    "journal_bytes": 7009.0,
                    "peak_bytes": 2**31,
                    "times_by_turn": [2.08, 2.11, 2.05],
                    "times": 2.08,
                }
            },
        },
        0,
    ),
    "tune": (
        {
            "measured": [{"kind": EVIL, "stack": 1, "milliseconds": 1.0}],
            "now": {"kind": EVIL, "stack": 1},
            "engine": {"kind": EVIL, "stack": 1},
        },
        3,
    ),
    "data_log": (
        {
            "now": "ab",
            "versions": [{"revision": EVIL, "date": EVIL, "subject": EVIL, "digest": EVIL, "partitions": [EVIL]}],
        },
        4,
    ),
    "data_ledger": (
        {
            "silos": [
                {
                    "name": EVIL,
                    "exact": 1,
                    "noisy": 0,
                    "runs": 0,
                    "spent": 0.5,
                    "last": "2026-01-01T10:00:00Z by x",
                    "budget": 8.0,
                    "without_noise": True,
                    "key": "4f" * 32,
                    "missing": False,
                }
            ],
            "policy": EVIL,
            "unknown": [],
            "log": [
                {
                    **{"when": "2026-01-01T10:00:00Z", "by": EVIL, "silo": EVIL, "asked": EVIL, "answer": EVIL},
                    **{"rows": 90, "rho": 0.5, "epsilon": 4.8},
                }
            ],
        },
        7,
    ),
    "data_diff": (
        {
            "silos": [{"name": EVIL, "client": EVIL, "change": "changed", "before": SIDE, "after": SIDE}],
            "partitions": [
                {
                    "name": EVIL,
                    "added": 1,
                    "removed": 0,
                    "changed": 1,
                    "before": {"clients": 1},
                    "after": {"clients": 2},
                }
            ],
        },
        4,
    ),
    "data_use": ({"digest": EVIL, "partitions": [EVIL], "settings": [EVIL], "params_differ": EVIL}, 4),
    "reproduce": (
        {
            "title": EVIL,
            "source": EVIL,
            "rows": [
                {
                    "cell": EVIL,
                    "about": EVIL,
                    "choice": EVIL,
                    "at_edge": [EVIL],
                    "tried": 8,
                    "missed": 0,
                    "values": [0.5],
                    "seconds": 1.0,
                    "seeds": [0],
                    "floor": None,
                    "fresh": None,
                    "unseen": None,
                    **NUMBERS,
                }
            ],
            "seeds_are": "data",
            "tune_seed": 0,
            "unit": EVIL,
            "scale": EVIL,
            "by_class": {EVIL: {EVIL: NUMBERS}},
            "also": {EVIL: {EVIL: NUMBERS}},
            "ensembles": {EVIL: {EVIL: 0.5}},
            "paired": [{"sentence": EVIL}],
            "known_errors": EVIL,
            "results": EVIL,
            "figures": [EVIL],
            "experiment": EVIL,
        },
        20,
    ),
    "listing": (
        {
            "papers": [
                {
                    "paper": EVIL,
                    "title": EVIL,
                    "page": EVIL,
                    "tables": [
                        {
                            "name": EVIL,
                            "title": EVIL,
                            "scales": [{"scale": EVIL, "state": "not run"}],
                            "verdict": None,
                            "not_run": EVIL,
                        }
                    ],
                    "absent": [{"name": EVIL, "why": EVIL}],
                    "not_at": {EVIL: EVIL},
                }
            ]
        },
        11,
    ),
    "results": (
        {
            "results": [
                {
                    **{"name": EVIL, "kind": "compare", "what": EVIL, "data_version": EVIL},
                    **{"started": "2026-01-02T03:04:05+00:00", "headline": EVIL, "state": EVIL},
                }
            ]
        },
        5,
    ),
    "two_results": (
        {
            **{"first": EVIL, "second": EVIL, "task": "classification", "data_versions": [EVIL, "new"]},
            "table": [{"method": EVIL, "first": NOTHING, "second": NOTHING}],
            "paired": [
                {"method": EVIL, "seeds": [0], "sentence": EVIL},
                {"method": EVIL, "seeds": [], "why_not": EVIL},
            ],
            "only": [[EVIL], []],
            "params": [{"difference": EVIL, "methods": ["other"]}],
        },
        10,
    ),
    "clients": (
        {
            **{"experiment": EVIL, "task": "classification", "methods": [EVIL], "reference": EVIL},
            "classes": {
                **{"rows": {EVIL: 20}, "recall": {EVIL: {EVIL: 0.9}}, "rare": {EVIL: 0.1}},
                "confusion": {EVIL: {EVIL: {EVIL: 0.1}}},
            },
            "clients": [
                {
                    **{"client": EVIL, "role": role, "rows": 120, "test_rows": 50, "domain": EVIL},
                    "metrics": {EVIL: 0.9},
                }
                for role in ("federated", "unseen")
            ],
            "gains": {
                **{"against": "local_only", "level": 0.05, "sentences": [EVIL]},
                "methods": {
                    EVIL: {
                        **{"better": 1, "worse": 0, "certain_better": [EVIL], "certain_worse": [], "sentence": EVIL},
                        "spread": {
                            side: {"worst_tenth": 0.9, "worst": 0.9, "worst_client": "c00", "sd": 0.0}
                            for side in ("alone", "method")
                        },
                        "clients": {EVIL: {"difference": 0.1, "low": 0.0, "high": 0.2, "p": 0.01, "p_holm": 0.01}},
                    }
                },
                "why_not": EVIL,
            },
        },
        14,
    ),
    "clean": (
        {"kinds": [{"kind": EVIL, "lost": EVIL, "bytes": 1, "deleted": True, "kept": [EVIL], "places": [EVIL] * 4}]},
        5,
    ),
    "up": ({"started": False, "services": SERVICES}, 4),
    "down": ({"stopped": True, "in_use": True}, 0),
    "status": (
        {
            **{"up": True, "problem": None, "services": SERVICES},
            "remote": {"remote": EVIL, "problem": EVIL, "push": 0, "pull": 0, "missing": 0},
        },
        5,
    ),
    "decision": (DECISION, 9),
    "watch": (
        {
            **{"changed": {EVIL: "changed"}, "diagnosis": EVIL, "comparison": EVIL, "sentence": EVIL},
            "shifted": [{"client": EVIL, "kinds": {"feature": "critical"}, "grade": "critical", "features": [EVIL]}],
            **{"decision": {"against": {"sentence": EVIL}}, "unchecked": {EVIL: EVIL}, "unseen": [EVIL]},
        },
        9,
    ),
    "predict": (
        {
            **{"model": EVIL, "version": "3", "run": EVIL, "client": EVIL, "rows": 9, "columns": ["label"]},
            **{"labels": {EVIL: 9, "b": 0}, "entropy": 0.5, "file": EVIL, "clients": {EVIL: 9}},
            "unknown_clients": {EVIL: {"rows": 1, "hint": EVIL}},
            "filled_in": [{"column": EVIL, "client": client, "rows": 2, "value": 0.5} for client in (EVIL, None)],
            "skipped": [{"row": row, "reason": EVIL} for row in range(1, 23)],
        },
        30,
    ),
    "evaluate": (
        {
            **{"run": EVIL, "version": "3", "method": EVIL, "seed": 0, "round": 4, "data_version": EVIL},
            **{"trained_on": "d0", "task": "classification", "metric": "accuracy", "higher_is_better": True},
            "metrics": {"accuracy/mean": 0.9},
            "clients": [
                {"client": EVIL, "role": "federated", "rows": 50, "accuracy": None, "loss": 0.5, "entropy": 0.5}
            ],
        },
        4,
    ),
    "history": ({"decisions": [{**DECISION, "data_version": "23496d6b761177"}]}, 4),
    "estimate": ({"seconds": {EVIL: 60.0}}, 1),
    "again": (
        {
            **{"records": 9, "same": 0},
            "runs": [
                {
                    **{"cell": EVIL, "seed": 0, "choice": EVIL, "weights": False, "numbers": True, "metric": EVIL},
                    **{"recorded": 0.5, "now": None, "commit": EVIL, "processor": EVIL, "error": EVIL},
                }
            ],
        },
        4,
    ),
    "stale": (
        {
            **{"stale": 2, "unknown": 3, "today": 4},
            "tables": [
                {
                    **{"command": EVIL, "records": 9, "unknown": 3},
                    "cells": [{"cell": EVIL, "records": 2, "commits": [EVIL], "changed": [EVIL]}],
                }
            ],
        },
        5,
    ),
}


def terminal(encoding: str, **options: Any) -> tuple[io.BytesIO, PlainConsole]:
    """A console that writes to a stream of this encoding, as wide as anything."""
    stream = io.BytesIO()
    wrapped = io.TextIOWrapper(stream, encoding=encoding, write_through=True)
    return stream, PlainConsole(file=wrapped, width=10_000, **options)


def printed_by_commands() -> set[str]:
    """The names of the functions, or of functions of publications/ and benchmarks/, that commands give to `print_result`."""
    root = Path(cli.__file__).parents[2]
    files = [*(root / "flows" / "cli").glob("*.py"), *root.glob("*/*_command.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    given = [node for call in calls if call.func.attr == "print_result" for node in ast.walk(call.args[1])]
    here = {node.id.removeprefix("print_") for node in given if isinstance(node, ast.Name) and node.id[:6] == "print_"}
    lookups = [node for node in given if isinstance(node, ast.Call)]
    there = {name.value for call in lookups for name in ast.walk(call) if isinstance(name, ast.Constant)}
    return here | there


def test_what_any_command_prints_has_a_sample_here() -> None:
    assert printed_by_commands() == PRINTERS.keys() == SAMPLES.keys()


LONG = "clustered_selective_averaging_by_accuracy"


def with_long_names(content: Any) -> Any:
    if isinstance(content, dict):
        return {with_long_names(key): with_long_names(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(map(with_long_names, content))
    return content.replace(EVIL, LONG) if isinstance(content, str) else content


@pytest.mark.parametrize("name", sorted(PRINTERS))
def test_nothing_is_cut_at_eighty_columns(name: str) -> None:
    """Each letter of what is printed without an end of lines is there, and no line is longer but one to be copied."""
    shown = []
    for width in (10_000, 80):
        out = io.StringIO()
        PRINTERS[name](with_long_names(SAMPLES[name][0]), PlainConsole(file=out, width=width))
        shown.append(out.getvalue())
    assert sorted("".join(shown[1].split())) == sorted("".join(shown[0].split()))
    lines = [re.sub("`[^`]*`", "`…`", line) for line in shown[1].splitlines()]
    assert max(len(line) for line in lines if not line.startswith(("next  ", "apply it  "))) <= 80


def test_a_command_in_backticks_is_on_one_line_that_can_be_pasted() -> None:
    command = "siloflow compare local_only fedavg conditional --set tracking.personal_models=true --seeds 0,1,2"
    out = io.StringIO()
    console = PlainConsole(file=out, width=40)
    console.print(
        f"  Training alone is better than one model: `{command}` trains it again, and `siloflow promote` takes it."
    )
    console.print("no command in a line that is longer than forty columns is printed as rich does")
    lines = out.getvalue().splitlines()
    assert lines[:3] == ["  Training alone is better than one", "  model:", f"  `{command}`"]
    assert "  `siloflow promote` takes it." in lines
    assert max(map(len, lines[3:])) <= 40


def test_what_init_guesses_is_indented_and_keeps_its_options_on_one_line() -> None:
    out = io.StringIO()
    text = "label grade (by its name; if it is another, add `--label COLUMN --force`), client school (by its name)"
    PlainConsole(file=out, width=80).print_labelled("guessed", text, 9)
    assert out.getvalue() == (
        "guessed  label grade (by its name; if it is another, add\n"
        "         `--label COLUMN --force`), client school (by its name)\n"
    )


LINES = ("next ", "anyway ", "apply it ")  # printed whole, whatever the width
PLACES = ("flows", "tasks", "silos", "models", "publications")


def sentences(file: Path) -> Iterator[str]:
    """The strings of a module but its docstrings, with … where a value is filled in."""
    tree = ast.parse(file.read_text("utf-8"))
    others = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    others |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in others:
            yield node.value


def test_a_command_in_a_sentence_is_in_backticks_so_that_no_screen_breaks_it() -> None:
    """A string that begins with a command is put in backticks, or printed whole, where it is printed."""
    root, names = Path(cli.__file__).parents[2], "|".join(get_group(cli.app).commands)
    command = re.compile(rf"(?!siloflow |--set )\S.*?(siloflow ({names})\b|--set[ =.]|git (add|commit) -)", re.DOTALL)
    files = [file for place in PLACES for file in (root / place).rglob("*.py")]
    bare = [(file.name, re.sub("`[^`]*(`|$)", "", text)) for file in files for text in sentences(file)]
    assert [at for at in bare if not at[1].startswith(LINES) and command.match(at[1])] == []


def test_the_baseline_is_the_last_row_and_what_it_has_not_is_left_empty() -> None:
    out = io.StringIO()
    baseline = {
        "name": 'always "no"',
        "kind": "commonest class",
        "metrics": {"accuracy/mean": 0.8, "accuracy/worst": 0.7},
    }
    sample = {**SAMPLES["compare"][0], "failed": [], "baseline": {**baseline, "sentence": "No method is better."}}
    PRINTERS["compare"](sample, PlainConsole(file=out, width=120))
    lines = [line.split() for line in out.getvalue().splitlines()]
    last = lines.index(["always", '"no"', "constant", "0.800", "0.700", "-", "-"])
    sentences = [line for line in lines[last:] if len(line) > 3][1:]
    assert sentences[0] == ["No", "method", "is", "better."]
    assert "complete" not in out.getvalue()
    out.truncate(0)
    PRINTERS["run"]({**SAMPLES["run"][0], "baseline": baseline}, PlainConsole(file=out, width=120))
    assert 'always "no", the commonest class: accuracy 0.800, worst client 0.700\n' in out.getvalue()


def test_results_of_earlier_versions_are_printed_without_a_baseline() -> None:
    for name in ("run", "compare"):
        sample = {key: value for key, value in SAMPLES[name][0].items() if key != "baseline"}
        out = io.StringIO()
        PRINTERS[name](sample, PlainConsole(file=out, width=120))
        assert "constant" not in out.getvalue()


def test_a_long_name_is_folded_before_a_number_is() -> None:
    sample = with_long_names(SAMPLES["compare"][0])
    sample["table"] = [{**sample["table"][0], "seeds": 2, "method": LONG}]
    sample["table"][0] |= {key: 0.9 for name in QUANTITY.columns for key in (name, f"{name}/sd")}
    out = io.StringIO()
    PRINTERS["compare"](sample, PlainConsole(file=out, width=80))
    assert out.getvalue().count("0.900") == 2 * len(QUANTITY.columns)


def test_a_refusal_says_its_reason_once_and_what_to_type_next() -> None:
    sentence = "local_only − fedavg +9.0 points, +1.0 to +17.0: local_only is better"
    compared = {"experiment": "first", "open_faults": [], "sentences": [sentence, "a third"], "omitted": 0}
    way_out = "siloflow compare local_only --set tracking.personal_models=true, then siloflow promote"
    decision = DECISION | {"reason": f"first found: {sentence}", "comparison": compared, "next": way_out, "run": "r"}
    stream, console = terminal("utf-8")
    PRINTERS["decision"](decision, console)
    said = stream.getvalue().decode()
    assert said.count("local_only is better") == 1
    assert "comparison    first: a third\n" in said
    assert f"next          {way_out}\nanyway        siloflow promote 3 --force\n" in said


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", SHOWN), ("ascii", ASCII)])
@pytest.mark.parametrize("name", sorted(PRINTERS))
def test_every_name_that_is_printed_is_text_on_any_terminal(name: str, encoding: str, shown: str) -> None:
    found, count = SAMPLES[name]
    stream, console = terminal(encoding)
    PRINTERS[name](found, console)
    said = stream.getvalue().decode(encoding)
    assert said.count(shown) == count
    rest = said.replace(shown, "")
    assert "\\" not in rest  # nor is a line of our own escaped
    assert {c for c in rest if not c.isprintable()} <= {"\n"}


def test_the_bar_of_a_run_and_what_is_said_beside_it_are_text() -> None:
    stream, console = terminal("ascii", force_terminal=True, no_color=True, legacy_windows=False)
    screen = Terminal(console)
    screen.begin(EVIL, 1, 5)
    screen.round(EVIL, 2, EVIL)
    screen.end(EVIL, None, 1.0)
    screen.fail(EVIL, EVIL)
    (bar,) = screen._bar.tasks
    assert isinstance(bar, Task)
    console.print(screen._bar)
    assert stream.getvalue().decode("ascii").count(ASCII) == 1 + 1 + 2 + 1
    assert shortened(ASCII, 26).replace("…", "...") in stream.getvalue().decode("ascii")


def test_an_error_shows_its_names_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    evil = EVIL.replace("\n", "")  # a message may have several lines
    with pytest.raises(SystemExit) as end, Session(json=False, timings=False):
        raise UserError(f"there is no client {evil}.\nparams.yaml: {evil}")
    shown = SHOWN.replace("\\n", "")
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: there is no client {shown}.\nerror: params.yaml: {shown}\n"


def test_a_schedule_says_names_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(stream, encoding="ascii", write_through=True))
    say(f"compare: {EVIL}" + " done" * 50)
    assert stream.getvalue().decode() == f"compare: {ASCII}" + " done" * 50 + "\n"


@pytest.mark.parametrize("width", [120, 80, 40])
def test_findings_limits_and_steps_stand_under_titles_of_their_own(width):
    found = SAMPLES["diagnose"][0] | {"sentences": ["Cologne differs " * 9], "notes": [], "next": ["Check the unit."]}
    out = io.StringIO()
    PRINTERS["diagnose"](found, PlainConsole(file=out, width=width))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert [line for line in lines if line in ("What differs", "Limits", "What to do")] == [
        "What differs",
        "What to do",
    ]
    assert max(map(len, lines[: lines.index("")])) <= width
    assert "  Check the unit." in lines


def test_a_run_s_numbers_stand_on_lines_of_their_own():
    sample = {**SAMPLES["run"][0], "metrics": {"accuracy/mean": 0.5}}
    out = io.StringIO()
    PRINTERS["run"](sample, PlainConsole(file=out, width=200))
    assert "\\nloss" not in out.getvalue()
    assert [line.split()[0] for line in out.getvalue().splitlines()[1:3]] == ["test", "loss"]


def test_a_comparison_of_one_method_promises_no_intervals():
    for paired, promised in ((SAMPLES["compare"][0]["paired"], True), ([], False)):
        out = io.StringIO()
        PRINTERS["compare"]({**SAMPLES["compare"][0], "paired": paired}, PlainConsole(file=out, width=200))
        assert ("95 % intervals" in out.getvalue()) is promised


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (
            "ab",
            "data.dvc records a version that is not committed. "
            "Commit it: `git add data.dvc && git commit -m 'Update data'`\n",
        ),
        (None, "no data.dvc yet. Run `siloflow partition` to make data and record their version.\n"),
    ],
)
def test_where_git_knows_no_version_only_the_way_to_one_is_printed(now, said):
    written = io.StringIO()
    PRINTERS["data_log"]({"now": now, "versions": []}, PlainConsole(file=written, width=200))
    assert written.getvalue() == said


def test_a_partition_counts_rows_that_are_nobodys_beside_the_clients():
    """They are not among the rows of any client, which may have none of that split."""
    made = {"folder": "data/d", "clients": 3, "rows": {"train": 9, "validation": 0, "test": 0}, "notes": []}
    made |= {
        "common": {"validation": 270, "test": 384},
        "changed": False,
        "data_version": "v",
        "params_yaml": [],
        "uncommitted": False,
    }
    stream, console = terminal("utf-8")
    PRINTERS["partition"](made, console)
    said = stream.getvalue().decode()
    assert "0 validation and 0 test rows; 384 test and 270 validation rows common to all clients" in said


def printed(name: str, content: dict[str, Any]) -> list[str]:
    stream, console = terminal("utf-8")
    PRINTERS[name](content, console)
    return stream.getvalue().decode().splitlines()


def test_only_what_belongs_to_a_heading_is_indented_in_a_comparison():
    scored = {"about": "evaluation", "sentence": "scored on 4 of 9 clients.", "methods": [EVIL]}
    lines = printed("compare", SAMPLES["compare"][0] | {"notes": [scored]})
    tells = [line for line in lines if scored["sentence"] in line or " failed: " in line]
    assert len(tells) == 2
    assert not any(line.startswith(" ") for line in tells)
    headed = [before for before, line in pairwise(lines) if line.startswith("  ") and not before.startswith("  ")]
    assert headed
    assert all(line.endswith(":") for line in headed)


def test_how_many_silos_of_how_many_are_described_is_said_above_them():
    sample = SAMPLES["data_diff"][0]
    lines = printed("data_diff", sample)
    assert lines[0] == "1 of 2 silos that differ:"
    assert lines[-1].endswith(" in total: 1 → 2 silos; 1 added, 0 removed, 1 changed")
    every = printed("data_diff", sample | {"partitions": [sample["partitions"][0] | {"added": 0}]})
    assert every == lines[1:-1]


def test_a_dot_in_place_of_a_share_of_a_label_is_explained_wherever_it_is_printed():
    legend = "· is of no rows, or too few to be reported"
    show, diff = SAMPLES["show"][0], SAMPLES["data_diff"][0]
    withheld = {"label_shares": {EVIL: None, "b": 1.0}}
    shown = [
        ("show", show | {"clients": [show["clients"][0] | withheld]}),
        ("show", show | {"laws": [show["laws"][0] | withheld]}),
        ("data_diff", diff | {"silos": [diff["silos"][0] | {"after": SIDE | withheld}]}),
    ]
    for name, sample in shown:
        lines = " ".join(printed(name, sample))
        assert "·█" in lines
        assert legend in lines
    assert legend not in " ".join(printed("show", show) + printed("data_diff", diff))


def test_a_mean_over_columns_of_several_units_is_not_shown() -> None:
    for mixed in (True, False):
        out = io.StringIO()
        PRINTERS["show"](SAMPLES["show"][0] | {"mixed_units": mixed}, PlainConsole(file=out, width=200))
        assert ("x mean" in out.getvalue()) != mixed
        assert ("feature spread" in out.getvalue()) != mixed
