"""What several verbs have: their options, how seeds are written, and the session that each stands in."""

from typing import Annotated, Any

import typer

from silos import param_types

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one value of params.yaml; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
Timings = Annotated[bool, typer.Option("--timings", help="Print what the command's fixed costs were.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on after the last whole round of the newest such run.")]


def open_session(json: bool, timings: bool, **options: Any) -> Any:
    """What a verb stands in (`flows.cli.command_session.Session`), imported when one is typed."""
    from flows.cli.command_session import Session

    return Session(json=json, timings=timings, **options)


def seeds_of(text: str | None) -> list[int] | None:
    """The numbers of `--seeds 0,1,2`; None where it is not given."""
    from silos.errors import UserError, shown

    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    # isdigit() is true of ² too, which is no number
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"--seeds {shown(text)}: write whole numbers with commas between, for example 0,1,2.")
    if any(len(part) > 100 or int(part) > param_types.SEED for part in parts):
        raise UserError(f"--seeds {shown(text)}: a seed is at most {param_types.SEED:,}.")
    return [int(part) for part in parts]
