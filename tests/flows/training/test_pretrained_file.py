"""A file of torchvision's weights is what the encoder starts from, and a run knows which file it was."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.methods.method_settings import method_of
from flows.project.project import Project
from flows.training.run_records.fingerprint import check_resume, fingerprint_of
from flows.training.run_records.run_folder import RunFolder, run_name
from flows.training.training_setup import training_setup
from models.networks.pretrained_encoder import rename_torchvision
from models.prng import server_stream
from silos.errors import UserError
from silos.sources.torchvision_datasets import torchvision


def opened(project: Path, kind: str = "resnet18", file: str = "given.pth") -> Project:
    model = f"model={{kind: {kind}, hidden: [], pretrained: {file}}}"
    return Project.open([model], project, derived=True)


@pytest.fixture(scope="module")
def states() -> dict[str, dict[str, torch.Tensor]]:
    """torchvision's fresh networks; of VGG's classifier nothing is read, and it is left out."""
    torchvision()
    from torchvision import models

    vgg = models.vgg16_bn(weights=None).features.state_dict(prefix="features.")
    return {"resnet18": models.resnet18(weights=None).state_dict(), "vgg16_bn": vgg}


@pytest.mark.slow
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "as published"])
def test_the_files_numbers_are_the_encoders_start_and_its_hash_is_the_networks(project, states, zipped):
    file = project / "given.pth"
    torch.save(states["resnet18"], file, _use_new_zipfile_serialization=zipped)
    network: Any = training_setup(opened(project), 0).network
    weights, given = network.init(server_stream(0, 0, "init")), rename_torchvision(states["resnet18"])
    assert network.pretrained == hashlib.sha256(file.read_bytes()).hexdigest()
    assert {n for n in weights if n not in given} == {"dense0.weight", "dense0.bias"}
    for name in weights.keys() & given.keys():
        assert torch.equal(weights[name], given[name]), name


@pytest.mark.slow
def test_every_member_of_an_ensemble_starts_from_the_file_with_a_head_of_its_own(project, states):
    torch.save(states["resnet18"], project / "given.pth")
    model = "model={kind: resnet18, hidden: [], pretrained: given.pth, members: 2}"
    ensemble = Project.open([model], project, derived=True)
    weights = training_setup(ensemble, 0).network.init(server_stream(0, 0, "init"))
    for name, w in rename_torchvision(states["resnet18"]).items():
        if f"0/{name}" in weights:
            assert torch.equal(weights[f"0/{name}"], w), name
            assert torch.equal(weights[f"1/{name}"], w), name
    assert not torch.equal(weights["0/dense0.weight"], weights["1/dense0.weight"])
    asked = fingerprint_of(ensemble, training_setup(ensemble, 0), method_of(ensemble.params, "fedavg"), "fedavg")
    assert asked["params"]["model"]["pretrained"].startswith("sha256:")


@pytest.mark.slow
def test_the_file_may_lie_at_home_and_hold_vgg(project, states, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (12, 32, 32, 3), np.uint8), np.arange(12) % 2
    np.savez(project / "mine.npz", x=x, y=y, client=np.repeat(["a", "b"], 6))
    monkeypatch.setenv("HOME", str(tmp_path))
    torch.save(states["vgg16_bn"], tmp_path / "vgg.pth")
    data = [
        "data.source={kind: npz, path: mine.npz}",
        "data.scheme=[{kind: column, column: client}]",
        "model={kind: vgg16_bn, pretrained: ~/vgg.pth}",
    ]
    network = training_setup(Project.open(data, project, derived=True), 0).network
    weights = network.init(server_stream(0, 0, "init"))
    assert torch.equal(weights["features.41.variance"], states["vgg16_bn"]["features.41.running_var"])
    assert torch.equal(weights["features.40.weight"], states["vgg16_bn"]["features.40.weight"])


@pytest.mark.slow
def test_a_run_resumes_with_the_same_file_anywhere_and_with_no_other(project, states):
    file, name = project / "given.pth", "run-1"
    torch.save(states["resnet18"], file)
    before = opened(project)
    asked = fingerprint_of(before, training_setup(before, 0), method_of(before.params, "fedavg"), "fedavg")
    assert asked["params"]["model"]["pretrained"] == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    RunFolder(project / "runs" / name / run_name("fedavg", 0)).identify(json.loads(json.dumps(asked)), resume=False)
    (project / "elsewhere").mkdir()
    moved = file.rename(project / "elsewhere" / "other.pth")
    check_resume(opened(project, file=str(moved)), "fedavg", 0, name)
    torch.save({n: w + 1 for n, w in states["resnet18"].items()}, moved)
    with pytest.raises(
        UserError, match=r"got other settings than at its start \(params.model.pretrained: sha256:\w+ → sha256:"
    ):
        check_resume(opened(project, file=str(moved)), "fedavg", 0, name)


def test_params_without_a_file_say_so_in_the_runs_record(project):
    fresh = opened(project, file="null")
    asked = fingerprint_of(fresh, training_setup(fresh, 0), method_of(fresh.params, "fedavg"), "fedavg")
    assert asked["params"]["model"]["pretrained"] is None


def refused(project: Path, **options: str) -> str:
    with pytest.raises(UserError) as told:
        training_setup(opened(project, **options), 0)
    message = str(told.value)
    assert message.startswith(f"params.yaml: model.pretrained: {project}/given.pth: ")
    assert message.endswith("~/.cache/torch/hub/checkpoints), or set model.pretrained to null.")
    assert "torchvision's resnet18" in message
    return message


@pytest.mark.slow
def test_a_file_that_is_not_there_or_no_state_dict_of_this_encoder_is_refused(project, states):
    file = project / "given.pth"
    assert "got no such file" in refused(project)
    file.write_text("<html>not found</html>")
    assert "got a file that cannot be read as tensors (UnpicklingError)" in refused(project)
    file.write_bytes(b"")
    assert "cannot be read as tensors (EOFError)" in refused(project)
    torch.save(Path("code"), file)
    assert "got a file that cannot be read as tensors (UnpicklingError)" in refused(project)
    torch.save({"state_dict": states["resnet18"]}, file)
    assert "got something other than named tensors" in refused(project)
    torch.save(states["vgg16_bn"], file)
    assert "got no conv1.weight" in refused(project)
    wrong = states["resnet18"]["conv1.weight"]
    for odd in (wrong * 1j, wrong.double() + 1e300, wrong + torch.nan):
        torch.save({**states["resnet18"], "conv1.weight": odd}, file)
        assert "conv1.weight: got numbers that are not finite or not real" in refused(project)
    torch.save({**states["resnet18"], "conv1.weight": torch.zeros(64, 1, 7, 7)}, file)
    assert "conv1.weight: got the shape (64, 1, 7, 7), expected (64, 3, 7, 7)" in refused(project)


def test_an_image_too_small_for_vgg_is_the_models_matter(project, states):
    torch.save(states["vgg16_bn"], project / "given.pth")
    with pytest.raises(UserError, match="model: got poolings that leave nothing of an image of 8 x 8, expected a"):
        training_setup(opened(project, "vgg16_bn"), 0)
