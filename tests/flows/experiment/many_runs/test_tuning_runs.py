"""What one run of a comparison may end, and what it may not."""

import pytest

from flows.experiment.many_runs import tuning_runs
from silos.errors import DivergedError, UserError


def ended_by(error, monkeypatch):
    def run(*_, **__):
        raise error

    monkeypatch.setattr(tuning_runs, "run", run)
    return tuning_runs.attempt("uefl", 0, [], "compare")


def test_a_run_that_diverged_leaves_the_others_going_on(monkeypatch):
    assert ended_by(DivergedError("no finite numbers"), monkeypatch) == "no finite numbers"


def test_what_would_end_every_run_is_raised(monkeypatch):
    with pytest.raises(UserError, match="a full disk"):
        ended_by(UserError("a full disk"), monkeypatch)
