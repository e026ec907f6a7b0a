"""Define the commands that use a model: predict, evaluate, serve."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.command_session import Json, Overrides, Session

if TYPE_CHECKING:
    from flows.console.safe_text import PlainConsole

_MAX_LABELS = 10  # that are printed

commands = typer.Typer()

_WHICH = "The champion, or a finished run: its folder under runs/, or the end of its name."
ModelArgument = Annotated[str, typer.Argument(metavar="[champion|RUN]", help=_WHICH)]


@commands.command()
def predict(
    input: Annotated[
        str, typer.Argument(help="A file of rows as data.source reads them: .csv, .csv.gz, .parquet or .npz.")
    ],
    output: Annotated[str, typer.Option(metavar="FILE", help="The .csv or .parquet file to write.")],
    client: Annotated[
        str | None, typer.Option(help="The client whose rows they are; needed if each client has its own model.")
    ] = None,
    model: Annotated[str, typer.Option("--model", metavar="champion|RUN", help=_WHICH)] = "champion",
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Predict the rows of a file: label, probabilities and entropy of each.

    Example: siloflow predict new.csv --output labels.csv
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.serving.predict_file import predict_file

        session.print_result(predict_file(project, input, output, client, model), print_predict)


def print_predict(answer: dict[str, Any], console: "PlainConsole") -> None:
    """Print the model, what it predicted, and where."""
    console.print(f"model         {answer['model']}" + (f", client {answer['client']}" if answer["client"] else ""))
    console.print(f"rows          {answer['rows']:,}")
    if answer["labels"]:
        ranked = sorted(answer["labels"].items(), key=lambda item: -item[1])
        listed = ", ".join(f"{label}: {count:,}" for label, count in ranked[:_MAX_LABELS])
        more = len(ranked) - _MAX_LABELS
        console.print(f"labels        {listed}" + (f" and {more} more" if more > 0 else ""))
    if answer["entropy"] is not None:
        console.print(f"mean entropy  {answer['entropy']:.3f} nats")
    console.print(f"file          {answer['file']}")


@commands.command()
def evaluate(model: ModelArgument = "champion", overrides: Overrides = None, json: Json = False) -> None:
    """Score the champion, or the model of a run, on the present test rows of each client.

    Example: siloflow evaluate fedavg-seed0
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.serving.evaluate_model import evaluate_model

        session.print_result(evaluate_model(project, model), print_evaluate)


def print_evaluate(answer: dict[str, Any], console: "PlainConsole") -> None:
    """Print the model, its metrics, and a row for each silo."""
    from models.metrics.client_metrics import recorded_metric

    quantity, metrics = recorded_metric(answer), answer["metrics"]
    version = f"version {answer['version']}, " if answer["version"] else ""
    console.print(f"{version}{answer['method']} seed {answer['seed']}, round {answer['round']}: {answer['run']}")
    if quantity.headline in metrics:
        for line in f"test {quantity.as_text(metrics)}".split("\n"):
            console.print(line)
    names = [name for name in (quantity.name, "loss", *quantity.also) if any(name in row for row in answer["clients"])]
    table = console.table("silo", "role", "test rows", *names)
    for row in answer["clients"]:
        numbers = (quantity.number(row.get(name)) if row.get(name) is not None else "-" for name in names)
        table.add_row(row["client"], row["role"], f"{row['rows']:,}", *numbers)
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
        from flows.serving import scoring_server

        scoring_server.serve(project, model, host, port, max_body)
