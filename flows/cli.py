"""The command `siloflow`: a thin face on the flows. Nothing heavy is imported before a subcommand needs it."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flows.console import collector
from silos import bounds

_RESUMED = "--resume goes on after the last whole round"
_GOES_ON = "run it again, and it goes on where it stopped"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Federated learning over silos that are not alike: partition, run, compare, schedule.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"siloflow {version('siloflow')}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version, and exit.")
    ] = False,
) -> None:
    """What stands before a command's name."""


Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one value of params.yaml; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
Timings = Annotated[bool, typer.Option("--timings", help="Print what the command's fixed costs were.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on after the last whole round of the newest such run.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or an empty one.")],
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your rows: .npz, .csv, .csv.gz or .parquet; digits if not given."),
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="What is predicted; guessed by its name.")] = None,
    client: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The silo of a row; guessed by its name.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, max=bounds.CLIENTS, help="Deal the rows to so many silos that are alike.")
    ] = None,
    task: Annotated[
        Literal["classification", "regression"] | None, typer.Option(help="Guessed by the label's values.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a project's folder with a params.yaml that fits your data.

    Example: siloflow init study --data visits.csv --label outcome --client hospital
    """
    with _session(json, timings=False, server=False) as session:
        from flows.new_project.init import init as made
        from flows.new_project.own_data import Asked

        session.answer(made(folder, data, Asked(label, client, clients, task)), "init")


@app.command()
def partition(overrides: Overrides = None, json: Json = False, timings: Timings = False) -> None:
    """Make silos under data/ from a source and record their version.

    Example: siloflow partition --set data.seed=1
    """
    with _session(json, timings) as session:
        session.project(overrides, _can_partition)
        made = session.flow("partition", "partition", overrides=overrides or [])
        session.answer(made, "partition")


@app.command()
def run(
    method: Annotated[str, typer.Argument(help="One of `siloflow methods`.")],
    seed: Annotated[
        int, typer.Option(min=0, max=bounds.SEED, help="Of training; the partition has its own in params.yaml.")
    ] = 0,
    resume: Resume = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Train one method with one seed.

    Example: siloflow run fedavg --seed 1 --set training.rounds=20
    """
    with _session(json, timings, begun=_RESUMED) as session:
        project = session.project(overrides, _has_data)
        _start(project, project.params.page(method, project.root), seed)
        _ready(project)
        if resume:
            _check_run(project, method, seed)
        result = session.flow("run", "run", method=method, seed=seed, overrides=overrides or [], resume=resume)
        session.answer(result, "run")


@app.command()
def compare(
    methods: Annotated[list[str] | None, typer.Argument(help="Those of params.yaml if none is named.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated, for example 0,1,2.")] = None,
    reference: Annotated[str | None, typer.Option(help="The method that the others are compared with.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="First choose each method's best of 8 settings, on validation rows.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            help="Of the comparison, in runs/ and MLflow; with --resume which goes on, or its name's beginning."
        ),
    ] = None,
    resume: Resume = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Train several methods and say which differences are real.

    All train on the same seeds and rows.

    Example: siloflow compare fedavg fedprox --seeds 0,1,2 --set method.fedprox.proximal=1
    """
    with _session(json, timings, begun=_RESUMED) as session:
        numbers = _seeds(seeds)
        project = session.project(overrides, _has_data)
        if tune and not project.params.comparison.tune:
            overrides = [*(overrides or []), "comparison.tune=8"]
            project = session.project(overrides)
        wanted = _plan(project, methods, numbers, reference)
        _ready(project)
        if resume:
            _check_comparison(project, wanted, overrides or [], name)
        elif name is not None:
            _check_name(project, name)
        asked: dict[str, Any] = {"methods": methods, "seeds": numbers, "reference": reference, "name": name}
        comparison = session.flow("compare", "compare", **asked, overrides=overrides or [], resume=resume)
        session.answer(comparison, "compare", failed=bool(comparison["failed"]))


@app.command()
def schedule(
    cron: Annotated[str, typer.Argument(help='Five fields: minute hour day month weekday, as in "0 6 * * 1".')],
    methods: Annotated[list[str] | None, typer.Argument(help="Those of params.yaml if none is named.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated, for example 0,1,2.")] = None,
    port: Annotated[int | None, typer.Option(help="Loopback port of Prefect's page; the last one's, or 4200.")] = None,
    overrides: Overrides = None,
) -> None:
    """Run `compare` on a cron schedule (UTC) until ctrl-C.

    Example: siloflow schedule "0 6 * * 1" fedavg local_only
    """
    with _session(json=False, timings=False, server=False) as session:
        numbers = _seeds(seeds)
        project = session.project(overrides)
        from flows.console.page_ports import remember, same_again

        session.serve(ui=True, **same_again(project.root, port))
        from flows.schedule import cron_schedule, serve

        when = cron_schedule(cron)
        _plan(project, methods, numbers, None)
        remember(project.root, session.server_url())
        serve(when, session.server_url(), {"methods": methods, "seeds": numbers}, overrides or [])


@app.command()
def ui(
    mlflow_port: Annotated[int, typer.Option(help="Loopback port of MLflow's page.")] = 5000,
    prefect_port: Annotated[
        int | None, typer.Option(help="Loopback port of Prefect's page; 4200, or where a schedule has it.")
    ] = None,
) -> None:
    """Open MLflow's and Prefect's pages until ctrl-C.

    Example: siloflow ui --mlflow-port 5001
    """
    with _session(json=False, timings=False, server=False):
        from flows.ui import serve

        serve(mlflow_port, prefect_port)


@app.command()
def show(overrides: Overrides = None, json: Json = False) -> None:
    """Show how the silos differ: sizes, labels, features.

    Example: siloflow show --json
    """
    with _session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        from flows.answers.show import show as overview

        session.answer(overview(project), "show")


@app.command()
def diagnose(
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV", help="Each silo beside itself then: a git revision, or the start of a data version."
        ),
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Name how the silos differ: in inputs, in labels, or in the rule between them.

    Example: siloflow diagnose --against HEAD~1
    """
    with _session(json, timings, after="run it again, and silos tell the same bytes") as session:
        session.project(overrides, None if against is None else lambda project: _can_compare(project, against))
        found = session.flow("diagnose", "diagnose", against=against, overrides=overrides or [])
        session.answer(found, "diagnose")


@app.command()
def methods(
    method: Annotated[str | None, typer.Argument(help="With this one's options; all, in a line each, if none.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List the methods, or one method's options with what each takes and means.

    Example: siloflow methods uefl
    """
    with _session(json, timings=False, server=False) as session:
        from flows import method as pages

        extra = session.project(overrides).params.extra_methods if Path("params.yaml").is_file() else {}
        if method is None:
            full = [pages.describe(name, extra) for name in pages.names(extra)] if json else pages.summaries(extra)
            session.answer({"methods": full}, "methods")
        else:
            from flows.experiment.method_options import in_full

            session.answer(in_full(method, extra), "method")


@app.command()
def results(
    name: Annotated[str | None, typer.Argument(help="What to print again, by its folder in runs/.")] = None,
    other: Annotated[str | None, typer.Argument(help="A comparison to hold beside the first.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List what was run here, print one result again, or hold two comparisons beside each other.

    A beginning of a name is enough where only one begins so.

    Example: siloflow results
    """
    with _session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        if name is None:
            from flows.past.listed import listed

            session.answer(listed(project.root), "results")
        elif other is None:
            from flows.past.again import again

            answer, printer = again(project, name)
            session.answer(answer, printer)
        else:
            from flows.past.beside import beside

            session.answer(beside(project, name, other), "beside")


@app.command()
def clean(
    yes: Annotated[bool, typer.Option("--yes", help="Delete all that is listed, without asking.")] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List what piles up, with what is lost without it, and delete what you agree to.

    Finished runs, what silos told and what is in use stay. Where nobody can be asked nothing is deleted without --yes.

    Example: siloflow clean
    """
    with _session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        from flows.console.consent import consent
        from flows.past.clean import clean as thrown

        session.answer(thrown(project.root, consent(yes, silent=json)), "clean")


@app.command()
def stats(
    client: Annotated[str, typer.Argument(help="A client of data/; its training rows are read, here.")],
    method: Annotated[str, typer.Option(help="Whose section of params.yaml names the statistics.")] = "conditional",
    output: Annotated[str | None, typer.Option(metavar="FILE", help="Write the JSON there too.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Compute one client's statistics, for a conditional model's params.

    Nothing is logged or written, unless --output names a file.

    Example: siloflow stats c03 --json
    """
    with _session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        from flows.answers.stats import client_statistics

        session.answer(client_statistics(project, client, method, output), "stats")


@app.command()
def cost(
    method: Annotated[
        str | None, typer.Option(help="With the network that this method makes; params.yaml's own if not given.")
    ] = None,
    without_memory: Annotated[
        bool, typer.Option("--without-memory", help="Measure no memory, which takes some processes of seconds.")
    ] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Say what the network asks of a client's machine: arithmetic, memory, bytes, time.

    Example: siloflow cost --set "model.hidden=[30]"
    """
    with _session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        from flows.answers.cost import cost as costs

        session.answer(costs(project, method, not without_memory, session.say), "cost")


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="The folder that `siloflow run` prints after files.")],
    client: Annotated[str | None, typer.Option(help="Whose model; needed where each client has one.")] = None,
    format: Annotated[
        Literal["pt2", "onnx"], typer.Option(help="pt2 (torch), or onnx, which needs the extra onnx.")
    ] = "pt2",
    output: Annotated[str | None, typer.Option(metavar="FILE", help="In the run's folder if not given.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Write a run's model as a file for programs without siloflow.

    Example: siloflow export fedavg-seed0 --output digits.pt2
    """
    with _session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        from flows.answers.export import export as written

        session.answer(written(project, run, client, format, output), "export")


@app.command()
def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="A page of flows/papers/pages, or a .yaml file of your own; all if not given.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="Which of its tables; if none is named, they are listed.")] = None,
    figure: Annotated[str | None, typer.Option(help="Which of its figures: --figure 3 is --table figure-3.")] = None,
    scale: Annotated[str, typer.Option(help="cpu, or paper for the published size.")] = "cpu",
    seeds: Annotated[str | None, typer.Option(help="Comma-separated; those of the scale if not given.")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only say how long it would take.")] = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """List published tables and what came of them, or repeat one and print it beside ours.

    A table that was interrupted goes on where it stopped.

    Example: siloflow reproduce mcmahan --table 2NN --estimate
    """
    with _session(json, timings, server=False, after=_GOES_ON) as session:
        numbers, table = _seeds(seeds), _table(table, figure)
        if table is None and not (estimate or seeds or overrides):
            session.answer(_listing(paper), "listing")
            return
        paper = _named(paper)
        session.project(overrides)
        asked: dict[str, Any] = {"paper": paper, "table": table, "scale": scale, "seeds": numbers}
        asked["overrides"] = overrides or []
        sweep = _sweep(**asked)
        if estimate or not sweep.finished:
            session.serve()
            answer = session.flow("reproduce", "reproduce", **asked, estimate=estimate)
        else:
            answer = _recorded(sweep)
        session.answer(answer, "estimate" if estimate else "reproduce")


@app.command()
def bench(
    workloads: Annotated[list[str] | None, typer.Argument(help="W1 to W5, and W7; all if none is named.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of every contestant.")] = 3,
    peer: Annotated[list[str] | None, typer.Option(help="flower, if it is installed.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Measure this project's engine, and propose its settings.")
    ] = False,
    codebook: Annotated[bool, typer.Option("--codebook", help="What a codebook adds to a training step.")] = False,
    regroup: Annotated[bool, typer.Option("--regroup", help="What making groups adds to a round.")] = False,
    diagnose: Annotated[bool, typer.Option("--diagnose", help="What comparing 1,000 silos costs.")] = False,
    population: Annotated[
        bool, typer.Option("--population", help="W6: rounds of 100 clients of a thousand, and of up to a million.")
    ] = False,
    record: Annotated[bool, typer.Option("--record", help="Keep what is measured in docs/results/bench.json.")] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Time whole rounds beside a plain loop, or tune the engine.

    Example: siloflow bench W1 --repeats 3
    """
    with _session(json, timings=False, server=False) as session:
        keep = _keeper(session.root, record and not tune)
        if tune:
            from flows.bench.tuning import tune as measure

            session.answer(measure(session.project(overrides), session.say), "tune")
        elif codebook:
            from flows.bench.codebook_cost import overhead

            session.answer(keep("codebook", overhead(repeats, session.say), f" --repeats {repeats}"), "overhead")
        elif regroup:
            from flows.bench.regroup_cost import regroup_cost

            session.answer(keep("regroup", regroup_cost(repeats, session.say), f" --repeats {repeats}"), "regroup")
        elif population:
            from flows.bench.population_cost import population_cost

            measured = population_cost(repeats, session.say)
            session.answer(keep("population", measured, f" --repeats {repeats}"), "population")
        elif diagnose:
            from flows.bench.diagnose_cost import diagnose_cost

            session.answer(keep("diagnose", diagnose_cost(session.say)), "diagnose_cost")
        else:
            from flows.bench.contest import bench as contest

            measured = contest(workloads or [], repeats, peer or [], session.say)
            asked = "".join([f" --repeats {repeats}", *(f" --peer {name}" for name in peer or [])])
            for workload in measured["workloads"]:
                keep(workload["workload"], workload, asked)
            session.answer(measured, "bench")


data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Versions of data/: list, compare, go back.")
app.add_typer(data, name="data")


@data.command("log")
def data_log(json: Json = False) -> None:
    """List the versions of data/ that git knows.

    Example: siloflow data log
    """
    with _session(json, timings=False, server=False) as session:
        from flows.answers import versions

        session.answer(versions.log(session.root), "data_log")


@data.command("diff")
def data_diff(
    revision: Annotated[str, typer.Argument(help="A git revision, or the start of a data version.")],
    to: Annotated[str | None, typer.Argument(help="The other one; what data.dvc records now if not given.")] = None,
    json: Json = False,
) -> None:
    """Show which silos changed between two versions, with rows and label shares before and after.

    Example: siloflow data diff HEAD~1
    """
    with _session(json, timings=False, server=False) as session:
        from flows.answers import versions

        session.answer(versions.diff(session.root, revision, to), "data_diff")


@data.command("use")
def data_use(
    revision: Annotated[str, typer.Argument(help="A git revision, or the start of a data version.")],
    json: Json = False,
) -> None:
    """Bring a version of data/ back; a run on it gives the metrics that it gave then.

    Example: siloflow data use 3f2a91c
    """
    with _session(json, timings=False, server=False) as session:
        from flows.answers import versions

        session.answer(versions.use(session.root, revision), "data_use")


def main() -> None:
    """Entry point of the console script."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as `>&-` does
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115
    collector.rest()
    app()


def _session(json: bool, timings: bool, **options: Any) -> Any:
    from flows.console.session import Session

    return Session(json=json, timings=timings, **options)


def _start(project: Any, page: Any, seed: int) -> None:
    from flows.method import start

    start(page, project.problem(seed))


def _plan(project: Any, methods: list[str] | None, seeds: list[int] | None, reference: str | None) -> Any:
    from flows.compare import plan

    return plan(project, methods, seeds, reference)


def _ready(project: Any) -> None:
    from tasks.running.workers import check

    check(project.params.runner.kind)


def _has_data(project: Any) -> None:
    """Data that are missing, or not those that are recorded, are told before anything heavy is imported."""
    project.silos  # noqa: B018


def _can_partition(project: Any) -> None:
    """Who works on data/, and what is wrong with the source, is told before Prefect is started."""
    from flows.experiment.project import changing
    from silos.stored.store import read

    with changing(project.root, "`siloflow partition`"):
        pass
    read(project.params.data, project.root)


def _can_compare(project: Any, revision: str) -> None:
    """An unknown version, and one of another schema, is told before Prefect is started."""
    from flows.diagnosis.earlier_version import earlier

    with earlier(project, revision):
        pass


def _check_run(project: Any, method: str, seed: int) -> None:
    from flows.experiment.identity import check_resume
    from flows.experiment.project import newest_experiment
    from flows.experiment.run_folder import run_name

    check_resume(project, method, seed, newest_experiment(project, "run", inside=run_name(method, seed)))


def _check_comparison(project: Any, wanted: dict[str, Any], overrides: list[str], name: str | None) -> None:
    from flows.compare import check_resume

    check_resume(project, wanted, overrides, name)


def _check_name(project: Any, name: str) -> None:
    from flows.experiment.free_name import free_name

    free_name(project, name)


def _sweep(**asked: Any) -> Any:
    """The page and what is recorded of it are looked at before Prefect is started, which a finished table does without."""
    from flows.papers.sweep import Sweep

    return Sweep(**asked)


def _keeper(root: Path, wanted: bool) -> Any:
    """Keeps what a benchmark measured, if that is wanted, and answers it; how busy the machine is, is seen before."""
    from flows.bench.bench_records import BenchRecords

    records = BenchRecords(root)

    def keep(name: str, measured: Any, options: str = "") -> Any:
        if wanted:
            asked = f"--{name}" if name.islower() else name
            records.keep(name, f"siloflow bench {asked}{options}", measured)
        return measured

    return keep


def _listing(paper: str | None) -> dict[str, Any]:
    from flows.papers.writing.listing import listing

    return listing(paper)


def _named(paper: str | None) -> str:
    from flows.papers.published_tables import names
    from silos.errors import UserError

    if paper is None:
        raise UserError(f"say which paper: {', '.join(names())}, or a .yaml file of your own.")
    return paper


def _recorded(sweep: Any) -> Any:
    from flows.papers.table import table_of_records

    return table_of_records(sweep)


def _table(table: str | None, figure: str | None) -> str | None:
    """The table that is asked for, by its name or by the number of a figure."""
    from silos.errors import UserError

    if figure is not None and table is not None:
        raise UserError("--table and --figure name two things to repeat; give one of them.")
    return table if figure is None else f"figure-{figure}"


def _seeds(text: str | None) -> list[int] | None:
    from silos.errors import UserError, shown

    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    # isdigit() is true of ² too, which is no number
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"--seeds {shown(text)}: write whole numbers with commas between, for example 0,1,2.")
    if any(len(part) > 100 or int(part) > bounds.SEED for part in parts):
        raise UserError(f"--seeds {shown(text)}: a seed is at most {bounds.SEED:,}.")
    return [int(part) for part in parts]
