"""A served model knows its statistics from others of the same length by how they were made."""

import numpy as np
import pandas as pd
import pytest

from models.networks.mlp import MLP
from models.networks.network_factory import to_json
from models.prng import server_stream
from models.served_model import ServedModel
from models.statistics.spectrum import Loadings
from models.statistics.statistic_base import made_as

FEATURES, CLASSES = 98, 3  # with the labels 101 columns, of which `free` and the signed rules make as many numbers


def kinds(sign):
    return [{"kind": "loadings", "components": 1, "sign": sign, "norm": None}]


@pytest.fixture
def served():
    length = Loadings(sign="free").length(FEATURES, CLASSES)
    assert length == Loadings(sign="ones").length(FEATURES, CLASSES)
    network = MLP(FEATURES, (), CLASSES, statistics=length)
    card = {"method": "Conditional", "network": to_json(network), "task": "classification", "classes": list("abc")}
    card |= {"shape": [FEATURES], "personal": False, "clients": [], "context": [], "inputs": None, "targets": None}
    card |= {"columns": None, "dtype": "float32", "statistics": {"kinds": kinds("free"), "length": length}}
    weights = network.init(server_stream(0, 0, "init"))
    return ServedModel(card, {f"shared/{name}": tensor for name, tensor in weights.items()}), [0.5] * length


def test_statistics_of_another_sign_are_refused_where_their_length_is_the_same(served):
    model, numbers = served
    rows = np.zeros((2, FEATURES), np.float32)
    free, ones = (made_as(kinds(sign)) for sign in ("free", "ones"))
    assert free == "loadings components 1 sign free norm null"
    assert len(model.predict(rows, {"statistics": numbers, "made_as": free})) == 2
    assert len(model.predict(rows, {"statistics": numbers})) == 2
    with pytest.raises(ValueError, match=f"statistics: got some computed as {ones}, expected 101 numbers .{free}."):
        model.predict(rows, {"statistics": numbers, "made_as": ones})


def answering(**changed):
    network = MLP(4, (), CLASSES)
    card = {"method": "FedAvg", "network": to_json(network), "task": "classification", "classes": list("abc")}
    card |= {"shape": [4], "dtype": "float32", "columns": None, "personal": False, "clients": [], "context": []}
    card |= {"inputs": None, "targets": None, "statistics": None} | changed
    weights = network.init(server_stream(0, 0, "init"))
    return ServedModel(card, {f"shared/{name}": tensor for name, tensor in weights.items()})


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"client": "c03"}, "client: got 'c03', expected none, since FedAvg has one model for all clients. Drop the"),
        (
            {"statistics": [1.0, 2.0]},
            "statistics: got 2 numbers, expected none, since FedAvg reads rows only. Drop the",
        ),
        ({"made_as": "moments"}, "statistics: got 0 numbers, expected none"),
    ],
)
def test_a_global_model_refuses_params_that_it_would_ignore(params, said):
    rows = np.zeros((1, 4), np.float32)
    assert len(answering().predict(rows, {"client": "", "statistics": np.empty(0), "made_as": ""})) == 1
    with pytest.raises(ValueError, match=said):
        answering().predict(rows, params)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.nan, "rows: got nan in row 2, expected finite float32 numbers. Correct or drop the row."),
        (np.inf, "rows: got inf in row 2"),
        (1e300, r"rows: got 1e\+300 in row 2"),
        (3e38, "rows: got row 2, for which the prediction is not finite, expected values near those of the"),
    ],
)
@pytest.mark.parametrize("classes", ["abc", ""])
def test_no_answer_is_without_a_number(value, said, classes):
    model = answering(task="classification" if classes else "regression", classes=list(classes))
    for tensor in model.tensors.values():
        tensor[:] = 1e3
    rows = np.zeros((3, 4))
    rows[1] = value
    with pytest.raises(ValueError, match=said):
        model.predict(rows, {})


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [[0.5, 1, 1, 0]],
            r"rows: got float64, expected pixels as whole numbers from 0 to 255 \(uint8\). Undo any scaling",
        ),
        (np.ones((1, 4), np.float32), "rows: got float32, expected pixels"),
        (
            [[0, 1, 2, 3], [0, 1, 256, 3]],
            "rows: got 256 in row 2, expected whole numbers from 0 to 255. Correct or drop",
        ),
        ([[0, -1, 2, 3]], "rows: got -1 in row 1"),
        ([[None, 1, 1, 1]], "rows: got object, expected pixels"),
        ([["1", "1", "1", "1"]], "rows: got <U1, expected pixels"),
        ([[True, True, True, True]], "rows: got bool, expected pixels"),
        ([[1, 1], [1]], r"rows: got lists of different lengths, expected rows of shape \(4,\)"),
        ([], r"rows: got shape \(\), expected \(4,\)"),
        ([[1, 1]], r"rows: got shape \(2,\), expected \(4,\)"),
    ],
)
def test_what_are_no_pixels_is_refused(rows, said):
    model = answering(dtype="uint8")
    as_mlflow_hands_it = rows if isinstance(rows, np.ndarray) else np.array(rows, dtype=object)
    with pytest.raises(ValueError, match=said):
        model.predict(as_mlflow_hands_it, {})


def test_pixels_from_json_are_answered_as_those_of_an_array():
    model, pixels = answering(dtype="uint8"), np.array([[0, 255, 3, 7]], np.uint8)
    expected = model.predict(pixels, {})
    assert model.predict(np.array(pixels.tolist(), dtype=object), {}).equals(expected)
    assert not expected.equals(model.predict(pixels // 2, {}))


def test_rows_of_a_table_are_answered_by_name_and_an_array_is_refused():
    columns = [{"name": name, "kind": "number", "missing": "refuse"} for name in "wxyz"]
    model, rows = answering(columns=columns), pd.DataFrame([[1.0, 2, 3, 4], [4, 3, 2, 1]], columns=list("wxyz"))
    assert model.predict(rows[list("zyxw")], {}).equals(model.predict(rows, {}))
    assert model.predict(rows, {}).equals(answering().predict(rows.to_numpy(np.float32), {}))
    with pytest.raises(ValueError, match="rows: got ndarray, expected a data frame"):
        model.predict(rows.to_numpy(), {})
