"""Describe the clients of a comparison in tables: each client's metric and gain, and the gains over all clients."""

from collections.abc import Mapping, Sequence
from typing import Any

from models.metrics.task_metrics import TaskMetrics

Clients = Sequence[Mapping[str, Any]]


def clients_of_role(clients: Clients) -> dict[str, list[Mapping[str, Any]]]:
    """Map each role that has clients to its clients, federated clients first."""
    roles = dict.fromkeys(("federated", *(client["role"] for client in clients)))
    by_role = {role: [client for client in clients if client["role"] == role] for role in roles}
    return {role: of_role for role, of_role in by_role.items() if of_role}


def interesting_clients(clients: Clients, gains: Mapping[str, Any], most: int) -> Clients:
    """Return at most `most` clients: those with a certain gain or loss first, then those with the largest gains."""
    if len(clients) <= most:
        return clients

    def interest(client: Mapping[str, Any]) -> tuple[bool, float]:
        records = [r for m in gains["methods"].values() if (r := m["clients"].get(client["client"])) is not None]
        differences = [abs(record["difference"]) for record in records if record["difference"] is not None]
        return any(_is_certain(record, gains) for record in records), max(differences, default=0.0)

    chosen = {client["client"] for client in sorted(clients, key=interest, reverse=True)[:most]}
    return [client for client in clients if client["client"] in chosen]


def clients_table(
    clients: Clients, methods: Sequence[str], gains: Mapping[str, Any], quantity: TaskMetrics
) -> list[list[str]]:
    """Return titles and a row for each client: rows, test rows, and by method its metric and difference."""
    has_domains = any(client["domain"] for client in clients)
    titles = ["client", *(["domain"] if has_domains else []), "rows", "test", *methods]
    rows = [
        [
            client["client"],
            *([client["domain"]] if has_domains else []),
            f"{client['rows']:,}",
            f"{client['test_rows']:,}",
            *(client_cell(client, method, gains, quantity) for method in methods),
        ]
        for client in clients
    ]
    return [titles, *rows]


def client_cell(client: Mapping[str, Any], method: str, gains: Mapping[str, Any], quantity: TaskMetrics) -> str:
    """Return a client's metric and difference under a method: `0.912 +2.1*`."""
    value = quantity.number(client["metrics"].get(method))
    record = gains["methods"].get(method, {}).get("clients", {}).get(client["client"])
    if record is None or record["difference"] is None:
        return value
    return f"{value} {_difference(record['difference'], quantity)[0]}{'*' if _is_certain(record, gains) else ''}"


def legend(gains: Mapping[str, Any], quantity: TaskMetrics) -> str:
    """Return what the second number of a cell is."""
    unit = _difference(0.0, quantity)[1]
    return (
        f"rows: for training; signed: difference to {gains['against']}, {unit}; *: certain, by Holm's correction over "
        f"the clients of a method at {100 * gains['level']:g} %"
    )


def gains_table(methods: Sequence[str], gains: Mapping[str, Any], quantity: TaskMetrics) -> list[list[str]]:
    """Return titles, a row for training alone, and one for each method: who is better, and how the worst clients move."""
    titles = ["method", "better", "worse", "worst tenth", "worst client", "sd over clients"]
    records = {method: gains["methods"][method] for method in methods}
    alone = next((record["spread"]["alone"] for record in records.values() if record["spread"]), None)
    rows = [[gains["against"], "", "", *_spread_cells(alone, quantity)]] if alone else []
    for method, record in records.items():
        counts = [_count(record["better"], record["certain_better"]), _count(record["worse"], record["certain_worse"])]
        rows.append([method, *counts, *_spread_cells(record["spread"].get("method"), quantity)])
    return [titles, *rows]


def recall_table(methods: Sequence[str], classes: Mapping[str, Any], most: int) -> list[list[str]]:
    """Return titles and a row for each class, of at most `most` with the least recall under any method."""
    recall = {method: classes["recall"][method] for method in methods if method in classes["recall"]}
    ordered = sorted(classes["rows"], key=lambda name: min(of_method[name] for of_method in recall.values()))
    chosen = set(ordered[:most])
    rows = [
        [name, f"{count:,}", *(f"{of_method[name]:.3f}" for of_method in recall.values())]
        for name, count in classes["rows"].items()
        if name in chosen
    ]
    return [["recall of class", "test", *recall], *rows]


def confusion_sentences(method: str, classes: Mapping[str, Any], most: int) -> list[str]:
    """Return a sentence for each rare class, of at most `most` with the least recall: what the method takes it for."""
    recall, confusion = classes["recall"].get(method, {}), classes["confusion"].get(method, {})
    sentences = []
    for name in sorted(confusion, key=lambda name: recall[name])[:most]:
        taken = ", ".join(f"{100 * share:.0f} % for {other}" for other, share in list(confusion[name].items())[:3])
        found = f"{method} finds {100 * recall[name]:.0f} % of the rows of {name}"
        found += f" ({100 * classes['rare'][name]:.0f} % of all)"
        sentences.append(f"{found} and takes {taken}." if taken else f"{found}.")
    return sentences


def _spread_cells(spread: Mapping[str, Any] | None, quantity: TaskMetrics) -> list[str]:
    if spread is None:
        return ["-", "-", "-"]
    worst = f"{quantity.number(spread['worst'])} {spread['worst_client']}"
    return [quantity.number(spread["worst_tenth"]), worst, quantity.number(spread["sd"])]


def _count(clients: int, certain: Sequence[str]) -> str:
    return f"{clients}, {len(certain)} certainly" if certain else str(clients)


def _difference(difference: float, quantity: TaskMetrics) -> tuple[str, str]:
    """Return the signed number of a difference and its unit: `+2.1`, `points`."""
    number, _, unit = quantity.difference(difference, difference, difference).partition(",")[0].partition(" ")
    return number, unit.removeprefix("in ")


def _is_certain(record: Mapping[str, Any], gains: Mapping[str, Any]) -> bool:
    corrected = record["p_holm"]
    return corrected is not None and bool(corrected <= gains["level"])
