"""Define the commands on registered models: promote, rollback, history, watch."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.command_session import Json, Overrides, Session, Timings

if TYPE_CHECKING:
    from flows.console.safe_text import PlainConsole

_MAX_LISTED = 20  # of the newest
WithData = Annotated[
    bool, typer.Option("--data", help="Also restore the version of data/ on which the model was trained.")
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
    watch.prefer=cheaper, fewer bytes are enough if it is not worse. A refusal ends with exit code 1.

    Example: siloflow promote fedprox-seed0
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.registry.promotion import promote as promote_model

        decision = promote_model(project, run, force, data)
        session.print_result(decision, print_decision, failed=decision["decision"] == "refused")


@commands.command()
def rollback(data: WithData = False, overrides: Overrides = None, json: Json = False) -> None:
    """Make the former champion the champion again.

    Example: siloflow rollback
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.registry.promotion import roll_back

        session.print_result(roll_back(project, data), print_decision)


def print_decision(decision: dict[str, Any], console: "PlainConsole") -> None:
    """Print what was decided, on which numbers, and why."""
    name = f"version {decision['version']} ({decision['run']})"
    if decision["decision"] == "refused":
        console.print(f"not promoted  {name}")
    else:
        console.print(f"champion      {name}")
        if decision["champion"]:
            console.print(f"before        version {decision['champion']}")
    if decision["against"] and "sentence" in decision["against"]:
        console.print(f"difference    {decision['against']['sentence']}")
    console.print(f"reason        {decision['reason']}")
    console.print(f"data version  {decision['data_version']}")
    if decision["decision"] == "refused":
        console.print("`--force` promotes it anyway")


@commands.command()
def history(overrides: Overrides = None, json: Json = False) -> None:
    """List promotions, refusals, rollbacks and what `watch` decided, with their numbers.

    Example: siloflow history
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.registry.promotion_history import decisions

        session.print_result({"decisions": decisions(project.root)}, print_history)


def print_history(answer: dict[str, Any], console: "PlainConsole") -> None:
    """Print two lines for each decision: what and when, then on which numbers."""
    for decision in answer["decisions"][:_MAX_LISTED]:
        at = decision["at"][:16].replace("T", " ")
        before = f" after {decision['champion']}" if decision["champion"] not in (None, decision["version"]) else ""
        console.print(f"{at} UTC  {decision['decision']}  version {decision['version']}{before}: {decision['run']}")
        sentence = (decision["against"] or {}).get("sentence")
        data = f"data {(decision['data_version'] or '-')[:10]}, commit {decision['git_commit']}"
        saw = decision.get("watch") or {}
        shifted = f"shifted: {', '.join(silo['client'] for silo in saw['shifted'])}" if saw.get("shifted") else None
        parts = [part for part in (shifted, sentence, decision["reason"], data) if part]
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
        is_started = False
        while True:
            project = session.open_project(overrides)
            from flows.registry.changes import look

            answer = look(project)
            if answer is None:
                if not is_started:
                    session.start_server()
                    is_started = True
                answer = session.run_flow("flows.watch", "watch", project)
            session.print_result(answer, print_watch)
            if once:
                return
            time.sleep(60 * minutes)


def print_watch(answer: dict[str, Any], console: "PlainConsole") -> None:
    """Print what was decided; if nothing changed, on one line."""
    if answer["decision"] is not None:
        from flows.watch import shift_text

        names = [f"{silo} ({how})" for silo, how in answer["changed"].items()]
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        console.print(f"changed       {', '.join(names[:_MAX_LISTED])}{more}")
        if answer["shifted"]:
            console.print(f"shifted       {shift_text(answer['shifted'])}")
        if answer["diagnosis"]:
            console.print(f"diagnosis     {answer['diagnosis']}")
        if answer["comparison"]:
            console.print(f"comparison    runs/{answer['comparison']}")
        against = answer["decision"]["against"] or {}
        if "sentence" in against:
            console.print(f"difference    {against['sentence']}")
    console.print(answer["sentence"])
