"""Define the commands of a coordinator and of places, where rows lie: init, invite, join, accept, serve and others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.command_session import Json, Session
from flows.cli.serving_commands import KeptColumns, LabelsFile, RowsFile, RowsOf, SkipBadRows, print_predict

if TYPE_CHECKING:
    from flows.core.console.safe_text import PlainConsole
    from tasks.tracking.result_types.place_results import PlaceDescription, PlaceKey, PlaceModels, PlaceStatus

commands = typer.Typer()
places = typer.Typer(no_args_is_help=True, help="Train where the rows lie: let places join, and serve their silos.")
commands.add_typer(places, name="place")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the place.")]
_MOST_SILOS = 12  # that `describe` prints


@places.command()
def init(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            help="Where messages travel: https://HOST:PORT of this machine, a folder that all mount, or s3://BUCKET/FOLDER.",
        ),
    ],
    json: Json = False,
) -> None:
    """Make this project the coordinator of places.

    Example: siloflow place init https://fl.example.org:8440
    """
    with Session(json) as session:
        from tasks.remote.enrolment import set_up

        key = set_up(session.root, address)
        session.print_result(_key_of(session, fingerprint=key.fingerprint), print_coordinator)


def print_coordinator(answer: "PlaceKey", console: "PlainConsole") -> None:
    """Print the coordinator's fingerprint, and what comes next."""
    console.print(f"This project is a coordinator. Messages travel over {answer['address']}.")
    console.print(f"key   {answer['fingerprint']}")
    if answer["address"].startswith("https://"):
        console.print("next  `siloflow place broker` here, which keeps messages until they are taken")
    console.print("next  `siloflow place invite NAME`, once for each place")


@places.command()
def broker(
    listen: Annotated[
        str, typer.Option(metavar="HOST", help="The address of this machine that is listened on; by default all.")
    ] = "0.0.0.0",
    json: Json = False,
) -> None:
    """Serve the messages of a coordinator and its places by HTTPS, until it is stopped.

    Example: siloflow place broker
    """
    with Session(json) as session:
        from flows.core.console import progress
        from tasks.places.broker import serve_broker
        from tasks.remote.enrolment import broker_files

        files = broker_files(session.root)
        progress.say(f"serving messages on port {files.port}; ctrl-C ends it, and loses none")
        serve_broker(files.folder, listen, files.port, files.certificate, files.key)


@places.command()
def invite(name: Name, json: Json = False) -> None:
    """Write the invitation of a place, for its owner.

    Example: siloflow place invite north
    """
    with Session(json) as session:
        from tasks.remote.enrolment import own_key, write_invitation

        path = write_invitation(session.root, name)
        file = str(path.relative_to(session.root))
        answer = _key_of(session, name, own_key(session.root).fingerprint, file)
        session.print_result(answer, print_invitation)


def print_invitation(answer: "PlaceKey", console: "PlainConsole") -> None:
    """Print what to do with the invitation."""
    console.print(
        f"{answer['file']}: written. It lets its holder in: send it only to the owner of {answer['place']}.",
    )
    console.print(f"key   {answer['fingerprint']}")
    console.print("next  read this key to the owner on the telephone; `siloflow place join` asks for it")
    console.print(f"next  `siloflow place accept {answer['place']} KEY`, with the key that the owner reads to you")


