"""Describe a comparison in text: its table, its headline, its clients, and what its methods cost.

The command, the schedule and MLflow's note print the same text. Sentences also say what restricts the differences.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from flows.core.console.safe_text import shortened
from models.metrics.client_metrics import recorded_metric
from models.metrics.paired_difference import LEAST_SILOS
from models.metrics.task_metrics import TaskMetrics, metric_value
from silos.errors import some
from silos.io.memory_and_disk import size
from tasks.tracking.result_types.comparison_result import (
    ClassRecords,
    ClientDifference,
    ClientSpread,
    ComparedClient,
    ComparisonConclusions,
    ComparisonResult,
    CostToTarget,
    Draws,
    Gains,
    PairedDifference,
    TableRow,
    TunedSettings,
)
from tasks.tracking.result_types.run_result import ConstantBaseline, Note, RunResult

_LETTERS = 14  # of a client's name in a cell

Clients = Sequence[ComparedClient]


def comparison_table(
    comparison: ComparisonResult, quantity: TaskMetrics, seconds: bool = False, cost: bool = True
) -> list[list[str]]:
    """Return titles, then a row for each method, then one for the constant baseline.

    The columns of seconds, and of bytes to a target, can be left out.

    If methods finished with different numbers of seeds, the last column has these numbers. Comparisons of earlier versions
    have no baseline.
    """
    counts, baseline = seeds_finished(comparison), comparison.get("baseline")
    rows = {
        str(row["method"]): [str(row["model"]), *(_cell(row, name, quantity) for name in quantity.columns)]
        for row in comparison["table"]
    }
    costs = (comparison.get("cost") or {}) if cost else {}
    for method, cells in rows.items():
        cells += [bytes_text(costs[method]["bytes"] if method in costs else None)] if costs else []
    took = {str(row["method"]): f"{row['seconds']:.1f}" for row in comparison["table"]}
    nothing = ["-"] * (1 + len(quantity.columns) + bool(costs))
    lines = [[method, *rows.get(method, nothing), took.get(method, "-")] for method in {**rows, **counts}]
    if baseline:
        no_cost = ["-"] * bool(costs)
        lines.append([baseline["name"], "constant", *baseline_scores(baseline, quantity), *no_cost, "-"])
    bytes_title = [f"bytes to {target_text(costs, quantity)}"] if costs else []
    titles, finished = ["method", "model tested", *quantity.columns.values(), *bytes_title, "seconds"], "seeds"
    if comparison.get("partitions"):
        finished = "runs"
    # seconds are the last cell so far, so cutting it leaves them out; counts are appended afterwards
    table = [titles, *lines] if seconds else [line[:-1] for line in (titles, *lines)]
    if counts:
        table = [
            [*line, count]
            for line, count in zip(table, [finished, *(counts.get(m, "-") for m, *_ in lines)], strict=True)
        ]
    return table


def _cell(row: TableRow, name: str, quantity: TaskMetrics) -> str:
    """Return mean and standard deviation; of the worst client the mean and the client's name, if it is known."""
    worst = row.get("worst_client") if name.endswith("/worst") else None
    if worst is None:
        return mean_and_sd(row, name, quantity)
    return f"{quantity.number(metric_value(row, name))} {shortened(str(worst), _LETTERS)}"


def mean_and_sd(row: TableRow, name: str, quantity: TaskMetrics) -> str:
    """Return mean ± standard deviation over seeds; the mean alone of one seed."""
    mean = quantity.number(metric_value(row, name))
    if row["seeds"] == 1 or mean == "-":
        return mean
    return f"{mean} ± {quantity.number(metric_value(row, f'{name}/sd'), 2)}"


def baseline_scores(baseline: ConstantBaseline, quantity: TaskMetrics) -> list[str]:
    """Return the baseline's metrics, one for each column of a table."""
    return [quantity.number(baseline["metrics"].get(name)) for name in quantity.columns]


def seeds_finished(comparison: ComparisonResult) -> dict[str, str]:
    """Return `2 of 3` for each method, also for one without any; nothing if every run has finished."""
    if not comparison["failed"]:
        return {}
    finished = Counter(run["method"] for run in runs_of(comparison))
    missing = Counter(run["method"] for run in comparison["failed"])
    methods = dict.fromkeys((*finished, *missing))
    return {method: f"{finished[method]} of {finished[method] + missing[method]}" for method in methods}


