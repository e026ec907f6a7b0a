"""What a candidate is compared with the champion by."""

from collections.abc import Sequence
from operator import eq
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flows.core.config.params_schema import WatchParams
from flows.results.registry.promotion import _verdict
from flows.results.registry.register_candidates import (
    _choose,
    _interval_tags,
    _merit,
    challenge,
    is_better,
    is_certain,
    is_cheaper,
    older_sentence,
)
from models.metrics.client_metrics import METRICS_BY_NAME
from silos.client_store import ClientStore
from tasks.evaluate import OUTCOMES
from tasks.tracking.json_io import write_json
from tasks.tracking.mlflow_logging.model_registry import ModelVersion


def test_models_that_were_scored_by_another_metric_have_no_interval_and_the_reason_names_both(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "before" / "fedavg-seed0"
    write_json(run / "run.json", {"params": {"data": {"name": "digits"}}, "data_version": "v"})
    write_json(run / "result.json", {"task": "classification", "rounds": 3, "mlflow_run_id": "r"})
    project: Any = SimpleNamespace(
        root=tmp_path,
        params=SimpleNamespace(data=SimpleNamespace(name="digits")),
        silos=SimpleNamespace(manifest=SimpleNamespace(task="classification")),
        quantity=METRICS_BY_NAME["auc"],
    )
    name = "runs/before/fedavg-seed0"
    assert challenge(project, name, name) == {
        "why_not": "fedavg-seed0 was scored by accuracy, and evaluation.metric is auc",
        "may_pass": True,
    }


def test_a_reason_names_a_missing_run_without_the_folder_of_the_project(tmp_path: Path) -> None:
    project: Any = SimpleNamespace(root=tmp_path)
    why = challenge(project, "runs/gone/fedavg-seed0", "runs/champion/fedavg-seed0")["why_not"]
    assert why == "runs/gone/fedavg-seed0 is missing. Restore it from a copy"


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"older": []}, ""),
        ({"sentence": "of an earlier version"}, ""),
        (
            {"older": ["a"]},
            "a: it was trained on other data, and unless the source marks test rows, perhaps on some of these",
        ),
        ({"older": ["a", "b"]}, "a and b: they were trained on other data, and unless"),
    ],
)
def test_models_that_may_know_present_test_rows_are_named(record: Any, said: str) -> None:
    assert older_sentence(record).startswith(said)
    assert bool(older_sentence(record)) == bool(said)


CLIENTS, ROWS = ("a", "b"), 40


@pytest.fixture
def trained(write_silos: Any, tmp_path: Path) -> Any:
    """A project, and a function that writes a finished regression run with these squared errors of two clients."""
    silos = write_silos(dict.fromkeys(CLIENTS, 5), test=ROWS, task="regression")
    project: Any = SimpleNamespace(
        root=tmp_path,
        params=SimpleNamespace(
            data=SimpleNamespace(name="digits"),
            comparison=SimpleNamespace(matters=None),
            runner=SimpleNamespace(kind="threads"),
        ),
        quantity=METRICS_BY_NAME["rmse"],
        silos=silos,
        data=SimpleNamespace(same_rows=eq),
        store=SimpleNamespace(private=lambda folder: ClientStore(f"{folder}/private")),
    )

    def run(name: str, errors: np.ndarray, sent: int = 1, clients: Sequence[str] = CLIENTS) -> str:
        folder = tmp_path / "runs" / "first" / name
        table = errors.astype(np.float64)
        hashes = project.store.private(folder).save(OUTCOMES, list(clients), {"squared_error": table}, "outcomes")
        metrics = {"rmse/pooled": float(np.sqrt(table.mean()))}
        result = {
            "task": "regression",
            "rounds": 1,
            "mlflow_run_id": "r",
            "metrics": metrics,
            "bytes": {"up": 1, "down": sent},
        }
        write_json(folder / "run.json", {"params": {"data": {"name": "digits"}}, "data_version": silos.version})
        write_json(folder / "outcomes.json", hashes)
        write_json(folder / "result.json", result)
        return str(folder.relative_to(tmp_path))

    return project, run


def test_a_gain_is_an_interval_of_the_metric_whose_first_end_is_the_least(trained: Any) -> None:
    project, run = trained
    draws = np.random.default_rng(0).exponential(size=(2, ROWS))
    better, worse = run("fedprox-seed0", draws), run("fedavg-seed0", 4 * draws)
    found = challenge(project, better, worse)
    rmse = np.sqrt(draws.mean())
    assert found["difference"] == pytest.approx(rmse - 2 * rmse)
    assert found["gain"] == [-found["high"], -found["low"]]
    assert 0 < found["gain"][0] < found["gain"][1]
    assert (found["clients"], found["older"]) == (2, []), "both were trained on the present rows"
    assert is_better(found)
    back = challenge(project, worse, better)
    assert back["gain"] == pytest.approx([-gain for gain in reversed(found["gain"])])
    assert not is_better(back)


def test_a_gain_that_is_certain_and_does_not_matter_makes_no_better_model(trained: Any) -> None:
    project, run = trained
    draws = np.random.default_rng(0).exponential(size=(2, ROWS))
    slightly, present = run("fedprox-seed0", 0.99 * draws), run("fedavg-seed0", draws)
    found = challenge(project, slightly, present)
    assert found["matters"] == pytest.approx(0.01 * np.sqrt(draws.mean()))  # 1 % of the champion's
    assert (is_certain(found), is_better(found)) == (True, False)
    assert "certain, but smaller than what matters" in found["sentence"]
    project.params.comparison.matters = 0.0
    assert is_better(challenge(project, slightly, present))


