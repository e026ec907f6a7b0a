"""Log a model as MLflow's pyfunc over safetensors, JSON and an archive of code, without pickle.

Python imports from the archive, a zip. It holds `models/` under a name with a hash of the code. So a model loads where
siloflow is not installed, or in a program with its own package `models`. It also loads next to a model of another
siloflow version.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import mlflow
import mlflow.utils.requirements_utils
import numpy as np
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec
from mlflow.types.schema import AnyType
from safetensors.torch import save_file

import models
from models.model_card import Column, ModelCard
from models.served_model import ServedModel, named_tensors, probability_columns
from tasks.tracking.mlflow_logging.connection import as_current, set_current_store
from tasks.tracking.mlflow_logging.mlflow_records import LoggedModel

_OUTPUTS = {
    "classification": {"label": "string", "probability": "float", "entropy": "float"},
    "regression": {"prediction": "float"},
}

_PARAMS: tuple[tuple[str, str, str | list[float], tuple[int] | None], ...] = (
    ("client", "string", "", None),
    ("statistics", "double", [], (-1,)),
    ("made_as", "string", "", None),
)

_PROGRAM = '''"""Runs siloflow's models, which are in the archive `code`, with the logged weights."""

import importlib
import json
import sys

from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel
from safetensors import safe_open
from safetensors.torch import load_file


class Loaded:
    def load_context(self, context):
        weights, archive = context.artifacts["weights"], context.artifacts["code"]
        sys.path.insert(0, archive)
        try:
            served = importlib.import_module("{package}.served_model")
        finally:
            sys.path.remove(archive)
        with safe_open(weights, framework="pt") as file:
            card = json.loads(file.metadata()["card"])
        self.answering = served.ServedModel(card, load_file(weights))

    def predict(self, context, model_input, params=None):
        try:
            return self.answering.predict(model_input, params or {{}})
        except ValueError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None


class Served(Loaded, PythonModel):
    """`predict` is inherited: MLflow demands type hints of a class that defines it, and has none for an array."""


set_model(Served())
'''


def log_once(client: mlflow.MlflowClient, run_id: str, model: LoggedModel) -> str:
    """Log the model to its run unless it is there completely; return its id."""
    run = client.get_run(run_id)
    logged_models = client.search_logged_models([run.info.experiment_id], filter_string=f"source_run_id = '{run_id}'")
    for logged_model in logged_models:
        if logged_model.status == "READY":
            return str(logged_model.model_id)
    for logged_model in logged_models:  # uploads that were interrupted
        client.delete_logged_model(logged_model.model_id)
    card = model["card"]
    columns = {**_OUTPUTS[card["task"]], **dict.fromkeys(probability_columns(card["classes"]), "float")}
    signature = ModelSignature(
        inputs=_inputs(card),
        outputs=Schema([ColSpec(kind, name) for name, kind in columns.items()]),
        # MLflow ignores params that are not in the signature; the model rejects params that it does not accept
        params=ParamSchema([ParamSpec(*param) for param in _PARAMS]),
    )
    tensors = named_tensors(model["shared"], model["personal"])
    copied = ("method", "data_version")
    tags = {name: value for name, value in run.data.tags.items() if name in copied or name.startswith("mlflow.source.")}
    with TemporaryDirectory() as folder, as_current(model["uri"], run_id), _unchecked_requirements():
        weights, program, code = (Path(folder) / name for name in ("weights.safetensors", "served.py", "code.zip"))
        save_file({k: t.contiguous() for k, t in tensors.items()}, weights, metadata={"card": json.dumps(card)})
        package, archive = archived_code()
        code.write_bytes(archive)
        program.write_text(_PROGRAM.format(package=package))
        try:
            result = mlflow.pyfunc.log_model(  # MLflow runs the model; its package stays imported for the next one
                name=re.sub(r"[/:.%\"']", "_", model["name"]),  # MLflow does not accept these characters in a name
                python_model=str(program),
                artifacts={"weights": str(weights), "code": str(code)},
                tags={**tags, **model["tags"]},
                signature=signature,
                input_example=_example(card),
                pip_requirements=[
                    f"{name}=={version(name).split('+')[0]}" for name in ("torch", "numpy", "pandas", "safetensors")
                ],
            )
        except BaseException:  # a part of the package may be imported, and the rest is gone with the folder
            for module in [module for module in sys.modules if module.split(".")[0] == package]:
                del sys.modules[module]
            raise
    return str(result.model_id)


@contextmanager
def _unchecked_requirements() -> Iterator[None]:
    """Keep MLflow from comparing the requirements with the installed packages, from which their versions are read.

    MLflow would list the files of all installed packages first, which takes a third of a second.
    """
    checks, name = mlflow.utils.requirements_utils, "_check_requirement_satisfied"
    before = getattr(checks, name)
    setattr(checks, name, lambda _: None)  # no mismatch
    try:
        yield
    finally:
        setattr(checks, name, before)


def load_logged(uri: str, location: str) -> ServedModel:
    """Load a logged model of this store from its folder: a `models.served_model.ServedModel`, by the code logged with it."""
    set_current_store(uri)  # where it looks for the artifacts of a server
    # what it would warn of is not shown, and takes a third of a second to find out
    loaded = mlflow.pyfunc.load_model(location, suppress_warnings=True)
    served: ServedModel = loaded.unwrap_python_model().answering
    return served


def _inputs(card: ModelCard) -> Schema:
    """Return what MLflow checks and casts before the model receives rows; the model checks the rest.

    MLflow casts JSON silently: 0.5 to the uint8 0, null to false and to the text None. Such types are left open.
    """
    if card["columns"] is not None:
        return Schema([ColSpec(_column_type(column), column["name"]) for column in card["columns"]])
    if card["dtype"] == "uint8":
        return Schema([TensorSpec(np.dtype(object), (-1,))])  # accepts every array
    return Schema([TensorSpec(np.dtype(card["dtype"]), (-1, *card["shape"]))])


def _column_type(column: Column) -> str | AnyType:
    if column["kind"] == "number":
        return "double"
    if column["kind"] == "boolean" or any(_is_code(value) for value in column["values"]):
        return AnyType()
    return "string"


def _is_code(text: str) -> bool:
    """Return whether a text may be written as a number or a truth value, or is what MLflow makes of null."""
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false", "none")
    return True


def _example(card: ModelCard) -> np.ndarray | pd.DataFrame:
    """Return rows of zeros, with the first value of each text column; MLflow shows them to everyone who sees the model."""
    if card["columns"] is None:
        return np.zeros((2, *card["shape"]), card["dtype"])
    first = {"number": 0.0, "boolean": False}
    return pd.DataFrame(
        {
            column["name"]: [column["values"][0] if column["kind"] == "text" else first[column["kind"]]]
            for column in card["columns"]
        }
    )


@cache
def archived_code() -> tuple[str, bytes]:
    """Return the name of the package that holds `models/`, and its archive, with the same bytes for the same code."""
    source = Path(models.__path__[0])
    files = {path.relative_to(source).as_posix(): path.read_bytes() for path in sorted(source.rglob("*.py"))}
    digest = sha256(b"\0".join(name.encode() + b"\0" + text for name, text in files.items())).hexdigest()
    package = f"siloflow_models_{digest[:8]}"
    archive = BytesIO()
    with ZipFile(archive, "w", ZIP_DEFLATED) as writing:
        for name, text in files.items():
            writing.writestr(ZipInfo(f"{package}/{name}"), text, ZIP_DEFLATED)
    return package, archive.getvalue()