def runs_of(comparison: ComparisonResult) -> list[RunResult]:
    """Return the finished runs on all partitions, those on data/ first."""
    return [*comparison["runs"], *(run for drawn in comparison.get("partitions", ()) for run in drawn["runs"])]


def not_complete(comparison: ComparisonResult) -> str:
    """Return how many runs of a comparison failed, and which; an empty text if none did."""
    failed = [
        f"{run['method']} seed {run['seed']}" + (f" of partition {run['partition']}" if "partition" in run else "")
        for run in comparison["failed"]
    ]
    if not failed:
        return ""
    return f"not complete: {len(failed)} of {len(failed) + len(runs_of(comparison))} runs failed ({some(failed)})"


def sentences_first(comparison: ComparisonConclusions) -> list[str]:
    """Return what must be known before any difference: that no method is better than a constant answer, if so.

    Comparisons of earlier versions have no baseline.
    """
    baseline = comparison.get("baseline")
    return [baseline["sentence"]] if baseline and baseline["sentence"] else []


def sentences_after(comparison: ComparisonResult) -> list[str]:
    """Return which clients lose, and what restricts the differences: a winner withheld, or missing runs.

    Comparisons of earlier versions have no gains.
    """
    gains, missing, withheld = comparison.get("gains"), not_complete(comparison), withheld_sentence(comparison)
    retry = [f"The comparison is {missing}; run the same command with --resume to try them again."] if missing else []
    return [
        *(gains.get("sentences", ()) if gains else ()),
        *filter(None, [gains.get("why_not") if gains else None, withheld]),
        *unreached(comparison),
        *retry,
    ]


def withheld_sentence(comparison: ComparisonResult) -> str:
    """Return which requirements of --publish or of intervals over silos are missing; empty if a winner may be named."""
    lacking = [f"--publish needs {', '.join(each)}" for each in [comparison.get("not_published_for")] if each]
    over = comparison.get("over")
    if over and has_too_few_silos(over):
        lacking.append(f"intervals over silos need {LEAST_SILOS} silos, and {over['silos']} can be scored")
    return f"No winner is named, since {' and '.join(lacking)}." if lacking else ""


def has_too_few_silos(over: Draws) -> bool:
    """Return whether intervals are over silos, and fewer of these define the metric than such an interval needs."""
    return over["draws"] == "silos" and over["silos"] < LEAST_SILOS


def interval_heading(comparison: ComparisonResult) -> str:
    """Return `95 % intervals over seeds and rows, corrected for 3 methods (Holm)`: what the sentences' intervals are."""
    over, paired, drawn = comparison.get("over"), comparison["paired"], "rows"
    if over and over["draws"] == "silos":
        drawn = f"{over['silos']} silos"
    elif over and over["draws"] == "partitions":
        drawn = f"rows and {over['partitions']} partitions"
    if any(len(pair["seeds"]) > 1 for pair in paired):
        drawn = f"seeds{', ' if ' and ' in drawn else ' and '}{drawn}"
    is_corrected = len(paired) > 1 and "corrected" in paired[0]
    return f"95 % intervals over {drawn}" + (f", corrected for {len(paired)} methods (Holm)" if is_corrected else "")


def headline(paired: Sequence[PairedDifference]) -> str:
    """Return one line: which methods are better than the reference, worse, or not distinguishable from it."""
    if not paired:
        return "There is nothing to compare."
    if any("withheld" in pair for pair in paired):
        return "No winner is named."
    small, none = "different for certain, but by less than what matters", "not distinguishable"
    verdicts: dict[str, list[str]] = {"better": [], "worse": [], small: [], none: []}
    for pair in paired:
        real = "better" if pair["better"] == pair["method"] else "worse"
        unreal = small if pair.get("distinguishable") else none
        verdicts[real if pair["better"] else unreal].append(pair["method"])
    parts = [f"{', '.join(methods)} {verdict}" for verdict, methods in verdicts.items() if methods]
    return f"Against {paired[0]['reference']}: {'; '.join(parts)}."


