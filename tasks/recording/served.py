"""The served model: MLflow's pyfunc over safetensors and JSON, no pickle, with a copy of `models/` beside it.

MLflow runs this file from the logged model, where no checkout is; so it imports nothing of siloflow but `models`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from models.method_networks.codebook import COUNT
from models.networks.deep_ensemble import plain
from models.networks.registry import from_json


class Answering:
    """Rows, as they were partitioned, to label, probability and entropy (nats) of every row; of a regression to prediction.

    `params={"client": name}` chooses that client's weights; the empty name, or an unknown one, gets the rule for fresh
    clients: the global model where the method has one, else a refusal. A conditional model is given the statistics of the
    rows' client, as `siloflow stats` makes them: `params={"statistics": [...]}`.
    """

    def load_context(self, context: Any) -> None:
        """Weights and sizes from the logged files."""
        weights = context.artifacts["weights"]
        with safe_open(weights, framework="pt") as file:
            self.card = json.loads(file.metadata()["card"])
        self.network = from_json(self.card["network"])
        self.tensors = load_file(weights)

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """model_input: (rows, *shape) array of the logged dtype; MLflow would read type hints as a schema."""
        weights = self._weights((params or {}).get("client", ""))
        context = self._context((params or {}).get("statistics", ()))
        counts = [name for name in weights if plain(name) == COUNT]  # of a client's own words, in every member
        context |= {name: weights.pop(name) for name in counts}
        x = torch.from_numpy(np.ascontiguousarray(model_input))
        x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        shape = tuple(self.card["shape"])
        if tuple(x.shape[1:]) != shape:
            raise ValueError(f"rows have shape {tuple(x.shape[1:])}, and this model takes {shape}")
        with torch.no_grad():
            output = self.network.apply(weights, context, x, None)
        if self.card["task"] == "regression":
            return pd.DataFrame({"prediction": output[:, 0].numpy()})
        log_p = torch.log_softmax(output, -1)
        best = log_p.argmax(-1)
        return pd.DataFrame(
            {
                "label": [self.card["classes"][i] for i in best.tolist()],
                "probability": log_p.exp().gather(1, best[:, None])[:, 0].numpy(),
                "entropy": -(log_p.exp() * log_p).sum(-1).numpy(),
            }
        )

    def _weights(self, client: str) -> dict[str, torch.Tensor]:
        shared = {k.removeprefix("shared/"): t for k, t in self.tensors.items() if k.startswith("shared/")}
        if not self.card["personal"]:
            return shared
        if client not in self.card["clients"]:
            known = ", ".join(self.card["clients"][:20])
            raise ValueError(
                f"{self.card['method']} has a model of its own for each client and none for {client!r}; "
                f'choose one by params={{"client": name}}: {known}'
            )
        place = self.card["clients"].index(client)
        own = {k.removeprefix("personal/"): t[place] for k, t in self.tensors.items() if k.startswith("personal/")}
        return {**shared, **own}

    def _context(self, given: Sequence[float]) -> dict[str, torch.Tensor]:
        wanted = self.card["statistics"]
        if wanted is None:
            return {}
        kinds = ", ".join(spec["kind"] for spec in wanted["kinds"])
        takes = f"{wanted['length']} numbers" + (f" ({kinds})" if kinds else "")
        numbers = torch.tensor([float(number) for number in given]).float()
        if not len(numbers):
            raise ValueError(
                f"{self.card['method']} reads {takes} of a client beside its rows, and was given none; "
                'params={"statistics": [...]} are what `siloflow stats CLIENT --json` prints'
            )
        if len(numbers) != wanted["length"]:
            raise ValueError(f"{len(numbers)} statistics were given, and this model takes {takes}")
        for place in torch.nonzero(~torch.isfinite(numbers)).flatten().tolist():
            raise ValueError(
                f"number {place + 1} of the statistics is {given[place]}, which is no finite float32 number"
            )
        return {"statistics": numbers}


class Served(Answering, PythonModel):
    """`predict` is inherited: of a class that defines it MLflow demands type hints, and has none for an array."""


_ANSWERS = {
    "classification": {"label": "string", "probability": "float", "entropy": "float"},
    "regression": {"prediction": "float"},
}


def log_once(client: Any, run_id: str, model: Mapping[str, Any]) -> None:
    """Logs the model to its run unless it is there whole; `model`: uri, card, shared, personal, example."""
    experiment = client.get_run(run_id).info.experiment_id
    known = client.search_logged_models([experiment], filter_string=f"source_run_id = '{run_id}'")
    if any(one.status == "READY" for one in known):
        return
    for one in known:  # its upload was cut
        client.delete_logged_model(one.model_id)
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

    from tasks.recording.track import as_current

    card, example = model["card"], model["example"]
    described = [ParamSpec("statistics", "double", [], (-1,))] if card["statistics"] else []
    signature = ModelSignature(
        inputs=Schema([TensorSpec(example.dtype, (-1, *example.shape[1:]))]),
        outputs=Schema([ColSpec(kind, name) for name, kind in _ANSWERS[card["task"]].items()]),
        params=ParamSchema([ParamSpec("client", "string", ""), *described]),
    )
    tensors = {f"shared/{k}": t for k, t in model["shared"].items()}
    tensors |= {f"personal/{k}": t for k, t in model["personal"].items()}
    here = Path(__file__).resolve()
    with TemporaryDirectory() as folder, as_current(model["uri"], run_id):
        weights = Path(folder) / "weights.safetensors"
        save_file({k: t.contiguous() for k, t in tensors.items()}, weights, metadata={"card": json.dumps(card)})
        mlflow.pyfunc.log_model(
            name="model",
            python_model=str(here),
            code_paths=[str(here.parents[2] / "models")],
            artifacts={"weights": str(weights)},
            signature=signature,
            input_example=example,
            pip_requirements=[
                f"torch=={torch.__version__.split('+')[0]}",
                f"numpy=={np.__version__}",
                "pandas",
                "safetensors",
            ],
        )


set_model(Served())
