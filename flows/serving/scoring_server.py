"""Serves a model over HTTP, by default on loopback, with the endpoints and request forms of MLflow's scoring server.

MLflow's own server never reloads an alias (mlflow#4039). This one reads each second which version is the champion, opens
another one while the old one answers, and then replaces it; requests that have begun end on the old one.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import quote

import pandas as pd
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from flows.console import progress
from flows.console.process_control import resume_gc
from flows.console.safe_text import say
from flows.experiment.project import Project
from flows.registry.model_finder import ModelFinder
from flows.servers.server_process import listen
from flows.serving.open_model import OpenModel, open_model, open_version
from silos.dataset import some
from silos.errors import UserError, shown
from tasks.tracking.mlflow_logging.model_registry import CHAMPION

VERSION_HEADER = "siloflow-version"
"""The response's header with the version that answered, or with the run."""

_POLL_SECONDS = 1.0
_DRAINED = 16  # times the limit of a body that is read and thrown away, so that its sender gets the answer
_FORMS = ("dataframe_split", "dataframe_records", "inputs", "instances")
_PARAMS = {"client": str, "statistics": list, "made_as": str}
_JSON = "application/json"


class RequestError(Exception):
    """A request that cannot be answered: its HTTP status, a code as in MLflow's errors, and a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Serving:
    """Holds the model that answers; `refresh` replaces it once another version is the champion."""

    def __init__(self, project: Project, model: str) -> None:
        self._project, self._problem = project, ""
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
            self.model = open_version(self._project, self._finder, self._finder.champion())
        except Exception as error:  # of a damaged model, of many types: the present one goes on answering
            problem = str(error).partition("\n")[0] or type(error).__name__
            if problem != self._problem:
                progress.current().say(f"still serving {self.model.name}: {problem}")
            self._problem = problem
            return
        self._problem = ""
        progress.current().say(f"now serving {self.model.name}")


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


def scoring_app(serving: Serving, max_bytes: int) -> FastAPI:
    """Return the application: /ping, /health, /version and /invocations."""

    @asynccontextmanager
    async def following(app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(_follow(serving)) if serving.follows else None
        yield
        if task is not None:
            task.cancel()

    app = FastAPI(lifespan=following, openapi_url=None)

    async def ping() -> Response:
        return Response("\n", media_type=_JSON)

    app.get("/ping")(ping)
    app.get("/health")(ping)

    @app.get("/version")
    async def mlflow_version() -> Response:
        return Response(version("mlflow"), media_type=_JSON)

    @app.post("/invocations")
    async def invocations(request: Request) -> Response:
        try:
            _check_type(request.headers.get("content-type", ""))
            body = await _read_body(request, max_bytes)
            model = serving.model  # until the request ends, even if the champion changes
            answer = await run_in_threadpool(_predict, model, body)
        except RequestError as error:
            return _error(error.status, error.code, str(error))
        except ClientDisconnect:
            return Response(status_code=400)  # is never sent
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


def _check_type(content_type: str) -> None:
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    if kind != _JSON or any(p.startswith("charset=") and p.strip('"') != "charset=utf-8" for p in parameters):
        raise RequestError(
            415,
            "UNSUPPORTED_MEDIA_TYPE",
            f"Content-Type: got {shown(content_type) or 'none'}, expected {_JSON} in UTF-8. Send JSON.",
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
            f"body: got more than {limit:,} bytes, expected at most as many. Send fewer rows at a time, or raise "
            "--max-body.",
        )
    return b"".join(chunks)


def _predict(model: OpenModel, body: bytes) -> bytes:
    """Return the answer as MLflow writes it: a record for each row."""
    fields = _parse(body)
    params = _params(fields.pop("params", None))
    if len(fields) != 1 or (form := next(iter(fields))) not in _FORMS:
        raise _bad(
            f"body: got the keys {some(list(fields), 5) or 'none'}, expected one of {some(_FORMS, 4)}. Send one."
        )
    rows = _rows(form, fields[form])
    if model.card["columns"] is not None and not isinstance(rows, pd.DataFrame):
        names = some([column["name"] for column in model.card["columns"]], 10)
        raise _bad(f"{form}: got rows without names, expected the columns {names}. Send dataframe_records.")
    try:
        predictions = model.predict(rows, **params)
    except ValueError as error:
        raise _bad(str(error)) from None
    return json.dumps({"predictions": predictions.to_dict("records")}, allow_nan=False).encode()


def _bad(message: str) -> RequestError:
    return RequestError(400, "BAD_REQUEST", message)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _bad(f"body: got no JSON ({shown(str(error))}), expected an object. Correct it.") from None
    if not isinstance(fields, dict):
        raise _bad(
            f"body: got a JSON {type(fields).__name__}, expected an object with one of {some(_FORMS, 4)}. Send one."
        )
    return fields


def _params(given: Any) -> dict[str, Any]:
    """Return the arguments of OpenModel.predict that a request names."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise _bad(f"params: got {shown(given)}, expected an object with {some(list(_PARAMS), 3)}. Correct it.")
    for key, value in given.items():
        kind = _PARAMS.get(key)
        if kind is None:
            raise _bad(f"params: got {shown(repr(key))}, expected {some(list(_PARAMS), 3)}. Correct the name.")
        numbers = kind is not list or (isinstance(value, list) and all(map(_is_number, value)))
        if not isinstance(value, kind) or not numbers:
            raise _bad(
                f"params: {key}: got {shown(value)}, expected {'text' if kind is str else 'a list of numbers'}. Correct it."
            )
    return given


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that a float can hold."""
    return type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)


def _rows(form: str, content: Any) -> Any:
    """Return rows with names as a data frame, and others as they are."""
    try:
        if form == "dataframe_split":
            if not isinstance(content, Mapping) or not {"columns", "data"} <= content.keys():
                raise ValueError("it has no `columns` and `data`")
            names = content["columns"]
            if not isinstance(names, list) or any(isinstance(name, list | dict) for name in names):
                raise ValueError("its `columns` are no list of names")
            return pd.DataFrame(content["data"], columns=names)
        are_records = isinstance(content, list) and bool(content) and all(isinstance(row, Mapping) for row in content)
        if are_records or (form != "dataframe_records" and isinstance(content, Mapping)):
            return pd.DataFrame(content)
        if form == "dataframe_records":
            raise ValueError("it is no list of objects, or an empty one")
    except (ValueError, TypeError, OverflowError) as error:
        raise _bad(f"{form}: cannot be read as rows with columns ({shown(str(error), 200)}). Correct it.") from None
    return content
