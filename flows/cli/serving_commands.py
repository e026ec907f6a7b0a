"""Define the commands that decide which model is in use, and those that use one.

The first are promote, rollback, history and watch; the others are predict, evaluate and serve.
"""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.command_session import Json, Overrides, Session, Timings
from silos.errors import UserError, counted
from silos.io.addresses import mask_passwords

if TYPE_CHECKING:
    from flows.core.console.safe_text import PlainConsole
    from tasks.tracking.result_types.model_results import ModelScores, Predictions
    from tasks.tracking.result_types.registry_records import Decision, History, QuotedComparison, WatchAnswer

_MAX_LISTED = 20  # of the newest
_MAX_LABELS = 10  # that are printed
_READS_REGISTRY = "reading the registered models"  # which takes seconds, most of them to import MLflow and torch

WithData = Annotated[
    bool, typer.Option("--data", help="Also restore the version of data/ on which the model was trained.")
]
_WHICH = "The champion, or a finished run: its folder under runs/, or the end of its name."
ModelArgument = Annotated[str, typer.Argument(metavar="[champion|RUN]", help=_WHICH)]

RowsFile = Annotated[
    str, typer.Argument(help="A file of rows as data.source reads them: .csv, .csv.gz, .parquet or .npz.")
]
LabelsFile = Annotated[str, typer.Option(metavar="FILE", help="The .csv or .parquet file to write.")]
RowsOf = Annotated[
    str | None, typer.Option(help="The client whose rows they are; by default each row's own, if the file names it.")
]
KeptColumns = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Copy a column to the output; those that are no features always are."),
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be predicted, and list them.")
]

commands = typer.Typer()


