"""Serves a model over HTTP, by default on loopback, with the endpoints and request forms of MLflow's scoring server.

MLflow's own server never reloads an alias (mlflow#4039). This one reads each second which version is the champion, opens
another one while the old one answers, and then replaces it; requests that have begun end on the old one.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sized
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from ipaddress import IPv4Address
from urllib.parse import quote

import pandas as pd
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from flows.core.console import progress
from flows.core.console.process_control import resume_gc
from flows.core.console.safe_text import say
from flows.project.project import Project
from flows.results.registry.model_finder import ModelFinder
from flows.results.serving.open_model import open_model, open_version
from flows.results.serving.row_predictor import ClientMismatchError, Clients, RowPredictor
from flows.results.serving.scoring_request import PARAMS, RequestError, Rows, as_written, bad_request, parse_request
from silos.errors import UserError, shown
from silos.io.addresses import listen
from tasks.tracking.mlflow_logging.model_registry import CHAMPION

VERSION_HEADER = "siloflow-version"
"""The response's header with the version that answered, or with the run."""

_POLL_SECONDS = 1.0
_DRAINED = 16  # times the limit of a body that is read and thrown away, so that its sender gets the answer
_JSON = "application/json"
_READ = ["GET", "HEAD"]


class Serving:
    """Holds the model that answers; `refresh` replaces it once another version is the champion."""

    def __init__(self, project: Project, model: str) -> None:
        self.project, self._problem = project, ""
        self._finder = ModelFinder(project) if model == CHAMPION else None
        if self._finder is None:
            self.model = open_model(project, model)
        else:
            self.model = open_version(project, self._finder, self._finder.champion())

    @property
    def follows(self) -> bool:
        """Return whether the model is the champion, which may change."""
        return self._finder is not None

    def refresh(self) -> None:
        """Open the champion if it is another version; keep the model if there is none, or if it cannot be opened."""
        if self._finder is None:
            return
        try:
            number = self._finder.champion_number()
            if number in (None, self.model.version):
                return
            self.model = open_version(self.project, self._finder, self._finder.champion())
        except Exception as error:  # of a damaged model, of many types: the present one goes on answering
            problem = str(error).partition("\n")[0] or type(error).__name__
            if problem != self._problem:
                progress.say(f"still serving {self.model.name}: {problem}")
            self._problem = problem
            return
        self._problem = ""
        progress.say(f"now serving {self.model.name}")


def serve(project: Project, model: str, host: str, port: int, max_megabytes: int) -> None:
    """Serve the champion, or the model of a run, until ctrl-C.

    Args:
        project: The project.
        model: `champion`, or the run's folder or name.
        host: The IPv4 address to listen at.
        port: The port.
        max_megabytes: The limit of a request's body.

    Raises:
        UserError: If there is no such model, or if the address cannot be used.
    """
    try:
        IPv4Address(host)
    except ValueError:
        raise UserError(
            f"--host: got {shown(host)}, expected an IPv4 address of this machine. Use 127.0.0.1, or 0.0.0.0 for all."
        ) from None
    listener = listen(port, "--port", host)
    with listener:
        serving = Serving(project, model)
        app = scoring_app(serving, max_megabytes * 10**6)
        say(f"serving {serving.model.name}")
        say(f"at      http://{host}:{port}/invocations")
        say("Press ctrl-C to end." + (" Another champion is served within seconds." if serving.follows else ""))
        resume_gc()
        config = uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, timeout_graceful_shutdown=10, ws="none"
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
        if unanswered := app.state.unanswered:
            say(f"{unanswered} request{'s' * (unanswered > 1)} got the status 503, since the server ended.")


