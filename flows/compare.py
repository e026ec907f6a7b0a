"""The flow `compare`: several methods on the same seeds and rows, and what their differences are worth."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from flows.config.method_settings import method_of
from flows.config.override_policy import open_project
from flows.experiment import prefect_artifacts, run_identity
from flows.experiment.comparison import comparison_in_mlflow
from flows.experiment.comparison.comparison_text import not_complete, sentences_after
from flows.experiment.comparison.paired_runs import compare_pairs, paired_records
from flows.experiment.comparison.trials import (
    Plan,
    check_tuning,
    ensemble,
    first_setting,
    run_trial,
    say_plan,
    trial_name,
    tuned_methods,
)
from flows.experiment.evaluation import against_baseline, scored_baseline
from flows.experiment.project import UNNAMED, Project, experiment, new_experiment, newest_experiment
from flows.experiment.run.run_folder import RunFolder, run_name
from flows.experiment.run_identity import unused_name
from flows.experiment.run_warnings import of_all
from flows.flow_decorator import IncompleteError, MethodNames, MethodOrNone, Overrides, Seeds, Text, project_flow
from flows.history.list_runs import find_runs
from flows.methods.base import start_method
from models.metrics.paired_difference import difference_record
from silos.errors import UserError
from tasks.execution.task_runner import PrefectRunner
from tasks.paired_outcomes import Outcomes
from tasks.tracking.json_io import write_json
from tasks.tracking.plots.curve_figures import draw_comparison
from tasks.tracking.result_tables import table_rows

Results = dict[tuple[str, int], dict[str, Any]]


@project_flow(run_name="compare")
def compare(
    methods: MethodNames = (),
    seeds: Seeds = (),
    reference: MethodOrNone = "",
    overrides: Overrides = (),
    resume: bool = False,
    name: Text = "",
) -> dict[str, Any]:
    """Every method with every seed, then the table, the figure and the paired comparisons, as plain JSON.

    What is not named is read from `comparison` in params.yaml; with its `tune`, every method is first given equally many
    settings. A run that fails does not stop the others; its error is under `failed`.

    Args:
        methods: Those that are compared; params.yaml's if none is chosen.
        seeds: Of training; every method trains with each. Those of params.yaml if none is given.
        reference: The method that the others are compared with; params.yaml's if none is chosen.
        overrides: Values over those of params.yaml, each as section.key=value, for example training.rounds=20.
        resume: Go on with the comparison that is named, or the newest, which must have asked for the same.
        name: What a new comparison is called, in runs/ and in MLflow; with resume, the one that goes on.
    """
    project = open_project(overrides)
    with project.working("compare"):
        wanted = plan(project, methods, seeds, reference)
        called = unused_name(project, name) if name and not resume else None
        name = resumed(project, name or None) if resume else None
        if name is not None:
            _same(project, wanted, experiment(project, name))
        else:
            about = {**asdict(wanted), "about": comparison_in_mlflow.comparison_settings(project, wanted)}
            name = new_experiment(project, "compare", about, called)
        with project.working(name):
            return _compared(project, name, wanted)


def plan(project: Project, methods: Sequence[str] | None, seeds: Sequence[int] | None, reference: str | None) -> Plan:
    """What will be run; UserError for what cannot be run, before anything starts.

    The command makes it before its flow starts, and the flow has the same one.
    """
    methods, seeds, reference = tuple(methods or ()), tuple(seeds or ()), reference or ""
    return project.once(("plan", methods, seeds, reference), lambda: _plan(project, methods, seeds, reference))


def _plan(project: Project, methods: Sequence[str], seeds: Sequence[int], reference: str) -> Plan:
    defaults = project.params.comparison
    methods = list(dict.fromkeys(methods or defaults.methods))
    reference = reference or defaults.reference
    for method in {*methods, reference}:
        method_of(project.params, method)
    if reference not in methods:
        methods = [reference, *methods]
    seeds = list(dict.fromkeys(seeds or defaults.seeds))
    for method, seed in product(methods, seeds):
        run_name(method, seed)  # a name is told before anything starts, too
    setup = project.training_setup(seeds[0])
    for method in methods:
        start_method(method_of(project.params, method), setup)
    check_tuning(project, methods, setup)
    return Plan(methods, seeds, reference, defaults.tune, project.silos.version)


def resumed(project: Project, name: str | None) -> str | None:
    """The comparison to go on with: the one of this name or beginning of a name, else the newest; None if there is none."""
    return newest_experiment(project, "compare") if name is None else find_runs(project.runs, name, "compare").name


def check_resume(project: Project, wanted: Plan, name: str | None = None) -> None:
    """UserError if `resume` would have to go on with something else than was started."""
    name = resumed(project, name)
    if name is None:
        return
    _same(project, wanted, experiment(project, name))
    for method in wanted.methods:
        if wanted.tune:
            first = project.with_overrides(first_setting(project, method))
            run_identity.check_resume(first, method, wanted.seeds[0], name, trial_name(0))
            continue
        for seed in wanted.seeds:
            run_identity.check_resume(project, method, seed, name)


def _compared(project: Project, name: str, wanted: Plan) -> dict[str, Any]:
    """The comparison of this name, run to its end and written down."""
    about = f"{', '.join(wanted.methods)} on {project.params.data.name}"
    short = name.rpartition("-")[2] if UNNAMED.fullmatch(name) else name
    called = prefect_artifacts.name_flow_run(f"compare {about}, {short}")
    prefect_artifacts.log_artifact(f"runs/{name}, in MLflow the experiment {name}")
    with project.workers():
        chosen, first = tuned_methods(project, name, wanted) if wanted.tune else ({}, {})
        projects = {m: project.with_overrides(chosen[m].settings if m in chosen else []) for m in wanted.methods}
        results, failed = _all_runs(project, name, wanted, projects, first)
        conclusions = _conclusions(project, wanted, projects, results)
    comparison = {
        "experiment": name,
        "data_version": project.silos.version,
        "task": project.manifest.task,
        "tuning": [{**asdict(one), "seed": wanted.seeds[0]} for one in chosen.values()],
        "runs": list(results.values()),
        "failed": failed,
        "notes": of_all(results.values()),
        **conclusions,
    }
    folder = project.runs / name
    comparison["figure"] = str((folder / "comparison.png").relative_to(project.root))
    draw_comparison(folder / "comparison.png", comparison, _curves(project, results), project.quantity)
    write_json(folder / "comparison.json", comparison)
    comparison_in_mlflow.log_comparison(project, name, wanted, comparison, called)
    prefect_artifacts.shown("comparison", comparison_in_mlflow.note_of(project, comparison))
    for line in (*(p["sentence"] for p in comparison["paired"]), *sentences_after(comparison)):
        prefect_artifacts.log_artifact(line)
    if failed:
        raise IncompleteError(f"{name} is {not_complete(comparison)}", comparison)
    return comparison


def _all_runs(
    project: Project,
    name: str,
    wanted: Plan,
    projects: Mapping[str, Project],
    first: Mapping[str, dict[str, Any] | str],
) -> tuple[Results, list[dict[str, Any]]]:
    """Seed by seed, so that an interrupted comparison has whole seeds; each run is a flow of its own in Prefect.

    Args:
        projects: Each method's, with the settings that it was tuned to.
        first: What came of each method's run on the first seed; empty if methods were not tuned.
    """
    results: Results = {}
    failed = []
    if not first:
        say_plan(project, name, [run_name(method, seed) for seed, method in product(wanted.seeds, wanted.methods)])
    for seed, method in product(wanted.seeds, wanted.methods):
        if first and seed == wanted.seeds[0]:
            result = first[method]
        else:
            result = run_trial(projects[method], method, seed, name)
        if isinstance(result, str):
            failed.append({"method": method, "seed": seed, "error": result})
        else:
            results[method, seed] = result
    return results, failed


def _conclusions(project: Project, wanted: Plan, projects: Mapping[str, Project], results: Results) -> dict[str, Any]:
    """The table's rows, and each method against the reference on the seeds that both finished."""
    reference, quantity = wanted.reference, project.quantity
    paired = []
    for method in wanted.methods:
        seeds = [s for s in wanted.seeds if (method, s) in results and (reference, s) in results]
        if method == reference or not seeds:
            continue
        first, second = (
            [paired_records(project, project.root / results[m, s]["folder"]) for s in seeds]
            for m in (method, reference)
        )
        with project.workers() as workers:
            runner = PrefectRunner(workers, f"{method} against {reference}")
            difference = compare_pairs(runner, project.scored.federated(), first, second, quantity)
        if difference is not None:
            said = difference_record(method, reference, difference, quantity)
            about = {"method": method, "reference": reference, "seeds": seeds}
            paired.append({**about, "distinguishable": difference.distinguishable, **said})
    return {
        "table": table_rows(list(results.values()), quantity),
        "baseline": _baseline(project, results, tuned=bool(wanted.tune)),
        "paired": paired,
        "ensembles": [
            one for method in wanted.methods if (one := _ensemble(projects[method], method, wanted, results))
        ],
    }