@commands.command()
def promote(
    run: Annotated[
        str | None, typer.Argument(help="The run's folder or name, or a version's number; by default the challenger.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Promote without evidence; the history says so.")] = False,
    data: WithData = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Make a registered model the champion if it is better than the present one.

    It is better if the 95 % interval of their paired difference on the present test rows is above zero. With
    watch.prefer=cheaper, fewer bytes are enough if it is not worse. A first champion is refused if its comparison proved
    training alone, the constant answer or another candidate better. A refusal ends with exit code 1.

    Example: siloflow promote fedprox-seed0
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        session.print_progress(_READS_REGISTRY)
        from flows.results.registry.promotion import promote as promote_model

        decision = promote_model(project, run, force, data)
        session.print_result(decision, print_decision, failed=decision["decision"] == "refused")


@commands.command()
def rollback(data: WithData = False, overrides: Overrides = None, json: Json = False) -> None:
    """Make the former champion the champion again.

    Example: siloflow rollback
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        session.print_progress(_READS_REGISTRY)
        from flows.results.registry.promotion import roll_back

        session.print_result(roll_back(project, data), print_decision)


def _print_difference(decision: "Decision", console: "PlainConsole") -> None:
    """Print the difference from the champion, and which model may have been trained on these test rows."""
    from flows.results.registry.register_candidates import older_sentence

    against = decision["against"]
    if against and "why_not" not in against:
        console.print(f"difference    {against['sentence']}")
        if older := older_sentence(against):
            console.print(f"caution       {older}")


def print_decision(decision: "Decision", console: "PlainConsole") -> None:
    """Print what was decided, on which numbers, and why."""
    name = f"version {decision['version']} ({decision['run']})"
    if decision["decision"] == "refused":
        console.print(f"not promoted  {name}")
    else:
        console.print(f"champion      {name}")
        if decision["champion"]:
            console.print(f"before        version {decision['champion']}")
    _print_difference(decision, console)
    for line in _quoted_lines(decision.get("comparison"), decision["reason"]):
        console.print(line)
    console.print(f"reason        {decision['reason']}")
    console.print(f"data version  {decision['data_version']}")
    if "next" in decision:
        console.print(f"next          {decision['next']}", soft_wrap=True)
    if decision["decision"] == "refused":
        console.print(f"anyway        siloflow promote {decision['version']} --force", soft_wrap=True)


def _quoted_lines(comparison: "QuotedComparison | None", reason: str) -> list[str]:
    """Return what the comparison that a decision rests on says of the model's method, without what the reason says.

    Earlier decisions quote none.
    """
    if comparison is None or not comparison["sentences"]:
        return []
    name, more = comparison["experiment"], comparison["omitted"]
    sentences = [sentence for sentence in comparison["sentences"] if sentence not in reason]
    lines = [f"data          {fault}" for fault in comparison["open_faults"]]
    lines += [f"comparison    {name}: {sentence}" for sentence in sentences[:1]]
    lines += [f"              {sentence}" for sentence in sentences[1:]]
    if more:
        lines.append(f"{'' if sentences else 'comparison':14}… and {more} more: `siloflow results {name}`")
    return lines


@commands.command()
def history(overrides: Overrides = None, json: Json = False) -> None:
    """List promotions, refusals, rollbacks and what `watch` decided, with their numbers.

    Example: siloflow history
    """
    with Session(json) as session:
        project = session.open_project(overrides, is_recorded=False)
        from flows.results.registry.promotion_history import decisions

        history: History = {"decisions": decisions(project.root)}
        session.print_result(history, print_history)


def print_history(answer: "History", console: "PlainConsole") -> None:
    """Print two lines for each decision: what and when, then on which numbers."""
    from flows.results.registry.watch_text import unchecked_text

    for decision in answer["decisions"][:_MAX_LISTED]:
        at = decision["at"][:16].replace("T", " ")
        before = f" after {decision['champion']}" if decision["champion"] not in (None, decision["version"]) else ""
        console.print(f"{at} UTC  {decision['decision']}  version {decision['version']}{before}: {decision['run']}")
        against = decision["against"]
        sentence = against["sentence"] if against and "why_not" not in against else None
        data = f"data {(decision['data_version'] or '-')[:10]}, commit {decision['git_commit']}"
        saw = decision.get("watch")
        silos = [silo["client"] for silo in saw["shifted"]] if saw else []
        shifted = f"shifted: {', '.join(silos)}" if silos else None
        # decisions of earlier versions have no `unchecked`
        unchecked = unchecked_text(saw.get("unchecked", {}) if saw else {}).removeprefix("; ")
        is_in_reason = unchecked in decision["reason"]  # of a decision without training
        parts = [
            part for part in (shifted, None if is_in_reason else unchecked, sentence, decision["reason"], data) if part
        ]
        console.print(f"  {'; '.join(parts)}")
    more = len(answer["decisions"]) - _MAX_LISTED
    if more > 0:
        console.print(f"… and {more} more; --json lists them all")
    if not answer["decisions"]:
        console.print("No decision yet. Next: `siloflow promote` makes a model the champion.")


@commands.command()
def watch(
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    minutes: Annotated[float, typer.Option(min=0.1, help="The time between two looks, without --once.")] = 60.0,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Look for silos that changed since the champion was trained; if they shifted, train and promote what is better.

    If nothing changed, only hashes are read. Without --once it looks again until ctrl-C.

    Example: siloflow watch --once
    """
    with Session(json, timings, retry_hint="watch again; it continues the comparison that it began") as session:
        is_started = has_looked = False
        while True:
            try:
                project = session.open_project(overrides)
                from flows.results.registry.changed_silos import look
                from flows.results.run_history.clean_runs import enforce_retention

                answer = look(project)
                if answer is not None:
                    enforce_retention(project)
                else:
                    if not is_started:
                        session.print_progress("there is something to do: starts Prefect's server")
                        session.start_server()
                        is_started = True
                    from flows.watch import watch as watch_flow  # while the server starts

                    answer = session.run_flow(watch_flow, project)
            except UserError as error:  # it may pass, for example if another command uses data/
                if once or not has_looked or session.has_lost_server():
                    raise
                session.end_record(error)
                session.print_progress(f"{mask_passwords(str(error))} The next look is in {minutes:g} minutes.")
            else:
                session.print_result(answer, print_watch)
                session.end_record()
            if once:
                return
            has_looked = True
            time.sleep(60 * minutes)


def print_watch(answer: "WatchAnswer", console: "PlainConsole") -> None:
    """Print what was decided; if nothing changed, on one line."""
    if answer["decision"] is not None:
        from flows.results.registry.watch_text import shift_text

        names = [silo if how == "changed" else f"{silo} ({how})" for silo, how in answer["changed"].items()]
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        console.print(f"changed       {', '.join(names[:_MAX_LISTED])}{more}")
        if answer["shifted"]:
            console.print(f"shifted       {shift_text(answer['shifted'])}")
        for client, why in list(answer["unchecked"].items())[:_MAX_LISTED]:
            console.print(f"not checked   {client}: {why}")
        if len(answer["unchecked"]) > _MAX_LISTED:
            console.print(f"not checked   {len(answer['unchecked']) - _MAX_LISTED} more silos; --json lists them all")
        for line in answer["unseen"]:
            console.print(f"not seen      {line}")
        if answer["diagnosis"]:
            console.print(f"diagnosis     {answer['diagnosis']}")
        if answer["comparison"]:
            console.print(f"comparison    runs/{answer['comparison']}")
        _print_difference(answer["decision"], console)
    console.print(answer["sentence"])


@commands.command()
def predict(
    input: RowsFile,
    output: LabelsFile,
    client: RowsOf = None,
    model: Annotated[str, typer.Option("--model", metavar="champion|RUN", help=_WHICH)] = "champion",
    keep: KeptColumns = None,
    skip_bad_rows: SkipBadRows = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Predict the rows of a file: label, probabilities and entropy of each, after its number and its other columns.

    Example: siloflow predict new.csv --output labels.csv
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.results.serving.predict_file import predict_file

        answer = predict_file(project, input, output, client, model, keep or (), skip_bad_rows)
        session.print_result(answer, print_predict)


def print_predict(answer: "Predictions", console: "PlainConsole") -> None:
    """Print the model, what it predicted, and where."""
    console.print(f"model         {answer['model']}" + (f", client {answer['client']}" if answer["client"] else ""))
    console.print(f"rows          {answer['rows']:,}")
    if answer["clients"]:
        clients = [f"{client}: {count:,}" for client, count in answer["clients"].items()]
        others = f" and {len(clients) - _MAX_LISTED} more" if len(clients) > _MAX_LISTED else ""
        console.print(f"clients       {', '.join(clients[:_MAX_LISTED])}{others}")
    _print_assumptions(answer, console)
    if answer["skipped"]:
        rows = len(answer["skipped"])
        console.print(f"skipped       {rows:,} row{'s' * (rows > 1)}")
        for each in answer["skipped"][:_MAX_LISTED]:
            console.print(f"  {each['reason']}")
        if len(answer["skipped"]) > _MAX_LISTED:
            console.print(f"  … and {len(answer['skipped']) - _MAX_LISTED:,} more; --json lists them all")
    if answer["labels"]:
        ranked = sorted(answer["labels"].items(), key=lambda item: -item[1])
        listed = ", ".join(f"{label}: {count:,}" for label, count in ranked[:_MAX_LABELS])
        more = len(ranked) - _MAX_LABELS
        console.print(f"labels        {listed}" + (f" and {more} more" if more > 0 else ""))
    if answer["entropy"] is not None:
        console.print(f"mean entropy  {answer['entropy']:.3f} nats")
    console.print(f"file          {answer['file']}")


def _print_assumptions(answer: "Predictions", console: "PlainConsole") -> None:
    """Print clients that data/ lacks, and what replaced missing values."""
    for client, found in list(answer["unknown_clients"].items())[:_MAX_LISTED]:
        where = f"data/ has no client {client!r} ({counted(found['rows'], 'row')})"
        console.print(f"caution       {where}; the model is one for all clients, and answered. {found['hint']}")
    for filled in answer["filled_in"][:_MAX_LISTED]:
        whose = f"as in data/ for {filled['client']}" if filled["client"] else "as in training"
        rows = counted(filled["rows"], "row")
        console.print(f"filled in     {filled['column']} in {rows}: {filled['value']:.6g}, {whose}")
    for kind, count in (("unknown_clients", len(answer["unknown_clients"])), ("filled_in", len(answer["filled_in"]))):
        if count > _MAX_LISTED:
            console.print(f"… and {count - _MAX_LISTED:,} more; --json lists them all under {kind}")


@commands.command()
def evaluate(model: ModelArgument = "champion", overrides: Overrides = None, json: Json = False) -> None:
    """Score the champion, or the model of a run, on the present test rows of each client.

    Example: siloflow evaluate fedavg-seed0
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.results.serving.open_model import evaluate_model

        session.print_result(evaluate_model(project, model), print_evaluate)


def print_evaluate(answer: "ModelScores", console: "PlainConsole") -> None:
    """Print the model, its metrics, and a row for each silo."""
    from models.metrics.client_metrics import recorded_metric
    from models.metrics.task_metrics import metric_value

    quantity, metrics = recorded_metric(answer), answer["metrics"]
    version = f"version {answer['version']}, " if answer["version"] else ""
    console.print(f"{version}{answer['method']} seed {answer['seed']}, round {answer['round']}: {answer['run']}")
    if quantity.headline in metrics:
        for line in f"test {quantity.as_text(metrics)}".split("\n"):
            console.print(line)
    names = [name for name in (quantity.name, "loss", *quantity.also) if any(name in row for row in answer["clients"])]
    table = console.table("silo", "role", "test rows", *names)
    for row in answer["clients"]:
        numbers = (quantity.number(metric_value(row, name)) for name in names)
        table.add_row(str(row["client"]), str(row["role"]), f"{row['rows']:,}", *numbers)
    console.print(table)
    console.print(f"data version  {answer['data_version']}")
    if answer["trained_on"] != answer["data_version"]:
        console.print(f"trained on    {answer['trained_on']}")


@commands.command()
def serve(
    model: ModelArgument = "champion",
    port: Annotated[int, typer.Option(help="The local port.")] = 5001,
    max_body: Annotated[int, typer.Option(min=1, max=1024, help="The largest request, in megabytes.")] = 16,
    host: Annotated[
        str, typer.Option(help="The IPv4 address to listen at; 0.0.0.0, without a password, in a container.")
    ] = "127.0.0.1",
    overrides: Overrides = None,
) -> None:
    """Serve the champion, or the model of a run, over HTTP on this machine until ctrl-C.

    Another champion is served without a restart. Requests and answers have MLflow's form.

    Example: siloflow serve --port 5001
    """
    with Session() as session:
        project = session.open_project(overrides)
        from flows.results.serving import scoring_server

        scoring_server.serve(project, model, host, port, max_body)