def scoring_app(serving: Serving, max_bytes: int) -> FastAPI:
    """Return the application: /ping, /health, /version and /invocations."""

    @asynccontextmanager
    async def following(app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(_follow(serving)) if serving.follows else None
        yield
        if task is not None:
            task.cancel()

    app = FastAPI(lifespan=following, openapi_url=None)
    app.state.unanswered = 0  # requests that the end of the server cut off

    async def ping() -> Response:
        return Response("\n", media_type=_JSON)

    for path in ("/ping", "/health"):
        app.api_route(path, methods=_READ)(ping)

    @app.api_route("/version", methods=_READ)
    async def mlflow_version() -> Response:
        return Response(version("mlflow"), media_type=_JSON)

    @app.post("/invocations")
    async def invocations(request: Request) -> Response:
        try:
            _check_head(request)
            body = await _read_body(request, max_bytes)
            model = serving.model  # until the request ends, even if the champion changes
            answer = await run_in_threadpool(
                _predict, RowPredictor(serving.project, model, "params.client", False), body
            )
        except RequestError as error:
            return _error(error.status, error.code, str(error))
        except ClientDisconnect:
            return Response(status_code=400)  # is never sent
        except asyncio.CancelledError:  # by uvicorn, where the server ends before the request
            app.state.unanswered += 1
            return _error(503, "TEMPORARILY_UNAVAILABLE", "The server ends. Send the request again later.")
        return Response(answer, media_type=_JSON, headers={VERSION_HEADER: model.version or quote(model.run or "")})

    @app.exception_handler(HTTPException)
    async def no_endpoint(request: Request, error: HTTPException) -> Response:
        got = f"{request.method} {shown(request.url.path)}"
        expected = "POST /invocations, or GET /ping, /health or /version"
        code = "ENDPOINT_NOT_FOUND" if error.status_code == 404 else "METHOD_NOT_ALLOWED"
        return _error(error.status_code, code, f"path: got {got}, expected {expected}. Correct the address.")

    @app.exception_handler(Exception)
    async def failure(request: Request, error: Exception) -> Response:
        return _error(500, "INTERNAL_ERROR", "The server failed at this request; its terminal shows why.")

    return app


async def _follow(serving: Serving) -> None:
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        await asyncio.to_thread(serving.refresh)


def _error(status: int, code: str, message: str) -> Response:
    return Response(json.dumps({"error_code": code, "message": message}), status, media_type=_JSON)


def _check_head(request: Request) -> None:
    """Raise RequestError for a body that is no plain JSON, and for params in the address, which would be ignored."""
    content_type = request.headers.get("content-type", "")
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [
        value.strip().strip('"') for name, _, value in (p.partition("=") for p in parameters) if name == "charset"
    ]
    if kind != _JSON or any(charset != "utf-8" for charset in charsets):
        raise RequestError(
            415,
            "UNSUPPORTED_MEDIA_TYPE",
            f"Content-Type: got {shown(content_type) or 'none'}, expected {_JSON} in UTF-8. Send JSON.",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise RequestError(
            415,
            "UNSUPPORTED_MEDIA_TYPE",
            f"Content-Encoding: got {shown(encoding)}, expected a body that is not compressed. Send plain JSON.",
        )
    if named := [name for name in PARAMS if name in request.query_params]:
        raise bad_request(
            f"query: got {named[0]!r} in the address, expected it in the body. Send it as params: "
            f'{{"params": {{"{named[0]}": …}}}}.'
        )


async def _read_body(request: Request, limit: int) -> bytes:
    """Return the body; RequestError if it is too large, of which at most `limit` bytes are ever held."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
        if size > _DRAINED * limit:
            break
    if size > limit:
        raise RequestError(
            413,
            "CONTENT_TOO_LARGE",
            f"body: got more than the {limit:,} bytes allowed, expected fewer. Send fewer rows in one request, or "
            "raise --max-body.",
        )
    return b"".join(chunks)


def _predict(predictor: RowPredictor, body: bytes) -> bytes:
    """Return the answer as MLflow writes it: a record for each row."""
    request = parse_request(body)
    given = dict(request.params)
    client = given.pop("client", None) or None
    own, rows = None, request.rows(predictor.opened.card)
    if isinstance(rows, pd.DataFrame):
        own = request.clients(predictor.client_column)
        rows = as_written(rows, predictor.opened.card)
    numbers = range(1, 1 + (len(rows) if isinstance(rows, Sized) else 1))
    try:
        clients = predictor.clients(own, client, numbers) or [client]
        if given.get("statistics") and len(set(clients)) > 1:
            raise bad_request(
                f"params: statistics: got the statistics of one client with rows of several clients, expected rows "
                f"of one client. {_ONE}"
            )
        predictions = predictor.predict(rows, clients, lambda _: given)
    except ValueError as error:
        if isinstance(error, ClientMismatchError):
            raise bad_request(str(error)) from None
        named_by = predictor.option if own is None else str(predictor.client_column)
        raise bad_request(_reason(predictor, rows, clients, named_by, error)) from None
    except UserError as error:  # of data/, which means are read from
        raise bad_request(str(error)) from None
    of_rows = clients if len(predictions) else []
    notes = {"unknown_clients": predictor.unknown_clients(of_rows), "filled_in": _filled_in(predictor, rows, of_rows)}
    answer = {"predictions": predictions.to_dict("records")} | {name: note for name, note in notes.items() if note}
    return json.dumps(answer, allow_nan=False).encode()


def _filled_in(predictor: RowPredictor, rows: Rows, clients: Clients) -> list[dict[str, str | float | None]]:
    """Return what replaced missing numbers; a client's mean is private, so it is named instead of its value."""
    return [
        {
            "column": filled["column"],
            "client": filled["client"],
            "rows": filled["rows"],
            "value": filled["value"] if filled["client"] is None else "as in data/",
        }
        for filled in predictor.filled_in(rows, clients)
    ]


_ONE = "Send each client's rows in a request of their own."


def _reason(predictor: RowPredictor, rows: Rows, clients: Clients, named_by: str, error: ValueError) -> str:
    """Return the fault of the first row that cannot be predicted, or else the error's own message."""
    try:
        faults = predictor.faults(rows, clients, range(1, len(clients) + 1), named_by)
    except ValueError:  # of the columns
        return str(error)
    return next((fault.message for fault in faults.values()), str(error))
