"""UEFL as typed: a run that says what happened, a table of the paper beside it, and data that are not there."""

import json

import pytest

SMALL = [
    *("--set", "data.scheme.0.clients=4"),
    *("--set", "model={kind: mlp, hidden: [16], dropout: 0.2}"),
    *("--set", "training.epochs=1"),
    *("--set", "training.rounds=3"),
]


@pytest.fixture
def siloflow(command):
    return command


def test_a_run_says_whom_it_gave_words_and_why_and_tells_how_sure_it_is(tmp_path, typed):
    options = "method.uefl={arm: paper, words: 8, first_rounds: 1, more_rounds: 1, tolerance: -1, stages: 3}"
    found = typed("run", "uefl", *SMALL, "--set", options, "--json")
    assert "clients are given words" or found
