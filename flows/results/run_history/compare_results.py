"""Compare two finished comparisons: the results of the methods in both, whether they differ, and changed params."""

from collections import defaultdict
from pathlib import Path

from flows.core.config.load_config import param_differences
from flows.project.project import Project
from flows.project.project_workers import plain_runner
from flows.results.run_history.list_runs import load_result
from flows.training.paired_runs import compare_pairs, smallest_that_matters
from flows.training.run_records.run_folder import RunFolder
from models.metrics.client_metrics import metric_record, recorded_metric
from models.metrics.paired_difference import difference_record
from models.metrics.task_metrics import TaskMetrics, metric_value
from silos.client_store import ClientStore
from silos.errors import UserError
from silos.privacy.owned_source import store_of
from tasks.tracking.json_io import RESTORE_ADVICE, read_json
from tasks.tracking.result_types.comparison_result import ComparisonResult, TableRow
from tasks.tracking.result_types.earlier_results import ChangedParam, NotPaired, PairedComparisons, TwoComparisons
from tasks.tracking.result_types.run_files import RunIdentity

Runs = dict[int, Path]
"""The folder of a run by its seed."""


def compare_results(project: Project, first: str, second: str) -> TwoComparisons:
    """Compare two finished comparisons; UserError if one is not finished, or if their tasks differ."""
    sides = [_comparison(project, name) for name in (first, second)]
    names = [side["experiment"] for side in sides]
    if names[0] == names[1]:
        raise UserError(f"results: got {names[0]} twice, expected two comparisons. Name another one.")
    if sides[0]["task"] != sides[1]["task"]:
        raise UserError(
            f"results: got {names[0]}, a {sides[0]['task']}, and {names[1]}, a {sides[1]['task']}, expected one "
            "task. Compare two of the same task."
        )
    metric, other = map(recorded_metric, sides)
    if metric.name != other.name:
        raise UserError(
            f"results: got {names[0]}, by {metric.name}, and {names[1]}, by {other.name}, expected one metric "
            "(evaluation.metric). Compare two of the same metric."
        )
    # before outcomes are read: rows are paired only between equal partitions
    _require_same_partitions(sides)
    rows = [{str(row["method"]): row for row in side["table"]} for side in sides]
    methods = [method for method in rows[0] if method in rows[1]]
    runs = {method: [_runs_by_seed(project, side, method) for side in sides] for method in methods}
    reason, has_partitions = _why_not_paired(project, sides), bool(sides[0].get("partitions"))
    return {
        "first": names[0],
        "second": names[1],
        **metric_record(metric),
        "data_versions": [side["data_version"] for side in sides],
        "table": [{"method": method, "first": rows[0][method], "second": rows[1][method]} for method in methods],
        "paired": [
            _paired_record(project, method, rows[0][method], runs[method], reason, metric, has_partitions)
            for method in methods
        ],
        "only": [[method for method in side if method not in methods] for side in rows],
        "params": _changed_params(runs),
    }


def _comparison(project: Project, name: str) -> ComparisonResult:
    found = load_result(project, name)
    if found[1] != "compare":
        raise UserError(f"results: got {name}, a run, expected a comparison. Name two comparisons.")
    return found[0]


def _require_same_partitions(sides: list[ComparisonResult]) -> None:
    """Raise a UserError if the tables are means over different partitions; versions before partitions name none."""
    seeds = [[partition["data_seed"] for partition in side.get("partitions", ())] for side in sides]
    if seeds[0] == seeds[1]:
        return
    texts = [
        f"{side['experiment']}, on "
        + (f"data/ and data seed{'s' * (len(of) > 1)} {', '.join(map(str, of))}" if of else "data/ alone")
        for side, of in zip(sides, seeds, strict=True)
    ]
    raise UserError(
        f"results: got {' and '.join(texts)}, expected the same partitions (comparison.partitions), since the tables are "
        "means over them. Compare two of the same partitions."
    )


