"""Two finished comparisons beside each other: what the methods of both reached, whether that differs, and why."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from flows.config.load_config import param_differences
from flows.experiment.comparison.paired_runs import compare_pairs
from flows.experiment.project import Project
from flows.experiment.run.run_folder import RunFolder
from flows.history.list_runs import load_result
from models.metrics.paired_difference import difference_record
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from silos.client_store import ClientStore
from silos.errors import UserError
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.json_io import ANEW, read_json

Runs = dict[int, Path]
"""seed to the folder of a run."""


def compare_results(project: Project, first: str, second: str) -> dict[str, Any]:
    """As plain JSON; UserError for what is no finished comparison, and for comparisons of two tasks."""
    sides = [_comparison(project, name) for name in (first, second)]
    names = [side["experiment"] for side in sides]
    if names[0] == names[1]:
        raise UserError(f"both are {names[0]}; name two comparisons.")
    if sides[0]["task"] != sides[1]["task"]:
        raise UserError(
            f"{names[0]} is a {sides[0]['task']} and {names[1]} a {sides[1]['task']}; they share no number."
        )
    quantity = TASK_METRICS[sides[0]["task"]]
    of = [{row["method"]: row for row in side["table"]} for side in sides]
    both = [method for method in of[0] if method in of[1]]
    runs = {method: [_runs(project, side, method) for side in sides] for method in both}
    reason = _other_rows(project, sides)
    return {
        "first": names[0],
        "second": names[1],
        "task": sides[0]["task"],
        "data_versions": [side["data_version"] for side in sides],
        "table": [{"method": method, "first": of[0][method], "second": of[1][method]} for method in both],
        "paired": [_paired(project, method, runs[method], reason, quantity) for method in both],
        "only": [[method for method in one if method not in both] for one in of],
        "params": _params(runs),
    }


def _comparison(project: Project, name: str) -> dict[str, Any]:
    answer, printer = load_result(project, name)
    if printer != "compare":
        raise UserError(f"{name} is a run; name two comparisons.")
    return answer


def _runs(project: Project, side: dict[str, Any], method: str) -> Runs:
    return {run["seed"]: project.root / run["folder"] for run in side["runs"] if run["method"] == method}


def _other_rows(project: Project, sides: list[dict[str, Any]]) -> str | None:
    """Why rows cannot be paired; None where they can: both are on the version of data/ that is there."""
    versions = [side["data_version"] for side in sides]
    names = {_known(project.root / run["folder"])["params"]["data"]["name"] for side in sides for run in side["runs"]}
    if names - {project.params.data.name}:
        return f"they are of {' and '.join(sorted(names))}, and params.yaml: data.name is {project.params.data.name}"
    if not project.same_rows(*versions):
        return "their data versions differ"
    try:
        now = project.silos.version
    except UserError as error:
        return f"data/ cannot be read: {error}"
    if not project.same_rows(now, versions[0]):
        return f"data/ is another version now; `siloflow data use {versions[0][:10]}` brings theirs back"
    return None


def _paired(
    project: Project, method: str, both: list[Runs], reason: str | None, quantity: TaskMetrics
) -> dict[str, Any]:
    """Second less first on the same seeds and rows, or why there is no such number."""
    first, second = both
    seeds = sorted(first.keys() & second.keys())
    record: dict[str, Any] = {"method": method, "seeds": seeds}
    if reason is None and not seeds:
        reason = "they have no seed in common"
    if reason is not None:
        return {**record, "why_not": reason}
    kept = [[(_private(project, runs[s]), RunFolder(runs[s]).kept()) for s in seeds] for runs in (second, first)]
    silos = project.silos.federated()
    scored = [set.intersection(*(set(hashes) for _, hashes in side)).intersection(silos.clients) for side in kept]
    there = silos.select(sorted(scored[0] & scored[1], key=silos.index))
    difference = compare_pairs(PlainRunner(), there, kept[0], kept[1], quantity) if there.clients else None
    if difference is None:
        return {**record, "why_not": "the data have no test rows"}
    record |= difference_record("second", "first", difference, quantity)
    if scored[0] != scored[1]:  # the means above are then of other clients
        record["sentence"] += f"; of the {len(there.clients):,} clients that both scored"
    return record


def _private(project: Project, run: Path) -> ClientStore:
    """Where the clients of a run keep what is theirs, whatever the data are called in params.yaml today."""
    place = project.root / "private" / str(_known(run)["params"]["data"]["name"])
    return ClientStore(str(place / run.relative_to(project.runs)))


def _params(runs: dict[str, list[Runs]]) -> list[dict[str, Any]]:
    """`key: old → new`, with the methods whose runs differ in it."""
    methods: dict[str, list[str]] = defaultdict(list)
    for method, (first, second) in runs.items():
        old, new = (_known(of[min(of)])["params"] for of in (first, second))
        for line in param_differences(old, new):
            methods[line].append(method)
    return [{"difference": line, "methods": of} for line, of in methods.items()]


def _known(run: Path) -> dict[str, Any]:
    known: dict[str, Any] | None = read_json(run / "run.json", ANEW, ("params", "data_version"))
    if known is None:
        raise UserError(f"{run / 'run.json'} is missing; bring it back from a copy.")
    return known