def answer_sentence(comparison: ComparisonResult) -> str | None:
    """Return the answer in one sentence: which methods are better than the reference, and by how much.

    There is none if runs failed, a winner is withheld, or no method is better than a constant answer.
    """
    paired = comparison["paired"]
    if not paired or comparison["failed"] or withheld_sentence(comparison) or sentences_first(comparison):
        return None
    quantity, reference = recorded_metric(comparison), paired[0]["reference"]
    better = {
        pair["method"]: abs(pair["difference"])
        for pair in paired
        if pair["better"] == pair["method"] and pair["difference"] is not None
    }
    over = comparison.get("over")
    where = _DRAWN_FROM[over["draws"] if over else "rows"]
    if all(len(pair["seeds"]) == 1 for pair in paired):
        where += " with this seed"
    if not better:
        small = [pair["matters"] for pair in paired if _is_small_gain(pair, quantity)]
        least = f" by what matters ({quantity.amount(small[0])})" if small else ""
        return f"no method is better than {reference}{least} {where} for certain"
    ranked = sorted(better, key=lambda method: -better[method])
    *others, last = [f"{method} (by {quantity.amount(better[method])})" for method in ranked]
    subject = f"{', '.join(others)} and {last} are" if others else f"{last} is"
    return f"{subject} better than {reference} {where}, for certain"


_DRAWN_FROM = {
    "rows": "on these silos",
    "silos": "on silos like these",
    "partitions": "over partitions like these",
}


def _is_small_gain(pair: PairedDifference, quantity: TaskMetrics) -> bool:
    """Return whether the method is better than the reference for certain, but by less than what matters."""
    if not pair.get("distinguishable") or pair["better"] is not None or pair["difference"] is None:
        return False
    return quantity.gain(pair["difference"]) > 0


def notes_after_training(notes: Iterable[Note]) -> list[str]:
    """Return notes that only training or evaluation could give; those of a comparison name the methods, too."""
    return [
        f"{', '.join(methods)}: {note['sentence']}"
        if note["about"] == "training" and isinstance(methods := note.get("methods"), list)
        else note["sentence"]
        for note in notes
        if note["about"] in ("training", "evaluation")
    ]


def tuned_sentence(tuned: TunedSettings) -> str:
    """Return the settings that a method was tuned to, of how many, and which of them are at an edge of the search space."""
    chosen = ", ".join(short_setting(setting) for setting in tuned["settings"])
    if not chosen:
        return "no setting to tune"
    if tuned["score"] is None:
        return f"{chosen}; the first of {tuned['tried']}, since none gave a finite score"
    edge = ", ".join(short_setting(key) for key in tuned["at_edge"])
    return f"{chosen}; the best of {tuned['tried']}" + (f", at the edge of {edge}" if edge else "")


def short_setting(setting: str) -> str:
    """Return `learning_rate 0.1` for `training.optimiser.learning_rate=0.1`."""
    key, _, value = setting.partition("=")
    return f"{key.rpartition('.')[2]} {value}".strip()


def clients_of_role(clients: Clients) -> dict[str, list[ComparedClient]]:
    """Map each role that has clients to its clients, federated clients first."""
    roles: dict[str, None] = dict.fromkeys(("federated", *(client["role"] for client in clients)))
    by_role = {role: [client for client in clients if client["role"] == role] for role in roles}
    return {role: of_role for role, of_role in by_role.items() if of_role}


def interesting_clients(clients: Clients, gains: Gains, most: int) -> Clients:
    """Return at most `most` clients: those with a certain gain or loss first, then those with the largest gains."""
    if len(clients) <= most:
        return clients

    def interest(client: ComparedClient) -> tuple[bool, float]:
        records = [r for m in gains["methods"].values() if (r := m["clients"].get(client["client"])) is not None]
        differences = [abs(record["difference"]) for record in records if record["difference"] is not None]
        return any(_is_certain(record, gains) for record in records), max(differences, default=0.0)

    chosen = {client["client"] for client in sorted(clients, key=interest, reverse=True)[:most]}
    return [client for client in clients if client["client"] in chosen]


def clients_table(clients: Clients, methods: Sequence[str], gains: Gains, quantity: TaskMetrics) -> list[list[str]]:
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


def client_cell(client: ComparedClient, method: str, gains: Gains, quantity: TaskMetrics) -> str:
    """Return a client's metric and difference under a method: `0.912 +2.1*`."""
    value = quantity.number(client["metrics"].get(method))
    of_method = gains["methods"].get(method)
    record = None if of_method is None else of_method["clients"].get(client["client"])
    if record is None or record["difference"] is None:
        return value
    return f"{value} {_difference(record['difference'], quantity)[0]}{'*' if _is_certain(record, gains) else ''}"


