"""What the comparison of a model says against making it the first champion."""

from typing import Any

import pytest

from flows.results.registry.champion_evidence import proved_better, quote, way_out


def pair(method: str, better: str | None, reference: str = "fedavg") -> dict[str, Any]:
    return {
        "method": method,
        "reference": reference,
        "better": better,
        "distinguishable": better is not None,
        "sentence": f"{method} − {reference}: {better}",
    }


def gain(mean: float, distinguishable: bool) -> dict[str, Any]:
    return {"mean": mean, "distinguishable": distinguishable, "sentence": f"gains {mean}."}


RECORD = {
    "experiment": "first",
    "paired": [
        pair("local_only", None),
        pair("ifca", "ifca"),
        pair("pooled", "pooled"),
        pair("cfl", "fedavg"),
        pair("ditto", None),
    ],
    "baseline": {
        "sentence": "",
        "paired": [
            {"method": "fedavg", "better": "fedavg", "sentence": "fedavg − always"},
            {"method": "cfl", "better": "always 3", "sentence": "cfl − always 3: always 3 is better"},
            {"method": "ditto", "better": None, "sentence": "ditto − always 3: not distinguishable"},
        ],
    },
    "gains": {"methods": {"ifca": gain(-0.1, False), "cfl": gain(-0.2, True), "ditto": gain(0.1, True)}},
    "registry": {"candidates": [{"method": "fedavg"}, {"method": "ifca"}, {"method": "cfl"}]},
}


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("fedavg", ["ifca − fedavg: ifca"]),  # pooled is no candidate
        ("ifca", []),
        ("cfl", ["gains -0.2", "cfl − always 3: always 3 is better", "cfl − fedavg: fedavg"]),
        ("ditto", []),
    ],
)
def test_training_alone_the_constant_answer_and_other_candidates_speak_against_a_model_if_proved_better(
    method: str, said: list[str]
) -> None:
    assert proved_better(RECORD, method) == said


@pytest.mark.parametrize(
    ("method", "typed"),
    [
        ("fedavg", "siloflow promote 2"),
        ("cfl", "siloflow promote 1"),
        ("ditto", ""),
    ],
)
def test_the_way_out_of_a_refusal_is_to_promote_the_candidate_that_is_better(method: str, typed: str) -> None:
    """By its version: a run of the same name may be in several comparisons."""
    found = [
        {"method": name, "run": f"{name}-seed0", "version": at} for at, name in enumerate(("fedavg", "ifca", "cfl"), 1)
    ]
    assert way_out({**RECORD, "registry": {"candidates": found}}, method, lambda name: name != "pooled") == typed


def test_the_way_out_where_training_alone_or_a_personal_model_is_better_is_to_log_personal_models() -> None:
    typed = "siloflow compare {} --set tracking.personal_models=true, then siloflow promote"
    record = {**RECORD, "registry": {"candidates": []}}
    assert way_out(record, "fedavg", lambda name: name != "pooled") == typed.format("ifca")
    record = {**record, "paired": [], "gains": {"methods": {"fedavg": gain(-0.2, True)}}}
    assert way_out(record, "fedavg", lambda _: True) == typed.format("local_only")


def test_a_comparison_of_an_earlier_version_speaks_by_its_pairs_alone() -> None:
    record = {"experiment": "first", "paired": [pair("local_only", "local_only")]}
    assert proved_better(record, "fedavg") == ["local_only − fedavg: local_only"]
    assert proved_better(record, "local_only") == []


@pytest.mark.parametrize(("matters", "said"), [(0.2, ["gains -0.2"]), (0.21, [])])
def test_a_loss_against_training_alone_speaks_against_a_model_if_it_matters(matters: float, said: list[str]) -> None:
    pairs = [{**pair("cfl", None), "matters": matters}]
    assert proved_better({"paired": pairs, "gains": RECORD["gains"]}, "cfl") == said


def test_faults_that_were_open_are_quoted() -> None:
    assert quote({**RECORD, "open_faults": ["unit of crp"]}, "ditto")["open_faults"] == ["unit of crp"]


def test_at_most_three_sentences_are_quoted_certain_ones_first() -> None:
    assert quote(RECORD, "fedavg") == {
        "experiment": "first",
        "open_faults": [],
        "sentences": ["ifca − fedavg: ifca", "pooled − fedavg: pooled", "cfl − fedavg: fedavg"],
        "omitted": 2,
    }
    assert quote(RECORD, "ditto")["sentences"] == ["ditto − fedavg: None"]
    useless = {**RECORD, "baseline": {"sentence": "No method is certainly better than always predicting 3."}}
    assert quote(useless, "ditto")["sentences"] == [useless["baseline"]["sentence"], "ditto − fedavg: None"]
