"""Define the commands that train, and those that serve the pages of MLflow and Prefect: run, compare, schedule, ui."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.command_session import Json, Overrides, Resume, Session, Timings
from silos import param_limits
from silos.errors import UserError, shown

if TYPE_CHECKING:
    from flows.core.console.safe_text import PlainConsole
    from flows.experiments.comparison.run_trials import Plan
    from flows.project.project import Project
    from tasks.tracking.result_types.advice_result import Advice
    from tasks.tracking.result_types.comparison_result import ComparisonResult
    from tasks.tracking.result_types.registry_records import RegisteredCandidates
    from tasks.tracking.result_types.run_result import RunResult

LOOK_CLOSER = "`siloflow ui` serves MLflow's and Prefect's pages"
"""Where the user finds more than a command prints."""
_RESUME = "--resume continues after the last complete round"
_SCHEDULED = "`siloflow compare --resume` continues a comparison that was running; missed starts are not repeated"

MethodNames = Annotated[
    list[str] | None, typer.Argument(help="The methods to compare; by default comparison.methods of params.yaml.")
]
Seeds = Annotated[
    str | None, typer.Option(help="The seeds to train with, such as 0,1,2; by default comparison.seeds of params.yaml.")
]

_WIDE = 100  # columns of a terminal; a narrower one shows no cost, which `siloflow results NAME --cost` has

commands = typer.Typer()


@commands.command()
def run(
    method: Annotated[str, typer.Argument(help="The method to train; `siloflow methods` lists them.")],
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=param_limits.SEED, help="The seed of training; data.seed in params.yaml is the partition's."
        ),
    ] = 0,
    resume: Resume = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Train one method with one seed.

    Example: siloflow run fedavg --seed 1 --set training.rounds=20
    """
    with Session(json, timings, server=True, resume_hint=_RESUME) as session:
        project = session.open_project(overrides, _check_data, lock_data_for="run")
        _check_method(project, method, seed)
        _check_runner(project)
        if resume:
            _check_resumed_run(project, method, seed)
        from flows.run import run as run_flow  # while the server starts

        result = session.run_flow(run_flow, project, method=method, seed=seed, resume=resume)
        assert result is not None, "it does not pause"
        session.print_result(result, print_run)


def print_run(result: "RunResult", console: "PlainConsole") -> None:
    """Print the metrics of a run."""
    from flows.experiments.comparison.comparison_text import baseline_scores, notes_after_training
    from models.metrics.client_metrics import recorded_metric

    metrics, quantity = result["metrics"], recorded_metric(result)
    console.print(
        f"{result['method']} seed {result['seed']}, round {result['reported_round']} of {result['rounds']}, "
        f"{result['model']} model"
    )
    if quantity.headline in metrics:
        for line in f"test {quantity.as_text(metrics)}".split("\n"):
            console.print(line)
    baseline = result.get("baseline")  # runs of earlier versions have none
    if baseline:
        numbers = zip(quantity.columns.values(), baseline_scores(baseline, quantity), strict=True)
        shown = ", ".join(f"{title} {number}" for title, number in numbers if number != "-")
        console.print(f"{baseline['name']}, the {baseline['kind']}: {shown}")
    for line in notes_after_training(result.get("notes", ())):  # nor notes
        console.print(line)
    console.print(f"data version  {result['data_version']}")
    console.print(f"weights       {result['weights_sha256'][:32]}…")
    console.print(f"files         {result['folder']}")
    console.print(f"look closer   {LOOK_CLOSER}")


