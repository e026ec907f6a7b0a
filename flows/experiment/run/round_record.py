"""What is written down of a round and of a run: plain JSON."""

import math
import time
from collections.abc import Collection, Mapping
from typing import Any

from flows.methods.context import RoundContext
from flows.methods.round_report import RoundReport
from models.metrics.task_metrics import TaskMetrics
from silos.cohort import Silos
from tasks.messages.score_messages import Scores
from tasks.tracking.metric_names import metric_name_parts
from tasks.tracking.result_tables import by_client, summary


def round_record(
    round: RoundContext, report: RoundReport, scores: list[Scores], silos: Silos, quantity: TaskMetrics
) -> dict[str, Any]:
    """What the journal keeps of a round: metrics with their time, and a row for each client of whom there is something."""
    scored = by_client(scores, quantity)
    told = {*round.dropped, *scored, *(c for values in report.client_metrics.values() for c in values if c in silos)}
    table: dict[str, dict[str, Any]] = {c: {"role": silos.role(c)} for c in sorted(told, key=silos.index)}
    for column, values in report.client_metrics.items():
        for client in table.keys() & values.keys():
            table[client][column] = values[client]
    for client, row in scored.items():
        table[client].update(row)
    metrics = {k: v for k, v in report.metrics.items() if math.isfinite(v)} | metrics_of(scored, silos, quantity)
    metrics |= _agreement(report, silos)
    metrics |= {"bytes/up": round.tally.bytes_up, "bytes/down": round.tally.bytes_down}
    metrics["clients/answered"] = len(round.clients)
    metrics["steps"] = max(round.tally.steps.values(), default=0)
    return {
        "round": round.number,
        "time_ms": int(time.time() * 1000),
        "metrics": metrics,
        "clients": table,
        "dropped": list(round.dropped),
    }


def is_scored(record: Mapping[str, Any]) -> bool:
    """Return whether the model of this round was evaluated on any client."""
    return any(column.startswith(("test/", "validation/")) for row in record["clients"].values() for column in row)


def with_scores(record: dict[str, Any], scores: list[Scores], silos: Silos, quantity: TaskMetrics) -> dict[str, Any]:
    """Return the record of a round that was not scored, with these scores."""
    scored, rows = by_client(scores, quantity), record["clients"]
    clients = sorted({*rows, *scored}, key=silos.index)
    table = {c: {"role": silos.role(c), **rows.get(c, {}), **scored.get(c, {})} for c in clients}
    return {**record, "clients": table, "metrics": {**record["metrics"], **metrics_of(scored, silos, quantity)}}


def _agreement(report: RoundReport, silos: Silos) -> dict[str, float]:
    """How well the groups that a method made are the clients' laws: the adjusted Rand index (Hubert and Arabie 1985).

    1 where they are the same, 0 on average where they have nothing to do with each other; nothing without groups, or laws.
    """
    group = next((report.client_metrics[column] for column in _GROUPS if column in report.client_metrics), {})
    law = {client: silos.domain(client) for client in group}
    if len({*law.values()}) < 2:
        return {}
    from sklearn.metrics import adjusted_rand_score  # here: most runs have no groups, and it takes half a second

    return {"groups/adjusted_rand": float(adjusted_rand_score(list(law.values()), list(group.values())))}


def metrics_of(table: Mapping[str, dict[str, Any]], silos: Silos, quantity: TaskMetrics) -> dict[str, Any]:
    """Test metrics of the federated clients under their own names; `validation/`, `fresh/` and `unseen/` before others."""
    metrics: dict[str, Any] = {}
    for role in ("federated", "fresh", "unseen"):
        rows = {client: row for client, row in table.items() if silos.role(client) == role}
        before = "" if role == "federated" else f"{role}/"
        metrics |= {f"{before}{k}": v for k, v in summary(rows, "test", quantity).items()}
        if role == "federated":
            metrics |= {f"validation/{k}": v for k, v in summary(rows, "validation", quantity).items()}
            shown = (quantity.headline, *(f"{name}/mean" for name in quantity.also))
            for place, clients in _domains(silos, rows).items():
                there = summary({c: rows[c] for c in clients}, "test", quantity)
                metrics |= {f"{place}/{name}": there[name] for name in shown if name in there}
    return metrics


def by_client_of(table: Mapping[str, dict[str, Any]], silos: Silos, quantity: TaskMetrics) -> list[dict[str, Any]]:
    """Every client with its role and what the run is judged by on its test rows, null without such rows."""
    name = quantity.name
    return [{"client": c, "role": silos.role(c), name: table.get(c, {}).get(f"test/{name}")} for c in silos.clients]


def means_of(doubts: dict[str, dict[str, float]], silos: Silos) -> dict[str, float]:
    """`uncertainty/entropy` and so on: means over the federated clients, over each domain's, and over others by role."""
    by_role = {role: [c for c in doubts if silos.role(c) == role] for role in ("federated", "fresh", "unseen")}
    groups = {"": by_role.pop("federated")}
    groups |= {f"{place}/": clients for place, clients in _domains(silos, groups[""]).items()}
    groups |= {f"{role}/": clients for role, clients in by_role.items()}
    names = dict.fromkeys(name for of in doubts.values() for name in of)
    means: dict[str, float] = {}
    for before, clients in groups.items():
        for name in [n for n in names if not before.startswith("domain") or n in _BY_DOMAIN]:
            values = [doubts[c][name] for c in clients if name in doubts.get(c, {})]
            means |= {f"{before}uncertainty/{name}": math.fsum(values) / len(values)} if values else {}
    return means


def totals_of(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Bytes, steps and clients that dropped out, over all rounds."""
    return {
        "bytes": {k: sum(r["metrics"][f"bytes/{k}"] for r in records) for k in ("up", "down")},
        "steps": sum(r["metrics"].get("steps", 0) for r in records),
        "dropped_out": sum(r["dropped"] for r in records),
    }


def seconds_of(records: list[dict[str, Any]]) -> dict[str, float]:
    """Of all rounds, also those before a resume: a round's mean, inside any step of clients, and orchestration, the rest."""
    rounds = [r["seconds"] for r in records]
    spent = sum(s["round"] for s in rounds)
    clients = sum(v for s in rounds for k, v in s.items() if k != "round")
    return {
        "per_round": spent / max(len(rounds), 1),
        "clients": clients,
        "orchestration": spent - clients,
    }


_GROUPS = ("group", "cluster")
"""Columns of a page's own in which a client's group stands."""

_BY_DOMAIN = ("entropy", "ece", "perplexity")
_MOST_DOMAINS = 12  # more in one page cannot be told apart


def _domains(silos: Silos, clients: Collection[str]) -> dict[str, list[str]]:
    """`domain/-50` to those of these federated clients that are of that domain, where there are a few domains."""
    laws = silos.training_domains() if clients else []
    if not 2 <= len(laws) <= _MOST_DOMAINS:
        return {}
    names = metric_name_parts(laws)
    domains: dict[str, list[str]] = {}
    for client in sorted(clients, key=silos.index):
        domains.setdefault(f"domain/{names[silos.domain(client)]}", []).append(client)
    return domains
