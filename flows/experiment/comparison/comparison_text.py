"""Describe a comparison in text: its table, its headline, and sentences on clients and on what restricts the differences.

The command, the schedule and MLflow's note print the same text.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flows.console.safe_text import shortened
from flows.experiment.comparison.cost_text import bytes_text, target_text, unreached
from models.metrics.task_metrics import TaskMetrics
from silos.dataset import some

_LETTERS = 14  # of a client's name in a cell


def comparison_table(
    comparison: Mapping[str, Any], quantity: TaskMetrics, seconds: bool = False, cost: bool = True
) -> list[list[str]]:
    """Return titles, then a row for each method, then one for the constant baseline.

    The columns of seconds, and of bytes to a target, can be left out.

    If methods finished with different numbers of seeds, the last column has these numbers. Comparisons of earlier versions
    have no baseline.
    """
    counts, baseline = seeds_finished(comparison), comparison.get("baseline")
    rows = {
        row["method"]: [row["model"], *(_cell(row, name, quantity) for name in quantity.columns)]
        for row in comparison["table"]
    }
    costs = (comparison.get("cost") or {}) if cost else {}
    for method, cells in rows.items():
        cells += [bytes_text(costs[method]["bytes"])] if costs else []
    took = {row["method"]: f"{row['seconds']:.1f}" for row in comparison["table"]}
    nothing = ["-"] * (1 + len(quantity.columns) + bool(costs))
    lines = [[method, *rows.get(method, nothing), took.get(method, "-")] for method in {**rows, **counts}]
    if baseline:
        no_cost = ["-"] * bool(costs)
        lines.append([baseline["name"], "constant", *baseline_scores(baseline, quantity), *no_cost, "-"])
    bytes_title = [f"bytes to {target_text(costs, quantity)}"] if costs else []
    titles, finished = ["method", "model tested", *quantity.columns.values(), *bytes_title, "seconds"], "seeds"
    if comparison.get("partitions"):
        finished = "runs"
    table = [titles, *lines] if seconds else [line[:-1] for line in (titles, *lines)]
    if counts:
        table = [
            [*line, count]
            for line, count in zip(table, [finished, *(counts.get(m, "-") for m, *_ in lines)], strict=True)
        ]
    return table


def _cell(row: Mapping[str, Any], name: str, quantity: TaskMetrics) -> str:
    """Return mean and standard deviation; of the worst client the mean and the client's name, if it is known."""
    worst = row.get("worst_client") if name.endswith("/worst") else None
    if worst is None:
        return mean_and_sd(row, name, quantity)
    return f"{quantity.number(row[name])} {shortened(worst, _LETTERS)}"


def mean_and_sd(row: Mapping[str, Any], name: str, quantity: TaskMetrics) -> str:
    """Return mean ± standard deviation over seeds; the mean alone of one seed."""
    mean = quantity.number(row[name])
    return f"{mean} ± {quantity.number(row[name + '/sd'], 2)}" if row["seeds"] > 1 and mean != "-" else mean


def baseline_scores(baseline: Mapping[str, Any], quantity: TaskMetrics) -> list[str]:
    """Return the baseline's metrics, one for each column of a table."""
    return [quantity.number(baseline["metrics"].get(name)) for name in quantity.columns]


def seeds_finished(comparison: Mapping[str, Any]) -> dict[str, str]:
    """Return `2 of 3` for each method, also for one without any; nothing if every run has finished."""
    if not comparison["failed"]:
        return {}
    runs, failed = runs_of(comparison), comparison["failed"]
    finished, missing = (Counter(run["method"] for run in each) for each in (runs, failed))
    methods = dict.fromkeys(run["method"] for run in (*runs, *failed))
    return {method: f"{finished[method]} of {finished[method] + missing[method]}" for method in methods}


def runs_of(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the finished runs on all partitions, those on data/ first."""
    return [*comparison["runs"], *(run for drawn in comparison.get("partitions", ()) for run in drawn["runs"])]


def not_complete(comparison: Mapping[str, Any]) -> str:
    """Return how many runs of a comparison failed, and which; an empty text if none did."""
    failed = [
        f"{run['method']} seed {run['seed']}" + (f" of partition {run['partition']}" if "partition" in run else "")
        for run in comparison["failed"]
    ]
    if not failed:
        return ""
    return f"not complete: {len(failed)} of {len(failed) + len(runs_of(comparison))} runs failed ({some(failed)})"


def sentences_first(comparison: Mapping[str, Any]) -> list[str]:
    """Return what must be known before any difference: that no method is better than a constant answer, if so.

    Comparisons of earlier versions have no baseline.
    """
    return list(filter(None, [(comparison.get("baseline") or {}).get("sentence")]))


def sentences_after(comparison: Mapping[str, Any]) -> list[str]:
    """Return which clients lose, and what restricts the differences: a winner withheld, or missing runs.

    Comparisons of earlier versions have no gains.
    """
    gains, missing, withheld = comparison.get("gains") or {}, not_complete(comparison), withheld_sentence(comparison)
    retry = [f"The comparison is {missing}; run the same command with --resume to try them again."] if missing else []
    return [
        *gains.get("sentences", ()),
        *filter(None, [gains.get("why_not"), withheld]),
        *unreached(comparison),
        *retry,
    ]


def withheld_sentence(comparison: Mapping[str, Any]) -> str:
    """Return which requirements of --publish are missing, so that no winner is named; empty if none is."""
    lacking = comparison.get("not_published_for")
    return f"No winner is named, since --publish needs {', '.join(lacking)}." if lacking else ""


def interval_heading(comparison: Mapping[str, Any]) -> str:
    """Return `95 % intervals over seeds and rows, corrected for 3 methods (Holm)`: what the sentences' intervals are."""
    over, paired = comparison.get("over") or {"draws": "rows"}, comparison["paired"]
    draws = {"silos": f"{over.get('silos')} silos", "partitions": f"rows and {over.get('partitions')} partitions"}
    drawn = draws.get(over["draws"], "rows")
    if any(len(pair["seeds"]) > 1 for pair in paired):
        drawn = f"seeds{', ' if ' and ' in drawn else ' and '}{drawn}"
    is_corrected = len(paired) > 1 and "corrected" in paired[0]
    return f"95 % intervals over {drawn}" + (f", corrected for {len(paired)} methods (Holm)" if is_corrected else "")


def headline(paired: list[dict[str, Any]]) -> str:
    """Return one line: which methods are better than the reference, worse, or not distinguishable from it."""
    if not paired:
        return "There is nothing to compare."
    if any("withheld" in pair for pair in paired):
        return "No winner is named."
    verdicts: dict[str, list[str]] = {"better": [], "worse": [], "not distinguishable": []}
    for pair in paired:
        real = "better" if pair["better"] == pair["method"] else "worse"
        verdicts[real if pair["better"] else "not distinguishable"].append(pair["method"])
    parts = [f"{', '.join(methods)} {verdict}" for verdict, methods in verdicts.items() if methods]
    return f"Against {paired[0]['reference']}: {'; '.join(parts)}."


def notes_after_training(result: Mapping[str, Any]) -> list[str]:
    """Return notes that only training or evaluation could give. Results of earlier versions have none."""
    return [
        f"{', '.join(note['methods'])}: {note['sentence']}"
        if "methods" in note and note["about"] == "training"
        else note["sentence"]
        for note in result.get("notes", ())
        if note["about"] in ("training", "evaluation")
    ]


def tuned_sentence(tuned: Mapping[str, Any]) -> str:
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