def legend(gains: Gains, quantity: TaskMetrics) -> str:
    """Return what the second number of a cell is."""
    unit = _difference(0.0, quantity)[1]
    return (
        f"rows: for training; signed: difference to {gains['against']}, {unit}; *: certain, by Holm's correction over "
        f"the clients of a method at {100 * gains['level']:g} %"
    )


def gains_table(methods: Sequence[str], gains: Gains, quantity: TaskMetrics) -> list[list[str]]:
    """Return titles, a row for training alone, and one for each method: who is better, and how the worst clients move."""
    titles = ["method", "better", "worse", "worst tenth", "worst client", "sd over clients"]
    records = {method: gains["methods"][method] for method in methods}
    alone = next((alone for record in records.values() if (alone := record["spread"].get("alone"))), None)
    rows = [[gains["against"], "", "", *_spread_cells(alone, quantity)]] if alone else []
    for method, record in records.items():
        counts = [_count(record["better"], record["certain_better"]), _count(record["worse"], record["certain_worse"])]
        rows.append([method, *counts, *_spread_cells(record["spread"].get("method"), quantity)])
    return [titles, *rows]


def recall_table(methods: Sequence[str], classes: ClassRecords, most: int) -> list[list[str]]:
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


def confusion_sentences(method: str, classes: ClassRecords, most: int) -> list[str]:
    """Return a sentence for each rare class, of at most `most` with the least recall: what the method takes it for."""
    recall, confusion = classes["recall"].get(method, {}), classes["confusion"].get(method, {})
    sentences = []
    for name in sorted(confusion, key=lambda name: recall[name])[:most]:
        taken = ", ".join(f"{100 * share:.0f} % for {other}" for other, share in list(confusion[name].items())[:3])
        found = f"{method} finds {100 * recall[name]:.0f} % of the rows of {name}"
        found += f" ({100 * classes['rare'][name]:.0f} % of all)"
        sentences.append(f"{found} and takes {taken}." if taken else f"{found}.")
    return sentences


def _spread_cells(spread: ClientSpread | None, quantity: TaskMetrics) -> list[str]:
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


def _is_certain(record: ClientDifference, gains: Gains) -> bool:
    corrected = record["p_holm"]
    return corrected is not None and corrected <= gains["level"]


def target_text(costs: Mapping[str, CostToTarget], quantity: TaskMetrics) -> str:
    """Return `90 % of best`, or the metric and value of a target that the user set."""
    record = next(iter(costs.values()))
    return f"{record['of_best']:.0%}".replace("%", " % of best") if record["of_best"] else _value(record, quantity)


def _value(record: CostToTarget, quantity: TaskMetrics) -> str:
    return f"{quantity.label} {quantity.number(record['target'])}"


def cost_table(costs: Mapping[str, CostToTarget]) -> list[list[str]]:
    """Return titles, then the rounds, bytes and seconds of each method until it reaches the target."""
    rows = [
        [
            method,
            "-" if cost["rounds"] is None else str(cost["rounds"]),
            bytes_text(cost["bytes"]),
            "-" if cost["seconds"] is None else f"{cost['seconds']:.1f}",
        ]
        for method, cost in costs.items()
    ]
    return [["method", "rounds", "bytes", "seconds"], *rows]


def bytes_text(count: float | None) -> str:
    """Format a mean number of bytes; `-` if there is none."""
    if not count:
        return "-" if count is None else "0 B"
    return size(round(count))


def cost_sentences(costs: Mapping[str, CostToTarget], quantity: TaskMetrics) -> list[str]:
    """Return what the target is, and which methods do not reach it."""
    if not costs:
        return []
    record = next(iter(costs.values()))
    where = "of the way from the constant baseline to the best method's result"
    share = f", {record['of_best']:.0%}".replace("%", f" % {where}") if record["of_best"] else ""
    failed = [method for method, cost in costs.items() if cost["rounds"] is None]
    lines = [f"The target is {_value(record, quantity)}{share}. Costs are of the mean curve over seeds."]
    if len(failed) == len(costs):
        return [*lines, f"No method reached {_value(record, quantity)} within its rounds."]
    return [*lines, *([f"Not reached by {some(failed)}."] if failed else [])]


def unreached(comparison: ComparisonResult) -> list[str]:
    """Return a sentence if no method reached the target. Comparisons of earlier versions have no target."""
    costs = list((comparison.get("cost") or {}).values())
    if not costs or any(cost["rounds"] is not None for cost in costs):
        return []
    return [f"No method reached {_value(costs[0], recorded_metric(comparison))} within its rounds."]
