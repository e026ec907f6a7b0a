"""What is promoted, and how a rollback goes back, in a real store."""

from dataclasses import replace
from itertools import pairwise
from operator import eq
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.core.config.params_schema import ComparisonParams, WatchParams
from flows.core.plugin_loader import NONE
from flows.results.registry import JOURNAL, promotion, promotion_history
from flows.results.registry.changed_silos import last_decision, read_champion, what_is_seen
from flows.results.registry.model_finder import ModelFinder
from flows.results.registry.promotion import finish, keep, needed_runs, promote, roll_back
from flows.results.registry.promotion_history import (
    HISTORY,
    PROMOTED,
    append_decision,
    decisions,
    emit_queued,
    is_queued,
    may_pass,
)
from flows.results.registry.register_candidates import _register
from models.metrics.client_metrics import METRICS_BY_NAME
from silos.errors import UserError
from tasks.tracking.json_io import write_json
from tasks.tracking.mlflow_logging.connection import connect
from tasks.tracking.mlflow_logging.model_registry import Registry


@pytest.fixture
def project(tmp_path: Path, databases: Path) -> Any:
    """A project with four registered versions."""
    (tmp_path / "mlflow.db").write_bytes((databases / "mlflow.db").read_bytes())
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = connect(uri)
    experiment = client.create_experiment("project", artifact_location=(tmp_path / "artifacts").as_uri())
    model = f"{tmp_path.name}-digits"
    client.create_registered_model(model)
    for _ in range(4):
        run = client.create_run(experiment).info.run_id
        client.create_model_version(model, tmp_path.as_uri(), run, await_creation_for=None)
    methods = {"method": {}, "registered": NONE, "comparison": ComparisonParams(methods=["fedavg"], seeds=[0])}
    params = SimpleNamespace(data=SimpleNamespace(name="digits"), watch=WatchParams(), **methods)
    store = SimpleNamespace(runs=tmp_path / "runs", tracking=uri)
    return SimpleNamespace(root=tmp_path, store=store, data=SimpleNamespace(same_rows=eq), params=params)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("promoted", "restored"),
    [
        ("123", "21"),
        ("1232", "31"),  # 2 leaves its earlier place
        ("121", "2"),  # and not 1, which the first rollback withdraws
        ("12<3", "1"),  # 2 was withdrawn
        ("123<<4", "1"),
    ],
)
def test_rollback_goes_further_back_and_never_to_a_withdrawn_version(
    project: Any, promoted: str, restored: str
) -> None:
    for number in promoted:
        if number == "<":
            roll_back(project, with_data=False)
        else:
            promote(project, number, force=True, with_data=False)
    registry = Registry(project.store.tracking, f"{project.root.name}-digits")
    expected = [promoted[-1], *restored]
    for withdrawn, number in pairwise(expected):
        assert registry.aliases()["previous"] == number
        decision = roll_back(project, with_data=False)
        assert (decision["champion"], decision["version"]) == (withdrawn, number)
        assert registry.aliases()["champion"] == number
    with pytest.raises(UserError, match="got no former champion"):
        roll_back(project, with_data=False)
    assert "previous" not in registry.aliases()
    made = [each["decision"] for each in decisions(project.root)]
    assert made[: len(restored)] == ["rolled back"] * len(restored)


def test_a_version_that_is_the_champion_again_leaves_its_earlier_place(project: Any) -> None:
    for number in "121":
        promote(project, number, force=True, with_data=False)
    assert roll_back(project, with_data=False)["version"] == "2"
    with pytest.raises(UserError, match="got no former champion"):
        roll_back(project, with_data=False)


def test_rollback_passes_over_a_version_that_was_deleted(project: Any) -> None:
    for number in "123":
        promote(project, number, force=True, with_data=False)
    connect(project.store.tracking).delete_model_version(f"{project.root.name}-digits", "2")
    assert roll_back(project, with_data=False)["version"] == "1"


def test_a_line_of_the_history_that_a_kill_cut_off_is_left_out_and_then_replaced(project: Any) -> None:
    promote(project, "1", force=True, with_data=False)
    with (project.root / HISTORY).open("a") as file:
        file.write('{"id": "0", "at": "20')
    assert [each["version"] for each in decisions(project.root)] == ["1"]
    promote(project, "2", force=True, with_data=False)
    assert [each["version"] for each in decisions(project.root)] == ["2", "1"]


WATCH = {"seen": {"champion": "1"}, "since": "v1", "shifted": [], "comparison": "watch-1"}


