"""The diagnosis of a public table whose only difference is known."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from flows.diagnose import run_diagnosis
from flows.project.project import Project
from tasks.execution.task_runner import PlainRunner


@pytest.mark.slow
def test_breast_cancer_split_by_texture_differs_in_its_inputs_alone_and_in_texture_most(tmp_path):
    """Malignant cells are rougher, but the label follows from the inputs in the same way."""
    table = load_breast_cancer()
    at = list(table.feature_names).index("mean texture")
    texture = table.data[:, at]
    np.savez(
        tmp_path / "cancer.npz",
        x=np.delete(table.data, at, 1),
        y=table.target,
        client=np.array(["smooth", "middle", "rough"])[np.searchsorted(np.quantile(texture, [1 / 3, 2 / 3]), texture)],
        features=np.delete(table.feature_names, at),
    )
    shutil.copy(Path(__file__).parents[2] / "params.yaml", tmp_path)
    data = {
        "name": "cancer",
        "source": {"kind": "npz", "path": "cancer.npz"},
        "scheme": [{"kind": "column", "column": "client"}],
        "split": {"validation": 0, "test": 0},
    }
    overrides = [f"data.{key}={json.dumps(value)}" for key, value in data.items()]
    owner = (
        tmp_path / "private" / "cancer" / "owner.yaml"
    )  # in cells of ten rows, a label that inputs decide has few cells
    owner.parent.mkdir(parents=True)
    owner.write_text("least_cell: 1\n")
    _, report = run_diagnosis(Project.open(overrides, tmp_path, derived=True), PlainRunner())
    assert [pair["types"] for pair in report["pairs"]] == [["feature"]] * 3
    assert [line["feature"] for line in report["ranking"][:2]] == ["worst texture", "texture error"]
