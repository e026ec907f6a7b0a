"""Define the commands on methods and their models: methods, cost, audit, export."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.cli.command_session import Json, Overrides, Session
from silos import param_limits

if TYPE_CHECKING:
    from flows.core.console.safe_text import PlainConsole
    from flows.methods.base import MethodList
    from flows.methods.method_settings import MethodDetails
    from tasks.tracking.result_types.model_results import AuditResult, ExportResult
    from tasks.tracking.result_types.profile_result import MemoryProfile, NetworkProfile

_SOURCE = re.compile(r" \([^()]*\)\.?$")  # of a method, at the end of its summary: `methods NAME` prints it

commands = typer.Typer()


@commands.command()
def methods(
    method: Annotated[
        str | None, typer.Argument(help="The method whose options to list; by default all methods are listed.")
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List the methods, or the options of one method.

    Example: siloflow methods uefl
    """
    with Session(json) as session:
        from flows.core.plugin_loader import NONE
        from flows.core.unlisted_plugins import unlisted_plugins
        from flows.methods import base

        project = session.open_project(overrides, is_recorded=False) if Path("params.yaml").is_file() else None
        plugins = project.params.registered if project else NONE
        if method is not None:
            from flows.methods.method_settings import check_listed, method_details

            if project:
                check_listed(method, project.params, project.root)
            session.print_result(method_details(method, plugins), print_method)
            return
        listed: Sequence[base.MethodSummary] = base.method_summaries(plugins)
        if json:
            listed = [base.describe_method(name, plugins) for name in base.method_names(plugins)]
        found = unlisted_plugins(project.root, project.params.plugins) if project else ()
        unlisted: list[base.UnlistedMethod] = [
            {"method": each.name, "file": each.file} for each in found if each.kind == "method"
        ]
        answer: MethodList = {"methods": listed, "unlisted": unlisted}
        session.print_result(answer, print_methods)


def print_methods(answer: "MethodList", console: "PlainConsole") -> None:
    """Print a row for each method, short enough for a line of 80 columns, then those of plugin files that are not listed."""
    table = console.table("method", "what it does")
    for method in answer["methods"]:
        table.add_row(method["method"], _SOURCE.sub("", method["summary"].partition(": ")[2]).rstrip("."))
    console.print(table)
    for found in answer["unlisted"]:
        console.print(
            f"{found['file']} registers {found['method']}, and params.yaml does not list it. Name this file under plugins."
        )
    console.print("Next: `siloflow methods NAME` lists the options of a method.")


def print_method(method: "MethodDetails", console: "PlainConsole") -> None:
    """Print what the method does, and a row or two for each option."""
    console.print(method["summary"])
    console.print(f"model tested  {method['model']}")
    console.print(f"page          {method['page']}")
    console.print()
    if not method["options"]:
        console.print("This method has no options.")
        return
    table = console.table("option", "default", "meaning, and values that it takes")
    for option in method["options"]:
        meaning = [option["meaning"]] if option["meaning"] else []  # a plugin's option may have none
        for i, line in enumerate([*meaning, option["takes"]]):
            name, default = (option["name"], _as_yaml(option["default"])) if i == 0 else ("", "")
            table.add_row(name, default, line)
    console.print(table)
    name = method["options"][0]["name"]
    console.print(
        f"Set an option with `--set method.{method['method']}.{name}=VALUE`, or under method: in params.yaml."
    )


def _as_yaml(value: object) -> str:
    """Return a default as the user would write it. yaml.dump writes more digits, and may break the line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(_as_yaml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_as_yaml(part)}' for key, part in value.items())}}}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@commands.command()
def cost(
    method: Annotated[
        str | None, typer.Option(help="The method whose network to measure; by default the network of params.yaml.")
    ] = None,
    without_memory: Annotated[
        bool,
        typer.Option(
            "--without-memory", help="Skip the measurement of memory, which takes seconds and starts some processes."
        ),
    ] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Measure what the network needs on a client: arithmetic, memory, bytes, time.

    Example: siloflow cost --set "model.hidden=[30]"
    """
    with Session(json) as session:
        project = session.open_project(overrides, is_recorded=False)
        from flows.training.profile_model import network_profile

        profile = network_profile(project, method, not without_memory, session.print_progress)
        session.print_result(profile, print_cost)


def print_cost(profile: "NetworkProfile", console: "PlainConsole") -> None:
    """Print what is counted, what is timed, and a row for each batch size whose memory is measured."""
    macs, sent, largest, latency = profile["macs"], profile["bytes"], profile["largest_client"], profile["latency"]
    low, high = latency["quartiles"]
    shape = " x ".join(map(str, profile["shape"]))
    origin = f"as made by {profile['method']}" if profile["method"] else "of params.yaml"
    of_round = f"{largest['client']}: {largest['rows']:,} rows, {largest['epochs']:,} epochs"
    fields = {
        "network": f"{profile['network']} {origin}, rows of {shape}, outputs {profile['outputs']}",
        "parameters": f"{profile['parameters']:,} trained, {profile['buffers']:,} in buffers",
        "MACs of a row": f"{macs['forward']:,} forward, {macs['forward_and_backward']:,} forward and backward",
        "MACs of a round": f"{macs['round']:,} of the largest client ({of_round})",
        "file": f"{sent['file']:,} bytes of weights (safetensors)",
        "a round of FedAvg": f"{sent['up']:,} bytes up, {sent['down']:,} bytes down, of each client",
        "latency of a row": f"{latency['milliseconds']:.3g} ms, quartiles {low:.3g} to {high:.3g} (measured, "
        f"{latency['passes']} passes on one thread of this machine)",
    }
    for name, text in fields.items():
        console.print(f"{name:<19}{text}")
    _print_memory(profile["memory"], console)