@commands.command()
def compare(
    methods: MethodNames = None,
    seeds: Seeds = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The method to compare the others with; by default comparison.reference of params.yaml."),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="First choose the best of 8 settings for each method, on validation rows.")
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option(help="The number of partitions to draw, under data.seed and the seeds after it."),
    ] = None,
    publish: Annotated[
        bool,
        typer.Option(
            "--publish", help="Five seeds, five partitions where they can be drawn, --tune; no winner without them."
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            help="The name of the comparison in runs/ and MLflow. With --resume: the comparison to "
            "continue, or the start of its name."
        ),
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also write metrics.json and curves.csv there, for `dvc metrics` and `dvc plots`."
        ),
    ] = None,
    parallel: Annotated[
        bool, typer.Option("--parallel", help="Do not wait until another comparison of this project has ended.")
    ] = False,
    resume: Resume = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Train several methods and test which differences are real.

    All methods train on the same rows with the same seeds.

    Example: siloflow compare fedavg fedprox --seeds 0,1,2 --set method.fedprox.proximal=1
    """
    with Session(json, timings, server=True, resume_hint=_RESUME) as session:
        # whatever can be refused is refused before the flow starts, which takes seconds and leaves a folder
        numbers = parse_seeds(seeds)
        if summary is not None and summary.exists() and not summary.is_dir():
            raise UserError(f"--summary: got {summary}, which is a file, expected a folder. Name another.")
        project = session.open_project(overrides, _check_data, lock_data_for="compare")
        project = project.with_overrides(_comparison_overrides(project, tune, partitions, publish))
        plan = _plan(project, methods, numbers, reference)
        _check_runner(project)
        if resume:
            _check_resumed_comparison(project, plan, name)
        elif name is not None:
            _check_unused(project, name)
        from flows.compare import compare as compare_flow  # while the server starts

        comparison = session.run_flow(
            compare_flow,
            project,
            methods=methods,
            seeds=numbers,
            reference=reference,
            name=name,
            resume=resume,
            parallel=parallel,
        )
        if summary is not None:
            from flows.experiments.comparison.log_comparison import write_summary

            write_summary(project, comparison, summary)
        session.print_result(comparison, print_compare, failed=bool(comparison["failed"]))


def print_compare(comparison: "ComparisonResult", console: "PlainConsole") -> None:
    """Print the table of methods, the differences, and where the files are."""
    from flows.experiments.comparison.comparison_text import (
        answer_sentence,
        comparison_table,
        notes_after_training,
        seeds_finished,
        sentences_after,
        sentences_first,
        tuned_sentence,
    )
    from models.metrics.client_metrics import recorded_metric

    quantity, counts = recorded_metric(comparison), seeds_finished(comparison)
    for fault in comparison.get("open_faults", ()):  # comparisons of earlier versions have none
        console.print(fault)
    titles, *rows = comparison_table(comparison, quantity, seconds=True, cost=console.width >= _WIDE)
    table = console.table(*titles)
    for cells in rows:
        table.add_row(*cells)
    console.print(table)
    for sentence in sentences_first(comparison):
        console.print(sentence)
    seeds = {result["seed"] for result in comparison["runs"]}
    console.print(_heading(comparison, len(seeds), bool(counts)))
    for pair in comparison["paired"]:
        shared = f" (seed{'s' * (len(pair['seeds']) > 1)} {', '.join(map(str, pair['seeds']))})" if counts else ""
        console.print(f"  {pair['sentence']}{shared}")
    for sentence in (*sentences_after(comparison), *notes_after_training(comparison.get("notes", ()))):
        console.print(sentence)
    if comparison["tuning"]:
        console.print(f"settings, chosen on validation rows of seed {comparison['tuning'][0]['seed']}:")
    for tuned in comparison["tuning"]:
        console.print(f"  {tuned['method']}: {tuned_sentence(tuned)}")
    for failure in comparison["failed"]:
        console.print(f"{failure['method']} seed {failure['seed']} failed: {failure['error']}")
    console.print()
    console.print(f"data version  {comparison['data_version']}")
    console.print(f"figure        {comparison['figure']}")
    console.print(f"report        {comparison['report']}")
    console.print(f"experiment    {comparison['experiment']}")
    registry = comparison.get("registry")
    if registry:
        for line in _registry_lines(comparison, registry):
            console.print(line)
    console.print(f"look closer   {LOOK_CLOSER}")
    # last, since the end is what a terminal still shows
    if answer := answer_sentence(comparison):
        console.print(f"answer        {answer}")
    if not comparison["failed"]:
        console.print(f"next          {_next_command(comparison)}", soft_wrap=True)


def _next_command(comparison: "ComparisonResult") -> str:
    """Return what to type next: what makes a model the champion if `promote` would do it, else what finds a better one."""
    from flows.experiments.comparison.comparison_text import sentences_first

    registry = comparison.get("registry")
    # nobody needs a first champion that may be no better than a constant answer, though `promote` would take it
    is_useful = not sentences_first(comparison)
    if registry and (
        any(each["better"] for each in registry["candidates"]) or (is_useful and _becomes_first(comparison, registry))
    ):
        return "siloflow promote, then siloflow predict FILE --output labels.csv"
    return "siloflow advise"


def _becomes_first(comparison: "ComparisonResult", registry: "RegisteredCandidates") -> bool:
    """Return whether `promote` would make one of the candidates the first champion.

    The challenger may be of an earlier comparison; whether `promote` takes it is then not known here.
    """
    from flows.results.registry.champion_evidence import proved_better

    if not registry["candidates"] or registry["champion"] is not None:
        return False
    first = [each["method"] for each in registry["candidates"] if each["version"] == registry["challenger"]]
    return bool(first) and not any(proved_better(comparison, method) for method in first)


def _registry_lines(comparison: "ComparisonResult", registry: "RegisteredCandidates") -> list[str]:
    """Return the registered versions, and which of them are better than the champion."""
    candidates = registry["candidates"]
    if not candidates:
        return []
    names = {each["version"]: each.get("run", each["method"]) for each in candidates}  # earlier versions named no run
    listed = ", ".join(f"{name} as version {version}" for version, name in names.items())
    lines = [f"registered    {registry['model']}: {listed}"]
    better = [each["version"] for each in candidates if each["better"]]
    if registry["champion"] is None:
        challenger = registry["challenger"]
        name_of_challenger = None if challenger is None else names.get(challenger)
        name = f"{name_of_challenger or 'an earlier candidate with a better score'} (version {challenger})"
        would = f"refuses, since another is better, to make {name} the first"
        if challenger not in names:
            would = f"judges {name} by the comparison that it comes from"
        elif _becomes_first(comparison, registry):
            would = f"would make {name} the first"
        lines.append(f"champion      none yet: `siloflow promote` {would}")
    elif better:
        named = ", ".join(f"{names[version]} (version {version})" for version in better)
        lines.append(f"champion      version {registry['champion']}; better: {named}: `siloflow promote`")
    return lines


def _heading(comparison: "ComparisonResult", seeds: int, unequal: bool) -> str:
    """Return what the numbers of the table and the intervals below it are.

    Args:
        comparison: The comparison; sentences on differences follow if it has some.
        seeds: The number of seeds.
        unequal: Methods finished with different numbers of seeds.
    """
    from flows.experiments.comparison.comparison_text import interval_heading

    partitions = len(comparison.get("partitions", ())) + 1
    over = "the runs that each method finished" if unequal else f"{seeds} seeds"
    if unequal and partitions == 1:
        over = "the seeds that each method finished"
    elif partitions > 1 and not unequal:
        over = f"{seeds} seed{'s' * (seeds > 1)} of {partitions} partitions"
    several = seeds > 1 or partitions > 1
    if not comparison["paired"]:
        return f"mean ± standard deviation over {over}" if several else "one seed"
    intervals = interval_heading(comparison)
    if several:
        return f"mean ± standard deviation over {over}; {intervals}:"
    return f"one seed: {intervals}; they say nothing about other seeds:"


def _comparison_overrides(project: "Project", tune: bool, partitions: int | None, publish: bool) -> list[str]:
    """Return the settings that the options of `compare` stand for, where params have not set them already."""
    comparison = project.params.comparison
    overrides = [] if partitions is None else [f"comparison.partitions={partitions}"]
    if (tune or publish) and not comparison.tune:
        overrides.append("comparison.tune=8")
    if publish:
        from flows.experiments.comparison.run_trials import PUBLISHED, can_draw

        overrides.append("comparison.publish=true")
        if len(comparison.seeds) < PUBLISHED:
            overrides.append(f"comparison.seeds={list(range(PUBLISHED))}")
        drawn = partitions is None and comparison.partitions == 1 and comparison.over == "rows"
        if drawn and can_draw(project.params.data):
            overrides.append(f"comparison.partitions={PUBLISHED}")
    return overrides


@commands.command()
def advise(
    methods: Annotated[
        list[str] | None,
        typer.Argument(help="The methods that race besides the references; by default all that can run on the data."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="The time to take; by default advise.minutes of params.yaml.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The name of the race in runs/ and MLflow. With --resume: the race to continue.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the advised method into params.yaml, and print what changes.")
    ] = False,
    resume: Resume = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Find the method that these silos should use, and prove it on fresh seeds.

    Methods and their settings race on validation rows; the winner is compared with FedAvg and with training alone.

    Example: siloflow advise --minutes 15
    """
    with Session(json, timings, server=True, resume_hint="--resume continues the race") as session:
        if minutes is not None and not 0 < minutes <= param_limits.TIMES:
            raise UserError(f"--minutes: got {minutes:g}, expected more than 0. Choose for example 5.")
        project = session.open_project(overrides, _check_advisable, lock_data_for="advise")
        _check_runner(project)
        if not resume:
            session.print_progress(
                f"takes about {minutes or project.params.advise.minutes:g} minutes; --minutes changes that"
            )
        from flows.advise import advise as advise_flow  # while the server starts

        advice = session.run_flow(
            advise_flow, project, minutes=minutes or 0.0, methods=methods, name=name, resume=resume
        )
        again = ["siloflow", "advise", "--resume", "--apply", "--name", advice["experiment"]]
        again += [f"--set={override}" for override in overrides or []]
        failed = bool(advice["comparison"]["failed"])
        advice["apply"] = None if apply or failed else shlex.join(again)
        session.print_result(advice, print_advice, failed=failed)
        if apply:
            from flows.experiments.advice.apply_advice import apply_advice

            for line in apply_advice(session.root, advice) or ["params.yaml has this advice already"]:
                session.print_progress(line)


