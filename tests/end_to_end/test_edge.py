"""What a user types to know whether a client's machine can carry a model, and to take it there."""

from dataclasses import replace

import pytest
import torch
from safetensors.numpy import load_file


@pytest.fixture
def folder(finished, server):
    """A folder with finished runs, whose commands share a process that has imported what they need."""
    return replace(finished.folder, server=server)


COST = ("cost", "--set", "model.hidden=[30]")


def test_cost_says_what_the_networks_of_params_take(folder):
    found = folder.type(*COST, "--without-memory", "--json").json
    assert (found["parameters"], found["macs"]["forward"]) == (2260, 2220)


@pytest.mark.slow
def test_cost_says_what_memory_the_largest_client_takes(folder, assert_quiet):
    answer = folder.type(*COST)
    assert "parameters         2,260 trained, 0 in buffers" in answer.out
    assert "MACs of a row      2,220 forward, 4,740 forward and backward" in answer.out
    assert "largest client" in answer.out
    assert "training: done" in answer.err
    assert_quiet(answer.out + answer.err)


@pytest.mark.slow
def test_an_exported_model_needs_torch_alone_and_is_right_as_often_as_reported(
    folder, finished, tmp_path, assert_quiet
):
    run = finished.run("fedavg", 0)
    file = tmp_path / "digits.pt2"
    answer = folder.type("export", run["folder"], "--client", "c03", "--output", str(file), alone=True)
    assert "it differs from the original by" in answer.out
    assert_quiet(answer.out + answer.err)
    assert answer.err == ""
    rows = load_file(folder.path / "data" / "digits" / "c03.safetensors")
    guessed = torch.export.load(str(file)).module()(torch.from_numpy(rows["test_x"])).argmax(1).numpy()
    (reported,) = [row["accuracy"] for row in run["metrics"]["accuracy/by_client"] if row["client"] == "c03"]
    assert (guessed == rows["test_y"]).mean() == pytest.approx(reported)


def test_a_personal_model_is_exported_for_its_client_and_for_nobody_else(folder, finished):
    run = finished.run("local_only", 0)["folder"]
    refused = folder.type("export", run, code=2)
    assert (
        "--client: got no client, expected one, since local_only has a model for each client. Choose one of c00"
        in refused.err
    )
    found = folder.type("export", run, "--client", "c04", "--json").json
    assert (folder.path / found["file"]).is_file()
    assert found["personal"] is True
