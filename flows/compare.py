"""Defines the flow `compare`: several methods on the same seeds and rows, and the paired differences between them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import product
from pathlib import Path

from flows.core.console import progress
from flows.experiments.comparison import log_comparison
from flows.experiments.comparison.client_gains import (
    class_records,
    client_records,
    gains_in_data_alone,
    gains_over_training_alone,
    worst_client,
)
from flows.experiments.comparison.comparison_text import (
    has_too_few_silos,
    not_complete,
    sentences_after,
    sentences_first,
)
from flows.experiments.comparison.run_trials import (
    Plan,
    check_comparison_budgets,
    check_partitions,
    check_tuning,
    draw_partitions,
    ensemble,
    first_setting,
    missing_for_publication,
    partition_name,
    planned_runs,
    say_plan,
    shared_test_rows,
    trial_name,
    tuned_methods,
)
from flows.experiments.comparison.trial_processes import Outcome, Trial, TrialProcesses
from flows.methods.base import start_method
from flows.methods.method_settings import check_listed, method_of
from flows.orchestration.flow_decorator import (
    IncompleteError,
    MethodNames,
    MethodOrNone,
    Seeds,
    Text,
    from_overrides,
    project_flow,
)
from flows.project.project import Project
from flows.project.project_workers import project_workers
from flows.project.run_sets import UNNAMED, begun_before, experiment, new_experiment, newest_experiment
from flows.results.registry.register_candidates import register_candidates
from flows.results.reports.comparison_report import write_comparison_report
from flows.results.reports.html_report import FILE as REPORT
from flows.results.reports.open_faults import open_faults
from flows.results.run_history.comparison_cost import costs_of, read_cost_curves, table_on_data
from flows.results.run_history.list_runs import find_runs
from flows.run import run_trial
from flows.training.constant_baseline import against_baseline, scored_baseline
from flows.training.paired_runs import (
    MeasuredPair,
    check_over,
    outcomes_of_run,
    paired_records,
    smallest_that_matters,
    strata_of_pairs,
    withhold_winners,
)
from flows.training.run_context import check_allowed
from flows.training.run_notes import merge_notes
from flows.training.run_records import fingerprint
from flows.training.run_records.fingerprint import unused_name
from flows.training.run_records.run_folder import RunFolder, run_name
from flows.training.training_setup import training_setup
from models.metrics.client_metrics import metric_record
from models.metrics.task_metrics import metric_value
from silos.errors import UserError
from silos.io.locks import write_lock
from tasks.execution.prefect_runner import PrefectRunner
from tasks.paired_outcomes import Outcomes
from tasks.tracking import prefect_artifacts
from tasks.tracking.json_io import write_json
from tasks.tracking.mlflow_logging.connection import check_server
from tasks.tracking.plots.curve_figures import draw_comparison, draw_cost
from tasks.tracking.result_tables import table_rows
from tasks.tracking.result_types.comparison_result import (
    ComparedBaseline,
    ComparisonConclusions,
    ComparisonResult,
    Draws,
    EnsembleScores,
    FailedRun,
    TunedSettings,
)
from tasks.tracking.result_types.run_files import ExperimentRecord
from tasks.tracking.result_types.run_result import RunResult

Results = dict[tuple[str, int], RunResult]
Drawn = tuple[Mapping[str, Project], Results]
"""A partition: the project of each method, and the results by method and seed."""


@project_flow(run_name="compare")
def compare(
    methods: MethodNames = (),
    seeds: Seeds = (),
    reference: MethodOrNone = "",
    project: Project = from_overrides(),
    resume: bool = False,
    name: Text = "",
    parallel: bool = False,
) -> ComparisonResult:
    """Run every method with every seed; return the table, the figure and the paired comparisons as plain JSON.

    Whatever is not named is read from `comparison` in params.yaml; its `tune` first tries equally many settings of
    every method, and its `partitions` draws more partitions. A run that fails does not stop the others; its error is
    under `failed`. A retry by Prefect continues the comparison that the flow run began.

    Args:
        methods: The methods to compare; those of params.yaml if none is chosen.
        seeds: The seeds of training; every method trains with each. Those of params.yaml if none is given.
        reference: The method that the others are compared with; that of params.yaml if none is chosen.
        overrides: Values that replace those of params.yaml, each as section.key=value, for example training.rounds=20.
        resume: Continue the named comparison, or the newest one; its methods, seeds and reference must be the same.
        name: The name of a new comparison, in runs/ and in MLflow; with resume, of the comparison to continue.
        parallel: Start also while another comparison of this project runs, instead of waiting for its end.
    """
    with project.data.working("compare"), nullcontext() if parallel else _alone(project):
        plan = make_plan(project, methods, seeds, reference)
        # a retry by Prefect comes with the parameters of the first attempt, which do not say `resume`
        retried = begun_before(project, "compare")
        resume, name = (resume, name) if retried is None else (True, retried)
        new_name = unused_name(project, name) if name and not resume else None
        name = resumed(project, name or None) if resume else None
        if name is not None:
            _check_same_plan(project, plan, experiment(project, name))
        else:
            info = {**asdict(plan), "about": log_comparison.comparison_settings(project, plan)}
            name = new_experiment(project, "compare", info, new_name)
        with project.data.working(name):
            return _run_comparison(project, name, plan)


def _alone(project: Project) -> AbstractContextManager[None]:
    """Wait until no other comparison of this project runs, and make others wait."""
    folder = project.root / "runs" / "locks" / "compare"
    return write_lock(folder, "another `siloflow compare`", progress.current().say)


def make_plan(
    project: Project, methods: Sequence[str] | None, seeds: Sequence[int] | None, reference: str | None
) -> Plan:
    """Return what will be run; raises a UserError before anything starts if it cannot be run.

    The command makes the plan before its flow starts, and the flow gets the same one.
    """
    methods, seeds, reference = tuple(methods or ()), tuple(seeds or ()), reference or ""
    return project.once(("plan", methods, seeds, reference), lambda: _make_plan(project, methods, seeds, reference))


def _make_plan(project: Project, methods: Sequence[str], seeds: Sequence[int], reference: str) -> Plan:
    defaults = project.params.comparison
    methods = list(dict.fromkeys(methods or defaults.methods))
    reference = reference or defaults.reference
    for method in {*methods, reference}:
        check_listed(method, project.params, project.root)
        method_of(project.params, method)
    if reference not in methods:
        methods = [reference, *methods]
    seeds = list(dict.fromkeys(seeds or defaults.seeds))
    for method, seed in product(methods, seeds):
        run_name(method, seed)  # refuses a bad name before anything starts
    setup = training_setup(project, seeds[0])
    for method in methods:
        check_allowed(project, method, setup)
        start_method(method_of(project.params, method), setup)
    check_tuning(project, methods, setup)
    check_partitions(project)
    check_over(project)
    return Plan(methods, seeds, reference, defaults.tune, project.silos.version, defaults.partitions)


def resumed(project: Project, name: str | None) -> str | None:
    """Return the comparison to resume: the one whose name starts with `name`, or the newest; None if there is none."""
    return (
        newest_experiment(project, "compare") if name is None else find_runs(project.store.runs, name, "compare").name
    )


def check_resume(project: Project, plan: Plan, name: str | None = None) -> None:
    """Raise a UserError if `resume` would continue a comparison that was started with other settings."""
    name = resumed(project, name)
    if name is None:
        return
    _check_same_plan(project, plan, experiment(project, name))
    for method in plan.methods:
        if plan.tune:
            first = project.with_overrides(first_setting(project, method))
            fingerprint.check_resume(first, method, plan.seeds[0], name, trial_name(0))
            continue
        for seed in plan.seeds:
            fingerprint.check_resume(project, method, seed, name)


def _run_comparison(project: Project, name: str, plan: Plan) -> ComparisonResult:
    """Run the comparison of this name to its end, and write its results."""
    title = f"{', '.join(plan.methods)} on {project.params.data.name}"
    suffix = name.rpartition("-")[2] if UNNAMED.fullmatch(name) else name
    flow_run = prefect_artifacts.name_flow_run(f"compare {title}, {suffix}")
    prefect_artifacts.log_artifact(f"runs/{name}, in MLflow the run {name}")
    with project_workers(project), TrialProcesses(project, name, run_trial) as processes:
        partitions = draw_partitions(project, plan.partitions)
        check_comparison_budgets(project, name, plan)
        chosen, first = tuned_methods(project, processes, plan) if plan.tune else ({}, {})
        if not plan.tune:
            say_plan(project, name, planned_runs(plan))
        drawn: list[Drawn] = []
        failed: list[FailedRun] = []
        for index, partition in enumerate(partitions):
            projects = {m: partition.with_overrides(chosen[m].settings if m in chosen else []) for m in plan.methods}
            results, _ = run_all(processes, plan, projects, {} if index else first, index, failed)
            drawn.append((projects, results))
    tuning = [result.as_json(plan.seeds[0]) for result in chosen.values()]
    comparison = conclude(project, name, plan, drawn, failed, tuning, flow_run)
    if failed:
        raise IncompleteError(f"{name} is {not_complete(comparison)}", comparison)
    return comparison


def conclude(
    project: Project,
    name: str,
    plan: Plan,
    drawn: Sequence[Drawn],
    failed: list[FailedRun],
    tuning: Sequence[TunedSettings],
    flow_run: str,
    raced: bool = False,
) -> ComparisonResult:
    """Compare the runs, write the comparison, its figures and report, and log it to MLflow and Prefect.

    Args:
        project: The project.
        name: The folder of the runs in runs/.
        plan: What was run.
        drawn: For each partition, the project of each method and the results by method and seed.
        failed: The runs that failed.
        tuning: The settings that methods were tuned to, for the record.
        flow_run: The name of Prefect's flow run.
        raced: Whether a race chose the settings, so that tuning them is no further advice.
    """
    with project_workers(project):
        _deliver_late(project, name, drawn)
        conclusions = _conclusions(project, plan, drawn, tuned=raced or bool(plan.tune))
    # curves and candidates are those of data/: a run on another partition may have trained on test rows of data/
    results, quantity = drawn[0][1], project.quantity
    runs, folder = list(results.values()), project.store.runs / name
    curves, cost_curves = _metric_curves(project, results), read_cost_curves(project, runs, quantity)
    of_data = table_on_data(conclusions["table"], runs, len(drawn) > 1, quantity)
    target = project.params.evaluation.stop_at
    comparison: ComparisonResult = {
        "experiment": name,
        "data_version": project.silos.version,
        **metric_record(quantity),
        "open_faults": open_faults(project, project.silos.version),
        "tuning": list(tuning),
        "runs": runs,
        "partitions": [
            {
                "data_seed": partition.params.data.seed,
                "data_version": partition.silos.version,
                "runs": list(on_partition.values()),
            }
            for partition, on_partition in ((of[plan.reference], results) for of, results in drawn[1:])
        ],
        "failed": failed,
        "notes": merge_notes(runs),
        **conclusions,
        "figure": str((folder / "comparison.png").relative_to(project.root)),
        "registry": register_candidates(project, runs),
        "report": str((folder / REPORT).relative_to(project.root)),
        "cost": costs_of(of_data, conclusions["baseline"], cost_curves, quantity, target),
    }
    draw_comparison(folder / "comparison.png", comparison, curves, quantity)
    draw_cost(folder / "cost.png", cost_curves, comparison["cost"], quantity)
    write_comparison_report(project, plan, comparison, curves, cost_curves)
    write_json(folder / "comparison.json", comparison)
    log_comparison.log_comparison(project, name, plan, comparison, flow_run)
    _show_on_page(project, comparison, folder / REPORT)
    return comparison


def _show_on_page(project: Project, comparison: ComparisonResult, report: Path) -> None:
    """Show a comparison on Prefect's page, and log its sentences."""
    link = prefect_artifacts.file_link(report)
    prefect_artifacts.show_markdown("comparison", f"{log_comparison.note_of(project, comparison)}\n\n{link}")
    paired_sentences = [pair["sentence"] for pair in comparison["paired"]]
    for line in (
        *comparison["open_faults"],
        *sentences_first(comparison),
        *paired_sentences,
        *sentences_after(comparison),
    ):
        prefect_artifacts.log_artifact(line)