def test_two_models_are_compared_on_the_rows_of_clients_that_both_have_scored(trained: Any) -> None:
    project, run = trained
    draws = np.random.default_rng(0).exponential(size=(2, ROWS))
    both, late = run("fedprox-seed0", draws), run("fedavg-seed0", 4 * draws[1:], clients=["b"])
    rmse = float(np.sqrt(draws[1].mean()))
    for pair, difference in (((both, late), -rmse), ((late, both), rmse)):
        found = challenge(project, *pair)
        assert (found["clients"], found["difference"]) == (1, pytest.approx(difference))
    other = run("ditto-seed0", draws[:1], clients=["a"])
    for pair in ((other, late), (late, other)):
        assert challenge(project, *pair) == {"why_not": "they share no test rows"}


def test_a_model_that_sent_fewer_bytes_is_cheaper(trained: Any) -> None:
    project, run = trained
    cheap, dear = run("fedprox-seed0", np.ones((2, ROWS)), sent=1), run("fedavg-seed0", np.ones((2, ROWS)), sent=2)
    assert [challenge(project, *pair)["cheaper"] for pair in ((cheap, dear), (dear, cheap), (cheap, cheap))] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("gain", "cheaper", "taken"),
    [
        ([-0.009, 0.02], True, True),
        ([-0.02, 0.02], True, False),  # it may be worse by more than the margin
        ([-0.02, -0.015], True, False),
        ([-0.009, 0.02], False, False),
        (None, True, False),
    ],
)
def test_a_cheaper_model_is_taken_if_its_whole_interval_is_above_the_margin(
    gain: Any, cheaper: bool, taken: bool
) -> None:
    assert is_cheaper({"gain": gain, "cheaper": cheaper}, 0.01) is taken


BETTER = {"gain": [0.01, 0.03], "better": "fedprox-seed0", "cheaper": False}
SMALL = {"gain": [0.001, 0.003], "better": None, "cheaper": False}
UNSURE = {"gain": [-0.005, 0.03], "better": None, "cheaper": True}


@pytest.mark.parametrize(
    ("against", "prefer", "passed", "reason"),
    [
        ({"why_not": "no rows"}, "better", False, "there is no interval: no rows"),
        ({"why_not": "no rows"}, "cheaper", False, "there is no interval: no rows"),
        (BETTER, "better", True, "its interval is above zero"),
        (BETTER, "cheaper", True, "its interval is above zero"),
        (SMALL, "better", False, "its gain is certain, but smaller than what matters"),
        (SMALL, "cheaper", False, "it is neither better, nor cheaper and not worse by more than 0.01"),
        (UNSURE, "better", False, "its interval is not above zero"),
        (UNSURE, "cheaper", True, "it sent fewer bytes, and is not worse by more than 0.01"),
    ],
)
def test_a_challenger_is_promoted_if_it_is_better_or_where_that_is_preferred_if_it_is_cheaper(
    against: Any, prefer: Any, passed: bool, reason: str
) -> None:
    assert _verdict(against, WatchParams(prefer=prefer, margin=0.01)) == (passed, reason)


@pytest.mark.parametrize(("scores", "gains", "best"), [((0.7, 0.9), (None, None), 1), ((0.7, 0.9), (0.02, 0.01), 0)])
def test_the_best_candidate_gains_most_over_the_champion_or_has_the_best_score_while_there_is_none(
    scores: Any, gains: Any, best: int
) -> None:
    merits = [
        _merit({"against": gain and {"gain": [gain - 0.1 * place, gain + 0.1 * place]}}, score)
        for place, (score, gain) in enumerate(zip(scores, gains, strict=True))
    ]
    assert max(merits) is merits[best]
    if gains[0] is not None:
        assert max(_merit({"against": {"why_not": "no rows"}}, 1.0), *merits) is merits[best]


def test_the_tags_of_a_version_hold_its_interval_against_the_champion_or_why_there_is_none() -> None:
    champion = ModelVersion("7", "r", "")
    against = {"sentence": "fedprox − fedavg", "difference": 0.0123456789, "low": -0.01, "high": 0.03, "gain": [0, 1]}
    assert _interval_tags(champion, against) == {
        **{"champion": "7", "against_champion": "fedprox − fedavg"},
        **{"difference": "0.0123457", "low": "-0.01", "high": "0.03"},
    }
    tags = {"champion": "7", "against_champion": "no interval: they share no test rows"}
    assert _interval_tags(champion, {"why_not": "they share no test rows"}) == tags


def test_the_run_of_a_method_is_chosen_on_validation_rows(tmp_path: Path) -> None:
    scores = {0: (0.9, 0.6), 1: (0.7, 0.8), 2: (0.8, 0.8)}  # on test rows, and on validation rows
    results = []
    for seed, (test, validation) in scores.items():
        folder = f"runs/first/fedavg-seed{seed}"
        metrics = {
            "accuracy/mean": test,
            "validation/accuracy/mean": validation,
            "validation/loss/mean": 0.1 * (seed + 1),
        }
        write_json(tmp_path / folder / "journal" / "000003.json", {"round": 3, "metrics": metrics})
        results.append({"seed": seed, "folder": folder, "reported_round": 3, "metrics": metrics})
    project: Any = SimpleNamespace(root=tmp_path, quantity=METRICS_BY_NAME["accuracy"])
    assert _choose(project, results)["seed"] == 1  # of equal ones that with the least loss
    for result in results:  # without validation rows the first seed, whatever its test rows say
        path = tmp_path / result["folder"] / "journal" / "000003.json"
        write_json(path, {"round": 3, "metrics": {"accuracy/mean": result["seed"]}})
    assert _choose(project, results)["seed"] == 0