def _runs_by_seed(project: Project, side: ComparisonResult, method: str) -> Runs:
    return {run["seed"]: project.root / run["folder"] for run in side["runs"] if run["method"] == method}


def _why_not_paired(project: Project, sides: list[ComparisonResult]) -> str | None:
    """Return why rows cannot be paired; None if both comparisons have the current version of data/."""
    versions = [side["data_version"] for side in sides]
    folders = [project.root / run["folder"] for side in sides for run in side["runs"]]
    names = {_run_record(folder)["params"]["data"]["name"] for folder in folders}
    if names - {project.params.data.name}:
        return f"they used {' and '.join(sorted(names))}, and params.yaml: data.name is {project.params.data.name}"
    if not project.data.same_rows(*versions):
        return "their data versions differ"
    try:
        current = project.silos.version
    except UserError as error:
        return f"data/ cannot be read: {error}"
    if not project.data.same_rows(current, versions[0]):
        return f"data/ has another version now; `siloflow data use {versions[0][:10]}` restores theirs"
    return None


def _paired_record(
    project: Project,
    method: str,
    row: TableRow,
    runs: list[Runs],
    reason: str | None,
    metric: TaskMetrics,
    has_partitions: bool,
) -> PairedComparisons | NotPaired:
    """Return the paired difference, second minus first, on the same seeds and rows, or why there is none.

    `row` is the method's in the table of the first comparison.
    """
    first, second = runs
    seeds = sorted(first.keys() & second.keys())
    if reason is None and not seeds:
        reason = "they have no seed in common"
    if reason is not None:
        return {"method": method, "seeds": seeds, "why_not": reason}
    outcomes = [
        [(_private(project, side[s]), RunFolder(side[s]).outcome_hashes()) for s in seeds] for side in (second, first)
    ]
    silos = project.silos.federated()
    scored = [set.intersection(*(set(hashes) for _, hashes in side)).intersection(silos.clients) for side in outcomes]
    clients = silos.select(sorted(scored[0] & scored[1], key=silos.index))
    difference = (
        compare_pairs(plain_runner(project), clients, outcomes[0], outcomes[1], metric) if clients.clients else None
    )
    if difference is None:
        return {"method": method, "seeds": seeds, "why_not": "the data have no test rows"}
    matters = smallest_that_matters(project, metric_value(row, metric.headline))
    record: PairedComparisons = {
        "method": method,
        "seeds": seeds,
        **difference_record("second", "first", difference, metric, matters),
    }
    if has_partitions:  # whose runs the table averages too
        record["sentence"] += "; in data/ alone"
    if scored[0] != scored[1]:  # the means above are then of other clients
        record["sentence"] += f"; only of the {len(clients.clients):,} clients that both scored"
    return record


def _private(project: Project, run: Path) -> ClientStore:
    """Return the private store of a run's clients, whatever the data are called in params.yaml now."""
    data = _run_record(run)["params"]["data"]
    folder = store_of(project.root, str(data["name"]), str(data["source"]["kind"]), data["source"].get("path"))
    return ClientStore(str(folder / run.relative_to(project.store.runs)))


def _changed_params(runs: dict[str, list[Runs]]) -> list[ChangedParam]:
    """Return each changed param as `key: old → new`, with the methods whose runs differ in it."""
    methods: dict[str, list[str]] = defaultdict(list)
    for method, (first, second) in runs.items():
        old, new = (_run_record(side[min(side)])["params"] for side in (first, second))
        for line in param_differences(old, new):
            methods[line].append(method)
    return [{"difference": line, "methods": affected} for line, affected in methods.items()]


def _run_record(run: Path) -> RunIdentity:
    record: RunIdentity | None = read_json(run / "run.json", RESTORE_ADVICE, ("params", "data_version"))
    if record is None:
        raise UserError(f"{run / 'run.json'} is missing. Restore it from a copy.")
    return record