def run_all(
    processes: TrialProcesses,
    plan: Plan,
    projects: Mapping[str, Project],
    first: Mapping[str, Outcome],
    partition: int,
    failed: list[FailedRun],
    also: Sequence[Trial] = (),
) -> tuple[Results, list[Outcome]]:
    """Start seed by seed, so that an interrupted comparison has complete seeds; each run is a flow of its own in Prefect.

    Args:
        processes: Run the trials.
        plan: What it runs.
        projects: Each method's, with the settings that it was tuned to, on this partition.
        first: The result, or error, of each method's run on the first seed; empty if there is none yet.
        partition: The index of the partition, 0 for data/.
        failed: Failed runs are added to it.
        also: Further runs, last, so that no process waits.

    Returns:
        The results by method and seed, and the result, or error, of each further run.
    """
    cells = [(method, seed) for seed in plan.seeds for method in plan.methods]
    # tuning has trained the chosen settings on the first seed already
    outcomes = {(method, plan.seeds[0]): outcome for method, outcome in first.items()}
    trials = [Trial(projects[m], m, s, partition_name(partition)) for m, s in cells if (m, s) not in outcomes]
    ended: dict[str, Outcome] = {}
    for finished in processes.run([*trials, *also]):
        ended[finished.trial.name] = finished.ended
    outcomes |= {(trial.method, trial.seed): ended[trial.name] for trial in trials}
    results: Results = {}
    for method, seed in cells:
        result = outcomes[method, seed]
        if isinstance(result, str):
            failure: FailedRun = {"method": method, "seed": seed, "error": result}
            if partition:
                failure["partition"] = partition + 1
            failed.append(failure)
        else:
            results[method, seed] = result
    return results, [ended[trial.name] for trial in also]


