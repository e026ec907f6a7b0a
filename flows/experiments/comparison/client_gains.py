"""Describe each client in a comparison: its metric under every method, its gain over training alone, and its classes.

A client's gain is the paired difference of a method from `local_only`, on the client's test rows and the seeds of both.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flows.project.project import Project
from flows.project.project_workers import project_workers
from flows.training.paired_runs import (
    client_strata,
    compare_pairs,
    means_by_client,
    outcomes_of_run,
    predictions_by_class,
    scales_of_clients,
)
from models.metrics.paired_difference import Difference, Stratum, difference, holm, holm_intervals
from models.metrics.task_metrics import TaskMetrics, metric_value
from silos.cohort import Silos
from silos.errors import some
from silos.privacy.owner_file import least_rows_of
from tasks.execution.prefect_runner import PrefectRunner
from tasks.messages.message_policy import LEAST_ROWS
from tasks.tracking.result_tables import client_scores
from tasks.tracking.result_types.comparison_result import (
    ClassRecords,
    ClientDifference,
    ClientSpread,
    ComparedClient,
    GainOfWorst,
    Gains,
    MeanGain,
    MethodGains,
)
from tasks.tracking.result_types.run_result import RunResult

ALONE = "local_only"
"""The method in which each client trains alone."""
LEVEL = 0.05  # of the family of all clients of a method
_TESTED_ROWS = 10  # of a client, by some metrics of each class; fewer show too little spread for a p-value
_NAMES = 3  # in a sentence
_MOST_CLASSES = 100  # counts grow with the square
_RARE = 0.2  # of the test rows
_TIE = 1e-12  # rounding errors of a bounded difference

Runs = Mapping[tuple[str, int], RunResult]
"""The result of each finished run, by method and seed."""


def client_records(silos: Silos, runs: Runs, quantity: TaskMetrics) -> list[ComparedClient]:
    """List every scored client with its role, training rows, test rows, domain, and metric by method.

    A metric is the mean over seeds; None without a finite one.
    """
    train, test, common = silos.rows("train"), silos.rows("test"), silos.common("test")
    methods = list(dict.fromkeys(method for method, _ in runs))
    metrics = {m: _mean_metrics((run for (method, _), run in runs.items() if method == m), quantity) for m in methods}
    return [
        {
            "client": client,
            "role": silos.role(client),
            "rows": train[client],
            "test_rows": common or test[client],
            "domain": silos.domain(client),
            "metrics": {method: metrics[method].get(client) for method in methods},
        }
        for client in silos.clients
    ]


def worst_client(clients: Sequence[ComparedClient], method: str, quantity: TaskMetrics) -> str | None:
    """Return the federated client with the worst mean over seeds; None if no client has a finite one."""
    means = {c["client"]: c["metrics"].get(method) for c in clients if c["role"] == "federated"}
    gains = {client: quantity.gain(mean) for client, mean in means.items() if mean is not None}
    return min(gains, key=lambda client: gains[client], default=None)


def gains_over_training_alone(
    project: Project, methods: Sequence[str], reference: str, seeds: Sequence[int], runs: Runs
) -> Gains:
    """Return the gains of each method over training alone.

    Args:
        project: The project; its scored federated clients are compared.
        methods: The methods of the comparison.
        reference: The method that the others are compared with. `sentences` are about it and the best method.
        seeds: The seeds of the comparison; each method is compared on those that it and `local_only` finished.
        runs: The finished runs.

    Returns:
        `methods` maps a method to its gains (see `gains_of_methods`). `why_not` says why there are none.
    """
    gains: Gains = {"against": ALONE, "level": LEVEL, "methods": {}, "sentences": []}
    if ALONE not in methods:
        return {**gains, "why_not": f"Training alone was not compared: add {ALONE} to see which clients gain."}
    silos, quantity, measured = project.scored.federated(), project.quantity, dict[str, Measured]()
    for method in methods:
        paired = [seed for seed in seeds if (method, seed) in runs and (ALONE, seed) in runs]
        if method == ALONE or not paired:
            continue
        first, second = (
            [outcomes_of_run(project, project.root / runs[m, s]["folder"]) for s in paired] for m in (method, ALONE)
        )
        with project_workers(project) as workers:
            runner = PrefectRunner(workers, f"clients of {method} against {ALONE}", waits=True)
            own = scales_of_clients(quantity, means_by_client(runner, silos, first, second, quantity))
            strata = client_strata(runner, silos, first, second, quantity, scales=own)
            # a client with few rows of a class has a gain in such a metric, but too little spread for a p-value
            testable = (
                client_strata(runner, silos, first, second, quantity, least_of_class=_TESTED_ROWS)
                if quantity.by_class
                else strata
            )
            # strata of clients give the overall difference only if each row is one client's and the metric is a mean
            pools = bool(silos.common("test")) or not quantity.is_mean
            overall = compare_pairs(runner, silos, first, second, quantity) if pools else None
        if not strata:
            return {**gains, "why_not": "The data have no test rows, so no client has a gain over training alone."}
        metrics = [_mean_metrics((runs[m, s] for s in paired), quantity) for m in (ALONE, method)]
        measured[method] = Measured(strata, (metrics[0], metrics[1]), testable, overall)
    gains["methods"] = gains_of_methods(measured, quantity)
    gains["sentences"] = [*gain_sentences(gains["methods"], reference), *left_out_sentences(gains["methods"])]
    return gains


def gain_sentences(methods: Mapping[str, MethodGains], reference: str) -> list[str]:
    """Return the sentences on the gains of the reference, and of the method with the greatest mean gain."""
    scores = {m: -math.inf if record["mean"] is None else record["mean"] for m, record in methods.items()}
    shown = [*(m for m in (reference,) if m in scores), *sorted(scores, key=lambda m: -scores[m])[:1]]
    return [methods[method]["sentence"] for method in dict.fromkeys(shown)]


def gains_in_data_alone(gains: Gains) -> Gains:
    """Return the gains of a comparison over several partitions, which are those of data/, the first: `of` says so."""

    def here(sentence: str) -> str:
        return f"In data/ alone, {sentence}"

    methods: dict[str, MethodGains] = {
        m: {**record, "sentence": here(record["sentence"])} for m, record in gains["methods"].items()
    }
    return {**gains, "of": "data/ alone", "methods": methods, "sentences": [*map(here, gains["sentences"])]}


class Measured(NamedTuple):
    """What was measured of a method against training alone.

    Attributes:
        strata: The sums of each client's differences, the method minus training alone.
        metrics: Each client's metric when it trains alone, and under the method.
        testable: The clients with enough rows of each class for a p-value; all if None.
        overall: The difference over all clients; computed from `strata` if None, which holds for clients' own rows
            and a metric whose headline is their mean.
    """

    strata: Mapping[str, Stratum]
    metrics: tuple[Mapping[str, float], Mapping[str, float]]
    testable: Collection[str] | None = None
    overall: Difference | None = None


def gains_of_methods(measured: Mapping[str, Measured], quantity: TaskMetrics) -> dict[str, MethodGains]:
    """Return each method's gains over training alone; positive is better, whatever the metric.

    Args:
        measured: What was measured, by method.
        quantity: The metric.

    Returns:
        The gains by method. The interval of the mean gain is corrected by Holm's step-down over all methods.
        `certain_better` and `certain_worse` name clients with Holm's p-value of at most 0.05 over all clients.
        `untested` names clients with fewer than ten test rows, or by AUC and balanced accuracy of a class.
        `clients` has each client's difference, in the sign of the outcome.
    """
    bound, alike = quantity.bound, quantity.alike
    plain = [
        m.overall or difference(list(m.strata.values()), bound=bound, pooled_variance=alike) for m in measured.values()
    ]
    corrected = holm_intervals(plain)
    return {
        method: _gains_of_method(method, of_method, overall, quantity)
        for (method, of_method), overall in zip(measured.items(), corrected, strict=True)
    }


def _gains_of_method(method: str, found: Measured, overall: Difference, quantity: TaskMetrics) -> MethodGains:
    strata, metrics, testable, _ = found
    measured = {
        client: difference([stratum], bound=quantity.bound, pooled_variance=quantity.alike)
        for client, stratum in strata.items()
    }
    enough = {c for c in (strata if testable is None else testable) if strata[c].rows >= _TESTED_ROWS}
    tested = [c for c, d in measured.items() if c in enough and math.isfinite(d.p)]
    corrected = dict(zip(tested, holm([measured[c].p for c in tested]), strict=True))
    sides = {client: _side(quantity.gain(d.mean), quantity) for client, d in measured.items()}
    certain = {client: sides[client] for client in tested if corrected[client] <= LEVEL}
    worse, compared = sum(side < 0 for side in sides.values()), sum(math.isfinite(d.mean) for d in measured.values())
    certain_worse = [client for client, side in certain.items() if side < 0]
    untested = [c for c, d in measured.items() if c not in corrected and math.isfinite(d.mean)]
    mean = _interval(overall, quantity)
    return {
        **mean,
        "better": sum(side > 0 for side in sides.values()),
        "worse": worse,
        "compared": compared,
        "certain_better": [client for client, side in certain.items() if side > 0],
        "certain_worse": certain_worse,
        "left_out": [c for c in metrics[1] if c in metrics[0] and c not in measured],
        "untested": untested,
        **_spread(*metrics, quantity),
        "clients": {c: _client_record(d, corrected.get(c)) for c, d in measured.items()},
        "sentence": gain_sentence(
            method, mean, losers_text(worse, certain_worse, compared, "client", len(untested)), quantity
        ),
    }


def gain_sentence(method: str, gain: MeanGain, losers: str, quantity: TaskMetrics) -> str:
    """Return `fedavg gains 2.1 points on average over training alone; 3 of 9 clients lose, c04 certainly`."""
    if gain["mean"] is None:
        return f"{method} has no mean gain over training alone, since predictions of one of them are not finite."
    return f"{method} {_average(gain['mean'], gain['distinguishable'], quantity)}; {losers}."


def losers_text(losers: int, certain: Sequence[str], compared: int, noun: str, untested: int) -> str:
    """Return `3 of 9 clients lose, c04 certainly`, with a noun for clients and how many had too few rows for a test."""
    names = f"{some(certain, _NAMES)} certainly" if certain else "none certainly"
    count = f"{losers} of {compared} {noun}s lose{'s' if losers == 1 else ''}"
    if untested:
        names += f" ({untested} of {compared} {'has' if untested == 1 else 'have'} too few test rows to tell)"
    return f"{count}, {names}" if losers else f"none of {compared} {noun}s loses"


def left_out_sentences(methods: Mapping[str, MethodGains]) -> list[str]:
    """Return the sentence on clients that have a metric under a method and no difference; none without such clients."""
    clients = list(dict.fromkeys(client for record in methods.values() for client in record["left_out"]))
    if not clients:
        return []
    whose = (
        "has no difference, since one class has a single row among its"
        if len(clients) == 1
        else "have no difference, since one class has a single row among their"
    )
    return [f"{some(clients, _NAMES)} {whose} test rows."]


def class_records(project: Project, runs: Runs) -> ClassRecords | None:
    """Return the recall of each class by method, and what rare classes are taken for.

    Counts are sums over the federated clients, and means over seeds. None for a regression, for more than 100 classes,
    and if no client may report its classes. `rows` has the test rows of each class. A class with fewer than ten test
    rows has no recall. `confusion` has, of rare classes, the shares of rows that are predicted as another class; shares
    of fewer than ten rows are left out, or of fewer than the largest least rows of the clients' policies.
    """
    silos, classes = project.scored.federated(), project.silos.manifest.classes
    methods = list(dict.fromkeys(method for method, _ in runs))
    if project.silos.manifest.task != "classification" or len(classes) > _MOST_CLASSES or not methods:
        return None
    outcomes = [
        [outcomes_of_run(project, project.root / run["folder"]) for (name, _), run in runs.items() if name == method]
        for method in methods
    ]
    with project_workers(project) as workers:
        counts = predictions_by_class(PrefectRunner(workers, "all methods", waits=True), silos, outcomes)
    copies = len(silos.clients) if silos.common("test") else 1  # common rows count once for every client
    means = {m: c / len(of) / copies for m, c, of in zip(methods, counts, outcomes, strict=True) if c.any()}
    _, least = least_rows_of(Path(project.ledgers.folder), silos.clients)
    return describe_classes(classes, means, least) if means else None


def describe_classes(classes: Sequence[str], counts: Mapping[str, np.ndarray], least: int) -> ClassRecords:
    """Return what `class_records` describes.

    Args:
        classes: The names of the classes.
        counts: By method, the rows of class and predicted class, (classes, classes + 1).
        least: The fewest rows of a share in `confusion`.
    """
    rows = next(iter(counts.values())).sum(1)
    shown = [code for code in range(len(classes)) if rows[code] >= LEAST_ROWS]
    rare = [code for code in shown if rows[code] < _RARE * rows.sum()]

    def confused(of_class: np.ndarray, code: int) -> dict[str, float]:
        others = [o for o in np.argsort(-of_class[:-1], kind="stable").tolist() if o != code]
        return {classes[o]: float(of_class[o] / rows[code]) for o in others if of_class[o] >= least}

    return {
        "rows": {classes[c]: round(rows[c]) for c in shown},
        "recall": {m: {classes[c]: float(of[c, c] / rows[c]) for c in shown} for m, of in counts.items()},
        "rare": {classes[c]: float(rows[c] / rows.sum()) for c in rare},
        "confusion": {m: {classes[c]: confused(of[c], c) for c in rare} for m, of in counts.items()},
    }


def _average(mean: float, distinguishable: bool, quantity: TaskMetrics) -> str:
    """Return the mean gain in words; an error that falls has its sign, since "gains" would suggest that it rises."""
    text = quantity.difference(*[quantity.gain(mean)] * 3).partition(",")[0]
    verb, than = ("gains", "over") if mean > 0 else ("loses", "against")
    doubt = "" if distinguishable else ", not distinguishable from none"
    if not _side(mean, quantity):
        return "neither gains nor loses on average against training alone"
    if quantity.higher_is_better:
        return f"{verb} {text.lstrip('+−')} on average {than} training alone{doubt}"
    return f"{verb} on average {than} training alone ({text}){doubt}"


def _side(gain: float, quantity: TaskMetrics) -> int:
    """Return 1 for a gain, -1 for a loss, 0 for neither or a value that is not finite."""
    tie = _TIE if math.isfinite(quantity.bound) else 0.0
    return int(gain > tie) - int(gain < -tie)


def _interval(overall: Difference, quantity: TaskMetrics) -> MeanGain:
    if not math.isfinite(overall.mean):
        return {"mean": None, "low": None, "high": None, "distinguishable": False}
    low, high = sorted(quantity.gain(bound) for bound in (overall.low, overall.high))
    return {
        "mean": quantity.gain(overall.mean),
        "low": low,
        "high": high,
        "distinguishable": overall.distinguishable,
    }


def _client_record(measured: Difference, corrected: float | None) -> ClientDifference:
    """Return a client's difference; the interval and p-values are None for a client with few rows."""
    mean = measured.mean if math.isfinite(measured.mean) else None
    if corrected is None:
        return {"difference": mean, "low": None, "high": None, "p": None, "p_holm": None}
    return {"difference": mean, "low": measured.low, "high": measured.high, "p": measured.p, "p_holm": corrected}