def print_advice(advice: "Advice", console: "PlainConsole") -> None:
    """Print the advice and where its files are."""
    from flows.experiments.advice.advice_text import described

    for line in described(advice):
        console.print(line)
    console.print()
    console.print(f"data version  {advice['data_version']}")
    console.print(f"experiment    {advice['experiment']}")
    if advice.get("apply"):
        console.print(f"apply it      {advice['apply']}", soft_wrap=True)
    console.print(f"look closer   {LOOK_CLOSER}")


@commands.command()
def schedule(
    cron: Annotated[
        str, typer.Argument(help='When to run: minute hour day month weekday, as in "0 6 * * 1", or @daily.')
    ],
    methods: MethodNames = None,
    seeds: Seeds = None,
    port: Annotated[
        int | None, typer.Option(help="The local port of Prefect's page; by default the last one, or 4200.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Run `compare` on a cron schedule (UTC) until ctrl-C.

    Example: siloflow schedule "0 6 * * 1" fedavg local_only
    """
    with Session(retry_hint=_SCHEDULED) as session:
        numbers = parse_seeds(seeds)
        project = session.open_project(overrides)
        from flows.orchestration.servers.prefect_process import last_port, save_port

        session.start_server(ui=True, **last_port(project.root, port))
        from flows.schedule import Parameters, cron_schedule, serve

        when = cron_schedule(cron)
        _plan(project, methods, numbers, None)
        address = session.wait_for_server()
        save_port(project.root, address)
        from flows.results.run_history.abandoned_runs import close_abandoned

        close_abandoned(project.root, project)
        # lists, not null: Prefect's form checks the types of its fields
        parameters: Parameters = {"methods": methods or [], "seeds": numbers or []}
        serve(project.root, when, address, parameters, overrides or [])


@commands.command()
def ui(
    mlflow_port: Annotated[int, typer.Option(help="The local port of MLflow's page.")] = 5000,
    prefect_port: Annotated[
        int | None, typer.Option(help="The local port of Prefect's page; by default 4200, or the schedule's.")
    ] = None,
) -> None:
    """Serve MLflow's and Prefect's pages until ctrl-C.

    Example: siloflow ui --mlflow-port 5001
    """
    with Session():
        from flows.ui import serve

        serve(mlflow_port, prefect_port)


def parse_seeds(text: str | None) -> list[int] | None:
    """Return the numbers of `--seeds 0,1,2`; None if the option is not given."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    # isdigit() is also true of ², which is no number
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(
            f"--seeds: got {shown(text)}, expected whole numbers separated by commas. Write them as in 0,1,2."
        )
    if any(len(part) > 100 or int(part) > param_limits.SEED for part in parts):
        raise UserError(f"--seeds: got {shown(text)}, expected at most {param_limits.SEED:,}. Choose smaller seeds.")
    return [int(part) for part in parts]


# Checks before a flow starts: inside one, Prefect would log a traceback.


def _check_data(project: "Project") -> None:
    """Raise UserError if data/ is missing, or is not the recorded version."""
    project.silos  # noqa: B018


def _check_advisable(project: "Project") -> None:
    from flows.advise import check_advisable

    check_advisable(project)


def _check_method(project: "Project", method: str, seed: int) -> None:
    from flows.methods.base import start_method
    from flows.methods.method_settings import check_listed, method_of
    from flows.training.run_context import check_allowed
    from flows.training.training_setup import training_setup

    check_listed(method, project.params, project.root)
    setup = training_setup(project, seed)
    check_allowed(project, method, setup)
    start_method(method_of(project.params, method), setup)


def _check_runner(project: "Project") -> None:
    from tasks.execution.open_workers import check

    check(project.params.runner.kind)


def _check_resumed_run(project: "Project", method: str, seed: int) -> None:
    from flows.project.run_sets import newest_experiment
    from flows.training.run_records.fingerprint import check_resume
    from flows.training.run_records.run_folder import run_name

    check_resume(project, method, seed, newest_experiment(project, "run", inside=run_name(method, seed)))


def _plan(project: "Project", methods: list[str] | None, seeds: list[int] | None, reference: str | None) -> "Plan":
    from flows.compare import make_plan

    return make_plan(project, methods, seeds, reference)


def _check_resumed_comparison(project: "Project", wanted: "Plan", name: str | None) -> None:
    from flows.compare import check_resume

    check_resume(project, wanted, name)


def _check_unused(project: "Project", name: str) -> None:
    from flows.training.run_records.fingerprint import unused_name

    unused_name(project, name)