def _deliver_late(project: Project, name: str, drawn: Sequence[Drawn]) -> None:
    """Deliver the runs that ended while MLflow was away, if it answers now; else `resume` will."""
    late = [
        (projects[method], method, seed, results)
        for projects, results in drawn
        for (method, seed), result in results.items()
        if result["mlflow_run_id"] is None
    ]
    try:
        if late:
            check_server(project.store.tracking)
    except UserError:
        return
    for with_settings, method, seed, results in late:
        folder = results[method, seed]["folder"].rpartition("/")[2]
        cell = folder.removesuffix(run_name(method, seed)).removesuffix("-")
        delivered = run_trial(with_settings, method, seed, name, cell)
        if delivered is not None and not isinstance(delivered, str):
            results[method, seed] = delivered


def _conclusions(project: Project, plan: Plan, drawn: Sequence[Drawn], tuned: bool) -> ComparisonConclusions:
    """Return the table's rows, the baseline, the paired differences from the reference, the clients and the ensembles.

    Table and differences are of all partitions, the rest is of data/, the first one.
    """
    quantity, tested, (projects, results) = project.quantity, project.scored.federated(), drawn[0]
    measured = [_measure(plan, method, drawn) for method in plan.methods if method != plan.reference]
    pairs = [pair for pair in measured if pair is not None]
    over = project.params.comparison.over
    shared = shared_test_rows(project) if len(drawn) > 1 else 0.0
    table = table_rows([result for _, on_partition in drawn for result in on_partition.values()], quantity)
    score = next((metric_value(row, quantity.headline) for row in table if row["method"] == plan.reference), None)
    paired = paired_records(pairs, over, shared, quantity, smallest_that_matters(project, score))
    lacking = missing_for_publication(project, plan, paired)
    draws: Draws = {
        "draws": "partitions" if len(drawn) > 1 else over,
        "silos": sum(rows > 0 for rows in tested.rows("test").values()) or len(tested.clients),
        "partitions": len(drawn),
    }
    if over == "silos" and pairs:  # a silo may have test rows that do not define the metric
        draws["silos"] = min(len(pair.partitions[0]) for pair in pairs)
    clients = client_records(project.scored, results, quantity)
    if len(drawn) == 1:  # each partition has another worst client
        table = [{**row, "worst_client": worst_client(clients, str(row["method"]), quantity)} for row in table]
    gains = gains_over_training_alone(project, plan.methods, plan.reference, plan.seeds, results)
    baseline = _baseline_record(project, results, tuned)
    if len(drawn) > 1:
        gains = gains_in_data_alone(gains)
        if baseline and baseline["sentence"]:
            baseline["sentence"] = f"In data/ alone, n{baseline['sentence'][1:]}"
    conclusions: ComparisonConclusions = {
        "table": table,
        "baseline": baseline,
        "paired": withhold_winners(paired) if lacking or has_too_few_silos(draws) else paired,
        "over": draws,
        "not_published_for": lacking,
        "clients": clients,
        "gains": gains,
        "ensembles": [e for method in plan.methods if (e := _ensemble(projects[method], method, plan, results))],
    }
    classes = class_records(project, results)
    if classes is not None:
        conclusions["classes"] = classes
    return conclusions