def _spread(alone: Mapping[str, float], method: Mapping[str, float], quantity: TaskMetrics) -> GainOfWorst:
    """Return how the worst tenth and the worst client move, and the deviation over clients, of clients in both."""
    clients = [client for client in alone if client in method]
    if not clients:
        return {"worst_tenth": None, "worst_client": None, "spread": {}}
    before, after = (_spread_over(clients, values, quantity) for values in (alone, method))
    return {
        "worst_tenth": quantity.gain(after["worst_tenth"] - before["worst_tenth"]),
        "worst_client": after["worst_client"],
        "spread": {"alone": before, "method": after},
    }


def _spread_over(clients: Sequence[str], values: Mapping[str, float], quantity: TaskMetrics) -> ClientSpread:
    ordered = sorted(clients, key=lambda c: quantity.gain(values[c]))
    return {
        "worst_tenth": statistics.fmean(values[c] for c in ordered[: math.ceil(len(clients) / 10)]),
        "worst_client": ordered[0],
        "worst": values[ordered[0]],
        "sd": statistics.stdev(values[c] for c in clients) if len(clients) > 1 else 0.0,
    }


def _mean_metrics(runs: Iterable[RunResult], quantity: TaskMetrics) -> dict[str, float]:
    """Return each client's mean metric over these runs; a client without a finite one is left out."""
    values: dict[str, list[float]] = {}
    for run in runs:
        for row in client_scores(run, quantity.name):
            value = metric_value(row, quantity.name)
            if value is not None and math.isfinite(value):
                values.setdefault(str(row["client"]), []).append(value)
    return {client: statistics.fmean(of_client) for client, of_client in values.items()}
