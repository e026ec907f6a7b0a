"""What `siloflow partition` says about the store that silos have already."""

from pathlib import Path

import numpy as np
import yaml

from flows.experiment.project import Project
from flows.partition import make
from silos.privacy.silo_policy import make_store


def test_data_of_ones_own_after_public_ones_are_said_to_have_the_policy_of_these(project: Path) -> None:
    make_store(project / "private" / "digits", other_silos=True)
    assert make(Project.open(root=project))["notes"] == []
    rng = np.random.default_rng(0)
    np.savez(project / "own.npz", x=rng.normal(size=(90, 4)), y=np.arange(90) % 3, client=np.arange(90) % 3)
    raw = yaml.safe_load((project / "params.yaml").read_text())
    raw["data"] |= {"source": {"kind": "npz", "path": "own.npz"}, "scheme": [{"kind": "column", "column": "client"}]}
    (project / "params.yaml").write_text(yaml.safe_dump(raw))
    (note,) = make(Project.open(root=project))["notes"]
    assert note.startswith(
        "private/digits/policy.yaml: got other_silos: true, as for the source digits, expected false"
    )
    assert make(Project.open(root=project))["notes"] == []


def test_the_policy_that_an_owner_set_for_own_data_is_not_doubted(project: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(90, 4)), "y": np.arange(90) % 3, "client": np.arange(90) % 3}
    np.savez(project / "own.npz", **arrays)
    rows = [f"{a:.3f},{b:.3f},{y},{c}" for (a, b, *_), y, c in zip(*arrays.values(), strict=True)]
    (project / "own.csv").write_text("\n".join(["a,b,y,client", *rows]))
    raw = yaml.safe_load((project / "params.yaml").read_text())
    raw["data"] |= {"name": "own", "scheme": [{"kind": "column", "column": "client"}]}
    table = {"kind": "table", "path": "own.csv", "label": "y", "client": "client"}
    for source in (table, {"kind": "npz", "path": "own.npz"}):
        raw["data"]["source"] = source
        (project / "params.yaml").write_text(yaml.safe_dump(raw))
        notes = make(Project.open(root=project))["notes"]
        assert not [note for note in notes if "other_silos" in note]
        policy = project / "private" / "own" / "policy.yaml"
        policy.write_text(policy.read_text().replace("other_silos: false", "other_silos: true "))
