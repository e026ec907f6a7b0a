"""`evaluation.clients`: models are scored on the rows of some clients, and trained as if on all."""

import math

import pytest

from flows.methods.method_settings import method_of
from flows.project.project import Project
from flows.training.evaluation import Scorer
from flows.training.run_notes import notes_of_scores
from flows.training.run_records.run_folder import RunFolder

pytestmark = pytest.mark.slow

SOME = ("evaluation.clients=2",)


@pytest.fixture
def by_client(folder):
    def of(result):
        rows = result["metrics"]["accuracy/by_client"]
        return {row["client"]: row["accuracy"] for row in rows}

    return of


@pytest.mark.parametrize("method", ["fedavg", "ditto", "ifca", "fedbn", "local_only"])
def test_some_are_scored_and_training_does_not_know(method, play_run, by_client, folder):
    whole, some = play_run(method, "threads", 1), play_run(method, "threads", 1, *SOME)
    assert some["weights_sha256"] == whole["weights_sha256"]
    scored = by_client(some)
    assert len(scored) == 2
    assert [note["sentence"] for note in some["notes"]] == ["scored on 2 of 6 clients (evaluation.clients)."]
    assert whole["notes"] == []
    assert scored.items() <= by_client(whole).items()
    assert some["metrics"]["accuracy/mean"] == pytest.approx(math.fsum(scored.values()) / 2)
    for record in RunFolder(folder / some["folder"]).journal.each(3):
        assert {c for c, row in record["clients"].items() if "test/accuracy" in row} == {*scored}


def test_they_are_the_same_for_every_method_and_seed_of_training_and_others_for_other_data(folder):
    def drawn(*more):
        return Project.open([*SOME, *more], folder, derived=True).scored.clients

    assert drawn() == drawn("training.rounds=7", "comparison.seeds=[3]")
    assert len({drawn(f"data.seed={seed}") for seed in range(6)}) > 1


def test_fresh_and_unseen_clients_are_drawn_apart_and_more_than_there_are_is_all(folder):
    fresh = "data.scheme=[{kind: equal, clients: 6}, {kind: fresh, per_domain: 3}]"
    everybody = Project.open([fresh], folder, derived=True).silos
    two, hundred = (Project.open([f"evaluation.clients={n}", fresh], folder, derived=True).scored for n in (2, 100))
    assert sorted(two.role(client) for client in two.clients) == ["federated", "federated", "fresh", "fresh"]
    assert hundred.clients == everybody.clients


def test_how_many_are_scored_is_said_of_each_role_that_has_a_model(folder):
    """Fresh and unseen clients never train: one number of them together with the others would be nobody's share."""

    def said(scored, *roles, method="fedavg"):
        scheme = ["{kind: equal, clients: 9}", "{kind: rotation, angles: [0, 60, 120]}", *roles]
        settings = [f"evaluation.clients={scored}", f"data.scheme=[{', '.join(scheme)}]"]
        opened = Project.open(settings, folder, derived=True)
        return [note["sentence"] for note in notes_of_scores(Scorer.of(opened, method_of(opened.params, method)))]

    fresh, unseen = "{kind: fresh, per_domain: 1}", "{kind: hold_out, domains: [rot120]}"
    assert said(2) == ["scored on 2 of 9 clients (evaluation.clients)."]
    assert said(2, unseen) == ["scored on 2 of 6 federated and 2 of 3 unseen clients (evaluation.clients)."]
    assert said(3, unseen, fresh) == [
        "scored on 3 of 4 federated, 2 of 2 fresh and 3 of 3 unseen clients (evaluation.clients)."
    ]
    assert said(4, unseen, fresh) == []
    assert said(3, unseen, fresh, method="local_only") == ["scored on 3 of 4 clients (evaluation.clients)."]


def test_the_journal_has_rows_of_those_of_whom_there_is_something(play_run, folder):
    result = play_run("fedavg", "threads", 1, "clients.fraction=0.34", "clients.dropout=0.3", "evaluation.every=3")
    records = list(RunFolder(folder / result["folder"]).journal.each(3))
    for record in records[:2]:
        told = {client for client, row in record["clients"].items() if "train_loss" in row}
        assert {*record["clients"]} == told | {*record["dropped"]}
        assert len(told) == record["metrics"]["clients/answered"]
    assert len(records[2]["clients"]) == 6


@pytest.mark.parametrize("more", [["data.split.validation=0"], []])
def test_a_best_round_that_nobody_can_tell_is_the_last_and_said(more, play_run):
    result = play_run("fedavg", "threads", 1, "evaluation.report=best", *more)
    said = [note["sentence"] for note in result["notes"]]
    if more:
        assert (result["reported_round"], len(said)) == (3, 1)
        assert "no scored client has validation rows: the last round is reported" in said[0]
    else:
        assert said == []
