"""Builds the journal record of a round and the totals of a run, as plain JSON."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict

from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics, metric_value
from silos.cohort import Silos
from tasks.messages.score_messages import Scores
from tasks.tracking.metric_names import metric_name_parts
from tasks.tracking.result_tables import ClientValues, by_client, summary
from tasks.tracking.result_types.journal_record import ClientRow, RoundRecord, RoundSummary
from tasks.tracking.result_types.run_result import Bytes, ClientScore, Metrics, RoundSeconds


def empty_record(number: int) -> RoundRecord:
    """Return the record of a round before anything is known of it."""
    return {"round": number, "time_ms": 0, "metrics": {}, "clients": {}, "dropped": [], "seconds": {}}


def round_record(
    round: RoundContext, report: RoundReport, scores: list[Scores], silos: Silos, quantity: TaskMetrics
) -> RoundRecord:
    """Return the journal's record of a round: metrics with their time, and a row for each client that has any value.

    The seconds are those in steps of clients; those of the whole round are known when it is saved.
    """
    scored = by_client(scores, quantity)
    listed = {*round.dropped, *scored, *(c for values in report.client_metrics.values() for c in values if c in silos)}
    table: dict[str, ClientRow] = {c: {"role": silos.role(c)} for c in sorted(listed, key=silos.index)}
    for column, values in report.client_metrics.items():
        for client in table.keys() & values.keys():
            table[client][column] = values[client]
    for client, row in scored.items():
        table[client].update(row)
    metrics: Metrics = {k: v for k, v in report.metrics.items() if math.isfinite(v)}
    metrics |= metrics_of(scored, silos, quantity)
    metrics |= _cluster_agreement(report, silos)
    metrics |= {"bytes/up": round.tally.bytes_up, "bytes/down": round.tally.bytes_down}
    metrics["clients/answered"] = len(round.clients)
    metrics["steps"] = max(round.tally.steps.values(), default=0)
    return {
        "round": round.number,
        "time_ms": int(time.time() * 1000),
        "metrics": metrics,
        "clients": table,
        "dropped": list(round.dropped),
        "seconds": dict(round.tally.seconds),
    }


def is_scored(record: RoundRecord) -> bool:
    """Return whether the model of this round was evaluated on any client."""
    return any(column.startswith(("test/", "validation/")) for row in record["clients"].values() for column in row)


def with_scores(record: RoundRecord, scores: list[Scores], silos: Silos, quantity: TaskMetrics) -> RoundRecord:
    """Return the record of a round that was not scored, with these scores added."""
    scored, rows = by_client(scores, quantity), record["clients"]
    clients = sorted({*rows, *scored}, key=silos.index)
    table = {c: {"role": silos.role(c), **rows.get(c, {}), **scored.get(c, {})} for c in clients}
    return {**record, "clients": table, "metrics": {**record["metrics"], **metrics_of(scored, silos, quantity)}}


def _cluster_agreement(report: RoundReport, silos: Silos) -> dict[str, float]:
    """Return the adjusted Rand index (Hubert and Arabie 1985) of a method's clusters and the clients' distributions.

    It is 1 for equal partitions, and 0 on average for independent ones. Empty if the method reports no clusters, or if
    fewer than two distributions are known.
    """
    cluster_of = next((report.client_metrics[column] for column in _GROUPS if column in report.client_metrics), {})
    domains = [silos.domain(client) for client in cluster_of]
    if len({*domains}) < 2:
        return {}
    from sklearn.metrics import adjusted_rand_score  # here: most runs have no groups, and it takes half a second

    return {"groups/adjusted_rand": float(adjusted_rand_score(domains, list(cluster_of.values())))}


def metrics_of(
    table: Mapping[str, ClientValues], silos: Silos, quantity: TaskMetrics, others: Sequence[TaskMetrics] = ()
) -> dict[str, float]:
    """Return test metrics by name: those of federated clients without a prefix, others under `fresh/` or `unseen/`.

    Metrics of the federated clients on validation rows are under `validation/`, those of one domain under `domain/…/`.
    Metrics among `others` are those of test rows only.
    """
    metrics: dict[str, float] = {}
    on_test = quantity.with_metrics((), others)
    for role in ("federated", "fresh", "unseen"):
        rows = {client: row for client, row in table.items() if silos.role(client) == role}
        prefix = "" if role == "federated" else f"{role}/"
        metrics |= {f"{prefix}{k}": v for k, v in summary(rows, "test", on_test).items()}
        if role == "federated":
            metrics |= {f"validation/{k}": v for k, v in summary(rows, "validation", quantity).items()}
            headlines = dict.fromkeys((quantity.headline, TASK_METRICS[quantity.task].headline))
            names = (*headlines, *(f"{name}/mean" for name in quantity.also))
            for domain, clients in _domains(silos, rows).items():
                domain_metrics = summary({c: rows[c] for c in clients}, "test", quantity)
                metrics |= {f"{domain}/{name}": domain_metrics[name] for name in names if name in domain_metrics}
    return metrics


def metric_by_client(table: Mapping[str, ClientValues], silos: Silos, quantity: TaskMetrics) -> list[ClientScore]:
    """List every client with its role and headline metric on test rows; null without test rows."""
    name = quantity.name
    return [{"client": c, "role": silos.role(c), name: table.get(c, {}).get(f"test/{name}")} for c in silos.clients]


def mean_uncertainty(uncertainty: dict[str, dict[str, float]], silos: Silos) -> dict[str, float]:
    """Return means such as `uncertainty/entropy` over federated clients, over each domain, and over each other role."""
    by_role = {role: [c for c in uncertainty if silos.role(c) == role] for role in ("federated", "fresh", "unseen")}
    groups = {"": by_role.pop("federated")}
    groups |= {f"{domain}/": clients for domain, clients in _domains(silos, groups[""]).items()}
    groups |= {f"{role}/": clients for role, clients in by_role.items()}
    names = dict.fromkeys(name for values_of in uncertainty.values() for name in values_of)
    means: dict[str, float] = {}
    for prefix, clients in groups.items():
        for name in [n for n in names if not prefix.startswith("domain") or n in _BY_DOMAIN]:
            values = [uncertainty[c][name] for c in clients if name in uncertainty.get(c, {})]
            means |= {f"{prefix}uncertainty/{name}": math.fsum(values) / len(values)} if values else {}
    return means


class RunTotals(TypedDict):
    """Totals of a run over all rounds, as its result has them."""

    bytes: Bytes
    steps: int
    dropped_out: int


def run_totals(records: Sequence[RoundSummary]) -> RunTotals:
    """Return bytes, steps and the number of dropped-out clients, over all rounds."""
    return {
        "bytes": {"up": _total(records, "bytes/up"), "down": _total(records, "bytes/down")},
        "steps": _total(records, "steps"),
        "dropped_out": sum(r["dropped"] for r in records),
    }


def _total(records: Sequence[RoundSummary], count: str) -> int:
    return sum(int(metric_value(r["metrics"], count) or 0) for r in records)


def time_breakdown(records: Sequence[RoundSummary]) -> RoundSeconds:
    """Return seconds over all rounds, also those before a resume.

    `per_round` is the mean of a round, `clients` the time in steps of clients, and `orchestration` the rest.
    """
    rounds = [r["seconds"] for r in records]
    spent = sum(s["round"] for s in rounds)
    clients = sum(v for s in rounds for k, v in s.items() if k != "round")
    return {
        "per_round": spent / max(len(rounds), 1),
        "clients": clients,
        "orchestration": spent - clients,
    }


_GROUPS = ("group", "cluster")
"""Columns of a method's own client metrics that hold a client's cluster."""

_BY_DOMAIN = ("entropy", "ece", "perplexity")
_MAX_DOMAINS = 12  # a chart with more is illegible


def _domains(silos: Silos, clients: Collection[str]) -> dict[str, list[str]]:
    """Map `domain/-50` to these clients of that domain; empty unless there are 2 to `_MAX_DOMAINS` domains."""
    laws = silos.training_domains() if clients else []
    if not 2 <= len(laws) <= _MAX_DOMAINS:
        return {}
    names = metric_name_parts(laws)
    domains: dict[str, list[str]] = {}
    for client in sorted(clients, key=silos.index):
        domains.setdefault(f"domain/{names[silos.domain(client)]}", []).append(client)
    return domains
