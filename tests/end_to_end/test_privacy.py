"""Private training as typed: the same bits under every runner, after a kill, and within the owner's budget."""

import json

import pytest

pytestmark = pytest.mark.slow

SMALL = ("--set", "data.scheme=[{kind: dirichlet, clients: 4, alpha: 1.0}]", "--set", "training.rounds=3")
PRIVATE = (
    *SMALL,
    "--set",
    "model.hidden=[]",
    "--set",
    "training.privacy={epsilon: 4, clip: 0.5}",
    "--set",
    "training.optimiser.learning_rate=8",
)


@pytest.fixture(scope="module")
def project(partitioned, server, tmp_path_factory):
    """A project of four silos, whose owners pay for three runs with epsilon 4, and not for four."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("privacy") / "project", server)
    folder.type("partition", *SMALL)
    file = folder.path / "private" / "digits" / "owner.yaml"
    file.write_text(file.read_text().replace("budget: 1.0e+06", "budget: 8.0    "))
    return folder


def _spent(folder):
    return [silo["spent"] for silo in folder.type("data", "ledger", *SMALL, "--json").json["silos"]]


def test_all_runners_send_the_same_bytes_for_which_a_silo_pays_once(project, living):
    hashes = set()
    for runner in ("threads", "processes", "dask"):
        where = ("--set", f"runner.kind={runner}", "--set", "runner.workers=2")
        code, out, err = project.run(["run", "fedavg", *PRIVATE, *where, "--json"])
        assert code == 0, err
        hashes.add(json.loads(out)["weights_sha256"])
        assert living(project.path) == []
        silos = project.type("data", "ledger", *SMALL, "--json").json["silos"]
        assert [silo["spent"] for silo in silos] == pytest.approx([4.0] * 4)
        assert {(silo["exact"], silo["noisy"], silo["runs"]) for silo in silos} == {(0, 0, 1)}
    assert len(hashes) == 1


def test_secure_sums_are_the_same_under_all_runners_and_in_a_comparison(partitioned, server, tmp_path_factory, living):
    folder = partitioned[0].copy(tmp_path_factory.mktemp("sums") / "project", server)
    folder.type("partition", *SMALL)
    secure = (*PRIVATE, "--set", "training.epochs=1", "--set", "training.privacy.secure_sums=true")
    hashes = set()
    for runner in ("threads", "processes", "dask"):
        where = ("--set", f"runner.kind={runner}", "--set", "runner.workers=2")
        code, out, err = folder.run(["run", "fedavg", *secure, *where, "--json"])
        assert code == 0, err
        hashes.add(json.loads(out)["weights_sha256"])
        assert living(folder.path) == []
    assert len(hashes) == 1
    assert "sums over silos alone, has epsilon 4" in err
    assert {silo["runs"] for silo in folder.type("data", "ledger", *SMALL, "--json").json["silos"]} == {1}
    alone = folder.type("compare", "local_only", "fedavg", "finetune", *secure)
    assert "failed" not in alone.out


def test_a_comparison_says_its_cost_first_and_trains_nothing_beyond_a_budget(project):
    before = _spent(project)
    answer = project.type("compare", "local_only", "fedavg", "finetune", *PRIVATE, "--seeds", "0,1,2,3", code=2)
    assert "client c00: training.privacy.epsilon: got a plan of 4 runs that cost epsilon" in answer.err
    assert "lower training.privacy.epsilon to" in answer.err
    assert _spent(project) == before
    answer = project.type("compare", "local_only", "fedavg", "finetune", *PRIVATE, "--seeds", "0,1")
    assert "at most 2 runs that cost epsilon" in answer.err
    assert _spent(project) == pytest.approx([5.992] * 4, abs=0.001), "seed 0 and fine-tuning ask what was asked before"


@pytest.mark.parametrize("sums", ["false", "true, least: 3"])
def test_a_silo_beyond_its_budget_drops_out_and_the_others_train(sums, partitioned, server, tmp_path_factory):
    folder = partitioned[0].copy(tmp_path_factory.mktemp("beyond") / "project", server)
    folder.type("partition", *SMALL)
    file = folder.path / "private" / "digits" / "owner.yaml"
    file.write_text(file.read_text().replace("silos: {}", "silos: {c01: {budget: 1.0}}"))
    typed = (*PRIVATE, "--set", f"training.privacy={{epsilon: 4, secure_sums: {sums}}}", "--set", "training.epochs=1")
    if "least" in sums:  # of three clients that a round draws one may be beyond its budget, and two are no sum
        refused = folder.type("run", "fedavg", *typed, "--set", "clients.fraction=0.75", code=2)
        assert "client c01: training.privacy.epsilon: got a plan of 1 run" in refused.err
        assert not any(silo["spent"] for silo in folder.type("data", "ledger", *SMALL, "--json").json["silos"])
    code, out, err = folder.run(["run", "fedavg", *typed, "--json"])
    assert code == 0, err
    assert "without client c01, beyond the budget, as if dropped out of all rounds" in err
    result = json.loads(out)
    assert result["dropped_out"] == 3
    assert any(note["sentence"].startswith("client c01 did not train") for note in result["notes"])
    silos = folder.type("data", "ledger", *SMALL, "--json").json["silos"]
    spent = {silo["name"]: silo["spent"] for silo in silos if silo["spent"]}
    assert spent == {"c00": pytest.approx(4.0), "c02": pytest.approx(4.0), "c03": pytest.approx(4.0)}


def test_methods_without_noise_are_refused_before_they_train(project):
    answer = project.type("compare", "scaffold", "fedavg", *PRIVATE, code=2)
    assert "Use one of fedavg, fedopt, fedprox, finetune, local_only" in answer.err