@places.command()
def join(
    invitation: Annotated[Path, typer.Argument(metavar="FILE", help="The invitation that the coordinator sent.")],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="The coordinator's key, as read on the telephone; without it the command prompts."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Let this project's silos join a coordinator. Their rows stay here.

    Example: siloflow place join north.invitation.json
    """
    with Session(json) as session:
        from tasks.remote.enrolment import join as join_coordinator
        from tasks.remote.enrolment import read_invitation

        read = read_invitation(invitation)
        if key is None:
            key = typer.prompt("Type the coordinator's key, as read to you on the telephone", err=True)
        public = join_coordinator(session.root, read, key)
        answer: PlaceKey = {
            "place": read.place,
            "address": read.address,
            "fingerprint": public.fingerprint,
            "file": None,
        }
        session.print_result(answer, print_joined)


def print_joined(answer: "PlaceKey", console: "PlainConsole") -> None:
    """Print the place's fingerprint, and what comes next."""
    console.print(f"This project is the place {answer['place']}. Messages travel over {answer['address']}.")
    console.print(f"key   {answer['fingerprint']}")
    console.print("next  read this key to the coordinator on the telephone")
    console.print(
        "next  `siloflow place describe --approve`, by the owner of the silos; then `siloflow place serve` answers"
    )


@places.command()
def accept(
    name: Name,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The place's key, as its owner reads it.")],
    json: Json = False,
) -> None:
    """Accept a place after its owner has read its key to you.

    Example: siloflow place accept north 1a2b-3c4d-...
    """
    with Session(json) as session:
        from tasks.remote.enrolment import accept as accept_place

        answer = _key_of(session, name, accept_place(session.root, name, key).fingerprint)
        session.print_result(answer, print_accepted)


def print_accepted(answer: "PlaceKey", console: "PlainConsole") -> None:
    """Print that a place is in, and what comes next."""
    console.print(f"{answer['place']} has joined.")
    console.print("next  in params.yaml, set data.source to {kind: places} and runner.kind to places (docs/places.md)")
    console.print("next  `siloflow partition`, when each place runs `siloflow place serve`")


@places.command()
def revoke(name: Name, json: Json = False) -> None:
    """Revoke a place's key, such as after a theft.

    Example: siloflow place revoke north
    """
    with Session(json) as session:
        from tasks.remote.enrolment import revoke as revoke_place

        revoke_place(session.root, name)
        session.print_result(_key_of(session, name), print_revoked)


def print_revoked(answer: "PlaceKey", console: "PlainConsole") -> None:
    """Print that a place is out, and what comes next."""
    console.print(f"{answer['place']} is out: no answer of its key is believed.")
    console.print(f"next  `siloflow place invite {answer['place']}` makes a new invitation")


@places.command()
def describe(
    approve: Annotated[
        bool, typer.Option("--approve", help="As the owner of the silos, approve this: the place serves from then on.")
    ] = False,
    json: Json = False,
) -> None:
    """Show what the coordinator learns of this place's silos, and what it may ask of them; also before `place join`.

    Example: siloflow place describe
    """
    with Session(json) as session:
        project = session.open_project(None)
        from flows.results.serving.describe_place import describe_place

        session.print_result(describe_place(project, approve), print_place)


def print_place(answer: "PlaceDescription", console: "PlainConsole") -> None:
    """Print silos, steps and messages of a place."""
    if answer["place"] is None:
        console.print(f"This project has joined no coordinator. As a place, it would serve data/{answer['data']}.")
    else:
        console.print(f"The place {answer['place']} serves data/{answer['data']} over {answer['address']}.")
    console.print("The coordinator learns, without asking a step:")
    console.print(f"  features  {', '.join(answer['features']) or 'pictures'}")
    console.print(f"  classes   {', '.join(answer['classes']) or 'none, numbers are predicted'}")
    for silo in answer["silos"][:_MOST_SILOS]:
        rows = ", ".join(f"{count:,} {split}" for split, count in silo["rows"].items())
        limits = ", ".join(f"{key}: {value}" for key, value in silo["policy"].items())
        console.print(f"  silo      {silo['silo']}: {rows} rows{f'; {limits}' if limits else ''}")
    if len(answer["silos"]) > _MOST_SILOS:
        console.print(f"            and {len(answer['silos']) - _MOST_SILOS} more; --json lists them")
    console.print(f"  machine   {', '.join(f'{key} {value}' for key, value in answer['machine'].items())}")
    console.print(
        f"{answer['owner_file']} decides what it may ask. It may ask for these steps, and for no other code:",
    )
    console.print(f"  steps     {', '.join(answer['steps'])}")
    console.print(f"  messages  {', '.join(answer['messages'])}")
    if answer["approved"]:
        console.print(f"approved  {answer['approved']}")
    elif answer["approved"] is not None:
        console.print(
            "next  the owner reads this file, and types `siloflow place describe --approve`; nothing is answered before"
        )


@places.command()
def serve(json: Json = False) -> None:
    """Answer the coordinator's steps on this place's rows, until it is stopped. It opens no port.

    Example: siloflow place serve
    """
    with Session(json) as session:
        project = session.open_project(None)
        from flows.core.console import progress
        from flows.results.serving.describe_place import serve_place

        serve_place(project, progress.current().say)


@places.command()
def send(
    model: Annotated[
        str, typer.Argument(metavar="champion|RUN", help="The champion, or the folder or name of a finished run.")
    ] = "champion",
    json: Json = False,
) -> None:
    """Send a model to the places, for `siloflow place predict` there; private parts are at their places already.

    Example: siloflow place send
    """
    with Session(json) as session:
        project = session.open_project(None)
        from flows.results.serving.place_models import send_model

        session.print_result(send_model(project, model), print_sent)


def print_sent(answer: "PlaceModels", console: "PlainConsole") -> None:
    """Print which places have the model, and what comes next."""
    version = f" (version {answer['version']})" if answer["version"] else ""
    console.print(f"model  {answer['run']}{version}")
    for place in answer["places"]:
        console.print(f"{place['place']}: {place['answer']}")
    console.print("next   at a place: `siloflow place predict FILE --output labels.csv`")


@places.command()
def predict(
    input: RowsFile,
    output: LabelsFile,
    client: RowsOf = None,
    keep: KeptColumns = None,
    skip_bad_rows: SkipBadRows = False,
    json: Json = False,
) -> None:
    """Predict the rows of a file at this place, by the model that the coordinator sent. Nothing leaves the place.

    Example: siloflow place predict new.csv --output labels.csv
    """
    with Session(json) as session:
        project = session.open_project(None)
        from flows.results.serving.place_models import predict_at_place

        answer = predict_at_place(project, input, output, client, keep or (), skip_bad_rows)
        session.print_result(answer, print_predict)


@places.command()
def status(json: Json = False) -> None:
    """Show this end's name and key; at a coordinator, also which places answer.

    Example: siloflow place status
    """
    with Session(json) as session:
        from tasks.remote.gather_parts import status_of

        session.print_result(status_of(session.root), print_ends)


def print_ends(answer: "PlaceStatus", console: "PlainConsole") -> None:
    """Print this end, and the places of a coordinator."""
    name = "coordinator" if answer["role"] == "coordinator" else f"place {answer['name']}"
    console.print(f"{name} over {answer['address']}")
    console.print(f"key   {answer['fingerprint']}")
    for place in answer["places"]:
        console.print(f"{place['place']}: {place['answer']}")
    if answer["role"] == "coordinator" and not answer["places"]:
        console.print("no place was invited; `siloflow place invite NAME` begins it")


def _key_of(
    session: Session, place: str | None = None, fingerprint: str | None = None, file: str | None = None
) -> "PlaceKey":
    """Return what a coordinator did about a place, or about itself."""
    from tasks.remote.enrolment import coordinator_address

    address = coordinator_address(session.root)
    return {"place": place, "address": address, "fingerprint": fingerprint, "file": file}
