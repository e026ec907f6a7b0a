"""The logged model: MLflow's pyfunc over safetensors and JSON, no pickle.

With it goes a copy of `models/`, under a name that says which code it is: so it loads where no checkout is, beside a package
`models` of the program's own, and beside models that another version of siloflow has logged.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
import numpy as np
import torch
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec
from safetensors.torch import save_file

import models
from models.served_model import of_classes
from tasks.recording.mlflow_store.connection import as_current

_ANSWERS = {
    "classification": {"label": "string", "probability": "float", "entropy": "float"},
    "regression": {"prediction": "float"},
}

_PROGRAM = '''"""What MLflow runs: siloflow's models, which lie beside this file, over the logged weights."""

import json

from mlflow.models import set_model
from mlflow.pyfunc import PythonModel
from safetensors import safe_open
from safetensors.torch import load_file

from {package}.served_model import Answering


class Loaded:
    def load_context(self, context):
        weights = context.artifacts["weights"]
        with safe_open(weights, framework="pt") as file:
            card = json.loads(file.metadata()["card"])
        self.answering = Answering(card, load_file(weights))

    def predict(self, context, model_input, params=None):
        return self.answering.answer(model_input, params or {{}})


class Served(Loaded, PythonModel):
    """`predict` is inherited: of a class that defines it MLflow demands type hints, and has none for an array."""


set_model(Served())
'''


def log_once(client: Any, run_id: str, model: Mapping[str, Any]) -> str:
    """Logs the model to its run unless it is there whole; its id. `model`: uri, name, card, shared, personal, example."""
    run = client.get_run(run_id)
    known = client.search_logged_models([run.info.experiment_id], filter_string=f"source_run_id = '{run_id}'")
    for one in known:
        if one.status == "READY":
            return str(one.model_id)
    for one in known:  # its upload was cut
        client.delete_logged_model(one.model_id)
    card, example = model["card"], model["example"]
    described = []
    if card["statistics"]:
        described = [ParamSpec("statistics", "double", [], (-1,)), ParamSpec("made_as", "string", "")]
    columns = {**_ANSWERS[card["task"]], **dict.fromkeys(of_classes(card["classes"]), "float")}
    signature = ModelSignature(
        inputs=Schema([TensorSpec(example.dtype, (-1, *example.shape[1:]))]),
        outputs=Schema([ColSpec(kind, name) for name, kind in columns.items()]),
        params=ParamSchema([ParamSpec("client", "string", ""), *described]),
    )
    tensors = {f"shared/{k}": t for k, t in model["shared"].items()}
    tensors |= {f"personal/{k}": t for k, t in model["personal"].items()}
    with TemporaryDirectory() as folder, _code_in(Path(folder)) as code, as_current(model["uri"], run_id):
        weights, program = Path(folder) / "weights.safetensors", Path(folder) / "served.py"
        save_file({k: t.contiguous() for k, t in tensors.items()}, weights, metadata={"card": json.dumps(card)})
        program.write_text(_PROGRAM.format(package=code.name))
        logged = mlflow.pyfunc.log_model(
            name=re.sub(r"[/:.%\"']", "_", model["name"]),  # what MLflow does not take in one
            python_model=str(program),
            code_paths=[str(code)],
            artifacts={"weights": str(weights)},
            tags={name: value for name, value in run.data.tags.items() if name.startswith("mlflow.source.")},
            signature=signature,
            input_example=example,
            pip_requirements=[
                f"torch=={torch.__version__.split('+')[0]}",
                f"numpy=={np.__version__}",
                "pandas",
                "safetensors",
            ],
        )
    return str(logged.model_id)


@contextmanager
def _code_in(folder: Path) -> Iterator[Path]:
    """A copy of `models/` under a name of its own; it can be imported meanwhile, since MLflow runs a model to log it."""
    source = Path(models.__path__[0])
    files = {path.relative_to(source): path.read_bytes() for path in sorted(source.rglob("*.py"))}
    digest = sha256(b"\0".join(str(name).encode() + b"\0" + text for name, text in files.items())).hexdigest()
    code = folder / f"siloflow_models_{digest[:8]}"
    for name, text in files.items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_bytes(text)
    sys.path.append(str(folder))
    try:
        yield code
    finally:
        sys.path.remove(str(folder))
        for module in [module for module in sys.modules if module.split(".")[0] == code.name]:
            del sys.modules[module]
