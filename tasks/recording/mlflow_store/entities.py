"""Numbers, settings and data as MLflow takes them."""

from collections.abc import Mapping
from typing import Any

from tasks.recording.mlflow_names import parts


def metric_entities(record: Mapping[str, Any], **of: str) -> list[Any]:
    """A round's numbers with the time that the journal gave them; `of`: the model and the data whose numbers they are."""
    from mlflow.entities import Metric

    memory = {f"memory/{name}": value for name, value in record.get("memory", {}).items()}
    values = {k: v for k, v in {**record["metrics"], **memory}.items() if v is not None}
    return [Metric(k, v, record["time_ms"], record["round"], **of) for k, v in values.items()]


def param_entities(given: Mapping[str, Any]) -> list[Any]:
    """Under names that MLflow takes: a client's name may be in one."""
    from mlflow.entities import Param

    keys = parts(given)
    return [Param(keys[key], str(value)[:6000]) for key, value in given.items()]


def tag_entities(given: Mapping[str, str]) -> list[Any]:
    """As they are."""
    from mlflow.entities import RunTag

    return [RunTag(key, value) for key, value in given.items()]


def data_input(data: Mapping[str, Any]) -> Any:
    """The dataset, named and with the data version as its digest."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    name, digest = measured_on(data).values()
    dataset = Dataset(name, digest, "local", data["source"], profile=data["profile"])
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])


def measured_on(data: Mapping[str, Any]) -> dict[str, str]:
    """By what a metric names its dataset: as much of the data version as MLflow takes."""
    return {"dataset_name": data["name"], "dataset_digest": data["version"][:36]}