def _measure(plan: Plan, method: str, drawn: Sequence[Drawn]) -> MeasuredPair | None:
    """Return a method's differences from the reference on every partition; None without a common seed or test rows."""
    pair = (method, plan.reference)
    seeds = [s for s in plan.seeds if all((m, s) in results for _, results in drawn for m in pair)]
    partitions = []
    for index, (projects, results) in enumerate(drawn if seeds else ()):
        first, second = (
            [outcomes_of_run(projects[m], projects[m].root / results[m, s]["folder"]) for s in seeds] for m in pair
        )
        project = projects[plan.reference]
        called = f"{method} against {plan.reference}" + (f", partition {index + 1}" if index else "")
        with project_workers(project) as workers:
            runner = PrefectRunner(workers, called, waits=True)
            partitions.append(strata_of_pairs(runner, project.scored.federated(), first, second, project.quantity))
    return MeasuredPair(*pair, seeds, partitions) if partitions and all(partitions) else None


def _baseline_record(project: Project, results: Results, tuned: bool) -> ComparedBaseline | None:
    """Return the constant baseline, and each method against it on its finished seeds; None without test rows."""
    runs: dict[str, list[Outcomes]] = {}
    for (method, _), result in results.items():
        runs.setdefault(method, []).append(outcomes_of_run(project, project.root / result["folder"]))
    with scored_baseline(project) as baseline:
        return None if baseline is None else against_baseline(project, baseline, runs, tuned)


