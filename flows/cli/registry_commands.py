"""Define the commands on registered models: promote, rollback, history."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.command_session import Json, Overrides, Session

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
    """List promotions, refusals and rollbacks with their numbers.

    Example: siloflow history
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.registry.promotion import decisions

        session.print_result({"decisions": decisions(project.root)}, print_history)


def print_history(answer: dict[str, Any], console: "PlainConsole") -> None:
    """Print two lines for each decision: what and when, then on which numbers."""
    for decision in answer["decisions"][:_MAX_LISTED]:
        at = decision["at"][:16].replace("T", " ")
        before = f" after {decision['champion']}" if decision["champion"] else ""
        console.print(f"{at} UTC  {decision['decision']}  version {decision['version']}{before}: {decision['run']}")
        sentence = (decision["against"] or {}).get("sentence")
        data = f"data {(decision['data_version'] or '-')[:10]}, commit {decision['git_commit']}"
        parts = [part for part in (sentence, decision["reason"], data) if part]
        console.print(f"  {'; '.join(parts)}")
    more = len(answer["decisions"]) - _MAX_LISTED
    if more > 0:
        console.print(f"… and {more} more; --json lists them all")
    if not answer["decisions"]:
        console.print("No decision yet. Next: `siloflow promote` makes a model the champion.")