def _print_memory(memory: "MemoryProfile", console: "PlainConsole") -> None:
    table = console.table("rows", "which", "largest layer", "evaluation", "at least", "training")
    for line in memory["rows"]:
        floor = line["training_floor"]
        table.add_row(
            f"{line['rows']:,}",
            line["what"],
            f"{line['largest_activation']:,}",
            _megabytes(line["evaluation"]),
            "-" if floor is None else f"{floor:,}",
            _megabytes(line["training"]),
        )
    console.print()
    console.print(table)
    console.print(
        "largest layer, at least: bytes, computed for this many rows at once; at least: parameters, gradients, optimiser "
        "and the largest layer of a training step."
    )
    if memory["note"]:
        console.print(f"memory {memory['note']}.")
        return
    console.print(
        "evaluation, training: measured peak memory of a process, less that with the network alone; the larger of two "
        f"measurements, which differ by {_megabytes(memory['repeats_within'])} or less. It includes what torch loads at its "
        "first pass. siloflow evaluates in chunks and needs less."
    )


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.1f} MB"


@commands.command()
def audit(
    canaries: Annotated[
        int, typer.Option(min=20, max=10_000, help="The number of canaries; a coin each decides.")
    ] = 200,
    client: Annotated[
        str | None, typer.Option(help="The silo that gets them; by default the one with the most training rows.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=param_limits.SEED, help="The seed of training and of the coins.")] = 0,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Train on a copy with canaries, and bound what private training reveals. Ends with exit code 1 if it is too much.

    Example: siloflow audit --set training.privacy.epsilon=4
    """
    with Session(json) as session:
        project = session.open_project(overrides, lock_data_for="audit")
        from flows.training.audit_privacy import audit_privacy

        result = audit_privacy(project, canaries, seed, client)
        session.print_result(result, print_audit, failed=bool(result["faults"]))


def print_audit(result: "AuditResult", console: "PlainConsole") -> None:
    """Print what training claims and what canaries show."""
    claimed, weakest, others = result["claimed"], result["weakest"], result["silos"] - 1
    console.print(f"trained   FedAvg, {result['rounds']} rounds, on {result['rows']:,} rows of {result['client']}")
    console.print(f"          and {result['inside']} of {result['canaries']} canaries")
    if others:
        console.print(f"          in secure sums with {others} other silo{'' if others == 1 else 's'}")
    console.print(f"claimed   epsilon {claimed['epsilon']:g} at delta {claimed['delta']:g}: mu {claimed['mu']:.2f}")
    console.print(
        f"noise     {result['noise']:.3f} of the claimed, summed over rounds {result['noise_of_sum']:.3f}; "
        f"{weakest['noise']:.3f} in {weakest['weights']}"
    )
    console.print(
        f"canaries  mu {result['mu']:.2f} +- {result['mu_error']:.2f}, at least {result['least_mu']:.2f}: epsilon at least "
        f"{result['least_epsilon']:.2f}"
    )
    console.print(
        f"guesses   {result['right']} of {result['guesses']} right: epsilon at least "
        f"{result['least_epsilon_by_guesses']:.2f} ({result['most_epsilon_by_guesses']:.2f} if all were)"
    )
    if result["faults"]:
        console.print(f"FAULT: training reveals more than it claims, by its {' and '.join(result['faults'])}.")
    else:
        console.print("no fault found: nothing here shows more than is claimed")


@commands.command()
def export(
    run: Annotated[
        str,
        typer.Argument(help="The run: its folder under runs/, as `siloflow run` prints it, or the end of its name."),
    ],
    client: Annotated[
        str | None, typer.Option(help="The client whose model to export, if each client has its own.")
    ] = None,
    format: Annotated[
        Literal["pt2", "onnx"], typer.Option(help="The format: pt2 (torch), or onnx, which needs the extra onnx.")
    ] = "pt2",
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="The file to write; by default in the run's folder.")
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Export a run's model to a file for programs without siloflow.

    Example: siloflow export fedavg-seed0 --output digits.pt2
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.results.serving.export_model import export_model

        session.print_result(export_model(project, run, client, format, output), print_export)


def print_export(exported: "ExportResult", console: "PlainConsole") -> None:
    """Print what the model takes and returns, how near the file's outputs are to ours, and where the file is."""
    compared, shape = exported["compared"], " x ".join(map(str, exported["shape"]))
    clients = f"client {exported['client']}" if exported["client"] else "all clients"
    rows = "test rows" if compared["whose"] == "test" else "random rows"
    takes = f"rows of {shape}, {exported['dtype']}" + (", 0 to 255" if exported["dtype"] == "uint8" else "")
    returns = f"{len(exported['classes'])} probabilities a row" if exported["classes"] else "one number a row"
    console.print(f"{exported['method']} seed {exported['seed']}, round {exported['round']}: the model of {clients}")
    console.print(f"input         {takes}; any number of them")
    console.print(f"output        {returns}")
    console.print(
        f"check         reopened, it differs from the original by at most {compared['largest_difference']:.1e} "
        f"on {compared['rows']} {rows}"
    )
    console.print(f"file          {exported['file']} ({exported['bytes']:,} bytes)")
    if exported["personal"]:
        console.print(f"The file contains private values of client {exported['client']}; do not pass it on to others.")