def _ensemble(project: Project, method_name: str, plan: Plan, results: Results) -> EnsembleScores | None:
    """Return accuracy and uncertainty of the mean prediction of a method's runs; None for one seed."""
    seeds = [seed for seed in plan.seeds if (method_name, seed) in results]
    members = [(project, s, RunFolder(project.root / results[method_name, s]["folder"])) for s in seeds]
    method = method_of(project.params, method_name)
    metrics = ensemble(method, members, f"ensemble of {method_name}") if members else None
    return None if metrics is None else {"method": method_name, "seeds": seeds, **metrics}


def _metric_curves(project: Project, results: Results) -> dict[str, list[list[tuple[int, float]]]]:
    """Map each method to one curve per seed of (round, headline metric on test rows)."""
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    for (method, _), result in results.items():
        folder = RunFolder(project.root / result["folder"])
        curves.setdefault(method, []).append(folder.curve(project.quantity.headline, result["rounds"]))
    return curves


def _check_same_plan(project: Project, plan: Plan, info: ExperimentRecord) -> None:
    """Raise a UserError if the comparison was started with another plan."""
    for key, value in asdict(plan).items():
        if key == "data_version" and project.data.same_rows(info.get("data_version", ""), value):
            continue
        started = info.get(key, 1 if key == "partitions" else 0)  # earlier versions had no `tune` and no `partitions`
        if started != value:
            raise UserError(
                f"--resume: got {key} {value}, expected {started} as in the comparison {info['name']}. "
                "Use the same values, or start again without --resume."
            )