def _baseline(project: Project, results: Results, tuned: bool) -> dict[str, Any] | None:
    """The answer that takes no inputs, and each method against it on the seeds that it finished; None without test rows."""
    runs: dict[str, list[Outcomes]] = {}
    for (method, _), result in results.items():
        runs.setdefault(method, []).append(paired_records(project, project.root / result["folder"]))
    with scored_baseline(project) as found:
        return None if found is None else against_baseline(project, found, runs, tuned)


def _ensemble(project: Project, method_name: str, wanted: Plan, results: Results) -> dict[str, Any] | None:
    """The mean prediction of a method's runs, in accuracy and in how unsure it is; None of one seed."""
    seeds = [seed for seed in wanted.seeds if (method_name, seed) in results]
    members = [(project, s, RunFolder(project.root / results[method_name, s]["folder"])) for s in seeds]
    method = method_of(project.params, method_name)
    numbers = ensemble(method, members, f"ensemble of {method_name}") if members else None
    return None if numbers is None else {"method": method_name, "seeds": seeds, **numbers}


def _curves(project: Project, results: Results) -> dict[str, list[list[tuple[int, float]]]]:
    """method to one curve a seed of (round, test accuracy or rmse)."""
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    for (method, _), result in results.items():
        folder = RunFolder(project.root / result["folder"])
        curves.setdefault(method, []).append(folder.curve(project.quantity.headline, result["rounds"]))
    return curves


def _same(project: Project, wanted: Plan, known: dict[str, Any]) -> None:
    for key, value in asdict(wanted).items():
        if key == "data_version" and project.same_rows(known.get(key, ""), value):
            continue
        if known.get(key, 0) != value:  # comparisons of earlier versions say nothing of `tune`
            raise UserError(
                f"the comparison {known['name']} has {key} {known.get(key, 0)} and you ask for {value}; "
                "ask for the same, or start anew without --resume."
            )