def test_a_refusal_whose_reason_may_pass_is_in_the_history_once_and_others_each_time(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(project, "1", force=True, with_data=False)
    for _ in range(2):
        refused = promote(project, "2", force=False, with_data=False, watch=WATCH)
        assert refused["against"]["why_not"] == "one of the versions has no tag `run`, as siloflow sets it"
        assert not may_pass(refused)
    champion = Registry(project.store.tracking, f"{project.root.name}-digits").find("1")
    assert champion is not None
    for number, reason in enumerate(("the disk is full", "the disk is full", "out of memory", "the disk is full")):
        monkeypatch.setattr(promotion, "git_commit", lambda _, number=number: f"commit {number}")  # is no other reason
        assert may_pass(keep(project, champion, reason, WATCH, may_pass=True))
    assert not may_pass(keep(project, champion, "no silo shifted", WATCH))
    reasons = [decision["reason"] for decision in reversed(decisions(project.root))][2:]
    assert reasons == ["the disk is full", "out of memory", "the disk is full", "no silo shifted"]


def test_a_missing_run_is_a_reason_that_may_pass(project: Any) -> None:
    promote(project, "1", force=True, with_data=False)
    for number in "12":
        connect(project.store.tracking).set_model_version_tag(
            f"{project.root.name}-digits", number, "run", f"runs/run-{number}/fedavg-seed0"
        )
    refused = promote(project, "2", force=False, with_data=False, watch=WATCH)
    assert refused["reason"] == "there is no interval: runs/run-2/fedavg-seed0 is missing. Restore it from a copy"
    assert may_pass(refused)


@pytest.mark.slow
def test_the_event_of_a_promotion_by_watch_survives_a_kill_and_is_sent_once(
    project: Any, prefect: Any, heard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(project, "1", force=True, with_data=False)
    assert not is_queued(project.root), "only `watch` emits events"
    with monkeypatch.context() as killed:
        killed.setattr(promotion_history, "queue", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            promote(project, "2", force=True, with_data=False, watch=WATCH)
    assert (project.root / JOURNAL).is_file()
    finish(project)  # every step again, and the last one
    assert len(list((project.root / JOURNAL).parent.glob("events/*"))) == 1
    away = {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(away), pytest.raises(httpx.ConnectError):
        emit_queued(project.root)
    assert is_queued(project.root)
    hearing = heard(prefect.url, 1)
    emit_queued(project.root)
    assert not is_queued(project.root)
    hearing.join(60)
    (event,) = hearing.events
    assert (event.event, event.resource.id) == (PROMOTED, f"siloflow.model.{project.root.name}-digits")
    assert event.payload["version"] == "2"
    assert (event.payload["since"], event.payload["data"]) == ("v1", "digits")


def test_the_champion_is_read_again_after_any_change_of_the_database(project: Any) -> None:
    model, client = f"{project.root.name}-digits", connect(project.store.tracking)
    for number in "123":
        for key in ("method", "data_version"):
            client.set_model_version_tag(model, number, key, f"{key} of {number}")
    promote(project, "1", force=True, with_data=False)
    first = read_champion(project)
    assert first == Registry(project.store.tracking, model).find("1") == read_champion(project)
    promote(project, "2", force=True, with_data=False)
    assert read_champion(project).number == "2"
    client.set_registered_model_alias(model, "champion", "3")
    assert read_champion(project).number == "3"
    client.set_model_version_tag(model, "3", "method", "fedprox")
    assert read_champion(project).tags["method"] == "fedprox"
    project.params.data.name = "other"
    with pytest.raises(UserError, match="got no champion"):
        read_champion(project)


def test_a_champion_that_changes_while_it_is_read_is_read_again(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, client, find = f"{project.root.name}-digits", connect(project.store.tracking), ModelFinder.find_champion
    for number in "12":
        for key in ("method", "data_version"):
            client.set_model_version_tag(model, number, key, f"{key} of {number}")
    client.set_registered_model_alias(model, "champion", "1")

    def find_and_change(finder: ModelFinder) -> Any:
        found = find(finder)
        client.set_registered_model_alias(model, "champion", "2")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ModelFinder, "find_champion", find_and_change)
        assert read_champion(project).number == "1"
    assert read_champion(project).number == "2"


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_version_without_an_mlflow_run_is_promoted_and_leaves_nothing_open(project: Any) -> None:
    client, model = connect(project.store.tracking), f"{project.root.name}-digits"
    client.create_model_version(model, project.root.as_uri(), None, await_creation_for=None)
    decision = promote(project, "5", force=True, with_data=False)
    assert (decision["version"], (project.root / JOURNAL).exists()) == ("5", False)
    assert Registry(project.store.tracking, model).aliases()["champion"] == "5"
    promote(project, "1", force=True, with_data=False)


def test_a_decision_settles_nothing_of_other_data_other_rows_another_champion_or_other_settings(project: Any) -> None:
    promote(project, "1", force=True, with_data=False)
    project.silos = SimpleNamespace(version="v2")
    champion = Registry(project.store.tracking, f"{project.root.name}-digits").find("1")
    assert champion is not None
    keep(project, champion, "no silo shifted", {**WATCH, "seen": what_is_seen(project, champion)})
    assert last_decision(project, champion) is not None
    for other in (WatchParams(grade="critical"), WatchParams(prefer="cheaper"), WatchParams(methods=["fedprox"])):
        project.params.watch = other
        assert last_decision(project, champion) is None
    project.params.watch = WatchParams()
    assert last_decision(project, champion) is not None
    assert last_decision(project, replace(champion, number="2")) is None
    project.silos.version = "v3"
    assert last_decision(project, champion) is None
    project.silos.version = "v2"
    project.params = SimpleNamespace(data=SimpleNamespace(name="letters"), watch=WatchParams())
    assert last_decision(project, champion) is None


SENTENCE = "local_only − fedavg −64.8 in rmse, −80.1 to −49.5: local_only is better"
PAIR = {"method": "local_only", "reference": "fedavg", "distinguishable": True}


def compared(project: Any, number: str, method: str, **record: Any) -> None:
    """Say which method's run a version is, and what its comparison recorded."""
    folder = f"runs/first/{method}-seed0"
    for key, value in (("run", folder), ("method", method)):
        connect(project.store.tracking).set_model_version_tag(f"{project.root.name}-digits", number, key, value)
    write_json(
        project.store.runs / "first" / "comparison.json", {"experiment": "first", "table": [], "paired": []} | record
    )


def test_what_its_comparison_proved_worse_than_training_alone_is_no_first_champion(project: Any) -> None:
    compared(project, "1", "fedavg", paired=[{**PAIR, "better": "local_only", "sentence": SENTENCE}])
    refused = promote(project, "1", force=False, with_data=False)
    assert (refused["decision"], refused["against"]) == ("refused", None)
    assert refused["reason"] == f"first found: {SENTENCE}"
    assert refused["next"] == "siloflow compare local_only --set tracking.personal_models=true, then siloflow promote"
    assert refused["comparison"] == {"experiment": "first", "open_faults": [], "sentences": [SENTENCE], "omitted": 0}
    assert "champion" not in Registry(project.store.tracking, f"{project.root.name}-digits").aliases()
    forced = promote(project, "1", force=True, with_data=False)
    assert (forced["decision"], forced["forced"]) == ("promoted", True)
    assert forced["reason"] == f"forced, although first found: {SENTENCE}"


def test_a_first_champion_needs_no_evidence_and_its_comparison_is_quoted(project: Any) -> None:
    sentence = SENTENCE.replace("local_only is better", "not distinguishable")
    compared(project, "1", "fedavg", paired=[{**PAIR, "better": None, "distinguishable": False, "sentence": sentence}])
    decision = promote(project, "1", force=False, with_data=False)
    assert (decision["decision"], decision["reason"]) == ("promoted", "there was no champion")
    assert decision["comparison"]["sentences"] == [sentence]
    assert decision["next"] == "siloflow predict FILE --output labels.csv"


def test_the_advice_for_a_run_that_mlflow_did_not_receive_is_to_resume_it(project: Any) -> None:
    run = project.store.runs / "away" / "fedavg-seed0"
    write_json(run.parent / "experiment.json", {"kind": "run", "name": "away"})
    write_json(run / "run.json", {})
    result = {"method": "fedavg", "seed": 0, "data_version": "v", "rounds": 3, "mlflow_run_id": None}
    write_json(run / "result.json", result)
    with pytest.raises(UserError, match=r"which ended while MLflow was away, .* with --resume, which sends the run"):
        promote(project, "fedavg-seed0", force=True, with_data=False)


@pytest.mark.parametrize(
    ("registry", "advice"),
    [
        (
            {"candidates": [], "table": [{"method": "local_only", "model": "personal"}]},
            "on demand: `siloflow compare local_only --set tracking.personal_models=true` registers candidates.",
        ),
        (None, "MLflow was away when first ended: its command with --resume --name first registers candidates."),
        ({"candidates": []}, "`siloflow compare` registers candidates."),
    ],
)
def test_the_advice_without_a_challenger_is_to_resume_a_comparison_that_could_not_register(
    project: Any, registry: Any, advice: str
) -> None:
    table = (registry or {}).pop("table", [])
    compared(project, "1", "fedavg", registry=registry, runs=[{"method": "fedavg"}], table=table)
    write_json(
        project.store.runs / "first" / "experiment.json", {"kind": "compare", "name": "first", "started": "2026"}
    )
    with pytest.raises(UserError, match="has no challenger, expected one of them") as caught:
        promote(project, None, force=False, with_data=False)
    assert advice in str(caught.value)


def test_a_promoted_challenger_is_a_challenger_no_more(project: Any) -> None:
    registry = Registry(project.store.tracking, f"{project.root.name}-digits")
    registry.set_aliases({"challenger": "2"})
    assert promote(project, None, force=False, with_data=False)["version"] == "2"
    assert registry.aliases() == {"champion": "2"}
    registry.set_aliases({"challenger": "3"})
    promote(project, "4", force=True, with_data=False)
    assert registry.aliases() == {"champion": "4", "previous": "2", "challenger": "3"}


def test_the_runs_of_champions_and_of_challengers_and_of_a_promotion_under_way_are_needed(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, client = f"{project.root.name}-digits", connect(project.store.tracking)
    for number in "1234":
        client.set_model_version_tag(model, number, "run", f"runs/run-{number}")
    other = f"{project.root.name}-letters"
    client.create_registered_model(other)
    client.create_model_version(other, project.root.as_uri(), None, tags={"run": "runs/other"}, await_creation_for=None)
    assert needed_runs(project) == set()
    for number in "12":
        promote(project, number, force=True, with_data=False)
    assert needed_runs(project) == {"runs/run-1", "runs/run-2"}
    client.set_registered_model_alias(other, "challenger", "1")
    assert needed_runs(project) == {"runs/run-1", "runs/run-2", "runs/other"}
    roll_back(project, with_data=False)
    with monkeypatch.context() as killed:
        killed.setattr(Registry, "set_aliases", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            promote(project, "4", force=True, with_data=False)
    assert needed_runs(project) == {"runs/run-1", "runs/run-4", "runs/other"}


@pytest.mark.parametrize("step", ["append_decision", "set_aliases", "tag"])
def test_a_decision_that_is_killed_at_a_step_is_in_the_journal_until_the_next_command_has_done_it(
    project: Any, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(promotion if step == "append_decision" else Registry, step, _interrupt)
        with pytest.raises(KeyboardInterrupt):
            promote(project, "1", force=True, with_data=False)
    assert (project.root / JOURNAL).is_file()
    finish(project)
    assert not (project.root / JOURNAL).exists()
    assert [each["version"] for each in decisions(project.root)] == ["1"]
    assert Registry(project.store.tracking, f"{project.root.name}-digits").aliases()["champion"] == "1"


def test_a_decision_that_is_appended_again_is_in_the_history_once(project: Any) -> None:
    promote(project, "1", force=True, with_data=False)
    (decision,) = decisions(project.root)
    for _ in range(2):
        append_decision(project.root, decision)
    append_decision(project.root, {**decision, "id": "other"})
    assert [each["id"] for each in decisions(project.root)] == ["other", decision["id"]]


def test_the_challenger_is_the_best_candidate_also_of_earlier_comparisons_while_there_is_no_champion(
    project: Any,
) -> None:
    project.quantity, project.silos = METRICS_BY_NAME["accuracy"], SimpleNamespace(version="v1")
    registry = Registry(project.store.tracking, f"{project.root.name}-digits")
    runs = {version.number: version.run_id for version in registry.versions()}

    def registered(data_version: str, **scores: float) -> str:
        project.silos.version = data_version
        results = [
            {
                **{"method": "fedavg", "seed": 0, "folder": f"runs/first/run-{number}", "data_version": data_version},
                **{"mlflow_run_id": runs[number[1:]], "weights_sha256": "ab", "metrics": {"accuracy/mean": score}},
            }
            for number, score in scores.items()
        ]
        found = _register(project, results)
        assert [each["run"] for each in found["candidates"]] == [f"run-{number}" for number in scores]
        return found["challenger"]

    assert registered("v1", v1=0.7, v2=0.8) == "2"
    assert registered("v1", v3=0.6) == "2"  # of the earlier comparison
    assert registered("v1", v4=0.8) == "4"  # as good, and newer
    assert registered("v2", v3=0.6) == "3"  # scores of other rows say nothing
